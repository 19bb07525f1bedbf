"""Replaces a file whole: writes the new file beside the old one, syncs it, renames it, syncs the folder.

Guarantees: once `put_in_place` returned, the new file is in force, also after loss of power.  A crash at any
instant before leaves the old file or the new one, whole, and perhaps the draft beside it.
Assumes: one writer of a path at a time.  Does not: create folders, except in `replace_file`.
"""

import contextlib
import os

from relay.spool.disk.durable import Disk, opened


class InDoubt(OSError):  # noqa: N818 - a state of the disk
    """The rename or a later step failed: either file may be in force, now and after a crash."""


def put_in_place(disk: Disk, path: str, content: bytes, *, draft: str | None = None) -> int:
    """Replace a file, or create it; return its open descriptor.

    `draft` is the path of the new file before its rename, by default PATH.new.
    Raises InDoubt if the rename or a later step fails, else OSError, and the old file is in force.
    On an error the draft is removed, if the disk allows it.
    """
    draft = draft or f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        # A writer that died before its rename left this.
        disk.unlink(draft)
    fd, is_written = disk.open_new(draft), False
    try:
        disk.write_all(fd, content)
        disk.sync(fd)
        is_written = True
        # Crash here: the old file is in force.
        disk.rename(draft, path)
        # Crash here: either file may be in force, even if a process has read the new one.
        disk.sync_directory(os.path.dirname(path) or ".")
    except OSError as error:
        disk.close(fd)
        with contextlib.suppress(OSError):
            # On a full disk, half a file would only take room.
            disk.unlink(draft)
        if is_written:
            raise InDoubt(error.errno, error.strerror, error.filename) from error
        raise
    return fd


def replace_file(disk: Disk, path: str, content: bytes) -> None:
    """Replace a file, or create it and its folder.  Raises OSError."""
    disk.make_directory(os.path.dirname(path) or ".")
    with opened(disk, put_in_place(disk, path, content)):
        pass
