"""Tells drafts, notes and ledgers of ours, torn by any crash, from what others put in their places.

See `relay.spool.foreign`.  In tmp/ a file of others is taken for ours where it begins with as many zeros
as a header has.
"""

import re

from relay.mail.envelope import QueueId
from relay.spool.durable import SECTOR_BYTES, Disk
from relay.spool.interface import Corrupt
from relay.spool.maildir import message_file

_NOTES_BEGIN = b'{"index":'
_LINE = re.compile(rb"[^\0\n]+")
_LEDGER_BEGINS = b"total "
_READ_BYTES = 1024 * 1024
"""A multiple of SECTOR_BYTES."""


def is_draft(disk: Disk, fd: int, queue_id: QueueId) -> bool:
    """Return whether a listener of ours may have written an open file in tmp/, torn by any crash.

    Its header is all zero until the message is whole; content behind that may be anything.
    Where there is a header, the rest is that message, or zeros that keep the place of what
    never reached the disk, or not there.  Raises OSError.
    """
    start = disk.pread(fd, message_file.HEADER_BYTES, 0)
    if message_file.is_begun(start):
        return True
    try:
        header = message_file.decode_header(start)
    except Corrupt:
        return False
    if (size := disk.size(fd)) != header.file_bytes:
        return size < header.file_bytes
    try:
        raw = disk.pread(fd, header.envelope_bytes, header.envelope_offset)
        message_file.decode_envelope(queue_id, header, raw)
    except message_file.AnotherMessage:
        return False
    except Corrupt:
        return _has_lost_sectors(disk, fd)
    crc = 0
    for offset in range(message_file.HEADER_BYTES, header.envelope_offset, _READ_BYTES):
        size = min(_READ_BYTES, header.envelope_offset - offset)
        crc = message_file.checksum(disk.pread(fd, size, offset), crc)
    return crc == header.content_crc or _has_lost_sectors(disk, fd)


def _has_lost_sectors(disk: Disk, fd: int) -> bool:
    """Return whether zeros stand where a sector, or what one write brought into it, begins or ends."""
    edges = disk.pread(fd, 1, message_file.HEADER_BYTES) + disk.pread(fd, 1, disk.size(fd) - 1)
    for offset in range(0, disk.size(fd), _READ_BYTES):
        chunk = disk.pread(fd, _READ_BYTES, offset)
        edges += chunk[::SECTOR_BYTES] + chunk[SECTOR_BYTES - 1 :: SECTOR_BYTES]
    return b"\0" in edges


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
