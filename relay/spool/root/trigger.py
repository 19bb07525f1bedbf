"""How a listener wakes the sender: it writes one byte into a FIFO in the spool.

Guarantees nothing, on purpose: a pull may be lost.  The sender looks for new mail every few seconds anyway,
so a lost pull costs seconds, never a message (qmail's lock/trigger).
"""

import contextlib
import os
from typing import Protocol

from relay.spool.disk.durable import Disk


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
        disk.make_fifo(self._path)
        self._fd: int | None = None

    def pull(self) -> None:
        # EAGAIN: the pipe is full of earlier pulls, and one is enough.
        with contextlib.suppress(OSError):
            os.write(self.listen(), b"!")

    def listen(self) -> int:
        if self._fd is None:
            # O_RDWR (Linux, fifo(7)): never at end of file, and open even if nobody listens.
            self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        return self._fd

    def clear(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(BlockingIOError):
                while len(os.read(self._fd, 65536)) == 65536:
                    pass

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
