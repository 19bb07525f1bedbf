"""What is to be expected of the queue: a look at it at one instant, and the estimate made from that.

A `Look` is quick and taken on the event loop.  Its estimate takes its time with a long queue,
touches nothing of the relay, and may be made in another thread.

`held_by` has one of these forms, whatever holds a message:

| form | what it waits for, or for most of its wait |
| --- | --- |
| nothing | it goes now |
| `limit LABEL`, `limit LABEL (KEY)` | room in that window, or in that key's |
| `ceiling of lane NAME` | room for its lane under the ceiling |
| `pause: WHY` | the end of the upstream's pause |
| `stop: WHY` | an operator who acts; no instant is known |
| `hold` | the operator; no instant is known |
| `reports.per_hour` | room for its report, which is all that it lacks; no instant is known |
| `back-off` | the end of its own back-off |
| `sender rests` | the end of the pause after the upstream refused its sender |
| `shield` | its back-off, since a refusal that no rule knows is asked about again |
| `connections` | a connection that is free |
"""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, cast

from relay.mail.envelope import QueueId
from relay.policy.model import Upstream
from relay.queue.queued import WaitKind, WaitReason, wait_reason
from relay.queue.scheduler import Queued, Scheduler, State
from relay.sender.dispatcher import Dispatcher
from relay.sender.settling import Attempt
from relay.status.eta import foretell
from relay.throttle.admission import keys_of
from relay.throttle.expected import BACK_OFF, HOLD, NEXT, RESTS, SHIELD, Mail, Outlook, Place, limit_words

DOWN = "stop: the relay is down"
REPORTS = "reports.per_hour"
_OUT_OF_LINE = {State.HELD: HOLD, State.REPORTING: REPORTS}


class Expected(NamedTuple):
    eta_ns: int | None
    """Boottime; None where nobody can tell."""
    held_by: str


