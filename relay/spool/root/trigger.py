"""How a listener wakes the sender: it writes one byte into a FIFO in the spool.

Guarantees nothing, on purpose: a pull is lost if no sender listens or the pipe is full.  The sender looks for
new mail every few seconds anyway, so a lost pull costs seconds, never a message (qmail's lock/trigger).
"""

import contextlib
import os
from typing import Protocol

from relay.spool.disk.durable import Disk, opened

_FLAGS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class TriggerPort(Protocol):
    def pull(self) -> None:
        """Wake the sender if there is one.  Never blocks, never raises."""

    def listen(self) -> int:
        """Return a descriptor that becomes readable after a pull.  Raises OSError."""

    def clear(self) -> None:
        """Forget all pulls so far.  The caller looks for new mail afterwards."""

    def close(self) -> None: ...


class Trigger:
    def __init__(self, root: str, disk: Disk) -> None:
        self._path = f"{root}/trigger"
        self._disk = disk
        disk.make_fifo(self._path)
        self._read_fd: int | None = None

    def pull(self) -> None:
        # ENXIO: no sender listens; it looks for new mail when it starts.
        # EAGAIN: the pipe is full of earlier pulls, and one is enough.
        with (
            contextlib.suppress(OSError),
            opened(self._disk, os.open(self._path, os.O_WRONLY | _FLAGS)) as fd,
        ):
            os.write(fd, b"!")

    def listen(self) -> int:
        if self._read_fd is None:
            # O_RDWR (Linux, fifo(7)): never at end of file, however many writers come and go.
            self._read_fd = os.open(self._path, os.O_RDWR | _FLAGS)
        return self._read_fd

    def clear(self) -> None:
        if self._read_fd is not None:
            with contextlib.suppress(BlockingIOError):
                while len(os.read(self._read_fd, 65536)) == 65536:
                    pass

    def close(self) -> None:
        if self._read_fd is not None:
            os.close(self._read_fd)
            self._read_fd = None
