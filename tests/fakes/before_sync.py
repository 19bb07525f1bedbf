"""A real disk with a hook before each sync of content; for tests."""

from collections.abc import Callable
from pathlib import Path

from relay.spool.disk.durable import RealDisk


class BeforeSync(RealDisk):
    """Calls the hook with the path of the file that is about to be synced, in whose thread that is done."""

    def __init__(self, before_sync: Callable[[str], None]) -> None:
        super().__init__()
        self._before_sync = before_sync

    def sync_content(self, fd: int) -> None:
        self._before_sync(str(Path(f"/proc/self/fd/{fd}").readlink()))
        super().sync_content(fd)
