"""What is to be expected of the queue: a look at it at one instant, and the estimate made from that.

A `Look` is at the line of one upstream; it is quick and taken on the event loop.  Its estimate takes its
time, touches nothing of the relay, and may be made in another thread.  With `most` it is a look at what goes
first (`Scheduler.front`), whose cost is the same for any longer queue; what stands behind goes by rates
(`relay.status.estimate.pace`).  Mail that will
fail over while its upstream is down is estimated with the line where it goes then.

`held_by` has one of these forms, whatever holds a message:

| form | what it waits for, or for most of its wait |
| --- | --- |
| nothing | it goes now |
| `limit LABEL`, `limit LABEL (KEY)` | room in that window, or in that key's |
| `ceiling of lane NAME` | room for its lane under the ceiling |
| `pause: WHY` | the end of the upstream's pause |
| `operator: WHY` | the end of the operator's pause (`relay pause`); without `--for` no instant is known |
| `stop: WHY` | an operator who acts; no instant is known |
| `hold` | the operator; no instant is known |
| `reports.per_hour` | room for its report, which is all that it lacks; no instant is known |
| `back-off` | the end of its own back-off |
| `sender rests` | the end of the pause after the upstream refused its sender |
| `shield` | its back-off, since a refusal that no rule knows is asked about again |
| `connections` | a connection that is free |
"""

import bisect
from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.policy.model import Upstream
from relay.queue.counts import total
from relay.queue.lanes import Arrangement
from relay.queue.queued import Queued, State, WaitKind, WaitReason
from relay.queue.upstream_queue import UpstreamQueue
from relay.sender.attempt import Attempt
from relay.sender.upstreams import UpstreamView
from relay.status.estimate.eta import foretell
from relay.status.estimate.expected import (
    BACK_OFF,
    HOLD,
    NEVER_NS,
    NEXT,
    RESTS,
    SHIELD,
    Mail,
    Outlook,
)
from relay.status.estimate.pace import Load, Pace
from relay.status.estimate.replay.scheduler import Scheduler
from relay.status.estimate.replay.twin import Twin, twin_of
from relay.throttle.admission import keys_of
from relay.throttle.limit_state import Limited
from relay.verdicts.pauses import within_ns

DOWN = "stop: the relay is down"
NOT_IN_POLICY = "stop: its upstream has left the policy, and its last transaction may still relay it"
REPORTS = "reports.per_hour"
_OUT_OF_LINE = {State.HELD: HOLD, State.REPORTING: REPORTS}


class Expected(NamedTuple):
    eta_ns: int | None
    """Boottime; None where nobody can tell."""
    held_by: str


class EditedLook(NamedTuple):
    """What an edit changes of a look."""

    outlook: Outlook
    stop: str = ""
    """What then holds all mail without a known end."""
    arrangement: Arrangement | None = None
    """None: as it is."""
    lane_of: Mapping[QueueId, str] = {}
    """The lanes of messages that the edit sorts anew."""
    trusts_senders: bool = False
    """The edit ends the pauses of senders."""
    is_other_line: bool = False
    """All mail goes over into the line of another upstream, which has none yet."""

    def arrange(self, line: Scheduler) -> None:
        """Do with a queue what `Sender.apply` does."""
        now_ns = self.outlook.now_ns
        if self.arrangement is not None:
            line.arrange(*self.arrangement)
        for sender in line.sender_pauses.senders() if self.trusts_senders else ():
            line.trust_sender(sender, now_ns)
        line.ask_anew()
        if self.lane_of and not self.outlook.pause:
            # The dispatcher looks first, and finds every message in the lane of before.
            while line.first_ready(now_ns) is None and line.is_behind:
                pass
        for queue_id in sorted(self.lane_of):
            line.move(queue_id, self.lane_of[queue_id])


class Joining(NamedTuple):
    """A message of another line that joins this one, at an instant or now."""

    queued: Queued
    at_ns: int = 0
    until_then: str = NEXT
    """What holds it until then."""


