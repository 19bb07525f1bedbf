"""What can be seen of a sender at an instant: builds `Snapshot` and the listing of the queue.

Reads memory only: the account and the free space are as old as the sender's last look,
at most a second or so.
"""

import asyncio
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from relay import __version__
from relay.clock import SECOND_NS, Clock
from relay.mail.envelope import QueueId
from relay.policy.lane import lanes_of, numbers_of, with_ceilings
from relay.policy.model import Policy, Upstream
from relay.queue.counts import Sums, total
from relay.queue.lanes import DEFAULT_LANE
from relay.queue.queued import RECIPIENTS_SHOWN, Queued, State
from relay.queue.queues import Queues, queue_id_of
from relay.queue.routes import Because, words_of
from relay.sender.sender import Sender
from relay.sender.upstreams import UpstreamView
from relay.spool.interface import SetAside
from relay.spool.root.headroom import why_no_room
from relay.status.breakdown import Breakdown, Breakdowns, shown_reason
from relay.status.estimate.expected import NEXT, ceiling_words, limit_words
from relay.status.estimate.forecast import DOWN, Expected, Joining, LineEstimate, Look, load_of, rest_words
from relay.status.estimate.pace import Load
from relay.status.estimate.prospect import Edited, Prospect, RecordedUpstream, Seen
from relay.status.filters import Listed, domains_in_memory
from relay.status.snapshot import (
    NOTHING_COMING,
    CertificateStatus,
    Coming,
    Condition,
    DiskStatus,
    LaneStatus,
    LimitStatus,
    MessageView,
    PolicyStatus,
    QueueCounts,
    QueueState,
    RouteStatus,
    Snapshot,
    UpstreamState,
    UpstreamStatus,
)
from relay.throttle.admission import Place
from relay.throttle.limit import plain_words
from relay.throttle.throttle import View
from relay.verdicts.health import ENDLESS, Health

_STATES = {Health.PAUSED: UpstreamState.PAUSED} | dict.fromkeys(ENDLESS, UpstreamState.STOPPED)
FEW = 200
"""At most this many messages are scanned at each snapshot: some ten milliseconds."""
FORETOLD = 1000
"""Messages of each line whose way is foretold one by one; what stands behind them goes by rates."""
PLANNED = 5_000
"""Messages of each line that a plan foretells one by one, twice: some seconds."""
FRESH_NS = 5 * SECOND_NS
OFTEN = 20
"""The estimate of a long queue takes at most one twentieth of the time."""
FIRST = 10
"""Messages of `Coming`."""
STEPS = 60
"""Parts of `Coming.leaving_at_ns`: as many as a small picture can show."""


