"""Small files that are replaced whole.

Guarantees: after a crash it is the old one or the new.  Assumes one writer at a time.
"""

import os

from relay.spool.durable import Disk, opened


def replace_file(disk: Disk, path: str, content: bytes) -> None:
    """Put a small file in the place of another, durably: after a crash it is the old one or the new.

    Raises OSError; then either may be there.  One writer at a time.
    """
    new_path = f"{path}.new"
    disk.make_directory(os.path.dirname(path) or ".")
    if disk.inode(new_path) is not None:
        # One that died before its rename left it.
        disk.unlink(new_path)
    with opened(disk, disk.open_new(new_path)) as fd:
        disk.write_all(fd, content)
        disk.sync(fd)
    # Crash here: the old file is in force.
    disk.rename(new_path, path)
    disk.sync_directory(os.path.dirname(path) or ".")
