"""Files that are replaced whole: write the new one, sync it, rename it, sync the folder.

Guarantees: after a crash the file is the old one or the new.  Assumes one writer at a time.
"""

import contextlib
import os
from collections.abc import Callable

from relay.spool.durable import Disk, opened


def _nothing() -> None:
    pass


def put_in_place(
    disk: Disk, new_path: str, path: str, content: bytes, before_rename: Callable[[], None] = _nothing
) -> int:
    """Write a new file, put it in the place of another, durably, and return it, open.

    `before_rename` is called when the new file is durable under its first name: from then on
    either file may be in force.  Raises OSError; then the new name is removed as far as possible.
    """
    fd = disk.open_new(new_path)
    try:
        disk.write_all(fd, content)
        disk.sync(fd)
        before_rename()
        # Crash here: the old file is in force, and the new name is a remnant.
        disk.rename(new_path, path)
        # Crash here: either file may be in force; a reader that relies on the new one syncs its name.
        disk.sync_directory(os.path.dirname(path) or ".")
    except OSError:
        disk.close(fd)
        with contextlib.suppress(OSError):
            disk.unlink(new_path)
        raise
    return fd


def replace_file(disk: Disk, path: str, content: bytes) -> None:
    """Replace a small file, durably; make its folder.  Raises OSError; then either may be there."""
    new_path = f"{path}.new"
    disk.make_directory(os.path.dirname(path) or ".")
    if disk.inode(new_path) is not None:
        # A writer that died before its rename left it.
        disk.unlink(new_path)
    with opened(disk, put_in_place(disk, new_path, path, content)):
        pass