class Watch:
    """The daemon sets what has no underscore; who is offline, `recorded` and no other."""

    def __init__(
        self, sender: Sender, policy: Policy, hostname: str, clock: Clock, status: PolicyStatus
    ) -> None:
        self.condition = Condition.STARTING
        self.refusing_because = "starting"
        self.policy = policy
        self.policy_status = status
        self.certificates: tuple[CertificateStatus, ...] = ()
        self.started_ns: int | None = None
        """Boottime; the wall clock may be set meanwhile."""
        self.recorded: Mapping[str, RecordedUpstream] = {}
        self._sender = sender
        self._hostname = hostname
        self.clock = clock
        self._breakdowns = Breakdowns(sender.queue, clock)
        self._drained_ns: dict[str, int] = {}
        """Of a long queue, by the upstream, when its line will have drained."""
        self._coming = NOTHING_COMING
        """Of a long queue, as old as `_drained_ns`."""
        self._drain_is_fresh_until_ns = 0

    async def look(self) -> None:
        await self._sender.look()
        await self.foresee()

    def snapshot(self) -> Snapshot:
        counts = self._counts()
        seen = self._sender.seen
        counts[QueueState.INCOMING] = QueueCounts(messages=0 if self._sender.unread else seen.unclaimed)
        counts[QueueState.CORRUPT] = QueueCounts(messages=seen.corrupt)
        disk = DiskStatus(seen.free_bytes, seen.free_inodes)
        full = why_no_room((disk.free_bytes, disk.free_inodes)) or ""
        at_ns, now_ns = self.clock.wall_ns(), self.clock.boottime_ns()
        return Snapshot(
            at_ns,
            __version__,
            self._hostname,
            self.condition,
            None if self.started_ns is None else at_ns - (now_ns - self.started_ns),
            self.refusing_because or full,
            tuple(map(self._upstream, self.policy.upstreams)),
            counts,
            self._sender.totals,
            self.policy_status,
            disk,
            self._lanes(),
            self.certificates,
            self._routes(now_ns),
            self._sender.unread,
        )

    def listing(self) -> "Listing":
        """Quick, where the listing itself takes time with a long queue."""
        return Listing(self, self._looks(FORETOLD), self._sender.queue, self.clock)

    async def breakdown(self) -> Breakdown:
        """Count what is queued; of a long queue, what was counted last."""
        return await self._breakdowns.newest(self.why())

    def coming(self) -> Coming:
        """Return what goes next; of a long queue, what was foreseen last."""
        if len(self._sender.queue) > FEW:
            return self._coming
        listing = self.listing()
        listing.foretell()
        return listing.foresee()[0]

    async def foresee(self) -> None:
        """Have the next snapshots know when the queue will have drained.

        A long queue's estimate is made in another thread, of its first messages.  It is kept while younger
        than FRESH_NS or than OFTEN times what it cost: its instant stays right as long as nothing surprising
        happens.
        """
        began_ns = self.clock.boottime_ns()
        views = {name: self._sender.upstreams.view(name) for name in self.policy.upstreams}
        going = {name for name, view in views.items() if view is not None and not view.is_endless}
        # Of the others nobody can tell, and what was foretold is not true when they go on.
        self._drained_ns = {name: at_ns for name, at_ns in self._drained_ns.items() if name in going}
        is_fresh = going <= self._drained_ns.keys() and began_ns < self._drain_is_fresh_until_ns
        if not any(views.values()) or is_fresh or len(self._sender.queue) <= FEW:
            return
        self._drain_is_fresh_until_ns = began_ns + FRESH_NS
        listing = self.listing()
        await asyncio.to_thread(listing.foretell)
        self._coming, self._drained_ns = listing.foresee()
        cost_ns = self.clock.boottime_ns() - began_ns
        self._drain_is_fresh_until_ns = began_ns + max(FRESH_NS, OFTEN * cost_ns)

    def prospect(self, edited: Edited, ways: Sequence[tuple[str, str]]) -> Prospect | str:
        """Look at the queue under the policy in force, and as it would be just behind an edit.

        `ways` are those of `estimate.prospect.ways`.  Return why nobody can tell, where that is so.
        """
        if set(self._sender.queue.names) - {name for name, _ in ways}:
            return "some mail still waits for an upstream of before the last edit; ask again later"
        found = {name: self._sender.upstreams.view(name) for name in self.policy.upstreams}
        views = {name: view for name, view in found.items() if view is not None}
        looks = {look.upstream: look for look in self._looks(PLANNED)}
        sides = []
        for name, after in ways:
            seen = Seen(self.policy, looks[name], after, views)
            if self.policy.routes and (why := seen.why_unclear(edited)):
                return why
            sides.append((seen.under_policy_in_force(edited), seen.under_edit(edited)))
        is_running = self.condition is not Condition.DOWN
        to_wall_ns = self.clock.wall_ns() - self.clock.boottime_ns()
        return Prospect(edited, tuple(sides), is_running, to_wall_ns)

    def whole_lines(self, prospect: Prospect) -> list[list[Queued]]:
        """Return of each side all messages, where its look has not all of them; no copies."""
        looks = [old.look for old, _ in prospect.sides]
        return [
            list(self._sender.queue.parts_in(look.upstream) if look.behind.messages else ()) for look in looks
        ]

    def why(self) -> dict[str, str]:
        """Return by the upstream why nothing that stands in its line is sent."""
        views = [self._sender.upstreams.view(name) for name in self.policy.upstreams]
        return {
            view.name: f"{view.name} is {_state(view).value}: {view.because}"
            for view in views
            if view is not None and view.because
        }

    def _looks(self, most: int | None = None) -> list[Look]:
        """Look at every line, those first that the policy has; at the first messages of each."""
        queue, now_ns = self._sender.queue, self.clock.boottime_ns()
        names = list(dict.fromkeys([*self.policy.upstreams, *queue.names]))
        views = {name: self._sender.upstreams.view(name) for name in names}
        back_off_ns = self.policy.retry.min_ns, self.policy.retry.max_ns
        joining: dict[str, list[Joining]] = {}
        for view in views.values():
            if view is not None and view.because:
                for to, each in self._failing_over(view, now_ns, most):
                    joining.setdefault(to, []).append(each)
        leaving = {each.queued.key for its in joining.values() for each in its}
        looks = [
            Look(
                name,
                queue.line(name),
                queue.parts_in(name),
                views[name],
                self.policy.upstreams.get(name),
                back_off_ns=back_off_ns,
                now_ns=now_ns,
                leaving=leaving,
                most=most,
            )
            for name in names
        ]
        for look in looks:
            look.join(joining.get(look.upstream, ()))
        return looks

    def _failing_over(
        self, view: UpstreamView, now_ns: int, most: int | None
    ) -> Iterator[tuple[str, Joining]]:
        """Yield what stands in the line of an upstream that is down, and leaves it for one that is not."""
        queue, parts = self._sender.queue, self._sender.queue.parts_in(view.name)
        for queued in parts[:most]:
            if queued.state not in (State.WAITING, State.DEFERRED):
                continue
            until_ns = queue.choice(queued, now_ns).until_ns
            if until_ns is None or not (view.is_endless or view.paused_until_ns > until_ns):
                continue
            to = queue.upstream_at(queued, until_ns)
            if to != view.name and queue.standings[to].down_since_ns is None:
                yield to, Joining(queued, until_ns, rest_words(view))

    def _drained_at_ns(self, view: UpstreamView, waiting: int) -> int | None:
        """Return wall clock; None where nobody can tell."""
        if view.is_endless or self._sender.is_reading:
            return None
        now_ns = self.clock.boottime_ns()
        if not waiting and not view.in_flight:
            return self._wall(now_ns)
        if len(self._sender.queue) <= FEW:
            (look,) = [look for look in self._looks() if look.upstream == view.name]
            drained_ns = look.foreseen().drained_ns()
        else:
            drained_ns = self._drained_ns.get(view.name)
        return None if drained_ns is None else self._wall(max(now_ns, drained_ns))

    def _held_by(self, view: UpstreamView, waiting: int) -> str:
        """Return what holds all messages, or else the next that may go."""
        if view.because:
            return rest_words(view)
        if not waiting:
            return ""
        full = view.limits.full()
        line = self._sender.queue.line(view.name)
        lanes, place = line.closed_lanes(), line.next_key()
        held = [] if full else [ceiling_words(lane) for lane in lanes]
        if not full and isinstance(place, Place):
            full = view.limits.full(place)
        return " and ".join(held + [limit_words(label) for label in full])

    def _counts(self) -> dict[QueueState, QueueCounts]:
        sums = {state: total(self._sender.queue.counts(state).values()) for state in State}
        return {
            QueueState(state.value): QueueCounts(
                its.messages, its.recipients, its.size_bytes, self._age_ns(its)
            )
            for state, its in sums.items()
        }

    def _age_ns(self, sums: Sums) -> int:
        """Return 0 where there are none."""
        arrived_at_ns = sums.oldest_arrived_at_ns
        return 0 if arrived_at_ns is None else max(0, self.clock.boottime_ns() - arrived_at_ns)

    def _lanes(self) -> tuple[LaneStatus, ...]:
        lanes = lanes_of(self.policy.lanes)
        waiting: dict[str, dict[str, Sums]] = {lane.name: {} for lane in lanes}
        for name, sums in self._sender.queue.counts(State.WAITING).items() if lanes else ():
            # Mail of a lane that an edit took away is in the default one.
            waiting.get(name, waiting[DEFAULT_LANE])[name] = sums
        weights = sum(lane.weight for lane in lanes)
        return tuple(
            LaneStatus(
                lane.name,
                100 * lane.weight / weights,
                self.policy.lanes[lane.name].ceiling if lane.has_ceiling else None,
                its.messages,
                its.recipients,
                self._age_ns(its),
                lane.patience_ns,
            )
            for lane, its in zip(lanes, map(total, (each.values() for each in waiting.values())), strict=True)
        )

    def _routes(self, now_ns: int) -> tuple[RouteStatus, ...]:
        queue, settings = self._sender.queue, self.policy.routes
        found, stands = [], queue.where()
        # What a start would find of its upstreams nobody knows: the queue was read without them.
        is_known = self.condition is not Condition.DOWN
        for route, numbers in numbers_of(settings).items():
            choice = queue.choice_of(route, now_ns)
            its = queue.diversions.of(route)
            since_ns = min((each.since_ns for each in its), default=None)
            found.append(
                RouteStatus(
                    numbers,
                    tuple(", ".join(settings[number - 1].asked()) or "all other mail" for number in numbers),
                    route.upstreams,
                    choice.upstream if is_known else "",
                    choice.because,
                    choice.instead_of,
                    None if since_ns is None else self._wall(since_ns),
                    None if choice.until_ns is None else self._wall(choice.until_ns),
                    tuple(each.upstream for each in its if each.because is Because.SPILL),
                    stands.get(route, {}),
                )
            )
        return tuple(found)

    def _waiting(self, name: str) -> Sums:
        """Return what waits in a line; a message in parts counts in each line that has one."""
        counts = self._sender.queue.line(name).counts
        return total(counts.of(State.WAITING).values())._replace(messages=counts.members(State.WAITING))

    def _upstream(self, name: str) -> UpstreamStatus:
        upstream = self.policy.upstreams[name]
        view = self._sender.upstreams.view(name)
        if view is None:
            return self._as_recorded(name, upstream)
        waiting = self._waiting(name)
        return UpstreamStatus(
            name,
            upstream.host,
            upstream.port,
            _state(view),
            self._paused_until_ns(view),
            view.because,
            view.connections_open,
            view.connections_idle,
            self._limits(name, view.limits, view.counted),
            waiting.messages,
            waiting.recipients,
            view.in_flight,
            self._drained_at_ns(view, waiting.recipients),
            self._held_by(view, waiting.recipients),
            view.health,
            "" if view.operator is None else view.operator.by,
            None if view.operator is None else view.operator.since_at_ns,
            view.proving_after,
            view.certificate_ends_at_ns,
            view.client_certificate_ends_at_ns,
            view.is_tried,
        )

    def _as_recorded(self, name: str, upstream: Upstream) -> UpstreamStatus:
        found = self.recorded.get(name, RecordedUpstream(Health.USED))
        waiting = self._waiting(name)
        return UpstreamStatus(
            name,
            upstream.host,
            upstream.port,
            _state(found),
            self._paused_until_ns(found),
            found.because,
            limits=() if found.throttle is None else self._limits(name, found.throttle, {}),
            waiting_messages=waiting.messages,
            waiting_recipients=waiting.recipients,
            held_by=DOWN if waiting.recipients and self.condition is Condition.DOWN else "",
            health=found.health,
            paused_by="" if found.operator is None else found.operator.by,
            paused_since_at_ns=None if found.operator is None else found.operator.since_at_ns,
            is_tried=False,
        )

    def _paused_until_ns(self, view: "UpstreamView | RecordedUpstream") -> int | None:
        """Return wall clock; None where the upstream is in use, or nobody can tell."""
        if _state(view) is not UpstreamState.PAUSED or view.is_endless:
            return None
        return self._wall(view.paused_until_ns)

    def _limits(self, name: str, throttle: View, counted: Mapping[str, int]) -> tuple[LimitStatus, ...]:
        limits = with_ceilings(self.policy.upstreams[name].limits, self.policy.lanes)
        words = {limit.label: plain_words(limit) for limit in limits}
        return tuple(
            LimitStatus(
                name,
                usage.label,
                usage.unit,
                usage.used,
                usage.count,
                usage.span_ns,
                self._wall(usage.opens_at_ns) if usage.used >= usage.count else None,
                usage.for_each,
                usage.key,
                max(usage.used, usage.most, counted.get(usage.label, 0)),
                usage.is_crowded,
                words.get(usage.label, ""),
            )
            for usage in throttle.usage()
        )

    def _wall(self, boottime_ns: int) -> int:
        return self.clock.wall_ns() + boottime_ns - self.clock.boottime_ns()


