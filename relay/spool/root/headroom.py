"""How much room new mail must leave free on the disk.

A listener writes nothing that would leave less than HEADROOM_BYTES free, so mail alone never fills the disk.
The headroom is for what must be written about accepted mail: marks, notes, reports, the history.
If another program fills the disk, relaying continues as long as the history finds room: a maildir's marks
need none, and each message that ends frees some.
"""

import errno

HEADROOM_BYTES = 16 * 1024 * 1024
HEADROOM_INODES = 64


def room(free: tuple[int, int | None]) -> int:
    """Return how many bytes new mail may take, given free bytes and inodes; 0 if too few are free."""
    return 0 if why_no_room(free) is not None else free[0] - HEADROOM_BYTES


def why_no_room(free: tuple[int, int | None], wanted_bytes: int = 0) -> str | None:
    """Return why no new message of `wanted_bytes` may be stored, or None.  `free` is bytes and inodes."""
    free_bytes, free_inodes = free
    if free_bytes <= wanted_bytes + HEADROOM_BYTES:
        return f"no room on the disk: {max(0, free_bytes)} bytes free, {HEADROOM_BYTES} reserved"
    if free_inodes is not None and free_inodes < HEADROOM_INODES:
        return f"no room on the disk: {free_inodes} inodes free, {HEADROOM_INODES} reserved"
    return None


def leave_headroom(free: tuple[int, int | None], wanted_bytes: int) -> None:
    """Raise OSError (ENOSPC) if a new message of `wanted_bytes` would use the headroom."""
    if (why := why_no_room(free, wanted_bytes)) is not None:
        raise OSError(errno.ENOSPC, why)
