"""Syncs the files of a batch by one call of the kernel (io_submit(2), through caio).

The syncs share one commit of the file system's journal and one flush of the disk, and wake no thread of the
relay.  A maildir accepts a fifth more mail than with eight threads that sync.

Guarantees: each file has its own fsync or fdatasync, and its own result.  A sync whose result is unknown has
failed.  The caller syncs the files that the kernel does not take.  Any thread may call.  Assumes: Linux 4.18.
"""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caio.abstract import AbstractOperation
    from caio.linux_aio import Context

MOST_AT_ONCE = 256
"""Syncs of one thread; all programs of a host share 65,536 (fs.aio-max-nr)."""
_NOT_TAKEN = (OSError, OverflowError, SystemError, ValueError)
"""What caio raises if the kernel takes no sync; EAGAIN, EBADF and EINVAL each have their own type."""
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}
"""Error numbers by their text, since caio reports only the text."""


class KernelSyncs:
    def __init__(self, open_context: "Callable[[], Context | None] | None" = None) -> None:
        """`open_context` opens the AIO context of a thread; by default the kernel's."""
        self._open = open_context or _opened
        self._of_thread = threading.local()

    def sync(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        """Return the results of the first files, as many as the kernel took."""
        results: list[OSError | None] = []
        while len(results) < len(fds) and (context := self._context()) is not None:
            from caio.linux_aio import Operation  # noqa: PLC0415 - as below

            make = Operation.fdsync if content_only else Operation.fsync
            syncs = [make(fd) for fd in fds[len(results) : len(results) + MOST_AT_ONCE]]
            try:
                taken = context.submit(*syncs)
            except _NOT_TAKEN:
                break
            if not _wait(context, taken):
                # Drop the context: the next batch would take the results still to come for its own.
                self._of_thread.context = None
            results += map(_error_told, syncs[:taken])
        return results

    def _context(self) -> "Context | None":
        """Return the context of this thread, or None if none can be opened."""
        if not hasattr(self._of_thread, "context"):
            self._of_thread.context = self._open()
        context: Context | None = self._of_thread.context
        return context


def _opened() -> "Context | None":
    try:
        from caio.linux_aio import Context  # noqa: PLC0415 - slow, and commands that only read do not need it

        return Context(MOST_AT_ONCE)
    except (ImportError, OSError, SystemError):
        return None  # caio is not built for this platform, or AIO is forbidden or used up by other programs


def _wait(context: "Context", count: int) -> bool:
    """Wait until `count` syncs have ended; return False if the kernel does not report one."""
    while count > 0:
        try:
            count -= context.process_events(count, count, -1)
        except SystemError as error:
            # A signal interrupted the call: no sync was counted, and all continue.
            if error.args[0] != errno.EINTR:
                return False
    return True


def _error_told(sync: "AbstractOperation") -> OSError | None:
    try:
        sync.get_value()
    except SystemError as error:
        number = _NUMBERS.get(str(error), errno.EIO)
    except RuntimeError:
        number = errno.EIO  # its result never came
    else:
        return None
    return OSError(number, os.strerror(number))
