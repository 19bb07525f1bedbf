"""A real disk that never syncs, for tests on a host that does not lose power."""

from collections.abc import Callable, Sequence

from relay.spool.disk.durable import RealDisk


class Unsynced(RealDisk):
    """Calls `before` with the name of some calls and their path: it may wait, raise, or move a clock."""

    def __init__(self, before: Callable[[str, str], None] = lambda _call, _path: None) -> None:
        super().__init__()
        self._before = before

    def names(self, path: str) -> list[str]:
        self._before("names", path)
        return super().names(path)

    def open_read(self, path: str) -> int:
        self._before("open_read", path)
        return super().open_read(path)

    def open_update(self, path: str) -> int:
        self._before("open_update", path)
        return super().open_update(path)

    def write_all(self, fd: int, content: bytes) -> None:
        self._before("write_all", f"/proc/self/fd/{fd}")
        super().write_all(fd, content)

    def rename(self, source: str, target: str) -> None:
        self._before("rename", target)
        super().rename(source, target)

    def lock(self, path: str, *, wait: bool, is_shared: bool = False) -> int | None:
        self._before("lock", path)
        return super().lock(path, wait=wait, is_shared=is_shared)

    def sync(self, fd: int) -> None:
        pass

    def sync_content(self, fd: int) -> None:
        self._before("sync_content", f"/proc/self/fd/{fd}")

    def sync_directory(self, path: str) -> None:
        pass

    def sync_all(self, path: str) -> None:
        pass

    def sync_each(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:  # noqa: ARG002 - the port's
        self._before("sync_each", "")
        return [None] * len(fds)
