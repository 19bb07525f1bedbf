"""What is queued, in memory: where each message is, what became of it, and what all comes to.

Everything here follows from the records of the streams: `change` is what a record says, `placed` where it
stands.  A start calls both for each record; the sender calls `change` at once, so that reads see what was
called, and `placed` when the record is durable.
Does not: read or write.
"""

from collections import OrderedDict
from collections.abc import Iterable

from relay.mail.envelope import QueueId
from relay.spool.identity import subject_of
from relay.spool.interface import Status, Totals
from relay.spool.ledger import fates_of
from relay.spool.log import facts as said
from relay.spool.log.facts import Facts, LogAccount
from relay.spool.log.record import MESSAGES
from relay.spool.log.segments import Segments

UNPLACED = 0
_MOST_ENDED = 4096


class LogIndex:
    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.places: dict[QueueId, int] = {}
        self.facts: dict[QueueId, Facts] = {}
        self.account = LogAccount()
        self._keeps_unknown = False
        """What is said now of messages that are not there is kept until they come."""
        self._may_come_again: set[QueueId] = set()
        """Messages that a start knew by a copy or by their end only: their listener may bring them later.

        They outlast the start, as the segments do that say so: nobody tells when a listener is heard.
        """
        self._leaving: dict[QueueId, tuple[int, Facts | None]] = {}
        """Messages that ended, whose end is not durable yet."""
        self._ended: OrderedDict[QueueId, None] = OrderedDict()
        """The last ones that ended: the same calls may come again."""
        self._account_at = UNPLACED
        self._recipients = 0
        self._progress: list[int] = [0, 0, 0, 0]

    @property
    def totals(self) -> Totals:
        account, progress = self.account, self._progress
        aside = sum(account.aside.values())
        return Totals(
            account.ended + self._recipients + aside,
            account.relayed + progress[0],
            account.bounced + progress[1],
            account.expired + progress[2],
            account.deleted + progress[3],
            self._recipients - sum(progress) + aside,
        )

    def listeners_are_read(self, *, are_all: bool) -> None:
        """Be told that a start reads the sender's stream next; `are_all`: it read all mail there is."""
        self._keeps_unknown = not are_all

    def sender_is_read(self) -> None:
        """Be told that a start read the sender's stream: from now on we speak only of what is here."""
        self._keeps_unknown = False

    def has_ended(self, queue_id: QueueId) -> bool:
        """Return whether a message ended lately, or is a report that ended before its message."""
        if queue_id in self._ended:
            return True
        subject = subject_of(queue_id)
        about = None if subject is None else self.facts.get(subject)
        return about is not None and queue_id in about.closed

    def is_held(self, queue_id: QueueId) -> bool:
        facts = self.facts.get(queue_id)
        return facts is not None and facts.is_held

    def facts_of(self, queue_id: QueueId) -> Facts:
        facts = self.facts.get(queue_id)
        if facts is None:
            facts = self.facts[queue_id] = Facts()
        return facts

    def come(self, queue_id: QueueId, recipients: int, place: int) -> bool:
        """Queue a message; return False for one that is there already, or came again from a stream."""
        if queue_id in self.places or queue_id in self._may_come_again:
            return False
        if self._keeps_unknown:
            self._may_come_again.add(queue_id)
        if (facts := self.facts.get(queue_id)) is not None:
            self._progressed(facts.statuses.values(), 1)
        self.places[queue_id] = place
        self._recipients += recipients
        if place != UNPLACED:
            self._segments.keep(place)
        return True

    def change(self, kind: bytes, queue_id: QueueId, payload: bytes, number: int) -> None:
        """Take in a record.  Raises struct.error, ValueError, KeyError or TypeError for none of ours."""
        if kind in said.OF_A_MESSAGE:
            if queue_id in self.places or self._keeps_unknown:
                self._say(kind, queue_id, payload)
        elif kind in (said.FINISHED, said.GONE):
            if kind == said.FINISHED:
                self.account.count(said.decode_fates(payload))
            self._leave(queue_id, number)
        elif kind == said.ASIDE:
            fates = said.decode_fates(payload)
            self.account.count(fates)
            self.account.aside[queue_id] = number
            self._leave(queue_id, number + sum(fates))
        elif kind == said.REMOVED:
            self.account.deleted += self.account.aside.pop(queue_id, 0)
        elif kind == said.ACCOUNT:
            self.account = said.decode_account(payload)

    def placed(self, kind: bytes, queue_id: QueueId, place: int) -> None:
        """Say where a record stands that was taken in by `change`, or `come`."""
        if kind in MESSAGES:
            self._move(queue_id, place)
        elif kind in said.OF_A_MESSAGE:
            self._place_fact(kind, queue_id, place)
        elif kind == said.ACCOUNT:
            # The last one is needed, and the ends behind it, until the next segment has another.
            self._segments.keep(place)
            if self._account_at != UNPLACED:
                self._segments.let_go(self._account_at)
            self._account_at = place
        elif kind in (said.FINISHED, said.GONE, said.ASIDE):
            left = self._leaving.pop(queue_id, None)
            if left is not None:
                before, facts = left
                self._segments.end(before, place)
                for each in facts.places if facts is not None else ():
                    self._segments.let_go(each)
            elif self._keeps_unknown:
                self._may_come_again.add(queue_id)
            subject = subject_of(queue_id)
            if subject is not None and (about := self.facts.get(subject)) and queue_id in about.closed:
                about.places.append(place)
                self._segments.keep(place)

    def durable_place(self, queue_id: QueueId) -> int | None:
        """Return where a message is for a start now: also one whose end was called and not committed."""
        left = self._leaving.get(queue_id)
        return self.places.get(queue_id) if left is None else left[0]

    def statuses(self, queue_id: QueueId) -> dict[int, Status]:
        facts = self.facts.get(queue_id)
        return {} if facts is None else facts.statuses

    def crowded(self, queue_ids: Iterable[QueueId]) -> list[QueueId]:
        """Return those of whom so much was said that it is better said anew as one."""
        return [q for q in queue_ids if q in self.facts and len(self.facts[q].places) > said.MOST_PLACES]

    def _say(self, kind: bytes, queue_id: QueueId, payload: bytes) -> None:
        facts = self.facts_of(queue_id)
        counts = queue_id in self.places
        if counts and kind == said.MARKS:
            marks = said.decode_marks(payload)
            self._progressed([status for index, status in marks.items() if index not in facts.statuses], 1)
        elif counts and kind == said.SNAPSHOT:
            self._progressed(facts.statuses.values(), -1)
        facts.apply(kind, payload)
        if kind == said.SNAPSHOT:
            self._progressed(facts.statuses.values() if counts else (), 1)
            facts.superseded += sum(isinstance(note, bytes) for note in facts.notes)
            facts.notes = [payload]
        elif kind == said.NOTES:
            facts.notes.append(payload)

    def _place_fact(self, kind: bytes, queue_id: QueueId, place: int) -> None:
        left = self._leaving.get(queue_id)
        facts = self.facts.get(queue_id) if left is None else left[1]
        if facts is None:
            return
        if kind == said.SNAPSHOT:
            for each in facts.places:
                self._segments.let_go(each)
            facts.places = []
        if kind in (said.NOTES, said.SNAPSHOT):
            self._place_note(facts, place)
        facts.places.append(place)
        self._segments.keep(place)

    @staticmethod
    def _place_note(facts: Facts, place: int) -> None:
        if facts.superseded:
            facts.superseded -= 1
            return
        # The first that has no place yet: they become durable in the order of the calls.
        facts.notes[[isinstance(note, bytes) for note in facts.notes].index(True)] = place

    def _move(self, queue_id: QueueId, place: int) -> None:
        """Say where a message stands that was published, or copied forward."""
        left = self._leaving.get(queue_id)
        before = self.places[queue_id] if left is None else left[0]
        if left is None:
            self.places[queue_id] = place
        else:
            self._leaving[queue_id] = (place, left[1])
        self._segments.keep(place)
        if before != UNPLACED:
            # As long as the segment that it was in may come back, the copy tells where it went.
            self._segments.end(before, place)

    def _leave(self, queue_id: QueueId, recipients: int) -> None:
        self._remember(queue_id)
        subject = subject_of(queue_id)
        if subject is not None and (subject in self.places or self._keeps_unknown):
            # It must not be published again while the message that it is about may ask for it.
            self.facts_of(subject).closed.add(queue_id)
        place = self.places.pop(queue_id, None)
        if place is None:
            self.facts.pop(queue_id, None)
            return
        facts = self.facts.pop(queue_id, None)
        if facts is not None:
            self._progressed(facts.statuses.values(), -1)
        self._recipients -= recipients
        self._leaving[queue_id] = (place, facts)

    def _progressed(self, statuses: Iterable[Status], by: int) -> None:
        for which, count in enumerate(fates_of(list(statuses))):
            self._progress[which] += by * count

    def _remember(self, queue_id: QueueId) -> None:
        self._ended[queue_id] = None
        if len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)
