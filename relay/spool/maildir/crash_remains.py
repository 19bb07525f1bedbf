"""Tells notes and ledgers of ours, torn by any crash, from what others put in their places.

See `relay.spool.root.foreign`.
"""

import re

from relay.spool.disk.durable import SECTOR_BYTES, Disk

_NOTES_BEGIN = b'{"index":'
_LINE = re.compile(rb"[^\0\n]+")
_LEDGER_BEGINS = b"total "


def is_notes(disk: Disk, fd: int) -> bool:
    """Return whether an open file in bounce/ begins as notes of ours do, torn or not.  Raises OSError."""
    start = disk.pread(fd, SECTOR_BYTES, 0).lstrip(b"\0\n")
    return start.startswith(_NOTES_BEGIN) or is_notes_only(disk, fd)


def is_notes_only(disk: Disk, fd: int) -> bool:
    """Return whether an open file holds notes and what a crash leaves of some, so nothing of others.

    What is left of a line is its front, or what stands behind sectors that never reached
    the disk.  Raises OSError.
    """
    content = disk.pread(fd, disk.size(fd), 0)
    for line in _LINE.finditer(content):
        start = line.start()
        is_front = _NOTES_BEGIN.startswith(line[0][: len(_NOTES_BEGIN)])
        is_behind_a_hole = start % SECTOR_BYTES == 0 and content[start - 1 : start] == b"\0"
        if not (is_front or is_behind_a_hole):
            return False
    return True


def is_draft_of_the_ledger(disk: Disk, fd: int) -> bool:
    """Return whether an open file begins as a ledger does, torn by any crash.  Raises OSError."""
    front = disk.pread(fd, SECTOR_BYTES, 0).rstrip(b"\0")
    return _LEDGER_BEGINS.startswith(front[: len(_LEDGER_BEGINS)])


def is_anything(_disk: Disk, _fd: int) -> bool:
    return True


REWRITES = {"ledger.new": is_draft_of_the_ledger, "notes.new": is_notes_only}
"""Files beside the folders that a rewrite leaves when it dies."""
NEEDED = {"ledger": is_anything, **REWRITES}
"""A start must be able to read and replace them."""