class Look:
    def __init__(
        self,
        scheduler: Scheduler,
        dispatcher: Dispatcher | None,
        upstream: Upstream,
        back_off_ns: tuple[int, int],
        now_ns: int,
    ) -> None:
        """Without a dispatcher the relay is down."""
        self._queue = list(scheduler)
        # Lists of what is there already: making an object for each message takes ten times as long.
        self._states = [queued.state for queued in self._queue]
        self._due_ns = [queued.due_at_ns for queued in self._queue]
        self._left = [queued.recipients_left for queued in self._queue]
        self._places = [queued.place for queued in self._queue]
        # Of one instant with `_left`: the estimate has no answer to domains of more recipients, or of fewer.
        self._domains = [queued.domains for queued in self._queue]
        self._tried = [queued.tried for queued in self._queue]
        self._line = scheduler.twin()
        self._rests_of = scheduler.sender_pauses.rests_of
        self._dispatcher = dispatcher
        self._stop, self._outlook = DOWN, Outlook(now_ns)
        self._under_way: dict[QueueId, tuple[int, Attempt]] = {}
        self._doubted: frozenset[QueueId] = frozenset()
        if dispatcher is not None:
            self._stop = stop_words(dispatcher.pausing.because) if dispatcher.pausing.is_stopped else ""
            self._outlook = _outlook(dispatcher, upstream, back_off_ns, now_ns)
            self._under_way = dict(dispatcher.relaying.under_way)
            self._doubted = frozenset(suspect.queue_id for suspect in dispatcher.shield.suspects)

    def messages(self) -> list[Queued]:
        """Return copies, as of that instant; takes time in proportion to them."""
        copies = []
        where = zip(self._states, self._due_ns, self._places, strict=True)
        whose = zip(self._left, self._domains, self._tried, strict=True)
        columns = zip(self._queue, where, whose, strict=True)
        for queued, (state, due_at_ns, place), (left, domains, tried) in columns:
            twin = copy(queued)
            twin.state, twin.due_at_ns, twin.place = state, due_at_ns, place
            twin.recipients_left, twin.domains, twin.tried = left, domains, tried
            copies.append(twin)
        return copies

    def expected(self, messages: Sequence[Queued]) -> list[Expected]:
        """Take time in proportion to the number of `messages`."""
        foretold = {
            queued.queue_id: Expected(None, _OUT_OF_LINE.get(queued.state, self._stop or NEXT))
            for queued in messages
        }
        if not self._stop:
            mails = []
            for queued in self._lined_up(messages):
                mail = self._mail(queued)
                if mail.recipients:
                    mails.append(mail)
                else:
                    foretold[queued.queue_id] = Expected(mail.joins_at_ns, NEXT)
            lined_up = {mail.queue_id for mail in mails}
            line = self._line.twin(self._in_line(each) for each in messages if each.queue_id in lined_up)
            for mail, each in zip(mails, foretell(mails, self._outlook, line), strict=True):
                foretold[mail.queue_id] = Expected(*each)
        return [foretold[queued.queue_id] for queued in messages]

    def drained_ns(self) -> int | None:
        """Leave out what is deferred.  None where nobody can tell; now, where nothing waits."""
        if self._stop:
            return None
        messages = self.messages()
        etas = [
            expected.eta_ns
            for queued, expected in zip(messages, self.expected(messages), strict=True)
            if queued.state in (State.WAITING, State.ACTIVE) and expected.eta_ns is not None
        ]
        return max(etas, default=self._outlook.now_ns)

    def _lined_up(self, messages: Sequence[Queued]) -> list[Queued]:
        """Return first the messages that were taken, of these last those on their way, as begun."""
        begun = {queue_id: number for number, queue_id in enumerate(self._under_way)}
        actives = [queued for queued in messages if queued.state is State.ACTIVE]
        actives.sort(key=lambda queued: begun.get(queued.queue_id, -1))
        return actives + [each for each in messages if each.state in (State.WAITING, State.DEFERRED)]

    def _in_line(self, queued: Queued) -> Queued:
        """Return a copy for the estimate to move; what it waits for is in its reason."""
        twin, words = copy(queued), NEXT
        if queued.place is not None:
            kind, key = cast(Place, queued.place)
            labels = (limit.label for limit in self._outlook.limits if limit.for_each == kind)
            words = limit_words(next(labels, kind), key)
        twin.why = WaitReason(WaitKind.SENDER_PAUSE, RESTS) if _rests(queued) else wait_reason(words)
        return twin

    def _mail(self, queued: Queued) -> Mail:
        """Return a message without recipients where all that are left are on their way."""
        now_ns, left = self._outlook.now_ns, queued.recipients_left
        joins_at_ns = queued.due_at_ns if queued.state is State.DEFERRED else 0
        until_then = RESTS if _rests(queued) else SHIELD if queued.queue_id in self._doubted else BACK_OFF
        domains, begun = queued.domains, None
        if queued.state is State.ACTIVE:
            joins_at_ns = now_ns
            if (begun := self._under_way.get(queued.queue_id)) is not None:
                reserved_at_ns, attempt = begun
                left = max(0, left - len(attempt.indices))
                joins_at_ns = max(now_ns, reserved_at_ns + self._outlook.transaction_ns)
                domains = attempt.domains_left(attempt.indices)
        tried = len(queued.tried) if len(queued.tried) < left else 0
        # Where it has only those left that were tried, they are simply next.
        untried_domains, tried_domains = split_runs(domains, left - tried) if tried else (domains, ())
        return Mail(
            left - tried,
            joins_at_ns,
            until_then,
            queued.reverse_path,
            *keys_of(queued.reverse_path, queued.client),
            untried_domains,
            tried,
            tried_domains,
            self._age_ns(queued) if tried else 0,
            queued.queue_id,
            begun is not None,
        )

    def _age_ns(self, queued: Queued) -> int:
        """Return the age as back-offs count it."""
        now_ns, arrived_at_ns = self._outlook.now_ns, queued.arrived_at_ns
        if self._dispatcher is None:
            return now_ns - arrived_at_ns
        rests = self._rests_of(queued.sender)
        return now_ns - arrived_at_ns - self._dispatcher.pausing.paused_ns(arrived_at_ns, now_ns, rests)


def _rests(queued: Queued) -> bool:
    """Return whether a message waits, or did till now, for the end of its sender's pause."""
    return queued.why.kind is WaitKind.SENDER_PAUSE and queued.state in (State.WAITING, State.DEFERRED)


def split_runs(
    domains: tuple[tuple[str, int], ...], first: int
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
    """Return the runs of the first recipients, and of the others."""
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


def stop_words(because: str) -> str:
    return f"stop: {because}"


def pause_words(because: str) -> str:
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
        tuple(len(attempt.indices) for _, attempt in dispatcher.relaying.under_way.values()),
        upstream.max_messages,
        upstream.idle_ns,
        dispatcher.pool.idle,
        back_off_ns,
    )
