"""What can be seen of a sender at an instant: builds `Snapshot` and the listing of the queue.

Reads memory only: the account and the free space are as old as the sender's last look,
at most a second or so.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from relay import __version__
from relay.clock import SECOND_NS, Clock
from relay.mail.envelope import QueueId
from relay.policy.lane import lanes_of
from relay.policy.model import Policy
from relay.queue.counts import Sums, total
from relay.queue.lanes import DEFAULT_LANE
from relay.queue.scheduler import Queued, State
from relay.sender.dispatcher import Dispatcher
from relay.sender.sender import Sender
from relay.spool.interface import SetAside
from relay.spool.maildir.headroom import why_no_room
from relay.status.forecast import Expected, Look, pause_words, stop_words
from relay.status.snapshot import (
    Condition,
    DiskStatus,
    LaneStatus,
    LimitStatus,
    MessageView,
    PolicyStatus,
    QueueCounts,
    QueueState,
    Snapshot,
    UpstreamState,
    UpstreamStatus,
)
from relay.throttle.admission import Place
from relay.throttle.expected import ceiling_words, limit_words

FEW = 200
"""At most this many messages are scanned at each snapshot: some ten milliseconds."""
FRESH_NS = 5 * SECOND_NS
OFTEN = 20
"""The estimate of a long queue takes at most one twentieth of the time."""


class Watch:
    """The daemon sets `condition`, `refusing_because` and `policy_status`."""

    def __init__(
        self, sender: Sender, policy: Policy, hostname: str, clock: Clock, status: PolicyStatus
    ) -> None:
        self.condition = Condition.STARTING
        self.refusing_because = "starting"
        self.policy = policy
        self.policy_status = status
        self.started_at_ns: int | None = None
        self._sender = sender
        self._hostname = hostname
        self._clock = clock
        self._drained_ns: int | None = None
        self._drain_is_fresh_until_ns = 0

    async def look(self) -> None:
        await self._sender.look()
        await self.foresee()

    def snapshot(self) -> Snapshot:
        counts = self._counts()
        counts[QueueState.INCOMING] = QueueCounts(messages=self._sender.seen.accepted)
        counts[QueueState.CORRUPT] = QueueCounts(messages=self._sender.seen.corrupt)
        disk = DiskStatus(self._sender.seen.free_bytes, self._sender.seen.free_inodes)
        full = why_no_room((disk.free_bytes, disk.free_inodes)) or ""
        return Snapshot(
            self._clock.wall_ns(),
            __version__,
            self._hostname,
            self.condition,
            self.started_at_ns,
            self.refusing_because or full,
            tuple(self._upstream(name, counts) for name in self.policy.upstreams),
            counts,
            self._sender.seen.totals,
            self.policy_status,
            disk,
            self._lanes(),
        )

    def listing(self) -> "Listing":
        """Quick, where the listing itself takes time with a long queue."""
        return Listing(self, self._look_at_queue(), self._sender.scheduler.lane_of, self._clock)

    async def foresee(self) -> None:
        """Have the next snapshots know when the queue will have drained.

        A long queue's estimate is made in another thread.  It is kept while younger than FRESH_NS or than
        OFTEN times what it cost: its instant stays right as long as nothing surprising happens.
        """
        began_ns = self._clock.boottime_ns()
        dispatcher = self._sender.dispatchers.get(self.policy.default_upstream)
        if dispatcher is None or dispatcher.pausing.is_stopped:
            # Nobody can tell, and what was foretold is not true when it goes on.
            self._drained_ns = None
            return
        is_fresh = self._drained_ns is not None and began_ns < self._drain_is_fresh_until_ns
        if len(self._sender.scheduler) <= FEW or is_fresh:
            return
        self._drain_is_fresh_until_ns = began_ns + FRESH_NS
        look = self._look_at_queue()
        self._drained_ns = await asyncio.to_thread(look.drained_ns)
        cost_ns = self._clock.boottime_ns() - began_ns
        self._drain_is_fresh_until_ns = began_ns + max(FRESH_NS, OFTEN * cost_ns)

    @staticmethod
    def set_aside(file: SetAside) -> MessageView:
        """Name the file as corrupt/ does, which in general is no id."""
        return MessageView(
            QueueId(file.name),
            QueueState.CORRUPT,
            file.size_bytes,
            file.arrival_at_ns,
            file.reverse_path,
            file.recipients_left,
            (),
            file.reason,
        )

    def why(self) -> tuple[str, str]:
        """Return why nothing that waits is sent, and the upstream that the queue goes through."""
        name = self.policy.default_upstream
        dispatcher = self._sender.dispatchers.get(name)
        if dispatcher is None or not dispatcher.pausing.because:
            return "", name
        return f"{dispatcher.name} is {self._state(dispatcher).value}: {dispatcher.pausing.because}", name

    def _look_at_queue(self) -> Look:
        name = self.policy.default_upstream
        dispatcher, upstream = self._sender.dispatchers.get(name), self.policy.upstreams[name]
        back_off_ns = self.policy.retry.min_ns, self.policy.retry.max_ns
        return Look(self._sender.scheduler, dispatcher, upstream, back_off_ns, self._clock.boottime_ns())

    def _drained_at_ns(self, dispatcher: Dispatcher, waiting: int) -> int | None:
        """Return wall clock; None where nobody can tell."""
        if dispatcher.pausing.is_stopped:
            return None
        now_ns = self._clock.boottime_ns()
        if not waiting and not dispatcher.in_flight:
            return self._wall(now_ns)
        is_short = len(self._sender.scheduler) <= FEW
        drained_ns = self._look_at_queue().drained_ns() if is_short else self._drained_ns
        return None if drained_ns is None else self._wall(max(now_ns, drained_ns))

    def _held_by(self, dispatcher: Dispatcher, waiting: int) -> str:
        """Return what holds all messages, or else the next that may go."""
        if dispatcher.pausing.because:
            words = stop_words if dispatcher.pausing.is_stopped else pause_words
            return words(dispatcher.pausing.because)
        if not waiting:
            return ""
        full = dispatcher.throttle.full()
        lanes, place = self._sender.scheduler.closed_lanes(), self._sender.scheduler.next_place()
        held = [] if full else [ceiling_words(lane) for lane in lanes]
        if not full and place is not None:
            full = dispatcher.throttle.full_at(cast(Place, place))
        return " and ".join(held + [limit_words(label) for label in full])

    def _counts(self) -> dict[QueueState, QueueCounts]:
        sums = {state: total(self._sender.scheduler.counts.of(state)) for state in State}
        return {
            QueueState(state.value): QueueCounts(
                its.messages, its.recipients, its.size_bytes, self._age_ns(its)
            )
            for state, its in sums.items()
        }

    def _age_ns(self, sums: Sums) -> int:
        """Return 0 where there are none."""
        arrived_at_ns = sums.oldest_arrived_at_ns
        return 0 if arrived_at_ns is None else max(0, self._clock.boottime_ns() - arrived_at_ns)

    def _lanes(self) -> tuple[LaneStatus, ...]:
        lanes = lanes_of(self.policy.lanes)
        waiting: dict[str, dict[str, Sums]] = {lane.name: {} for lane in lanes}
        for name, sums in self._sender.scheduler.counts.of(State.WAITING).items() if lanes else ():
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
            )
            for lane, its in zip(lanes, map(total, waiting.values()), strict=True)
        )

    def _upstream(self, name: str, counts: dict[QueueState, QueueCounts]) -> UpstreamStatus:
        upstream = self.policy.upstreams[name]
        dispatcher = self._sender.dispatchers.get(name)
        if dispatcher is None:
            return UpstreamStatus(name, upstream.host, upstream.port, UpstreamState.OPEN)
        waiting = counts[QueueState.WAITING] if dispatcher.is_used else QueueCounts()
        return UpstreamStatus(
            name,
            upstream.host,
            upstream.port,
            self._state(dispatcher),
            self._paused_until_ns(dispatcher),
            dispatcher.pausing.because,
            dispatcher.pool.open,
            dispatcher.pool.idle,
            self._limits(dispatcher),
            waiting.messages,
            waiting.recipients,
            dispatcher.in_flight,
            self._drained_at_ns(dispatcher, waiting.messages)
            if dispatcher.is_used
            else self._clock.wall_ns(),
            self._held_by(dispatcher, waiting.messages),
            dispatcher.learning.findings,
        )

    @staticmethod
    def _state(dispatcher: Dispatcher) -> UpstreamState:
        if not dispatcher.pausing.because:
            return UpstreamState.OPEN
        return UpstreamState.STOPPED if dispatcher.pausing.is_stopped else UpstreamState.PAUSED

    def _paused_until_ns(self, dispatcher: Dispatcher) -> int | None:
        """Return wall clock; None where the upstream is in use, or nobody can tell."""
        if self._state(dispatcher) is not UpstreamState.PAUSED:
            return None
        return self._wall(dispatcher.pausing.paused_until_ns)

    def _limits(self, dispatcher: Dispatcher) -> tuple[LimitStatus, ...]:
        policy = {limit.label: limit.count for limit in self.policy.upstreams[dispatcher.name].limits}
        return tuple(
            LimitStatus(
                dispatcher.name,
                usage.label,
                usage.unit,
                usage.used,
                usage.count,
                usage.span_ns,
                self._wall(usage.opens_at_ns) if usage.used >= usage.count else None,
                usage.for_each,
                usage.key,
                dispatcher.throttle.most.get(usage.label),
                count if (count := policy.get(usage.label)) != usage.count else None,
                usage.is_crowded,
            )
            for usage in dispatcher.throttle.usage()
        )

    def _wall(self, boottime_ns: int) -> int:
        return self._clock.wall_ns() + boottime_ns - self._clock.boottime_ns()


class Listing:
    def __init__(self, watch: Watch, look: Look, lane_of: Callable[[Queued], str], clock: Clock) -> None:
        self._look = look
        self._lane_of = lane_of
        self._paused, self._upstream = watch.why()
        self._to_wall_ns = clock.wall_ns() - clock.boottime_ns()

    def messages(self) -> list[MessageView]:
        """Return them oldest first, each with its estimate; touches nothing of the relay."""
        messages = self._look.messages()
        pairs = zip(messages, self._look.expected(messages), strict=True)
        listed = [self._listed(queued, expected, queued.recipients_shown) for queued, expected in pairs]
        listed.sort(key=_by_queue_id)
        return listed

    def message(self, queue_id: QueueId, recipients: tuple[str, ...]) -> MessageView | None:
        """Return one message with all its recipients that are left; None if it is gone."""
        messages = self._look.messages()
        for queued, expected in zip(messages, self._look.expected(messages), strict=True):
            if queued.queue_id == queue_id:
                return self._listed(queued, expected, recipients)
        return None

    def _listed(self, queued: Queued, expected: Expected, recipients: tuple[str, ...]) -> MessageView:
        return MessageView(
            queued.queue_id,
            QueueState(queued.state.value),
            queued.size_bytes,
            queued.arrival_at_ns,
            queued.reverse_path,
            queued.recipients_left,
            recipients,
            self._paused if self._paused and queued.state is State.WAITING else queued.reason,
            queued.due_at_ns + self._to_wall_ns if queued.state is State.DEFERRED else None,
            None if expected.eta_ns is None else expected.eta_ns + self._to_wall_ns,
            self._upstream,
            expected.held_by,
            self._lane_of(queued),
        )


def _by_queue_id(message: MessageView) -> QueueId:
    return message.queue_id