class Listing:
    """The queue, a row a message.

    `foretell` comes first, and may be called in another thread: it touches nothing of the relay.  What was
    foretold one by one is shown as it was when the looks were taken, everything else as it is when its row
    is made.  A message that is gone by then has no row.
    """

    def __init__(self, watch: Watch, looks: Sequence[Look], queue: Queues, clock: Clock) -> None:
        self._looks = looks
        self._queue = queue
        self._paused = watch.why()
        self._now_ns = clock.boottime_ns()
        self._to_wall_ns = clock.wall_ns() - self._now_ns
        self._estimates: dict[str, LineEstimate] = {}
        self._foretold: dict[QueueId, tuple[Queued, Expected]] = {}
        self._ahead: dict[str, Load] = {}
        """By the upstream, what waits behind the look and has a row by now."""

    def foretell(self) -> None:
        for look in self._looks:
            its = self._estimates[look.upstream] = look.foreseen()
            self._foretold |= {
                queued.key: (queued, expected)
                for queued, expected in zip(its.messages, its.expected, strict=True)
            }

    def messages(self) -> list[MessageView]:
        """Return them oldest first, each with its estimate; touches nothing of the relay."""
        self.foretell()
        rows = map(self.row, distinct(sorted(self._queue.keys())))
        return [each.view for each in rows if each is not None]

    def message(self, queue_id: QueueId, recipients: tuple[str, ...]) -> MessageView | None:
        """Return one message with all its recipients that are left; None if it is gone.

        Where it stands behind what was foretold, it goes at the latest when all of its line does.
        """
        self.foretell()
        found = self.row(queue_id, is_alone=True)
        return None if found is None else replace(found.view, recipients=recipients)

    def row(self, queue_id: QueueId, *, is_alone: bool = False) -> Listed | None:
        """Return a message; None if it is gone.

        Rows are to be asked for oldest first: what waits behind the look goes in this order, by estimate.
        """
        found: Listed | None = None
        for part in self._queue.parts(queue_id):
            queued, expected = self._foretold.get(part.key) or (part, self._behind(part, is_alone=is_alone))
            each = Listed(
                self._listed(queued, expected, with_recipients=True),
                self._now_ns - queued.arrived_at_ns,
                domains_in_memory(queued.domains),
            )
            found = each if found is None else _as_one(found, each)
        return found

    def skipped(self, queue_id: QueueId) -> None:
        """Hear of a message that needs no row; those behind it go later."""
        for part in self._queue.parts(queue_id):
            if part.key not in self._foretold and part.state is State.WAITING:
                self._pass(part)

    def _behind(self, part: Queued, *, is_alone: bool) -> Expected:
        estimate = self._estimates.get(part.upstream)
        if estimate is None:
            return Expected(None, NEXT)
        if is_alone or part.state is not State.WAITING:
            return estimate.behind(part)
        return estimate.behind(part, self._pass(part))

    def _pass(self, part: Queued) -> Load:
        ahead = self._ahead[part.upstream] = self._ahead.get(part.upstream, Load()).plus(load_of(part))
        return ahead

    def set_aside(self, file: SetAside) -> Listed:
        """Name the file as corrupt/ does, which in general is no id; its age is by the wall clock."""
        view = MessageView(
            QueueId(file.name),
            QueueState.CORRUPT,
            file.size_bytes,
            file.arrival_at_ns,
            file.reverse_path,
            file.recipients_left,
            (),
            file.reason,
        )
        return Listed(view, self._now_ns + self._to_wall_ns - file.arrival_at_ns)

    def foresee(self) -> tuple[Coming, dict[str, int]]:
        """Return what goes next, and for each upstream when its line will have drained (boottime).

        Upstreams of which nobody can tell are left out.
        """
        drained_ns: dict[str, int] = {}
        leaving: list[tuple[int, int]] = []
        for name, estimate in self._estimates.items():
            if (drained := estimate.drained_ns()) is not None:
                drained_ns[name] = drained
                leaving += [(at_ns, 1) for at_ns in estimate.leaving_ns or ()] + _steps_of(estimate)
        first = heapq.nsmallest(FIRST, self._foretold.values(), key=_soonest)
        return Coming(
            tuple(self._listed(queued, expected) for queued, expected in first),
            tuple((at_ns + self._to_wall_ns, left) for at_ns, left in _curve(leaving)),
        ), drained_ns

    def _listed(self, queued: Queued, expected: Expected, *, with_recipients: bool = False) -> MessageView:
        shown = queued.shown
        arrival_at_ns = shown.arrival_at_ns
        if arrival_at_ns is None:
            # It left the queue since then.
            arrival_at_ns = queued.arrived_at_ns + self._to_wall_ns
        choice = self._queue.choice(queued, self._now_ns)
        return MessageView(
            queued.queue_id,
            QueueState(queued.state.value),
            queued.size_bytes,
            arrival_at_ns,
            queued.reverse_path,
            queued.recipients_left,
            shown.recipients[: queued.recipients_left] if with_recipients else (),
            shown_reason(queued, self._paused),
            queued.due_at_ns + self._to_wall_ns if queued.state is State.DEFERRED else None,
            None if expected.eta_ns is None else expected.eta_ns + self._to_wall_ns,
            queued.upstream,
            expected.held_by,
            self._queue.lane_of(queued),
            words_of(choice),
            client=queued.client,
            user=queued.user or None,
            message_id=shown.names.message_id,
            subject=shown.names.subject,
            client_queue_id=shown.names.client_queue_id,
            upstream_choice=choice.because,
            instead_of=choice.instead_of,
            rewritten_as="" if queued.sent_reverse_path == queued.reverse_path else queued.sent_reverse_path,
        )


