"""What the traffic that a history tells of would have met under other limits.  Pure.

Each transaction that is known one by one wants to leave when it began in truth, and is estimated by
`relay.status.estimate.eta`: the same gauges, lanes and order as for the queue of now.  All take as long as
half of them took at most.

Honest: what the limits of its own time kept back comes late already, and its wait before that is
unknown, as are messages that were never tried.  So the same count under the policy in force stands
beside it (`relay.status.estimate.plan`).  What compaction merged is known roughly: it occupies slots, and
none of it is asked how long it would wait.  A limit for each sender, say, is judged only where the
history says whose every transaction was; else it is left out, and named.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.queue.lanes import DEFAULT_LANE, Arrangement
from relay.queue.queued import State, origin_of
from relay.status.estimate.eta import foretell
from relay.status.estimate.expected import NEVER_NS, Mail, Outlook
from relay.status.estimate.replay.scheduler import Scheduler
from relay.status.estimate.replay.twin import Twin
from relay.throttle.events import UNKNOWN, Slot
from relay.throttle.limit import ForEach, Limit
from relay.throttle.limit_state import Limited, LimitState

SHORTEST_WAIT_NS = SECOND_NS
"""A shorter wait is not counted: it is as long as an estimate may be off."""


@dataclass(frozen=True, slots=True)
class PastTerms:
    """By what a policy lets an account's mail go."""

    limits: Sequence[Limit]
    guard_ns: int | None
    connections: int
    max_recipients: int
    arrangement: Arrangement


@dataclass(frozen=True, slots=True)
class Met:
    """What transactions would have met."""

    waited: int
    """How many would have waited for longer than SHORTEST_WAIT_NS."""
    longest_ns: int
    unjudged: tuple[str, ...]
    """Labels of limits that ask whose a transaction was, which the history does not say of each."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a history tells of messages."""

    known: tuple[Slot, ...]
    """One by one, as they began; boottime."""
    rough: tuple[Slot, ...]
    """Merged."""

    @property
    def transaction_ns(self) -> int:
        """Return what half of those took at most whose end was seen; 0 without any."""
        # A start is made unique, and may lie a little behind an end at that instant.
        took_ns = [max(0, each.until_ns - each.started_at_ns) for each in self.known if not each.is_open]
        return median_low(took_ns or [0])

    @property
    def merged(self) -> int:
        """Return how many messages are known only roughly."""
        return sum(each.messages for each in self.rough)

    def under(self, terms: PastTerms) -> Met:
        """Return what it would have met.  Takes as long as an estimate of so many messages."""
        if not self.known:
            return Met(0, 0, ())
        told, transaction_ns = self._told(), self.transaction_ns
        judged = [each for each in terms.limits if each.for_each is None or each.for_each in told]
        began_ns = self.known[0].started_at_ns
        mails = [_mail(span, number) for number, span in enumerate(self.known)]
        outlook = Outlook(
            began_ns,
            tuple(self._limited(limit, terms.guard_ns, began_ns) for limit in judged),
            terms.connections,
            terms.max_recipients,
            transaction_ns,
        )
        line = self._line(mails, terms, has_lanes="lane" in told)
        waits = [
            max(0, each.eta_ns - transaction_ns - mail.joins_at_ns)
            for mail, each in zip(mails, foretell(mails, outlook, line), strict=True)
            if each.eta_ns != NEVER_NS
        ]
        return Met(
            sum(wait_ns > SHORTEST_WAIT_NS for wait_ns in waits),
            max(waits, default=0),
            tuple(each.label for each in terms.limits if each not in judged),
        )

    def _told(self) -> frozenset[str]:
        """Return the kinds of key that every transaction tells."""
        kinds = ({s.for_each for s in each.shares if s.key != UNKNOWN} for each in self.known)
        return frozenset.intersection(*map(frozenset, kinds))

    def _limited(self, limit: Limit, guard_ns: int | None, began_ns: int) -> Limited:
        state = LimitState(limit, guard_ns)
        for each in self.rough:
            if each.until_ns <= began_ns:
                state.charge(each, began_ns)
        return state.limited((), began_ns)

    def _line(self, mails: Sequence[Mail], terms: PastTerms, *, has_lanes: bool) -> Scheduler:
        line = Scheduler()
        if has_lanes:
            line.arrange(*terms.arrangement)
        for mail, span in zip(mails, self.known, strict=True):
            queued = Twin(
                mail.queue_id,
                origin_of(mail.reverse_path, lane=_key(span, "lane") or DEFAULT_LANE),
                span.bytes,
                mail.joins_at_ns,
                mail.recipients,
                State.DEFERRED,
                mail.joins_at_ns,
            )
            line.add(queued)
        return line


def traffic_of(spans: Sequence[Slot]) -> Traffic:
    """Leave out connections."""
    of_mail = [each for each in spans if each.messages and each.recipients]
    known = [each for each in of_mail if each.is_exact]
    known.sort(key=lambda each: each.started_at_ns)
    return Traffic(tuple(known), tuple(each for each in of_mail if not each.is_exact))


def _mail(span: Slot, number: int) -> Mail:
    runs = tuple((s.key, s.recipients) for s in span.shares if s.for_each == "recipient_domain")
    sender = _key(span, "sender")
    return Mail(
        span.recipients,
        span.started_at_ns,
        reverse_path=sender,
        sender=sender,
        sender_domain=_key(span, "sender_domain"),
        client=_key(span, "client"),
        domains=runs if sum(count for _, count in runs) == span.recipients else (),
        queue_id=QueueId(str(number)),
    )


def _key(span: Slot, kind: ForEach) -> str:
    return next((s.key for s in span.shares if s.for_each == kind and s.key != UNKNOWN), "")
