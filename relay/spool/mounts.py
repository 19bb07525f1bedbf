"""Whether the file system that a folder is on keeps what it is told.

Does not: try it out; a list of kinds that promise nothing is all.
"""

import os

_UNFIT_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "tmpfs", "ramfs", "fuse.sshfs"})


def doubt_about(path: str) -> str | None:
    """Return why a folder may not keep what is stored in it, or None.

    Memory is not durable, and file systems of other hosts promise neither locks nor names.
    """
    best, kind = "", ""
    real = os.path.realpath(path)
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, mount_point, file_system, *_ = line.split(" ")
            point = mount_point.replace("\\040", " ")
            is_above = point in ("/", real) or real.startswith(point + "/")
            if is_above and len(point) >= len(best):
                best, kind = point, file_system
    return f"{best} is {kind}, which does not keep what it is told" if kind in _UNFIT_FILE_SYSTEMS else None