class Look:
    def __init__(
        self,
        name: str,
        scheduler: UpstreamQueue,
        parts: list[Queued],
        view: UpstreamView | None,
        upstream: Upstream | None,
        *,
        back_off_ns: tuple[int, int],
        now_ns: int,
        leaving: Container[QueueId] = (),
        most: int | None = None,
    ) -> None:
        """Without a view the relay is down; without an upstream, it has left the policy.

        `leaving` are the keys of mail of this line that joins another one (`join`).  A line of more than
        `most` messages is looked at only in front.
        """
        self.upstream = name
        self.behind = Load()
        """What waits behind the messages of this look."""
        found = parts
        if most is not None and len(found) > most:
            found = _front(scheduler, parts, most, () if view is None else view.under_way)
            self.behind = _waiting(scheduler).minus(_load(each for each in found if _waits(each)))
        self._arrangement, self._pauses = scheduler.arrangement, scheduler.sender_pauses.copy()
        self._queue = [queued for queued in found if queued.key not in leaving]
        self.leaving = leaving
        self.fails_over = {queued.part.route for queued in found if queued.key in leaving}
        """The routes by which they leave: what stands behind on these leaves too."""
        self._joining: dict[QueueId, Joining] = {}
        # Lists of what is there already: making an object for each message takes ten times as long.
        self._states = [queued.state for queued in self._queue]
        self._due_ns = [queued.due_at_ns for queued in self._queue]
        self._left = [queued.recipients_left for queued in self._queue]
        # Of one instant with `_left`: the estimate has no answer to domains of more recipients, or of fewer.
        self._domains = [queued.domains for queued in self._queue]
        self._listed = [queued.listed for queued in self._queue]
        self._pasts = [queued.past for queued in self._queue]
        self._rests_of = scheduler.sender_pauses.rests_of
        self._view = view
        self._edit: EditedLook | None = None
        self._stop, self._outlook = DOWN if upstream is not None else NOT_IN_POLICY, Outlook(now_ns)
        self._under_way: Mapping[QueueId, tuple[int, Attempt]] = {}
        self._doubted: frozenset[QueueId] = frozenset()
        if view is not None and upstream is not None:
            self._stop = rest_words(view) if view.is_endless else ""
            limited = view.limits.limited(view.transaction_ns)
            self._outlook = outlook_of(view, upstream, back_off_ns, now_ns, limited)
            self._under_way = view.under_way
            self._doubted = view.suspects

    def under(self, edit: "EditedLook") -> "Look":
        """Return what a look just behind an edit would be."""
        look = copy(self)
        look.go_by(edit)
        return look

    def go_by(self, edit: "EditedLook") -> None:
        self._edit, self._stop, self._outlook = edit, edit.stop, edit.outlook

    @property
    def now_ns(self) -> int:
        return self._outlook.now_ns

    @property
    def outlook(self) -> Outlook:
        return self._outlook

    @property
    def stop(self) -> str:
        """Return what holds all mail without a known end; empty for nothing."""
        return self._stop

    def join(self, joining: Iterable[Joining]) -> None:
        """Look at mail of other lines too, as if it joined this one."""
        for each in joining:
            queued = each.queued
            self._joining[queued.key] = each
            self._queue.append(queued)
            self._states.append(queued.state)
            self._due_ns.append(queued.due_at_ns)
            self._left.append(queued.recipients_left)
            self._domains.append(queued.domains)
            self._listed.append(queued.listed)
            self._pasts.append(queued.past)

    def messages(self) -> list[Queued]:
        """Return copies, as of that instant; takes time in proportion to them."""
        copies: list[Queued] = []
        columns = zip(
            *(self._queue, self._states, self._due_ns),
            *(self._left, self._domains, self._listed, self._pasts),
            strict=True,
        )
        for queued, state, due_at_ns, left, domains, listed, past in columns:
            twin = twin_of(queued)
            twin.state, twin.due_at_ns = state, due_at_ns
            twin.recipients_left, twin.domains, twin.past = left, domains, past
            twin.listed = listed
            copies.append(twin)
        return copies

    def _model(self, copies: Iterable[Twin]) -> Scheduler:
        """Return the line as it would go, of these copies."""
        line = Scheduler()
        line.arrange(*self._arrangement)
        line.sender_pauses = self._pauses.copy()
        for each in copies:
            line.add(each)
        return line

    def expected(self, messages: Sequence[Queued]) -> list[Expected]:
        """Take time in proportion to the number of `messages`."""
        foretold = {
            queued.key: Expected(None, _out_of_line(queued) or self._stop or NEXT) for queued in messages
        }
        is_moving = self._edit is not None and self._edit.is_other_line
        if not self._stop:
            messages = self._gone_over(messages) if is_moving else messages
            mails = []
            for queued in self._lined_up(messages):
                mail = self._mail(queued)
                if mail.recipients:
                    mails.append(mail)
                else:
                    foretold[queued.key] = Expected(mail.joins_at_ns, NEXT)
            lined_up = {mail.queue_id for mail in mails}
            copies = [self._in_line(each) for each in messages if each.key in lined_up]
            line = self._model(each for each in copies if each.key not in self._joining)
            if is_moving and self._edit is not None and self._edit.arrangement is not None:
                line = Scheduler()
                line.arrange(*self._edit.arrangement)
            for each in copies:
                if (joining := self._joining.get(each.key)) is not None:
                    each.due_at_ns = max(each.due_at_ns if each.state is State.DEFERRED else 0, joining.at_ns)
                    each.state = State.DEFERRED if each.due_at_ns > self.now_ns else State.WAITING
                    each.place, each.turn = None, 0
                    line.add(each)
                elif is_moving:
                    line.add(each)
            if self._edit is not None:
                self._edit.arrange(line)
            for mail, fate in zip(mails, foretell(mails, self._outlook, line), strict=True):
                eta_ns, held_by = fate
                foretold[mail.queue_id] = Expected(None if eta_ns == NEVER_NS else eta_ns, held_by)
        return [foretold[queued.key] for queued in messages]

    def foreseen(self, messages: "list[Queued] | None" = None) -> "LineEstimate":
        """Take time in proportion to the number of messages; `messages`, where there are copies already."""
        messages = self.messages() if messages is None else messages
        expected = self.expected(messages)
        leaving = self._leaving_ns(messages, expected)
        return LineEstimate(self, messages, expected, leaving, self._pace(messages, expected, leaving))

    def _leaving_ns(self, messages: Sequence[Queued], expected: Sequence[Expected]) -> list[int] | None:
        """Return when each leaves that waits or is on its way, in the order of `messages`.

        None where nobody can tell.
        """
        if self._stop:
            return None
        return [
            each.eta_ns
            for queued, each in zip(messages, expected, strict=True)
            if queued.state in (State.WAITING, State.ACTIVE) and each.eta_ns is not None
        ]

    def _pace(
        self, messages: Sequence[Queued], expected: Sequence[Expected], leaving: Sequence[int] | None
    ) -> Pace | None:
        """Return by what the messages behind this look go; None where there are none, or nobody can tell."""
        if leaving is None or not self.behind.messages:
            return None
        # What is parked goes by limits of its own, and does not say how quick the others are.
        etas_ns = [
            each.eta_ns
            for queued, each in zip(messages, expected, strict=True)
            if queued.state is State.WAITING and each.eta_ns is not None
        ]
        return Pace(self._outlook, _load(filter(_waits, messages)), max(etas_ns, default=self.now_ns))

    def _lined_up(self, messages: Sequence[Queued]) -> list[Queued]:
        """Return first the messages that were taken, of these last those on their way, as begun."""
        begun = {queue_id: number for number, queue_id in enumerate(self._under_way)}
        actives = [queued for queued in messages if queued.state is State.ACTIVE]
        actives.sort(key=lambda queued: begun.get(queued.key, -1))
        waiting = [each for each in messages if each.state in (State.WAITING, State.DEFERRED)]
        return actives + waiting

    def _gone_over(self, messages: Sequence[Queued]) -> list[Queued]:
        """Return copies as they are once they have left this line."""
        copies = [twin_of(each) for each in messages]
        line = self._model(copies)
        for each in copies:
            line.leave(each.key)
        return list(copies)

    def _in_line(self, queued: Queued) -> Twin:
        """Return a copy for the estimate to move; what it waits for is in its reason."""
        twin = twin_of(queued)
        twin.why = WaitReason(RESTS, WaitKind.SENDER_PAUSE) if _rests(queued) else WaitReason(NEXT)
        return twin

    def _mail(self, queued: Queued) -> Mail:
        """Return a message without recipients where all that are left are on their way."""
        now_ns, left = self._outlook.now_ns, queued.recipients_left
        joins_at_ns = queued.due_at_ns if queued.state is State.DEFERRED else 0
        until_then = RESTS if _rests(queued) else SHIELD if queued.queue_id in self._doubted else BACK_OFF
        if (joining := self._joining.get(queued.key)) is not None:
            joins_at_ns, until_then = max(joins_at_ns, joining.at_ns), joining.until_then
        domains, begun = queued.domains, None
        if queued.state is State.ACTIVE:
            joins_at_ns = now_ns
            if (begun := self._under_way.get(queued.key)) is not None:
                reserved_at_ns, attempt = begun
                left = max(0, left - len(attempt.indices))
                joins_at_ns = max(now_ns, reserved_at_ns + self._outlook.transaction_ns)
                domains = attempt.domains_left(attempt.indices)
        tried = len(queued.past.tried) if len(queued.past.tried) < left else 0
        # Where it has only those left that were tried, they are simply next.
        untried_domains, tried_domains = split_runs(domains, left - tried) if tried else (domains, ())
        return Mail(
            left - tried,
            joins_at_ns,
            until_then,
            queued.reverse_path,
            *keys_of(queued.sent_reverse_path, queued.client, queued.user),
            untried_domains,
            tried,
            tried_domains,
            self.age_ns(queued) if tried else 0,
            queued.key,
            begun is not None,
        )

    def age_ns(self, queued: Queued) -> int:
        """Return the age as back-offs count it."""
        now_ns, arrived_at_ns = self._outlook.now_ns, queued.arrived_at_ns
        if self._view is None:
            return now_ns - arrived_at_ns
        rests = self._rests_of(queued.sender)
        paused_ns = within_ns((*self._view.pauses, *rests, *queued.past.rested), arrived_at_ns, now_ns)
        return now_ns - arrived_at_ns - paused_ns


