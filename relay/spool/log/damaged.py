"""What is damaged of a log: put into corrupt/ as a file that people can read, and ended here.

A damaged record of a message is a suspect until all streams were read: the sender's may say that the message
ended long before.  Guarantees: bytes that cannot be put into corrupt/ stay where they are, for the next
start.
"""

from relay.mail.envelope import QueueId
from relay.spool.ledger import fates_of
from relay.spool.log import facts as said
from relay.spool.log import message
from relay.spool.log.index import LogIndex
from relay.spool.log.journal import Journal
from relay.spool.log.record import INLINE, New
from relay.spool.log.segments import Segment, SegmentEvent, Segments, place_of
from relay.spool.log.stream_reader import Damage
from relay.spool.message.recent import Recent
from relay.spool.root import quarantine
from relay.spool.root.quarantine import Quarantine


class Damaged:
    def __init__(
        self, segments: Segments, queued: LogIndex, journal: Journal, *, aside: Quarantine, memory: Recent
    ) -> None:
        self._aside = aside
        self._segments = segments
        self._queued = queued
        self._journal = journal
        self._memory = memory
        self._left: set[QueueId] = set()
        self._suspects: dict[QueueId, int] = {}
        """How many recipients each had."""
        self._dealt_with: list[Segment] = []
        """Where damage was met with which a start is done, as soon as what it called is durable."""
        self.places = 0
        """How many places of segments were found damaged."""

    @property
    def left_count(self) -> int:
        """Return how many messages could not be put into corrupt/."""
        return len(self._left)

    def meet(self, handle: int, damage: Damage) -> None:
        """Set aside what is no sound record, and is none that a crash leaves."""
        self.places += 1
        segment = self._segments[handle]
        segment.is_damaged = True
        self._dealt_with = [each for each in self._dealt_with if each is not segment]
        raw = self._segments.pread(handle, damage.end - damage.at, damage.at)
        name = f"{segment.name.stream}.{segment.name.number:010d}-{damage.at}"
        if damage.queue_id and damage.kind in INLINE:
            name = damage.queue_id
            raw = message.payload_of(raw, damage.queue_id)
            place = place_of(handle, damage.at, damage.end - damage.at)
            if self._queued.come(damage.queue_id, damage.number, place):
                self._suspects[damage.queue_id] = damage.number
        try:
            self._aside.keep(name, raw, f"{damage.end - damage.at} bytes of a segment are damaged")
        except OSError as error:
            # There is no other copy: the segment stays, and the next start does it.
            segment.change(SegmentEvent.PIN)
            self._suspects.pop(QueueId(name), None)
            self._aside.tell_once(name, f"is damaged, and cannot be set aside: {error.strerror}")

    def end_suspects(self) -> None:
        """End those that are still queued, now that all was read that may tell of their ends."""
        for queue_id, recipients in self._suspects.items():
            if queue_id in self._queued.places:
                self._end(queue_id, recipients)
        self._suspects.clear()

    def start_is_done(self) -> None:
        """Be told that a start did all that it has to do about what it met, but for the commit."""
        self._dealt_with = [segment for _, segment in self._segments if segment.is_damaged]
        if not self._journal.has_pending:
            self.is_committed()

    def is_committed(self) -> None:
        for segment in self._dealt_with:
            segment.is_damaged = False
        self._dealt_with.clear()

    def set_aside(self, queue_id: QueueId, fault: str, payload: bytes, recipients: int) -> None:
        """Put a message's payload, or where there is none its own file, into corrupt/, and end it."""
        try:
            if payload:
                self._aside.keep(queue_id, payload, fault)
            elif not self._aside.move(self._segments.layout.content(queue_id), fault):
                return
        except OSError as error:
            self._aside.tell_once(queue_id, f"{fault}; cannot be set aside: {error.strerror}")
            self._left.add(queue_id)
            return
        self._left.discard(queue_id)
        self._memory.forget(queue_id)
        self._end(queue_id, recipients)

    def forget_what_was_removed(self) -> int:
        """Count as deleted what somebody removed from corrupt/; return how many recipients."""
        there = {quarantine.subject_name(name) for name in self._aside.recount()}
        aside = self._queued.account.aside
        removed = 0
        for queue_id in [each for each in aside if each not in there]:
            removed += aside[queue_id]
            self._journal.call(New(said.REMOVED, queue_id))
        return removed

    def _end(self, queue_id: QueueId, recipients: int) -> None:
        statuses = list(self._queued.statuses(queue_id).values())
        left = max(0, recipients - len(statuses))
        self._journal.call(New(said.ASIDE, queue_id, said.encode_fates(fates_of(statuses)), left))
