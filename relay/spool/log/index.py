"""The queue in memory: the place of each queued message, and what became of it so far.  No I/O.

Everything here follows from the records of the streams: `take_in` applies one record.  A start calls it for
each record behind the checkpoint, the journal for each record that became durable.  A segment is needed only
for the queued messages in it; the facts in its other records are in memory, and in the next checkpoint.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from relay.mail.envelope import QueueId
from relay.spool.log.facts import ENDS, Facts
from relay.spool.log.layout import SegmentName
from relay.spool.log.record import LONGEST_ID, MESSAGE, MOVED, RECORD_HEAD_BYTES, Record

UNKNOWN_CRC = 0


class Segment:
    __slots__ = ("end", "is_damaged", "is_finished", "live_bytes", "name", "section", "was_cleaned")

    def __init__(self, name: SegmentName) -> None:
        self.name = name
        self.end = 0
        """Offset up to which it was read or written; 0 if all of it is void."""
        self.is_finished = False
        """All that is valid was read, and nothing is added to it."""
        self.is_damaged = False
        """A damaged segment is never removed."""
        self.was_cleaned = False
        """Its messages were copied forward, or are about to be."""
        self.live_bytes = 0
        """Bytes of queued messages."""
        self.section: bytes | None = None
        """Its line in the next checkpoint; None if something changed."""

    def extend(self, end: int) -> None:
        self.end, self.section = end, None

    @property
    def is_dead(self) -> bool:
        return self.is_finished and not self.is_damaged and not self.live_bytes


class RecordPlace(NamedTuple):
    """The place of a message's record."""

    segment: Segment
    offset: int
    length: int
    recipients_crc: int = UNKNOWN_CRC
    """Known once the message was read."""

    @property
    def is_long(self) -> bool:
        """Return whether the content has a file of its own: such a record has no payload."""
        return self.length <= RECORD_HEAD_BYTES + LONGEST_ID


class Index:
    def __init__(self) -> None:
        self.segments: dict[SegmentName, Segment] = {}
        self.places: dict[QueueId, RecordPlace] = {}
        self.facts: dict[QueueId, Facts] = {}

    def segment(self, name: SegmentName) -> Segment:
        """Return a segment; create it if it is not known."""
        return self.segments.get(name) or self.segments.setdefault(name, Segment(name))

    def read_with(self, queue_id: QueueId, recipients: Sequence[str]) -> None:
        """Remember a checksum of the recipients of a queued message."""
        self.places[queue_id] = self.places[queue_id]._replace(recipients_crc=recipients_crc(recipients))

    def take_in(self, segment: Segment, each: Record, *, is_whole: bool = True) -> bool:
        """Apply a record; return whether it brought a new message.  `is_whole`: its group is not damaged."""
        own, size = each.queue_id, each.record_bytes
        known = self.places.get(own)
        if each.kind in (MESSAGE, MOVED):
            if known is None or each.kind == MOVED:
                self.put(
                    own, RecordPlace(segment, each.at, size, known.recipients_crc if known else UNKNOWN_CRC)
                )
            return known is None
        if known is None:
            return False
        if each.kind in ENDS:
            if is_whole:
                self._need(known.segment, -known.length)
                del self.places[own]
                self.facts.pop(own, None)
            return False
        new = json.loads(each.payload)
        if not is_whole:
            # The report that told of them may be in the damaged stretch.
            new = {key: value for key, value in new.items() if key not in ("told", "warned")}
        self.apply_facts(own, new)
        return False

    def put(self, queue_id: QueueId, place: RecordPlace) -> None:
        if (before := self.places.get(queue_id)) is not None:
            self._need(before.segment, -before.length)
        self.places[queue_id] = place
        self._need(place.segment, place.length)

    def apply_facts(self, queue_id: QueueId, new: Mapping[str, Any]) -> None:
        """Apply facts about a queued message, as JSON."""
        self.places[queue_id].segment.section = None
        (self.facts.get(queue_id) or self.facts.setdefault(queue_id, Facts())).apply(new)

    def crowded(self, spare_bytes: int) -> Segment | None:
        """Return the segment with the smallest live share to clean; None while dead bytes are few."""
        done = [
            each
            for each in self.segments.values()
            if each.is_finished and not each.is_damaged and each.live_bytes
        ]
        if sum(each.end for each in done) <= 2 * sum(each.live_bytes for each in done) + spare_bytes:
            return None
        partly = [each for each in done if each.live_bytes < each.end and not each.was_cleaned]
        return min(partly, key=lambda each: each.live_bytes / each.end, default=None)

    @staticmethod
    def _need(segment: Segment, size: int) -> None:
        segment.live_bytes += size
        segment.section = None


def recipients_crc(recipients: Sequence[str]) -> int:
    return zlib.crc32("\n".join(recipients).encode()) or 1
