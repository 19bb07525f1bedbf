"""The bytes of a segment: groups of records.  Encoding and decoding only: no I/O.

A record is a head, the id of its message, and a payload.  The head has the segment's mark, the kind, the
length of the id, the number of the group, the number of its records (0 except in its first record), length
and CRC-32 of the payload, and a CRC-32 of the head and the id.  A record is sound if all of these match.
The payload of a message is a message file (`relay.spool.message.message_file`), empty if the file is in
long/.  `facts` has the payloads of other kinds.

Each group of a segment has a number of its own, even a group that found no room and is overwritten by the
next one.  If a crash tears that next group, records left by the earlier group do not complete it.

The first record of a segment is its header.  It names the segment that the same writer wrote before, and the
offset up to which that segment is valid.  Bytes behind that offset, and segments in between, are void.

Behind a damaged stretch the reader looks for the next mark.  Each segment has a mark of its own, which begins
with two CR.  A CR is never alone in content, so no content is taken for a record.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.spool.log.layout import SegmentName

_HEAD = struct.Struct("<8scBIIII")
_CRC = struct.Struct("<I")
RECORD_HEAD_BYTES = _HEAD.size + _CRC.size
SEGMENT_HEADER_BYTES = RECORD_HEAD_BYTES + 9 + 2 * 20 + 1
LONGEST_ID = 24
_READ_BYTES = 1024 * 1024

HEADER = b"h"
MESSAGE = b"E"
MOVED = b"e"
"""A message that the sender copied forward; its earlier facts still hold."""
Read = Callable[[int, int], bytes]
"""Size and offset, as in `Disk.pread`; fewer bytes only at the end."""


class Position(NamedTuple):
    """How far a stream goes, was read, or is accepted; the lock file announces the last, without a sync."""

    number: int = 0
    """Number of the segment; 0: there is none."""
    end: int = 0

    def encoded(self) -> bytes:
        """Return 50 bytes: the length is fixed, since one position overwrites another."""
        return sealed(b"%020d %020d" % self)


class Record(NamedTuple):
    kind: bytes
    queue_id: QueueId
    payload: bytes = b""
    at: int = 0
    """Its offset in the segment."""
    group: int = 0
    group_size: int = 0
    """Number of records in the group; 0 except in its first record."""

    @property
    def record_bytes(self) -> int:
        return RECORD_HEAD_BYTES + len(self.queue_id) + len(self.payload)


class ReadGroup(NamedTuple):
    at: int
    end: int
    records: list[Record]
    damages: list[tuple[int, int]]
    """Begin and end of each stretch that is no sound record."""

    @property
    def is_whole(self) -> bool:
        return bool(self.records) and not self.damages and self.records[0].group_size == len(self.records)


def mark_of(name: SegmentName) -> bytes:
    return b"\r\r" + hashlib.blake2b(str(name).encode(), digest_size=6).digest()


def header_of(before: Position) -> Record:
    return Record(HEADER, QueueId(""), before.encoded())


def decode_header(name: SegmentName, first: bytes) -> Position | None:
    """Return the position in a segment's header, given its first bytes; None if it is damaged."""
    found = record_in(first, name)
    return decode_position(found.payload) if found is not None and found.kind == HEADER else None


def decode_position(raw: bytes) -> Position | None:
    """Return None for a position that is damaged, or just being written."""
    body = unsealed(raw)
    return None if body is None else Position(*map(int, body.split()))


def record_in(raw: bytes, name: SegmentName) -> Record | None:
    """Return the record that some bytes of a segment begin with; None if it is not sound."""
    return sound_record(mark_of(name), lambda size, at: raw[at : at + size], 0, len(raw))


def encode_group(mark: bytes, records: Sequence[Record], at: int, number: int) -> tuple[bytes, list[int]]:
    """Return the bytes of a group to write at offset `at`, and the offset of each record."""
    pieces, offsets, count = list[bytes](), list[int](), len(records)
    for new in records:
        own = new.queue_id.encode()
        crc = zlib.crc32(new.payload)
        head = _HEAD.pack(mark, new.kind, len(own), number, count, len(new.payload), crc)
        pieces += (head, _CRC.pack(zlib.crc32(own, zlib.crc32(head))), own, new.payload)
        offsets.append(at)
        at, count = at + new.record_bytes, 0
    return b"".join(pieces), offsets


def sound_record(mark: bytes, read: Read, at: int, end: int) -> Record | None:
    """Return the record that begins at an offset; None if it is not sound."""
    raw = read(min(RECORD_HEAD_BYTES + LONGEST_ID, end - at), at)
    if len(raw) < RECORD_HEAD_BYTES or not raw.startswith(mark):
        return None
    _, kind, id_bytes, group, count, payload_bytes, payload_crc = _HEAD.unpack_from(raw)
    own = raw[RECORD_HEAD_BYTES : RECORD_HEAD_BYTES + id_bytes]
    if _CRC.unpack_from(raw, _HEAD.size)[0] != zlib.crc32(own, zlib.crc32(raw[: _HEAD.size])):
        return None
    begin = at + RECORD_HEAD_BYTES + len(own)
    payload = read(min(payload_bytes, end - begin), begin)
    if len(payload) != payload_bytes or zlib.crc32(payload) != payload_crc:
        return None
    return Record(kind, QueueId(own.decode("latin-1")), payload, at, group, count)


def sealed(body: bytes) -> bytes:
    return b"%08x\n%s" % (zlib.crc32(body), body)


def unsealed(raw: bytes) -> bytes | None:
    """Return what was sealed; None if it is damaged, or just being written."""
    return raw[9:] if sealed(raw[9:]) == raw else None


class SegmentReader:
    """Reads the groups of a segment, in pieces of 1 MiB.  Assumes that bytes before `end` do not change."""

    def __init__(self, mark: bytes, read: Read, end: int) -> None:
        self._mark = mark
        self._read = read
        self._end = end
        self._from, self._bytes = 0, b""

    def groups(self, at: int) -> Iterator[ReadGroup]:
        """Yield groups in order; bytes of no group are yielded as a group that is not whole.

        Behind a damaged stretch reading resumes at the next sound record: only the stretch is lost.
        """
        group = ReadGroup(at, at, [], [])
        while at < self._end:
            found = sound_record(self._mark, self._get, at, self._end)
            if at > group.at and (group.is_whole or _is_of_another(found, group.records)):
                yield group._replace(end=at)
                group = ReadGroup(at, at, [], [])
            if found is not None:
                group.records.append(found)
                at += found.record_bytes
            else:
                group.damages.append((at, self._next(at + 1)))
                at = group.damages[-1][1]
        if at > group.at:
            yield group._replace(end=at)

    def _get(self, size: int, at: int) -> bytes:
        start = at - self._from
        if start < 0 or start + size > len(self._bytes):
            self._bytes = self._read(min(max(size, _READ_BYTES), self._end - at), at)
            self._from, start = at, 0
        return self._bytes[start : start + size]

    def _next(self, at: int) -> int:
        """Return the offset of the next mark, or the end."""
        while some := self._get(min(_READ_BYTES, self._end - at), at):
            if (found := some.find(self._mark)) >= 0:
                return at + found
            at += max(1, len(some) - len(self._mark) + 1)
        return self._end


def _is_of_another(found: Record | None, records: Sequence[Record]) -> bool:
    if found is None:
        return False
    return bool(found.group_size or (records and found.group != records[0].group))
