"""Reads, checks and streams stored messages, from a file or from a part of one.

Guarantees: a returned message matches every length, checksum and id, but `long_head` is not compared.  Any
other raises Corrupt.  Content is compared with its checksum before its first octet is yielded.
"""

from collections.abc import Generator, Iterator
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk
from relay.spool.interface import HEAD_BYTES, INLINE_BYTES, Corrupt, Message
from relay.spool.message import message_file
from relay.spool.message.message_file import HEADER_BYTES, Header, checksum

_FIRST_READ_BYTES = HEADER_BYTES + HEAD_BYTES
_WRONG = "the content does not match its checksum"


class Stretch(NamedTuple):
    """The part of an open file that is a message."""

    fd: int
    size_bytes: int
    begin: int = 0


def read(disk: Disk, at: Stretch, queue_id: QueueId) -> Message:
    """Return a message with its content, or with its head if that is long.  Raises Corrupt, OSError."""
    # Do not read beyond the end: `pread` would need one more call to see the end.
    first = disk.pread(at.fd, min(_FIRST_READ_BYTES, at.size_bytes), at.begin)
    header = _header(at, first)
    message = message_file.decode(
        queue_id, header, _part(disk, at, first, header.envelope_offset, header.envelope_bytes)
    )
    if header.content_bytes > INLINE_BYTES:
        return message._replace(long_head=first[HEADER_BYTES : header.envelope_offset])
    content = _part(disk, at, first, HEADER_BYTES, header.content_bytes)
    if checksum(content) != header.content_crc:
        raise Corrupt(_WRONG)
    return message._replace(content=content)


def stream(disk: Disk, at: Stretch) -> Iterator[bytes]:
    """Yield content as `Spool.content` says.  Raises Corrupt, OSError."""
    header = _header(at, disk.pread(at.fd, min(HEADER_BYTES, at.size_bytes), at.begin))
    checksums = yield from _checked(disk, at, header)
    for number, (crc, chunk) in enumerate(_chunks(disk, at, header)):
        # The page cache may have dropped the checked bytes, and the disk may return others now.
        if crc != checksums[number]:
            raise Corrupt(_WRONG)
        yield chunk


def _checked(disk: Disk, at: Stretch, header: Header) -> Generator[bytes, None, list[int]]:
    """Yield an empty chunk for each chunk read; return the checksums of the content up to each end."""
    checksums = []
    for crc, _ in _chunks(disk, at, header):
        checksums.append(crc)
        yield b""
    if (checksums[-1] if checksums else 0) != header.content_crc:
        raise Corrupt(_WRONG)
    return checksums


def _chunks(disk: Disk, at: Stretch, header: Header) -> Iterator[tuple[int, bytes]]:
    """Yield for each chunk the checksum of the content up to its end, and the chunk."""
    crc = 0
    for offset in range(0, header.content_bytes, INLINE_BYTES):
        size = min(INLINE_BYTES, header.content_bytes - offset)
        chunk = disk.pread(at.fd, size, at.begin + HEADER_BYTES + offset)
        crc = checksum(chunk, crc)
        yield crc, chunk


def _header(at: Stretch, first: bytes) -> Header:
    header = message_file.decode_header(first[:HEADER_BYTES])
    if at.size_bytes != header.file_bytes:
        raise Corrupt(f"the message has {at.size_bytes} bytes, but its header says {header.file_bytes}")
    return header


def _part(disk: Disk, at: Stretch, first: bytes, offset: int, size: int) -> bytes:
    if offset + size <= len(first):
        return first[offset : offset + size]
    return disk.pread(at.fd, size, at.begin + offset)
