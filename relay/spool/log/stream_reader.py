"""Reading a segment: sound records, whole groups, and what is damaged between them.

Guarantees: what is returned as a record matched its checksums, and is of this segment.  Behind a damaged
place reading goes on at the next sound record, so that a bad sector costs the records in it and no other.
Assumes: nothing that is read changes meanwhile.  Does not: say what a record means.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import SECTOR_BYTES
from relay.spool.disk.os_errors import is_not_now
from relay.spool.log import record
from relay.spool.log.record import GROUP, GROUP_BYTES, HEAD_BYTES, LONGEST_ID, Head, Record

READ_BYTES = 1024 * 1024
Read = Callable[[int, int], bytes]
"""Size and offset."""


class Damage(NamedTuple):
    """Bytes that are no sound record; whose record begins there, if at least its head is sound."""

    at: int
    end: int
    queue_id: QueueId | None
    number: int
    kind: bytes


class ReadGroup(NamedTuple):
    at: int
    end: int
    """Where it, or what there is of it, ends."""
    is_whole: bool
    records: list[Record]
    damages: list[Damage]


class SegmentReader:
    """A segment's bytes, read in large pieces."""

    def __init__(self, read: Read, end: int) -> None:
        self._read = read
        self.end = end
        self._from = 0
        self._bytes = b""

    def get(self, at: int, size: int) -> bytes:
        """Return fewer bytes only at the end."""
        size = min(size, self.end - at)
        start = at - self._from
        if start < 0 or start + size > len(self._bytes):
            self._bytes = self._read(min(max(size, READ_BYTES), self.end - at), at)
            self._from, start = at, 0
        return self._bytes[start : start + size]

    def find(self, mark: bytes, at: int) -> int:
        """Return where a mark stands next, or the end."""
        while at < self.end:
            some = self.get(at, READ_BYTES)
            if (found := some.find(mark)) >= 0:
                return at + found
            at += max(1, len(some) - len(mark) + 1)
        return self.end


def patient(read: Read, on_unreadable: Callable[[int], None]) -> Read:
    """Return a reader that gives zeros for sectors that the disk does not give, and tells their offsets."""

    def piece(size: int, offset: int) -> bytes:
        try:
            return read(size, offset)
        except OSError as error:
            if not is_not_now(error):
                raise
        if size <= SECTOR_BYTES:
            on_unreadable(offset)
            return bytes(size)
        half = max(SECTOR_BYTES, size // 2 // SECTOR_BYTES * SECTOR_BYTES)
        return piece(half, offset) + piece(size - half, offset + half)

    return piece


def pieces(window: SegmentReader, mark: bytes, at: int) -> Iterator[Record | Damage]:
    """Yield what a segment holds from an offset on; group records too."""
    while at < window.end:
        found = record.decode_head(mark, window.get(at, HEAD_BYTES + LONGEST_ID))
        if found is not None and at + (size := found[0].record_bytes) <= window.end:
            head, queue_id = found
            payload = window.get(at + HEAD_BYTES + head.id_bytes, head.payload_bytes)
            if record.is_sound(head, payload):
                yield Record(head.kind, queue_id, payload, head.number, at)
                at += size
                continue
            end = at + size
        else:
            end = at + 1
        end = min(end if end > at + 1 else window.find(mark, at + 1), window.end)
        yield _damage(at, end, found)
        at = end


def _damage(at: int, end: int, found: tuple[Head, QueueId] | None) -> Damage:
    if found is None:
        return Damage(at, end, None, 0, b"")
    head, queue_id = found
    return Damage(at, end, queue_id, head.number, head.kind)


def groups(window: SegmentReader, mark: bytes, at: int) -> Iterator[ReadGroup]:
    """Yield groups as they stand; what belongs to none comes as a group that is not whole."""
    group = _Begun(at, None)
    for piece in pieces(window, mark, at):
        is_record = isinstance(piece, Record)
        if group.is_complete or (is_record and piece.kind == GROUP):
            if group.end > group.begin:
                yield group.ended()
            due = None
            if isinstance(piece, Record) and piece.kind == GROUP:
                due = record.decode_group(piece.payload)
            group = _Begun(piece.at, due)
        group.add(piece)
    if group.end > group.begin:
        yield group.ended()


def is_room(window: SegmentReader, group: ReadGroup) -> bool:
    """Return whether what stands last is nothing but room for groups to come."""
    if group.records or group.end < window.end:
        return False
    return all(not window.get(at, READ_BYTES).strip(b"\0") for at in range(group.at, group.end, READ_BYTES))


class _Begun:
    """A group while it is read."""

    def __init__(self, begin: int, due: tuple[int, int] | None) -> None:
        self.begin = self.end = begin
        self._due = due
        """How many records, and how many bytes, it says it has."""
        self._records: list[Record] = []
        self._damages: list[Damage] = []

    @property
    def is_complete(self) -> bool:
        """Whether it has all that it says, or as many bytes of anything."""
        return self._due is not None and self.end - self.begin - GROUP_BYTES >= self._due[1]

    def add(self, piece: Record | Damage) -> None:
        if isinstance(piece, Damage):
            self._damages.append(piece)
            self.end = piece.end
        else:
            if piece.kind != GROUP:
                self._records.append(piece)
            self.end = piece.at + piece.record_bytes

    def ended(self) -> ReadGroup:
        length = self.end - self.begin - GROUP_BYTES
        is_whole = not self._damages and self._due == (len(self._records), length)
        return ReadGroup(self.begin, self.end, is_whole, self._records, self._damages)
