"""Syncs that are handed to the kernel many at a time (io_submit(2), by caio), to do beside each other.

One commit of the file system's log and one flush of the disk serve all of them, without a
thread of ours for each.  Guarantees: each file is synced by an fsync or fdatasync of its
own, and its result is what that said; one whose end is not known has failed.  What the
kernel does not take is left to the caller.  From any thread.
Assumes: Linux 4.18.  Does not: repeat a sync, or know how to do without the kernel's help.
"""

import errno
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caio.abstract import AbstractOperation
    from caio.linux_aio import Context, Operation

ROOM = 256
"""Syncs of one thread that the kernel takes at once; fs.aio-max-nr has 65,536 for all programs."""
_NOT_TAKEN = (OSError, OverflowError, SystemError, ValueError)
"""What caio raises where the kernel takes nothing: EAGAIN, EBADF and EINVAL have types of their own."""
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}


class KernelAio:
    """The kernel's queues for syncs, one for each thread that has some."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def hand_over(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        """Have files synced, fsync or fdatasync; return results for as many as were taken, the first ones."""
        results: list[OSError | None] = []
        if (queue := self._queue()) is None:
            return results
        context, operation = queue
        make = operation.fdsync if content_only else operation.fsync
        syncs = [make(fd) for fd in fds]
        while len(results) < len(syncs):
            left = syncs[len(results) :]
            try:
                taken = context.submit(*left)
            except _NOT_TAKEN:
                break
            is_told = False
            try:
                is_told = _wait(context, taken)
            finally:
                if not is_told:
                    # What was not told of yet, the next batch would take for its own.
                    del self._of_thread.queue
            results += map(_error_of, left[:taken])
            if not is_told:
                break
        return results

    def _queue(self) -> "tuple[Context, type[Operation]] | None":
        """Return this thread's queue, and what it takes; None where there is none to be had."""
        if not hasattr(self._of_thread, "queue"):
            self._of_thread.queue = _open()
        queue: tuple[Context, type[Operation]] | None = self._of_thread.queue
        return queue


def _open() -> "tuple[Context, type[Operation]] | None":
    try:
        from caio.linux_aio import Context, Operation  # noqa: PLC0415 - slow, and not for who only looks

        return Context(ROOM), Operation
    except (ImportError, OSError, SystemError):
        return None  # not built for this platform, not permitted here, or others use all there are


def _wait(context: "Context", count: int) -> bool:
    """Wait until so many syncs have ended; False if the kernel does not tell of one: it has no value then."""
    while count > 0:
        try:
            count -= context.process_events(count, count, -1)
        except SystemError as error:
            # A signal came.  None was counted, and all go on.
            if error.args[0] != errno.EINTR:
                return False
    return True


def _error_of(sync: "AbstractOperation") -> OSError | None:
    try:
        sync.get_value()
    except SystemError as error:
        # It has the text of the error, and not its number.
        number = _NUMBERS.get(str(error), errno.EIO)
    except RuntimeError:
        number = errno.EIO  # its end was not told
    else:
        return None
    return OSError(number, os.strerror(number))
