"""One sender a spool: a lock that dies with its holder, and says who that is."""

import contextlib
import os

from relay.spool.durable import Disk, opened
from relay.spool.interface import SpoolBusy
from relay.spool.layout import Layout


def take_lock(layout: Layout, disk: Disk) -> int:
    """Return the descriptor that holds the spool's lock.  Raises SpoolBusy, naming the holder."""
    path = layout.file("lock")
    fd = disk.lock(path, wait=False)
    if fd is None:
        with opened(disk, disk.open_read(path)) as reader:
            holder = disk.pread(reader, 32, 0).decode("ascii", "replace").strip()
        raise SpoolBusy(f"{layout.root} is held by process {holder or 'unknown'}")
    # A full disk must not keep the sender from emptying the spool.
    with contextlib.suppress(OSError):
        disk.truncate(fd, 0)
        disk.write_all(fd, b"%d\n" % os.getpid())
    return fd