class LineEstimate(NamedTuple):
    look: Look
    messages: list[Queued]
    expected: list[Expected]
    leaving_ns: list[int] | None
    """When each leaves that waits or is on its way; None where nobody can tell."""
    pace: Pace | None
    """Of the messages behind the look, if there are any and it can be told."""

    def drained_ns(self) -> int | None:
        """Leave out what is deferred.  None where nobody can tell; now, where nothing waits."""
        if self.leaving_ns is None:
            return None
        behind = [] if self.pace is None else [self.pace.at_ns(self.look.behind)]
        return max([*self.leaving_ns, *behind], default=self.look.now_ns)

    def gone_by(self, at_ns: int) -> int:
        """Return how many behind the look will have gone by an instant; none, where nobody can tell."""
        pace, behind = self.pace, self.look.behind
        if pace is None:
            return 0
        return bisect.bisect_right(
            range(1, behind.messages + 1),
            at_ns,
            key=lambda number: pace.at_ns(behind.part(number, behind.messages)),
        )

    def behind(self, queued: Queued, ahead: Load | None = None) -> Expected:
        """Return what to expect of a message behind the look, with so much of them ahead of it, or all."""
        if why := _out_of_line(queued) or self.look.stop:
            return Expected(None, why)
        if queued.state is State.DEFERRED:
            return Expected(max(queued.due_at_ns, self.look.now_ns), RESTS if _rests(queued) else BACK_OFF)
        if self.pace is None:
            return Expected(None, NEXT)
        held_by = next((each.held_by for each in reversed(self.expected) if each.eta_ns is not None), NEXT)
        return Expected(self.pace.at_ns(self.look.behind if ahead is None else ahead), held_by)


