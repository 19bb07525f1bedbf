"""The syncs of a batch's files, handed to the kernel together (io_submit(2), by caio).

They share one commit of the file system's log and one flush of the disk, and no thread of ours wakes for
them: against eight threads of ours, a maildir takes a fifth more mail.

Guarantees: each file has an fsync or fdatasync of its own, and its own result; one whose end is not known has
failed.  What the kernel does not take is left to the caller.  Any thread may call.  Assumes: Linux 4.18.
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
"""Of one thread; all programs of a host have 65,536 (fs.aio-max-nr)."""
_NOT_TAKEN = (OSError, OverflowError, SystemError, ValueError)
"""What caio raises where the kernel takes nothing: EAGAIN, EBADF and EINVAL have types of their own."""
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}
"""Of errors, by what caio tells of them: it keeps no number."""


class KernelSyncs:
    def __init__(self, open_context: "Callable[[], Context | None] | None" = None) -> None:
        """`open_context` makes the queue of a thread; None: the kernel's own."""
        self._open = open_context or _opened
        self._of_thread = threading.local()

    def sync(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        """Return results of the first files, as many as the kernel took."""
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
                # What was not told of yet, the next batch would take for its own.
                self._of_thread.context = None
            results += map(_error_told, syncs[:taken])
        return results

    def _context(self) -> "Context | None":
        """Return this thread's; None where there is none to be had."""
        if not hasattr(self._of_thread, "context"):
            self._of_thread.context = self._open()
        context: Context | None = self._of_thread.context
        return context


def _opened() -> "Context | None":
    try:
        from caio.linux_aio import Context  # noqa: PLC0415 - slow, and not for who only looks

        return Context(MOST_AT_ONCE)
    except (ImportError, OSError, SystemError):
        return None  # not built for this platform, not permitted here, or others use all there are


def _wait(context: "Context", count: int) -> bool:
    """Wait until so many syncs have ended; False where the kernel does not tell of one."""
    while count > 0:
        try:
            count -= context.process_events(count, count, -1)
        except SystemError as error:
            # A signal came: none was counted, and all go on.
            if error.args[0] != errno.EINTR:
                return False
    return True


def _error_told(sync: "AbstractOperation") -> OSError | None:
    try:
        sync.get_value()
    except SystemError as error:
        number = _NUMBERS.get(str(error), errno.EIO)
    except RuntimeError:
        number = errno.EIO  # its end was not told
    else:
        return None
    return OSError(number, os.strerror(number))