def _steps_of(estimate: LineEstimate) -> list[tuple[int, int]]:
    """Return instants by which so many more of what stands behind a look will have gone."""
    behind, pace = estimate.look.behind, estimate.pace
    if pace is None:
        return []
    gone = [behind.part(step, STEPS) for step in range(STEPS + 1)]
    counts = (after.messages - before.messages for before, after in pairwise(gone))
    return [(pace.at_ns(load), count) for load, count in zip(gone[1:], counts, strict=True) if count]


def _curve(leaving: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return at most so many instants as a picture shows, each with how many are left then."""
    leaving.sort()
    total = sum(count for _, count in leaving)
    steps = min(STEPS, total)
    curve: list[tuple[int, int]] = []
    gone = 0
    for at_ns, count in leaving:
        # The next step that is not drawn yet.
        due = -(-(len(curve) + 1) * total // steps)
        gone += count
        if gone >= due:
            curve += [(at_ns, total - gone)] * (gone * steps // total - len(curve))
    return curve


_FURTHEST_FIRST = (
    QueueState.ACTIVE,
    QueueState.WAITING,
    QueueState.DEFERRED,
    QueueState.HELD,
    QueueState.REPORTING,
)


def _as_one(one: Listed, other: Listed) -> Listed:
    """Return two parts of a message as one: in the state of the part that is furthest on its way.

    Its estimate, and what holds it, are those of the part that goes last.
    """
    first, second = sorted((one.view, other.view), key=lambda view: _FURTHEST_FIRST.index(view.state))
    last = max((first, second), key=lambda view: math.inf if view.eta_at_ns is None else view.eta_at_ns)
    odd = first if first.upstream_because else second
    domains = None if one.domains is None or other.domains is None else (*one.domains, *other.domains)
    upstreams = dict.fromkeys(
        (first.upstream, *first.further_upstreams, second.upstream, *second.further_upstreams)
    )
    return Listed(
        replace(
            first,
            recipients_left=first.recipients_left + second.recipients_left,
            recipients=(*first.recipients, *second.recipients)[:RECIPIENTS_SHOWN],
            eta_at_ns=last.eta_at_ns,
            held_by=last.held_by,
            reason=last.reason,
            further_upstreams=tuple(upstreams)[1:],
            upstream_because=odd.upstream_because,
            upstream_choice=odd.upstream_choice,
            instead_of=odd.instead_of,
        ),
        one.age_ns,
        domains,
    )


def distinct(keys: Iterable[QueueId]) -> Iterator[QueueId]:
    """Yield the ids of messages, each once, of the sorted keys of their parts."""
    last = None
    for key in keys:
        if (queue_id := queue_id_of(key)) != last:
            last = queue_id
            yield queue_id


def _soonest(pair: tuple[Queued, Expected]) -> float:
    eta_ns = pair[1].eta_ns
    return math.inf if eta_ns is None else eta_ns


def _state(seen: UpstreamView | RecordedUpstream) -> UpstreamState:
    return UpstreamState.PAUSED if seen.operator is not None else _STATES.get(seen.health, UpstreamState.OPEN)
