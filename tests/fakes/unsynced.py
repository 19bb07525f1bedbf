"""A real disk that never syncs, for tests on a host that does not lose power."""

from collections.abc import Sequence

from relay.spool.disk.durable import RealDisk


class Unsynced(RealDisk):
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
