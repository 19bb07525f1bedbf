"""A record that is kept over a restart: the last one given is the one that is written."""

import asyncio
import errno
import threading
from pathlib import Path

from relay.sender.state_file import KeptFile
from relay.spool.disk.durable import RealDisk
from relay.spool.kept_format import KeptFormat


class FailsHeld(RealDisk):
    """A disk whose first sync waits to be let go, and fails."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held, self.goes_on = threading.Event(), threading.Event()

    def sync(self, fd: int) -> None:
        if not self.is_held.is_set():
            self.is_held.set()
            self.goes_on.wait()
            raise OSError(errno.ENOSPC, "No space left on device")
        super().sync(fd)


async def test_a_record_given_while_another_fails_to_be_written_is_written(tmp_path: Path) -> None:
    disk, told = FailsHeld(), list[str]()
    kept = KeptFile(tmp_path / "isp.pause", disk, KeptFormat(str, "words", lambda _: ""), told.append)
    kept.keep("paused")
    await asyncio.to_thread(disk.is_held.wait)
    kept.keep("stopped")
    disk.goes_on.set()
    await kept.close()

    assert await kept.read() == "stopped"
    assert len(told) == 1
