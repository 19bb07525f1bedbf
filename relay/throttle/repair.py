"""What an operator can do about a history that cannot be used.  Pure."""

import errno

ANEW = (
    "stop, wait for the longest period of the account's limits, move the file and its .lock away, start; "
    "not waiting is how the upstream sees too many"
)
"""For one that cannot be trusted."""

_OWN = "give it, its .lock and its folder to the relay's user (chown; chmod 600, and 700 for the folder)"
_ROOM = "make room on its disk"
_IN_THE_WAY = "see what is in its place or in that of its .lock, and move that away"
_DESCRIPTORS = "let the relay open more files (ulimit -n)"
_REMEDIES = {
    errno.EROFS: "mount its file system for writing",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EACCES: _OWN,
    errno.EPERM: _OWN,
    errno.EISDIR: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.ELOOP: _IN_THE_WAY,
    errno.ENXIO: _IN_THE_WAY,
    errno.ESPIPE: _IN_THE_WAY,
    errno.EINVAL: _IN_THE_WAY,
    errno.EMFILE: _DESCRIPTORS,
    errno.ENFILE: _DESCRIPTORS,
}


def told(error: OSError) -> str:
    """Return what an error of the disk says, and what to do about it."""
    remedy = _REMEDIES.get(error.errno or 0, "see to its disk (the kernel's log says more)")
    return f"{error.strerror or error}. To repair: {remedy}; then it goes on by itself"
