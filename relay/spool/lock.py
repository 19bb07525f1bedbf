"""The lock of the one sender: whoever holds it may send, and change what is queued.

Guarantees: a dying process gives it back (flock).  Whoever finds it taken is told the holder's process.
"""

import contextlib
import os
from typing import cast

from relay.spool.durable import Disk, opened
from relay.spool.interface import SpoolBusy


def take_lock(root: str, disk: Disk) -> int:
    """Return the lock's descriptor.  Raises SpoolBusy, naming the holder."""
    # Another file's lock, for no longer than this takes: who finds the spool taken finds whose it is too.
    # Waiting, it never comes back without one.
    naming = cast("int", disk.lock(f"{root}/format", wait=True))
    with opened(disk, naming):
        return _take_named_lock(root, disk)


def _take_named_lock(root: str, disk: Disk) -> int:
    path = f"{root}/lock"
    fd = disk.lock(path, wait=False)
    if fd is None:
        holder = ""
        # The lock is what counts; who wrote what into the file is for people.
        with contextlib.suppress(OSError), opened(disk, disk.open_read(path)) as reader:
            text = disk.pread(reader, 32, 0).decode("ascii", "replace").strip()
            holder = text if text.isdecimal() else ""
        raise SpoolBusy(f"{root} is held by process {holder or 'unknown'}")
    # A full disk must not keep the sender from emptying the spool.
    with contextlib.suppress(OSError):
        disk.truncate(fd, 0)
        disk.write_all(fd, b"%d\n" % os.getpid())
    return fd
