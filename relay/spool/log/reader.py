"""Reading a segment: groups, sound records, and what is damaged between them.

Guarantees: what is returned as a record matched its checksums, and is of this segment.  Behind a damaged place
reading goes on at the next sound record, so that a bad sector costs the records in it and no other.
Assumes: nothing that is read changes meanwhile.  Does not: say what a record means.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.spool.log import record
from relay.spool.log.record import GROUP, GROUP_BYTES, HEAD_BYTES, LONGEST_ID, Head, Record

_READ_BYTES = 1024 * 1024
Read = Callable[[int, int], bytes]
"""Size and offset."""


class Damage(NamedTuple):
    """Bytes that are no sound record; whose record begins there, if at least its head is sound."""

    at: int
    end: int
    kind: bytes = b""
    queue_id: QueueId = QueueId("")


class ReadGroup(NamedTuple):
    at: int
    end: int
    is_whole: bool
    records: list[Record]
    damages: list[Damage]


class SegmentReader:
    """A segment's bytes, read in large pieces."""

    def __init__(self, read: Read, mark: bytes, end: int) -> None:
        self._read = read
        self._mark = mark
        self._end = end
        self._from, self._bytes = 0, b""

    def groups(self, at: int) -> Iterator[ReadGroup]:
        """Yield groups as they stand; what belongs to none comes as a group that is not whole."""
        while at < self._end:
            begin, count, end = at, -1, self._end
            if (found := self._sound(at, self._end)) is not None and found.kind == GROUP:
                count, size = record.decode_group(found.payload)
                begin = at + GROUP_BYTES
                end = min(begin + size, self._end)
            else:
                end = self._next(self._mark + GROUP, at + 1, self._end)
            records, damages = self._pieces(begin, end)
            yield ReadGroup(at, end, not damages and len(records) == count, records, damages)
            at = end

    def _pieces(self, at: int, end: int) -> tuple[list[Record], list[Damage]]:
        records: list[Record] = []
        damages: list[Damage] = []
        while at < end:
            if (found := self._sound(at, end)) is not None:
                records.append(found)
                at += found.record_bytes
                continue
            next_at = self._next(self._mark, at + 1, end)
            head = record.decode_head(self._mark, self._get(at, HEAD_BYTES + LONGEST_ID))
            if head is None:
                damages.append(Damage(at, next_at))
            else:
                # Its own content has no mark of this segment.
                damages.append(Damage(at, next_at, head[0].kind, head[1]))
            at = next_at
        return records, damages

    def _sound(self, at: int, end: int) -> Record | None:
        found = record.decode_head(self._mark, self._get(at, HEAD_BYTES + LONGEST_ID))
        if found is None or at + found[0].record_bytes > end:
            return None
        head, queue_id = found
        return _checked(head, queue_id, self._get(at + HEAD_BYTES + head.id_bytes, head.payload_bytes), at)

    def _get(self, at: int, size: int) -> bytes:
        """Return fewer bytes only at the end."""
        size = min(size, self._end - at)
        start = at - self._from
        if start < 0 or start + size > len(self._bytes):
            self._bytes = self._read(min(max(size, _READ_BYTES), self._end - at), at)
            self._from, start = at, 0
        return self._bytes[start : start + size]

    def _next(self, wanted: bytes, at: int, end: int) -> int:
        """Return where some bytes stand next, or the end."""
        while at < end:
            some = self._get(at, _READ_BYTES)
            if (found := some.find(wanted)) >= 0:
                return min(at + found, end)
            at += max(1, len(some) - len(wanted) + 1)
        return end


def record_at(raw: bytes, mark: bytes, queue_id: QueueId) -> Record | None:
    """Return the record that `raw` is; None for one that is not sound, or of another message."""
    found = record.decode_head(mark, raw)
    if found is None or found[1] != queue_id:
        return None
    return _checked(*found, raw[HEAD_BYTES + found[0].id_bytes :], 0)


def _checked(head: Head, queue_id: QueueId, payload: bytes, at: int) -> Record | None:
    if not record.is_sound(head, payload):
        return None
    return Record(head.kind, queue_id, payload, head.number, at)