def load_of(queued: Queued) -> Load:
    return Load(1, queued.recipients_left, queued.size_bytes)


def _load(messages: Iterable[Queued]) -> Load:
    load = Load()
    for queued in messages:
        load = load.plus(load_of(queued))
    return load


def _waits(queued: Queued) -> bool:
    return queued.state is State.WAITING


def _front(line: UpstreamQueue, parts: list[Queued], most: int, also: Container[QueueId]) -> list[Queued]:
    """Return what comes next in a line, and what does not stand in it."""
    others = [each for each in parts if each.state is not State.WAITING]
    others.sort(key=lambda each: (each.key not in also, each.due_at_ns))
    return [*islice(line.ready(), most), *others[:most]]


def _waiting(scheduler: UpstreamQueue) -> Load:
    sums = total(scheduler.counts.of(State.WAITING).values())
    return Load(scheduler.counts.members(State.WAITING), sums.recipients, sums.size_bytes)


def _out_of_line(queued: Queued) -> str:
    return _OUT_OF_LINE.get(queued.state, "")


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


def rest_words(view: UpstreamView) -> str:
    """Return what holds all mail for an upstream; nothing where it is used or proving."""
    if not view.because:
        return ""
    if view.operator is not None:
        return f"operator: {view.operator.who}"
    return f"{'stop' if view.is_stopped else 'pause'}: {view.because}"


def outlook_of(
    view: UpstreamView,
    upstream: Upstream,
    back_off_ns: tuple[int, int],
    now_ns: int,
    limited: tuple[Limited, ...],
) -> Outlook:
    """`limited` are the limits to go by, with what occupies them at that instant."""
    transaction_ns = view.transaction_ns
    because = view.because
    return Outlook(
        now_ns,
        limited,
        view.connections,
        view.max_recipients,
        transaction_ns,
        tuple(max(now_ns, start + transaction_ns) for start, _ in view.under_way.values()),
        view.paused_until_ns if because else 0,
        rest_words(view),
        view.is_proving,
        view.taken,
        tuple(len(attempt.indices) for _, attempt in view.under_way.values()),
        upstream.max_messages,
        upstream.idle_ns,
        view.connections_idle,
        back_off_ns,
    )
