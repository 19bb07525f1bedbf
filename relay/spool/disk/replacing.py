"""Files that are replaced whole: written beside the old one, synced, renamed over it, the folder synced.

Guarantees, once `put_in_place` returned: the new file is in force, also after loss of power.  At any
instant before, a crash leaves the old file or the new one, whole, and perhaps the draft beside it.
Assumes: one writer of a path at a time.  Does not: make folders, but for `replace_file`.
"""

import contextlib
import os

from relay.spool.disk.durable import Disk, opened


class InDoubt(OSError):  # noqa: N818 - a state of the disk
    """From the rename on something failed: either file may be in force, now and after a crash."""


def put_in_place(disk: Disk, path: str, content: bytes, *, draft: str | None = None) -> int:
    """Put a file in the place of another, or where there was none; return its open descriptor.

    `draft` is where it is written, by default PATH.new.
    Raises OSError: up to the rename the old file is in force, and from there on it is InDoubt.
    No draft is left then, if the disk lets us remove it.
    """
    draft = draft or f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        # Of one that died before its rename.
        disk.unlink(draft)
    fd, is_written = disk.open_new(draft), False
    try:
        disk.write_all(fd, content)
        disk.sync(fd)
        is_written = True
        # Crash here: the old file is in force.
        disk.rename(draft, path)
        # Crash here: either may be in force, whatever was seen of the new one.
        disk.sync_directory(os.path.dirname(path) or ".")
    except OSError as error:
        disk.close(fd)
        with contextlib.suppress(OSError):
            # Where the disk is full, half a file only makes it fuller.
            disk.unlink(draft)
        if is_written:
            raise InDoubt(error.errno, error.strerror, error.filename) from error
        raise
    return fd


def replace_file(disk: Disk, path: str, content: bytes) -> None:
    """Make the folder where it is not there, and put a file in the place of another.  Raises OSError."""
    disk.make_directory(os.path.dirname(path) or ".")
    with opened(disk, put_in_place(disk, path, content)):
        pass
