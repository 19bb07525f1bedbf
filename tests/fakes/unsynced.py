"""Real disks of a host that never loses power: nothing is synced; for tests."""

from collections.abc import Callable, Sequence
from pathlib import Path

from relay.spool.disk.durable import RealDisk


class Unsynced(RealDisk):
    """A disk on which a sync costs nothing."""

    def sync(self, fd: int) -> None:
        pass

    def sync_content(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass

    def sync_all(self, path: str) -> None:
        pass

    def sync_each(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:  # noqa: ARG002 - the port's
        return [None] * len(fds)


class BeforeSync(Unsynced):
    """Calls the hook with the path of the file that is about to be synced, in whose thread that is done."""

    def __init__(self, before_sync: Callable[[str], None]) -> None:
        super().__init__()
        self._before_sync = before_sync

    def sync_content(self, fd: int) -> None:
        self._before_sync(str(Path(f"/proc/self/fd/{fd}").readlink()))
