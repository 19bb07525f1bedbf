"""The root of a spool, the same for every engine: its `format`, its folders and its locks.

Guarantees: an engine creates nothing in the spool of another engine.  Only the holder of the lock may send,
or change the queue; the kernel releases the lock of a dead process (flock).  SpoolBusy names the holder.
`prepare_root` checks once that the root is ours and nobody else may write to it; its content is trusted then.
"""

import contextlib
import os
from collections.abc import Sequence

from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import put_in_place
from relay.spool.interface import SpoolBusy, WrongSpool


def format_of(root: str, disk: Disk) -> bytes | None:
    """Return the content of a spool's `format`, or None if there is no spool yet.  Raises OSError."""
    try:
        fd = disk.open_read(f"{root}/format")
    except FileNotFoundError:
        return None
    with opened(disk, fd):
        return disk.pread(fd, 256, 0)


def prepare_root(root: str, disk: Disk, form: bytes, folders: Sequence[str]) -> None:
    """Create a spool's folders, the outer ones first, and then its `format`.

    Raises OSError, and WrongSpool for another format or version, or if others may write to the root.
    """
    # Check this before creating a folder: the spool may be of another engine.
    found = _own_format(root, disk, form)
    for folder in (root, *folders):
        disk.make_directory(folder)
    if (why := disk.why_others_may_write(root)) is not None:
        raise WrongSpool(f"{root} {why}")
    if found is None:
        # Several processes may start at once.  Each writes its own draft; any of them may win the rename.
        # Crash here: folders without a format, or a leftover draft that nothing reads.
        path = f"{root}/format"
        with opened(disk, put_in_place(disk, path, form, draft=f"{path}.{os.getpid()}")):
            pass


def take_lock(root: str, disk: Disk, form: bytes) -> int:
    """Become the owner of a prepared spool; return the lock's descriptor.

    Raises OSError, SpoolBusy, which names the owner, and WrongSpool for a spool of another format.
    """
    path = f"{root}/lock"
    fd = disk.lock(path, wait=False)
    if fd is None:
        holder = "another process"
        # Only the flock counts; the text in the file is for people.
        with contextlib.suppress(OSError), opened(disk, disk.open_read(path)) as reader:
            text = disk.pread(reader, 32, 0).decode("ascii", "replace").strip()
            holder = f"process {text}" if text.isdecimal() else holder
        raise SpoolBusy(f"{holder} owns the queue in {root}")
    # On a full disk the sender must still be able to empty the spool.
    with contextlib.suppress(OSError):
        disk.truncate(fd, 0)
        disk.write_all(fd, b"%d\n" % os.getpid())
    return _verified(root, disk, form, fd)


def take_intake_lock(root: str, disk: Disk, form: bytes) -> int:
    """Keep conversions from starting until the returned descriptor is closed.

    Raises OSError, SpoolBusy, and WrongSpool for a spool of another format.
    """
    fd = disk.lock(f"{root}/intakes", wait=False, is_shared=True)
    if fd is None:
        raise SpoolBusy(f"{root} is being converted")
    return _verified(root, disk, form, fd)


def lock_out_intakes(root: str, disk: Disk) -> int:
    """Keep intakes from opening until the returned descriptor is closed.  Raises OSError, SpoolBusy."""
    fd = disk.lock(f"{root}/intakes", wait=False)
    if fd is None:
        raise SpoolBusy(f"a listener, `relay sendmail` or another conversion uses {root}: stop it first")
    return fd


def _verified(root: str, disk: Disk, form: bytes, fd: int) -> int:
    """Check the format again under the lock, because a conversion may just have ended; return the lock.

    Sync the file system: what killed processes wrote may be in memory only, and would count as durable.
    """
    try:
        _own_format(root, disk, form)
        disk.sync_all(root)
    except BaseException:
        disk.close(fd)
        raise
    return fd


def _own_format(root: str, disk: Disk, form: bytes) -> bytes | None:
    """Return a spool's format, or None without a spool.  Raises OSError, and WrongSpool for another."""
    if (found := format_of(root, disk)) not in (None, form):
        raise WrongSpool(f"{root}/format is {found[:60]!r}, but this engine needs {form!r}")
    return found
