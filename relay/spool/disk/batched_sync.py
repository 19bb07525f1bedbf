"""Syncing the files of one batch so that they wait for the disk together: in threads.

Guarantees: each file is synced once, whatever becomes of the others, and has its own result; a failed
sync is never retried.  Does not: decide whether a sync is fsync or fdatasync.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from relay.spool.disk.threads import started

SYNCS_AT_ONCE = 8
"""The kernel merges the flushes of what waits together."""


class BatchedSync:
    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def sync(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        """Sync each descriptor, fsync or fdatasync; return one result each, in their order."""
        sync = os.fdatasync if content_only else os.fsync
        if len(fds) > 1 and (pool := self._threads()) is not None:
            return list(pool.map(lambda fd: _error_of(sync, fd), fds))
        return [_error_of(sync, fd) for fd in fds]

    def _threads(self) -> ThreadPoolExecutor | None:
        """Return our threads, started when first needed; None where the kernel gives none."""
        if self._pool is None:
            with contextlib.suppress(RuntimeError):
                self._pool = started(SYNCS_AT_ONCE, "sync")
        return self._pool


def _error_of(sync: Callable[[int], None], fd: int) -> OSError | None:
    try:
        sync(fd)
    except OSError as error:
        return error
    return None
