r"""What a start needs of a segment, beside it: so that it reads neither the segment nor its messages.

    relay-log-summary 1 STREAM NUMBER COVERS ROWS INDEX_BYTES CRC\n
    index, compressed: of each row the id, offset and length of its record, and how many recipients
    chunks of rows, each compressed: kind of record, header and envelope of the message file, its names

A row is a message of the segment; of one that had ended, or was copied forward, when the summary was made
the chunks have no header.  COVERS is how much of the segment it tells of:
a start reads on from there.  Discardable: one that is missing, damaged, of another segment, or that tells of
more than there is, is as none, and its segment is read whole.  Of messages whose chunk is not what the index
says the records are read.  Nothing else depends on it: a record is compared with its checksums when the
message is loaded.
Put in place whole, so that there is never half of one.

A segment whose mail waits gets one once it is long enough that reading it would take a start some time, and
at a clean close, so that a start reads the summaries, what came behind them, and the sender's stream.  Mail
that is relayed as fast as it comes never gets one.  Guarantees: never raises for what it cannot write.
Does not: say what became of a message (`facts`).
"""

import contextlib
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.mail.header import NO_NAMES, Names, names_of
from relay.spool.disk.durable import opened
from relay.spool.disk.replacing import put_in_place
from relay.spool.interface import Corrupt
from relay.spool.log.index import LogIndex
from relay.spool.log.layout import SegmentName
from relay.spool.log.message import front_of
from relay.spool.log.record import HEADER_BYTES as SEGMENT_HEADER_BYTES
from relay.spool.log.record import INLINE, LONGEST_ID, MESSAGES, Record
from relay.spool.log.segments import Segments, is_senders, place_of
from relay.spool.log.stream_reader import pieces
from relay.spool.message import message_file
from relay.spool.message.message_file import HEADER_BYTES, Opened

_HEADER = re.compile(
    rb"relay-log-summary 1 ([0-9a-z]{6,16}) ([0-9]{10}) ([0-9]{12}) ([0-9]{10}) ([0-9]{12}) ([0-9a-f]{8})\n"
)
_INDEX = struct.Struct(f"<{LONGEST_ID}sQII")
_ROW = struct.Struct("<cIH")
_CHUNK = struct.Struct("<I")
ROWS_AT_ONCE = 256
_LEVEL = 1
"""A start is in a hurry, and so is who writes it."""
LARGEST_BYTES = 256 * 1024 * 1024
WORTH_IT = 8
"""So much of a segment has to live: an eighth."""
LET_BE = 4
"""So many segments without one are quick enough to read."""


class SummaryRow(NamedTuple):
    """A message's place in the segment."""

    queue_id: QueueId
    at: int
    record_bytes: int
    recipients: int


class Told(NamedTuple):
    """What else a row tells of a message."""

    kind: bytes
    head: bytes
    """Header and envelope of the message file; nothing where that has a file of its own, or is not needed."""
    names: Names


class SegmentSummary(NamedTuple):
    covers: int
    rows: list[SummaryRow]
    chunks: Sequence[bytes]
    """Compressed."""

    def told(self) -> Iterator[tuple[SummaryRow, Told]]:
        """Yield each row with what is told of it, as far as that is whole."""
        for start, chunk in zip(range(0, len(self.rows), ROWS_AT_ONCE), self.chunks, strict=False):
            rows = self.rows[start : start + ROWS_AT_ONCE]
            try:
                told = list(_unpacked(zlib.decompress(chunk)))
            except (zlib.error, struct.error):
                return
            if len(told) != len(rows):
                return
            yield from zip(rows, told, strict=True)


def told_of(found: Record, names: Names) -> Told:
    if found.kind not in INLINE:
        return Told(found.kind, b"", names)
    header = message_file.decode_header(found.payload[:HEADER_BYTES])
    return Told(found.kind, found.payload[:HEADER_BYTES] + found.payload[header.envelope_offset :], names)


def message_of(queue_id: QueueId, told: Told) -> Opened:
    """Return a message without its content.  Raises Corrupt."""
    header = message_file.decode_header(told.head[:HEADER_BYTES])
    message = message_file.decode_envelope(queue_id, header, told.head[HEADER_BYTES:])
    message.names = told.names
    return message


def encode(name: SegmentName, covers: int, rows: Sequence[tuple[SummaryRow, Told]]) -> bytes:
    index = zlib.compress(b"".join([_INDEX.pack(row.queue_id.encode(), *row[1:]) for row, _ in rows]), _LEVEL)
    pieces = [index]
    for start in range(0, len(rows), ROWS_AT_ONCE):
        chunk = zlib.compress(
            b"".join([_packed(told) for _, told in rows[start : start + ROWS_AT_ONCE]]), _LEVEL
        )
        pieces += (_CHUNK.pack(len(chunk)), chunk)
    rest = b"".join(pieces)
    text = b"relay-log-summary 1 %s %010d %012d %010d %012d" % (
        name.stream.encode(),
        name.number,
        covers,
        len(rows),
        len(index),
    )
    return b"%s %08x\n%s" % (text, zlib.crc32(rest, zlib.crc32(text)), rest)


