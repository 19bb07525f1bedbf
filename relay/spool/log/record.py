"""The bytes of a segment: groups of records.  Encoding and decoding only: no I/O.

A group is a record that says how many follow, and how many bytes they are, and those records.  The first one
of a segment is its header, BEFORE and BEFORE_END: the number of the segment that the stream's writer wrote
before this one, and how much of that one counts.  What stands behind it, and in segments between the two, is
void.

A record is a head (the segment's mark, kind, length of its id, length and CRC-32 of its payload, CRC-32 of
the head and the id), the id of its message, and its payload.  The payload of a message is a message file
(`relay.spool.message.message_file`), or nothing where that is in long/; of others see `facts`.

The mark is different in each segment, and nobody can know that of a listener's who cannot list the folder: so
that no content is taken for a record where the next sound one behind a damaged place is looked for.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.spool.log.layout import SegmentName

_HEAD = struct.Struct("<8scBII")
_CRC = struct.Struct("<I")
_PAIR = struct.Struct("<QQ")
HEAD_BYTES = _HEAD.size + _CRC.size
_FIRST_BYTES = HEAD_BYTES + _PAIR.size
"""Of a group's own record, and of a header."""
LONGEST_ID = 24
BEGIN_BYTES = 2 * _FIRST_BYTES
"""Of a segment, what its header is in."""
_READ_BYTES = 1024 * 1024

GROUP = b"g"
HEADER = b"h"
MESSAGE = b"E"
MOVED = b"e"
"""A message copied forward, by the sender: what was said of it before still holds."""
Read = Callable[[int, int], bytes]
"""Offset and size."""


class SegmentHeader(NamedTuple):
    before: int
    """0: there was none."""
    before_end: int


class Record(NamedTuple):
    kind: bytes
    queue_id: QueueId
    payload: bytes = b""
    at: int = 0
    """Its offset in the segment."""

    @property
    def record_bytes(self) -> int:
        return HEAD_BYTES + len(self.queue_id) + len(self.payload)


class ReadGroup(NamedTuple):
    at: int
    end: int
    is_whole: bool
    records: list[Record]
    damages: list[tuple[int, int]]
    """Stretches that are no sound record."""


def mark_of(name: SegmentName) -> bytes:
    return hashlib.blake2b(str(name).encode(), digest_size=8).digest()


def header_of(header: SegmentHeader) -> Record:
    return Record(HEADER, QueueId(""), _PAIR.pack(*header))


def decode_header(name: SegmentName, first: bytes) -> SegmentHeader | None:
    """Return what a segment's header says, given how it begins; None for one that is damaged."""
    found = sound_record(mark_of(name), lambda at, size: first[at : at + size], _FIRST_BYTES, len(first))
    return SegmentHeader(*_PAIR.unpack(found.payload)) if found is not None and found.kind == HEADER else None


def encode_group(mark: bytes, records: Sequence[Record], start: int) -> tuple[bytes, list[int]]:
    """Return a group, and where each of its records begins if it is written at `start`."""
    pieces, offsets, at = [b""], [], start + _FIRST_BYTES
    for new in records:
        pieces += _pieces(mark, new)
        offsets.append(at)
        at += new.record_bytes
    counted = _PAIR.pack(len(records), at - start - _FIRST_BYTES)
    pieces[0] = b"".join(_pieces(mark, Record(GROUP, QueueId(""), counted)))
    return b"".join(pieces), offsets


def _pieces(mark: bytes, new: Record) -> tuple[bytes, bytes, bytes, bytes]:
    own = new.queue_id.encode()
    head = _HEAD.pack(mark, new.kind, len(own), len(new.payload), zlib.crc32(new.payload))
    return head, _CRC.pack(zlib.crc32(own, zlib.crc32(head))), own, new.payload


def sound_record(mark: bytes, read: Read, at: int, end: int) -> Record | None:
    """Return the record that begins at an offset; None for anything else."""
    raw = read(at, min(HEAD_BYTES + LONGEST_ID, end - at))
    if len(raw) < HEAD_BYTES or not raw.startswith(mark):
        return None
    _, kind, id_bytes, payload_bytes, payload_crc = _HEAD.unpack_from(raw)
    own = raw[HEAD_BYTES : HEAD_BYTES + id_bytes]
    if _CRC.unpack_from(raw, _HEAD.size)[0] != zlib.crc32(own, zlib.crc32(raw[: _HEAD.size])):
        return None
    begin = at + HEAD_BYTES + len(own)
    payload = read(begin, min(payload_bytes, end - begin))
    if len(own) != id_bytes or len(payload) != payload_bytes or zlib.crc32(payload) != payload_crc:
        return None
    return Record(kind, QueueId(own.decode("latin-1")), payload, at)


def sealed(body: bytes) -> bytes:
    return b"%08x\n%s" % (zlib.crc32(body), body)


def unsealed(raw: bytes) -> bytes | None:
    """Return what was sealed; None for what is damaged, or just being written."""
    return raw[9:] if sealed(raw[9:]) == raw else None


class SegmentReader:
    """Groups of a segment, its bytes read in large pieces.

    Behind a damaged place reading goes on at the next sound record: a bad sector costs what is in it, no more.
    Assumes: nothing that is read changes meanwhile.
    """

    def __init__(self, mark: bytes, read: Read, end: int) -> None:
        self._mark = mark
        self._read = read
        self._end = end
        self._from, self._bytes = 0, b""

    def groups(self, at: int) -> Iterator[ReadGroup]:
        """Yield groups as they stand; what belongs to none comes as a group that is not whole."""
        while at < self._end:
            count, begin = -1, at
            found = sound_record(self._mark, self._get, at, self._end)
            if found is not None and found.kind == GROUP:
                count, size = _PAIR.unpack(found.payload)
                begin = at + _FIRST_BYTES
                end = min(begin + size, self._end)
            else:
                end = self._next(self._mark + GROUP, at + 1, self._end)
            records, damages = self._records(begin, end)
            yield ReadGroup(at, end, not damages and len(records) == count, records, damages)
            at = end

    def _records(self, at: int, end: int) -> tuple[list[Record], list[tuple[int, int]]]:
        records: list[Record] = []
        damages: list[tuple[int, int]] = []
        while at < end:
            if (found := sound_record(self._mark, self._get, at, end)) is not None:
                records.append(found)
                at += found.record_bytes
            else:
                damages.append((at, self._next(self._mark, at + 1, end)))
                at = damages[-1][1]
        return records, damages

    def _get(self, at: int, size: int) -> bytes:
        """Return fewer bytes only at the end."""
        start = at - self._from
        if start < 0 or start + size > len(self._bytes):
            self._bytes = self._read(at, min(max(size, _READ_BYTES), self._end - at))
            self._from, start = at, 0
        return self._bytes[start : start + size]

    def _next(self, wanted: bytes, at: int, end: int) -> int:
        """Return where some bytes stand next, or the end."""
        while at < end:
            some = self._get(at, min(_READ_BYTES, end - at))
            if (found := some.find(wanted)) >= 0:
                return at + found
            at += max(1, len(some) - len(wanted) + 1)
        return end
