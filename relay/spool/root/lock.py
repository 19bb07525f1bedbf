"""The root of a spool, alike for every engine on a disk: its format, its folders, and the lock of its owner.

Guarantees: nothing is made in the spool of another engine.  Only the holder of the lock may send, and change
what is queued; a dying process gives it back (flock).  Whoever finds it taken is told the holder's process.
The folder is ours and nobody else may write in it, which is looked at once: what is in it is ours then.
"""

import contextlib
import os
from collections.abc import Sequence

from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import put_in_place
from relay.spool.interface import SpoolBusy


def format_of(root: str, disk: Disk) -> bytes | None:
    """Return what a spool's `format` says; None where there is no spool yet.  Raises OSError."""
    try:
        fd = disk.open_read(f"{root}/format")
    except FileNotFoundError:
        return None
    with opened(disk, fd):
        return disk.pread(fd, 256, 0)


def prepare_root(root: str, disk: Disk, form: bytes, folders: Sequence[str]) -> None:
    """Create a spool's folders, the outer ones first, and then its `format`.

    Raises OSError, and ValueError for a spool of another format or version, or a folder that others write in.
    """
    # Before any folder: none of ours is made in the spool of another engine.
    found = _own_format(root, disk, form)
    for folder in (root, *folders):
        disk.make_directory(folder)
    if (why := disk.why_not_ours(root)) is not None:
        raise ValueError(f"{root} {why}")
    if found is None:
        # Several may start at once: each writes its own file, and whose name comes last does not matter.
        # Crash here: folders without a format, or a file more that nobody looks at.
        path = f"{root}/format"
        with opened(disk, put_in_place(disk, path, form, draft=f"{path}.{os.getpid()}")):
            pass


def take_lock(root: str, disk: Disk, form: bytes) -> int:
    """Become the owner of a spool that was prepared; return the lock's descriptor.

    Raises OSError, SpoolBusy, which says who has it, and ValueError for a spool of another format.
    """
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
    return _still(root, disk, form, fd)


def as_intake(root: str, disk: Disk, form: bytes) -> int:
    """Keep conversions away for as long as the descriptor is open.

    Raises OSError, SpoolBusy, and ValueError for a spool of another format.
    """
    fd = disk.lock(f"{root}/intakes", wait=False, is_shared=True)
    if fd is None:
        raise SpoolBusy(f"{root} is being converted")
    return _still(root, disk, form, fd)


def without_intakes(root: str, disk: Disk) -> int:
    """Keep intakes away for as long as the descriptor is open.  Raises OSError and SpoolBusy."""
    fd = disk.lock(f"{root}/intakes", wait=False)
    if fd is None:
        raise SpoolBusy(f"a listener takes mail into {root}")
    return fd


def _still(root: str, disk: Disk, form: bytes, fd: int) -> int:
    """Return a lock in a spool of this format: a conversion may have ended just before it was taken.

    What killed processes wrote, and the folders that they made, may be in memory only: it would be taken for
    durable.
    """
    try:
        _own_format(root, disk, form)
        disk.sync_all(root)
    except BaseException:
        disk.close(fd)
        raise
    return fd


def _own_format(root: str, disk: Disk, form: bytes) -> bytes | None:
    """Return a spool's format, None where there is none yet.  Raises OSError, ValueError for another."""
    if (found := format_of(root, disk)) not in (None, form):
        raise ValueError(f"{root}/format says {found[:60]!r}, and not {form!r}: this engine does not know it")
    return found
