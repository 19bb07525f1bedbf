r"""The bytes of a segment: a header, then groups of records.  Encoding and decoding only: no I/O.

    relay-log 1 STREAM NUMBER BEFORE BEFORE_END CRC\n      of fixed width
    group record, and as many records as it says            again and again

BEFORE is the number of the segment that the stream's writer wrote before this one, and BEFORE_END how much
of that one counts: what stands behind it, and in segments between the two, is void.

A record is a head (the segment's mark, kind, length of its id, a number, length and CRC-32 of its payload,
CRC-32 of the head), the id of its message, and its payload.  The payload of a message is a message file of
its own format (`relay.spool.message.message_file`) whose three CRC-32 stand for the record's.

The mark is different in each segment, and nobody can know it who cannot list the folder: so that no content
is taken for a record where the next sound one behind a damaged place is looked for.
"""

import hashlib
import re
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.spool.interface import Corrupt
from relay.spool.log.layout import SegmentName
from relay.spool.message import message_file

HEADER_BYTES = 73
_HEADER = re.compile(rb"relay-log 1 ([0-9a-z ]{16}) ([0-9]{10}) ([0-9]{10}) ([0-9]{12}) ([0-9a-f]{8})\n\Z")
_HEAD = struct.Struct("<8scBIII")
_CRC = struct.Struct("<I")
_GROUP = struct.Struct("<II")
HEAD_BYTES = _HEAD.size + _CRC.size
GROUP_BYTES = HEAD_BYTES + _GROUP.size
"""Of a group's own record."""
LONGEST_ID = 24
MARK_BYTES = 8

GROUP = b"g"
MESSAGE = b"E"
"""A message; its number is that of its recipients."""
LONG = b"L"
"""A message in a file of its own."""
MOVED = b"e"
"""A message copied forward, by the sender: what was said of it before still holds."""
MOVED_LONG = b"l"
MESSAGES = frozenset({MESSAGE, LONG, MOVED, MOVED_LONG})
COPIES = frozenset({MOVED, MOVED_LONG})
INLINE = frozenset({MESSAGE, MOVED})
"""Whose payload is a message file."""


class SegmentHeader(NamedTuple):
    before: int
    """0: there was none."""
    before_end: int


class New(NamedTuple):
    """A record to be written."""

    kind: bytes
    queue_id: str
    payload: bytes = b""
    number: int = 0


class Head(NamedTuple):
    kind: bytes
    number: int
    id_bytes: int
    payload_bytes: int
    payload_crc: int

    @property
    def record_bytes(self) -> int:
        return HEAD_BYTES + self.id_bytes + self.payload_bytes


class Record(NamedTuple):
    kind: bytes
    queue_id: QueueId
    payload: bytes
    number: int
    at: int
    """Its offset in the segment."""

    @property
    def record_bytes(self) -> int:
        return HEAD_BYTES + len(self.queue_id) + len(self.payload)


def mark_of(name: SegmentName) -> bytes:
    return hashlib.blake2b(b"%s.%d" % (name.stream.encode(), name.number), digest_size=MARK_BYTES).digest()


def encode_header(name: SegmentName, header: SegmentHeader) -> bytes:
    text = b"relay-log 1 %-16s %010d %010d %012d" % (name.stream.encode(), name.number, *header)
    return b"%s %08x\n" % (text, zlib.crc32(text))


def decode_header(name: SegmentName, raw: bytes) -> SegmentHeader | None:
    """Return what a segment's header says; None for one that is damaged, or of another segment."""
    found = _HEADER.match(raw)
    if found is None or int(found[5], 16) != zlib.crc32(raw[: HEADER_BYTES - 10]):
        return None
    if (found[1].strip().decode(), int(found[2])) != name:
        return None
    return SegmentHeader(int(found[3]), int(found[4]))


def encode_group(mark: bytes, records: Sequence[New], start: int) -> tuple[list[bytes], list[int]]:
    """Return a group in pieces, and where each of its records begins if it is written at `start`."""
    head_of, crc_of, crc32 = _HEAD.pack, _CRC.pack, zlib.crc32
    pieces, offsets = [b""], []
    begin = at = start + GROUP_BYTES
    for kind, queue_id, payload, number in records:
        own = queue_id.encode()
        crc = 0 if kind in INLINE else crc32(payload)
        head = head_of(mark, kind, len(own), number, len(payload), crc)
        pieces += (head, crc_of(crc32(own, crc32(head))), own, payload)
        offsets.append(at)
        at += HEAD_BYTES + len(own) + len(payload)
    counted = _GROUP.pack(len(records), at - begin)
    head = head_of(mark, GROUP, 0, 0, len(counted), crc32(counted))
    pieces[0] = head + crc_of(crc32(head)) + counted
    return pieces, offsets


def decode_head(mark: bytes, raw: bytes) -> tuple[Head, QueueId] | None:
    """Return what a sound head at the beginning of `raw` says, and its id; None for anything else."""
    if len(raw) < HEAD_BYTES or not raw.startswith(mark):
        return None
    _, kind, id_bytes, number, payload_bytes, payload_crc = _HEAD.unpack_from(raw)
    own = raw[HEAD_BYTES : HEAD_BYTES + id_bytes]
    if id_bytes > LONGEST_ID or len(own) != id_bytes:
        return None
    if _CRC.unpack_from(raw, _HEAD.size)[0] != zlib.crc32(own, zlib.crc32(raw[: _HEAD.size])):
        return None
    return Head(kind, number, id_bytes, payload_bytes, payload_crc), QueueId(own.decode("latin-1"))


def is_sound(head: Head, payload: bytes) -> bool:
    """Return whether a payload is what was written behind its head."""
    if len(payload) != head.payload_bytes:
        return False
    if head.kind not in INLINE:
        return zlib.crc32(payload) == head.payload_crc
    try:
        header = message_file.decode_header(payload[: message_file.HEADER_BYTES])
    except Corrupt:
        return False
    if header.file_bytes != len(payload):
        return False
    view = memoryview(payload)
    content, envelope = (
        view[message_file.HEADER_BYTES : header.envelope_offset],
        view[header.envelope_offset :],
    )
    return zlib.crc32(content) == header.content_crc and zlib.crc32(envelope) == header.envelope_crc


def decode_group(payload: bytes) -> tuple[int, int]:
    """Return how many records a group has, and how many bytes they are."""
    count, size = _GROUP.unpack(payload)
    return count, size
