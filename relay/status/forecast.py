"""What is to be expected of the queue: a look at it at one instant, and the estimate made from that.

The look is taken on the event loop and is quick; the estimate takes its time with a long
queue, touches nothing of the relay, and may be made in another thread.

`held_by` has one of these forms, whatever holds a message:

| form | what it waits for, or for most of its wait |
| --- | --- |
| nothing | it goes now |
| `limit LABEL`, `limit LABEL (KEY)` | room in that window, or in that key's |
| `ceiling of lane NAME` | room for its lane under the ceiling |
| `pause: WHY` | the end of the upstream's pause |
| `stop: WHY` | somebody who acts; no instant is known |
| `hold` | the operator; no instant is known |
| `reports.per_hour` | room for its report, which is all that it lacks; no instant is known |
| `back-off` | the end of its own back-off |
| `sender rests` | the end of the time for which the upstream's refusal of its sender is heeded |
| `shield` | its back-off, since a refusal that no rule knows is asked about again |
| `connections` | a connection that is free |
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

from relay.mail.envelope import QueueId
from relay.policy.model import Upstream
from relay.queue.queued import WaitKind, WaitReason, wait_reason
from relay.queue.scheduler import Queued, Scheduler, State
from relay.sender.dispatcher import Dispatcher
from relay.sender.settling import Attempt
from relay.status.eta import foretell
from relay.throttle.decision import keys_of
from relay.throttle.expected import BACK_OFF, HOLD, NEXT, RESTS, SHIELD, Mail, Outlook, Place, limit_words

DOWN = "stop: the relay is down"
REPORTS = "reports.per_hour"
_OUT_OF_LINE = {State.HELD: HOLD, State.REPORTING: REPORTS}


class Seen(NamedTuple):
    """One message, as it was at the instant of the look."""

    queued: Queued
    state: State
    due_at_ns: int
    recipients_left: int
    is_sitting_out: bool
    place: Place | None
    turn: int
    domains: tuple[tuple[str, int], ...]
    reason: str
    tried: int
    """How many of its recipients were deferred in this round."""
    age_ns: int
    """As back-offs count it; of those with such recipients only."""
    lane: str


class Expected(NamedTuple):
    """What is to be expected of one message."""

    eta_ns: int | None
    """Boottime; None where nobody can tell."""
    held_by: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """The queue at one instant, and all that decides what becomes of it."""

    seen: tuple[Seen, ...]
    """Everything queued, in no order."""
    active: tuple[int, ...]
    """Which of them are in a transaction, or about to be."""
    leaving: tuple[int, ...]
    """Which of them wait or are deferred."""
    line: Scheduler
    """The order of the queue, without its messages."""
    outlook: Outlook
    under_way: Mapping[QueueId, tuple[int, Attempt]]
    doubted: frozenset[QueueId]
    stop: str
    """Why nothing is sent until somebody acts; empty where it is."""

    def expected(self) -> list[Expected]:
        """Return what is to be expected of each of `seen`; takes time in proportion to their number."""
        if self.stop:
            return [Expected(None, _OUT_OF_LINE.get(seen.state, self.stop)) for seen in self.seen]
        expected = [Expected(None, _OUT_OF_LINE.get(seen.state, NEXT)) for seen in self.seen]
        indices, mails = [], []
        for index, left, joins_ns in self._lined_up():
            if left:
                indices.append(index)
                mails.append(self._mail(self.seen[index], left, joins_ns))
            else:
                expected[index] = Expected(joins_ns, NEXT)
        line = self.line.twin(self._copy(self.seen[index]) for index in indices)
        for index, foretold in zip(indices, foretell(mails, self.outlook, line), strict=True):
            expected[index] = Expected(*foretold)
        return expected

    def _copy(self, seen: Seen) -> Queued:
        """Return a message for the estimate to move; what it waits for is in its reason."""
        queued, reason = seen.queued, NEXT
        if seen.place is not None:
            kind, key = seen.place
            labels = (limit.label for limit in self.outlook.limits if limit.for_each == kind)
            reason = limit_words(next(labels, kind), key)
        return Queued(
            queued.queue_id,
            queued.reverse_path,
            queued.size_bytes,
            queued.arrived_at_ns,
            queued.arrival_at_ns,
            seen.recipients_left,
            seen.state,
            seen.due_at_ns,
            WaitReason(WaitKind.SENDER_PAUSE, RESTS) if seen.is_sitting_out else wait_reason(reason),
            ready_at_ns=queued.ready_at_ns,
            refusals=queued.refusals,
            place=seen.place,
            turn=seen.turn,
            lane=seen.lane,
        )

    def drained_ns(self) -> int | None:
        """Return when the last of what waits will have been relayed, what is deferred apart.

        None where nobody can tell; now, where nothing waits.
        """
        if self.stop:
            return None
        latest_ns = self.outlook.now_ns
        for seen, expected in zip(self.seen, self.expected(), strict=True):
            if seen.state in (State.WAITING, State.ACTIVE) and expected.eta_ns is not None:
                latest_ns = max(latest_ns, expected.eta_ns)
        return latest_ns

    def _lined_up(self) -> Iterator[tuple[int, int, int]]:
        """Yield who goes, in order: which one, how many of its recipients, and when it joins the line.

        With none of them: when the transaction that it is in will have ended.
        """
        now_ns = self.outlook.now_ns
        for index in self.active:
            seen = self.seen[index]
            left, joins_ns = seen.recipients_left, now_ns
            if (begun := self.under_way.get(seen.queued.queue_id)) is not None:
                left = max(0, left - len(begun[1].indices))
                joins_ns = max(now_ns, begun[0] + self.outlook.transaction_ns)
            yield index, left, joins_ns
        for index in self.leaving:
            seen = self.seen[index]
            yield index, seen.recipients_left, seen.due_at_ns if seen.state is State.DEFERRED else 0

    def _mail(self, seen: Seen, left: int, joins_ns: int) -> Mail:
        queued = seen.queued
        until_then = BACK_OFF
        if seen.is_sitting_out:
            until_then = RESTS
        elif queued.queue_id in self.doubted:
            until_then = SHIELD
        keys = keys_of(queued.reverse_path, queued.client)
        domains = seen.domains
        if seen.state is State.ACTIVE and (begun := self.under_way.get(queued.queue_id)) is not None:
            domains = begun[1].domains_left(begun[1].indices)
        mail = Mail(left, joins_ns, until_then, queued.reverse_path, *keys, domains)
        is_under_way = seen.state is State.ACTIVE and queued.queue_id in self.under_way
        mail = mail._replace(queue_id=queued.queue_id, is_under_way=is_under_way)
        # Where it has only those left that were tried, they are simply next.
        if not 0 < seen.tried < left:
            return mail
        untried, tried = split_runs(domains, left - seen.tried)
        return mail._replace(
            recipients=left - seen.tried,
            domains=untried,
            tried=seen.tried,
            tried_domains=tried,
            age_ns=seen.age_ns,
        )


def split_runs(
    domains: tuple[tuple[str, int], ...], first: int
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
    """Return runs of so many recipients, and of the others."""
    if not first:
        return (), domains
    before: list[tuple[str, int]] = []
    after: list[tuple[str, int]] = []
    for domain, count in domains:
        taken = min(count, first)
        first -= taken
        if taken:
            before.append((domain, taken))
        if count > taken:
            after.append((domain, count - taken))
    return tuple(before), tuple(after)


class Look:
    """The queue at one instant, copied: quick enough for the event loop, even where it is long."""

    def __init__(
        self,
        scheduler: Scheduler,
        dispatcher: Dispatcher | None,
        upstream: Upstream,
        back_off_ns: tuple[int, int],
        now_ns: int,
    ) -> None:
        """Look at a queue that goes through an upstream; without a heart the relay is down."""
        self._queue = list(scheduler)
        # Lists of what is there already: making an object for each message takes ten times as long.
        self._states = [queued.state for queued in self._queue]
        self._due_ns = [queued.due_at_ns for queued in self._queue]
        self._left = [queued.recipients_left for queued in self._queue]
        self._places = [queued.place for queued in self._queue]
        self._line = scheduler.twin()
        self._rests_of = scheduler.sender_pauses.rests_of
        self._dispatcher = dispatcher
        self._now_ns = now_ns
        self._stop, self._outlook = DOWN, Outlook(now_ns)
        self._under_way: dict[QueueId, tuple[int, Attempt]] = {}
        self._doubted: frozenset[QueueId] = frozenset()
        if dispatcher is not None:
            self._stop = stop_words(dispatcher.pausing.because) if dispatcher.pausing.is_stopped else ""
            self._outlook = _outlook(dispatcher, upstream, back_off_ns, now_ns)
            self._under_way = dict(dispatcher.relaying.under_way)
            self._doubted = frozenset(suspect.queue_id for suspect in dispatcher.shield.suspects)

    def forecast(self) -> Forecast:
        """Return what there is to go by; takes time in proportion to the queue."""
        columns = zip(self._queue, self._states, self._due_ns, self._left, self._places, strict=True)
        seen = tuple(self._seen(*column) for column in columns)
        leaving = [i for i, each in enumerate(seen) if each.state in (State.WAITING, State.DEFERRED)]
        actives = [index for index, each in enumerate(seen) if each.state is State.ACTIVE]
        # Those that are not on their way yet come first; of the others the one that was begun first.
        begun = {queue_id: number for number, queue_id in enumerate(self._under_way)}
        actives.sort(key=lambda index: begun.get(seen[index].queued.queue_id, -1))
        return Forecast(
            seen,
            tuple(actives),
            tuple(leaving),
            self._line,
            self._outlook,
            self._under_way,
            self._doubted,
            self._stop,
        )

    def _seen(self, queued: Queued, state: State, due_ns: int, left: int, place: object) -> Seen:
        age_ns = 0
        if queued.tried and self._dispatcher is not None:
            rests = self._rests_of(queued.sender)
            paused_ns = self._dispatcher.pausing.paused_ns(queued.arrived_at_ns, self._now_ns, rests)
            age_ns = self._now_ns - queued.arrived_at_ns - paused_ns
        return Seen(
            queued,
            state,
            due_ns,
            left,
            queued.why.kind is WaitKind.SENDER_PAUSE and state in (State.WAITING, State.DEFERRED),
            cast(Place | None, place),
            queued.turn,
            queued.domains,
            queued.reason,
            len(queued.tried),
            age_ns,
            queued.lane,
        )


def stop_words(because: str) -> str:
    """Return how `held_by` names a stop."""
    return f"stop: {because}"


def pause_words(because: str) -> str:
    """Return how `held_by` names a pause."""
    return f"pause: {because}"


def _outlook(
    dispatcher: Dispatcher,
    upstream: Upstream,
    back_off_ns: tuple[int, int],
    now_ns: int,
) -> Outlook:
    transaction_ns = dispatcher.relaying.transaction_ns
    because = dispatcher.pausing.because
    return Outlook(
        now_ns,
        dispatcher.throttle.limited(transaction_ns),
        dispatcher.connections,
        dispatcher.max_recipients,
        transaction_ns,
        tuple(max(now_ns, start + transaction_ns) for start, _ in dispatcher.relaying.under_way.values()),
        dispatcher.pausing.paused_until_ns if because else 0,
        pause_words(because) if because else "",
        dispatcher.pausing.is_proving,
        dispatcher.pausing.slow_start.taken,
        tuple(len(portion.indices) for _, portion in dispatcher.relaying.under_way.values()),
        upstream.max_messages,
        upstream.idle_ns,
        dispatcher.pool.idle,
        back_off_ns,
    )
