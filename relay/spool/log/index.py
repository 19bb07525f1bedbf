"""What is queued, in memory: where each message is, and what was said of it.  No I/O.

Everything here follows from the records of the streams: `take_in` is what one says.  A start calls it for each
record behind the checkpoint, whoever writes for each that is durable.
Needed of a segment are the messages in it that are queued, and notes about queued messages.  All else that it
says is in memory, and in the next checkpoint.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from relay.mail.envelope import QueueId
from relay.spool.log import facts as said
from relay.spool.log.facts import Facts, NotePlace
from relay.spool.log.layout import SENDER, SegmentName
from relay.spool.log.record import COPIES, HEAD_BYTES, LONGEST_ID, MESSAGES, Record, mark_of

UNKNOWN_CRC = 0
_OFFSET_BITS = 40
_LENGTH_BITS = _CRC_BITS = 32


class Place(NamedTuple):
    """Of a message's record; in memory as one number, and with it the checksum of its recipients."""

    offset: int
    length: int
    recipients_crc: int = UNKNOWN_CRC
    """Known once it was read."""

    @property
    def is_long(self) -> bool:
        """Whether the content has a file of its own: the record has no payload."""
        return self.length <= HEAD_BYTES + LONGEST_ID

    def packed(self) -> int:
        return (self.offset << _LENGTH_BITS | self.length) << _CRC_BITS | self.recipients_crc


def unpacked(number: int) -> Place:
    mask = (1 << _CRC_BITS) - 1
    return Place(number >> _LENGTH_BITS + _CRC_BITS, number >> _CRC_BITS & mask, number & mask)


def recipients_crc(recipients: Sequence[str]) -> int:
    return zlib.crc32("\n".join(recipients).encode()) or 1


class Segment:
    __slots__ = (
        "end",
        "is_damaged",
        "is_done",
        "is_stuck",
        "live",
        "live_bytes",
        "mark",
        "name",
        "noted",
        "section",
    )

    def __init__(self, name: SegmentName) -> None:
        self.name = name
        self.mark = mark_of(name)
        self.end = 0
        """How long it is, as far as it was read or written."""
        self.is_done = False
        """All that counts of it was read, and nothing is added to it."""
        self.is_damaged = False
        """It is never removed."""
        self.is_stuck = False
        """What lives in it cannot be copied now."""
        self.live: dict[QueueId, int] = {}
        """Messages that are queued, and their places."""
        self.noted: dict[QueueId, int] = {}
        """Messages with notes here, and how many bytes."""
        self.live_bytes = 0
        self.section: bytes | None = None
        """What the next checkpoint says of it, where that did not change."""

    @property
    def is_dead(self) -> bool:
        return self.is_done and not self.is_damaged and not self.live and not self.noted


class Index:
    def __init__(self) -> None:
        self.segments: dict[SegmentName, Segment] = {}
        self.where: dict[QueueId, Segment] = {}
        self.facts: dict[QueueId, Facts] = {}

    def segment(self, name: SegmentName) -> Segment:
        """Return a segment, a new one where it is not known."""
        found = self.segments.get(name)
        if found is None:
            found = self.segments[name] = Segment(name)
        return found

    def place(self, queue_id: QueueId) -> Place:
        return unpacked(self.where[queue_id].live[queue_id])

    def read_with(self, queue_id: QueueId, recipients: Sequence[str]) -> None:
        """Be told whose recipients a queued message has."""
        own = self.place(queue_id)._replace(recipients_crc=recipients_crc(recipients))
        self.where[queue_id].live[queue_id] = own.packed()

    def take_in(self, segment: Segment, each: Record, *, is_whole: bool = True) -> bool:
        """Take in a record, of a whole group or another; return whether a message came that was not here."""
        own = each.queue_id
        if each.kind in MESSAGES:
            return self._come(segment, each)
        if own not in self.where or (each.kind in said.ENDS and not is_whole):
            return False
        if each.kind in said.ENDS:
            self._leave(own)
            self.forget_notes(own, self.facts.pop(own, Facts()))
            return False
        new, notes = said.decode(each.payload)
        for key in () if is_whole else said.NEED_A_WHOLE_GROUP:
            new.pop(key, None)
        facts = self.say(own, new)
        if each.kind == said.NOTED_ANEW:
            self.forget_notes(own, facts)
        if notes:
            self.note(own, facts, (segment.name.number, each.at, each.record_bytes))
        return False

    def say(self, queue_id: QueueId, new: Mapping[str, Any]) -> Facts:
        """Take in what is said of a queued message; return all that is."""
        self.where[queue_id].section = None
        facts = self.facts.get(queue_id)
        if facts is None:
            facts = self.facts[queue_id] = Facts()
        facts.apply(new)
        return facts

    def note(self, queue_id: QueueId, facts: Facts, place: NotePlace) -> None:
        number, _, length = place
        segment = self.segment(SegmentName(SENDER, number))
        facts.notes.append(place)
        segment.noted[queue_id] = segment.noted.get(queue_id, 0) + length
        segment.live_bytes += length

    def forget_notes(self, queue_id: QueueId, facts: Facts) -> None:
        for number, _, _ in facts.notes:
            segment = self.segments[SegmentName(SENDER, number)]
            segment.live_bytes -= segment.noted.pop(queue_id, 0)
        facts.notes = []

    def dead(self) -> list[Segment]:
        return [segment for segment in self.segments.values() if segment.is_dead]

    def crowded(self, spare_bytes: int) -> Segment | None:
        """Return the segment with the least of what lives, where all together hold too much that does not."""
        done = [each for each in self.segments.values() if each.is_done and not each.is_damaged]
        live_bytes = sum(each.live_bytes for each in done)
        if sum(each.end for each in done if not each.is_dead) <= 2 * live_bytes + spare_bytes:
            return None
        partly = [each for each in done if 0 < each.live_bytes < each.end and not each.is_stuck]
        return min(partly, key=lambda each: each.live_bytes / each.end, default=None)

    def _come(self, segment: Segment, each: Record) -> bool:
        own, place = each.queue_id, Place(each.at, each.record_bytes)
        is_new = own not in self.where
        if not is_new and each.kind not in COPIES:
            return False
        if not is_new:
            place = place._replace(recipients_crc=self._leave(own).recipients_crc)
        self.where[own] = segment
        segment.live[own] = place.packed()
        segment.live_bytes += place.length
        segment.section = None
        return is_new

    def _leave(self, queue_id: QueueId) -> Place:
        segment = self.where.pop(queue_id)
        place = unpacked(segment.live.pop(queue_id))
        segment.live_bytes -= place.length
        segment.section = None
        return place