def decode(name: SegmentName, raw: bytes) -> SegmentSummary | None:
    """Return what a summary says; None for one that is damaged or of another segment."""
    found = _HEADER.match(raw)
    if found is None or (found[1].decode(), int(found[2])) != name:
        return None
    rest = memoryview(raw)[found.end() :]
    if int(found[6], 16) != zlib.crc32(rest, zlib.crc32(raw[: found.end() - 10])):
        return None
    try:
        return _decoded(int(found[3]), int(found[4]), rest, int(found[5]))
    except (zlib.error, struct.error, ValueError, Corrupt):
        # A right checksum proves only that nobody changed it.
        return None


def _decoded(covers: int, count: int, rest: memoryview, index_bytes: int) -> SegmentSummary | None:
    index = zlib.decompress(rest[:index_bytes])
    rows = [
        SummaryRow(QueueId(own.rstrip(b"\0").decode("ascii")), at, size, recipients)
        for own, at, size, recipients in _INDEX.iter_unpack(index)
    ]
    chunks, at = list[bytes](), index_bytes
    while at < len(rest):
        (size,) = _CHUNK.unpack_from(rest, at)
        chunks.append(bytes(rest[at + _CHUNK.size : at + _CHUNK.size + size]))
        at += _CHUNK.size + size
    if len(rows) != count:
        return None
    return SegmentSummary(covers, rows, chunks)


def _packed(told: Told) -> bytes:
    names = told.names.text().encode("utf-8", "replace")[:0xFFFF]
    return _ROW.pack(told.kind, len(told.head), len(names)) + told.head + names


def _unpacked(raw: bytes) -> Iterator[Told]:
    at = 0
    while at < len(raw):
        kind, head_bytes, names_bytes = _ROW.unpack_from(raw, at)
        at += _ROW.size
        names = raw[at + head_bytes : at + head_bytes + names_bytes].decode("utf-8", "replace")
        yield Told(kind, raw[at : at + head_bytes], Names.of(names.split("\n")))
        at += head_bytes + names_bytes


class Summaries:
    def __init__(self, segments: Segments, queued: LogIndex) -> None:
        self._disk, self._layout = segments.disk, segments.layout
        self._segments = segments
        self._queued = queued
        self._covered: dict[int, int] = {}
        """How much of each segment its summary tells of."""

    def read(self, handle: int) -> SegmentSummary | None:
        """Return a segment's summary, if there is one that may be believed."""
        name = self._segments[handle].name
        try:
            with opened(self._disk, self._disk.open_read(self._layout.summary(name))) as fd:
                raw = self._disk.pread(fd, min(self._disk.size(fd), LARGEST_BYTES), 0)
            found = decode(name, raw)
            if found is None or found.covers > self._segments.size(handle):
                return None
        except (OSError, Corrupt):
            return None
        self._covered[handle] = found.covers
        return found

    def write_some(self) -> None:
        """Write one where enough segments wait for theirs."""
        waiting = [handle for handle in self._without() if self._segments[handle].may_go]
        if len(waiting) > LET_BE:
            self._write(waiting[0])

    def write_all(self) -> None:
        for handle in self._without():
            self._write(handle)

    def _without(self) -> list[int]:
        return [
            handle
            for handle, segment in self._segments
            # By a summary the next start would not meet that damage.
            if not (is_senders(segment.name) or segment.is_pinned or segment.is_damaged)
            and segment.end > self._covered.get(handle, 0) + SEGMENT_HEADER_BYTES
            and segment.live_bytes * WORTH_IT > segment.end
        ]

    def _write(self, handle: int) -> None:
        segment = self._segments[handle]
        # Whether or not it can be written: it is not tried all the time.
        self._covered[handle] = segment.end
        with contextlib.suppress(OSError, Corrupt):
            content = encode(segment.name, segment.end, list(self._rows(handle)))
            path = self._layout.summary(segment.name)
            # Crash here: the one before, or none; and a draft that the next one replaces.
            self._disk.close(put_in_place(self._disk, path, content))

    def _rows(self, handle: int) -> Iterator[tuple[SummaryRow, Told]]:
        segment = self._segments[handle]
        window = self._segments.window(handle, segment.end)
        for each in pieces(window, segment.mark, SEGMENT_HEADER_BYTES):
            if not isinstance(each, Record) or each.kind not in MESSAGES:
                continue
            size = each.record_bytes
            is_here = self._queued.durable_place(each.queue_id) == place_of(handle, each.at, size)
            # Also what ended: a start has to know that its end is needed as long as this segment is there.
            told = _told(each) if is_here else Told(each.kind, b"", NO_NAMES)
            yield SummaryRow(each.queue_id, each.at, size, each.number), told


def _told(each: Record) -> Told:
    front = front_of(each.payload) if each.kind in INLINE else b""
    return told_of(each, names_of(front))
