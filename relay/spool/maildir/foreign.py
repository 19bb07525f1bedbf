"""Tells our own files, drafts, notes, ledger and the like, from what others put under their names.

A crash leaves of a file that was never synced its front, with zeros for each sector that did not
reach the disk, perhaps the first one too.  Whatever else is there we did not write, and nobody may
remove it.  A file of others that begins with zeros, as long as a header in tmp/ and as a sector
elsewhere, is taken for ours.
Does not: judge messages (`into_queue`); move or remove anything (`quarantine`, `recovery`).
"""

import errno
import re
from collections.abc import Callable

from relay.mail import age
from relay.mail.envelope import QueueId
from relay.spool.durable import SECTOR_BYTES, Disk, opened, why_a_strangers
from relay.spool.interface import Corrupt
from relay.spool.maildir import files, message_file
from relay.spool.maildir.headroom import is_reserve

LARGEST_BYTES = 256 * 1024 * 1024
"""No ledger and no notes of ours are a tenth of this; reading more would be a memory bomb."""
_NOTES_BEGIN = b'{"index":'
_LINE = re.compile(rb"[^\0\n]+")
_LEDGER_BEGINS = b"total "
_LARGEST_BOOTS_BYTES = 1024 * 1024
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


def is_boots(disk: Disk, fd: int) -> bool:
    """Return whether an open file is a record of the boots: whole, as it is replaced.  Raises OSError."""
    content = disk.pread(fd, _LARGEST_BOOTS_BYTES, 0)
    try:
        age.BOOTS_FORMAT.parse(content)
    except ValueError:
        return False
    return content.startswith(age.BEGINS)


def is_draft_of_the_boots(disk: Disk, fd: int) -> bool:
    """Return whether an open file begins as such a record does, torn by any crash.  Raises OSError."""
    front = disk.pread(fd, SECTOR_BYTES, 0).rstrip(b"\0")
    return age.BEGINS.startswith(front[: len(age.BEGINS)])


def is_anything(_disk: Disk, _fd: int) -> bool:
    return True


REWRITES = {"ledger.new": is_draft_of_the_ledger, "boots.new": is_draft_of_the_boots}
"""Files beside the folders that a rewrite leaves when it dies."""
NEEDED = {"ledger": is_anything, **REWRITES}
"""A start must be able to read and replace them."""
KEPT = {"reserve": is_reserve, "boots": is_boots}
"""A start does without them."""


def why_unusable(error: OSError) -> str:
    """Return what an error says about one file; raises it again where it is about us or the disk."""
    if error.errno == errno.ESPIPE:
        return "not a file"
    if not files.is_about_the_file(error):
        raise error
    return f"cannot be opened: {error.strerror}"


def why_not_ours(
    disk: Disk, path: str, is_ours: Callable[[Disk, int], bool], open_file: Callable[[str], int]
) -> str | None:
    """Return why we cannot have written a file; None if we may have, or it is not there.  Raises OSError."""
    try:
        with opened(disk, open_file(path)) as fd:
            if (size := disk.size(fd)) > LARGEST_BYTES:
                return f"{size} bytes are more than we write"
            disk.pread(fd, 1, 0)
            if (why := why_a_strangers(disk, fd, path)) is not None:
                return why
            return None if is_ours(disk, fd) else "not written by us"
    except FileNotFoundError:
        return None
    except OSError as error:
        return why_unusable(error)
