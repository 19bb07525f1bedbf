"""What can be seen of a sender at an instant: builds `Snapshot` and the listing of the queue.

Reads memory only: the account and the free space are as old as the sender's last look,
at most a second or so.
"""

from collections.abc import Iterable

from relay import __version__
from relay.clock import Clock
from relay.envelope import QueueId
from relay.eta import Room, drain_in_ns
from relay.lanes import DEFAULT_LANE
from relay.policy.lane import lanes_of
from relay.policy.model import Policy
from relay.scheduler import Queued, State
from relay.service.heart import Heart
from relay.service.lane_status import LaneStatus
from relay.service.sender import Sender
from relay.service.snapshot import (
    Condition,
    DiskStatus,
    Ledger,
    LimitStatus,
    PolicyStatus,
    QueueCounts,
    QueuedMessage,
    QueueState,
    Snapshot,
    UpstreamState,
    UpstreamStatus,
)
from relay.spool.interface import SetAside
from relay.spool.room import why_no_room

_STATES = {
    State.WAITING: QueueState.WAITING,
    State.ACTIVE: QueueState.ACTIVE,
    State.DEFERRED: QueueState.DEFERRED,
    State.HELD: QueueState.HELD,
}


class Watch:
    """Looks at a sender.  `condition`, `refusing_because` and `policy_status` are set by the daemon."""

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

    async def look(self) -> None:
        """Have the next snapshot be of now."""
        await self._sender.look()

    def snapshot(self) -> Snapshot:
        """Return what can be seen now."""
        totals = self._sender.seen.totals
        ledger = Ledger(
            totals.accepted, totals.relayed, totals.bounced, totals.expired, totals.deleted, totals.queued
        )
        counts = self._counts(self._sender.scheduler)
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
            ledger,
            self.policy_status,
            disk,
            self._lanes(),
        )

    def listing(self) -> list[QueuedMessage]:
        """Return the queue, oldest first, each waiting message with the instant at which it may go."""
        rooms, pause_ns = self._rooms(), self._pause_left_ns()
        messages = recipients = 0
        listed = []
        for queued in sorted(self._sender.scheduler, key=lambda queued: queued.queue_id):
            eta_at_ns = None
            if queued.state in (State.WAITING, State.ACTIVE) and pause_ns is not None:
                messages, recipients = messages + 1, recipients + queued.recipients_left
                eta_at_ns = self._clock.wall_ns() + pause_ns + drain_in_ns(messages, recipients, rooms)
                if queued.place is not None:
                    eta_at_ns = max(eta_at_ns, self._wall(queued.due_at_ns))
            listed.append(self.listed(queued, queued.recipients_shown, eta_at_ns))
        return listed

    def listed(
        self, queued: Queued, recipients: tuple[str, ...], eta_at_ns: int | None = None
    ) -> QueuedMessage:
        """Return a message as a listing shows it."""
        due_at_ns = self._wall(queued.due_at_ns) if queued.state is State.DEFERRED else None
        return QueuedMessage(
            queued.queue_id,
            _STATES[queued.state],
            queued.size_bytes,
            queued.arrival_at_ns,
            queued.reverse_path,
            queued.recipients_left,
            recipients,
            self._reason(queued),
            due_at_ns,
            eta_at_ns,
            self.policy.default_upstream,
            self._sender.scheduler.lane_of(queued),
        )

    @staticmethod
    def set_aside(file: SetAside) -> QueuedMessage:
        """Return a file in corrupt/ as a listing shows it: by its name, which in general is no id."""
        return QueuedMessage(
            QueueId(file.name),
            QueueState.CORRUPT,
            file.size_bytes,
            file.arrival_at_ns,
            file.reverse_path,
            file.recipients_left,
            (),
            file.reason,
        )

    def _reason(self, queued: Queued) -> str:
        heart = self._sender.hearts.get(self.policy.default_upstream)
        if queued.state is State.WAITING and heart is not None and heart.pausing.because:
            return f"{heart.name} is {self._state(heart).value}: {heart.pausing.because}"
        return queued.reason

    def _counts(self, messages: Iterable[Queued]) -> dict[QueueState, QueueCounts]:
        now_ns = self._clock.boottime_ns()
        sums = {state: [0, 0, 0, 0] for state in _STATES.values()}
        for queued in messages:
            of_state = sums[_STATES[queued.state]]
            of_state[0] += 1
            of_state[1] += queued.recipients_left
            of_state[2] += queued.size_bytes
            of_state[3] = max(of_state[3], now_ns - queued.arrived_at_ns)
        return {state: QueueCounts(*of_state) for state, of_state in sums.items()}

    def _lanes(self) -> tuple[LaneStatus, ...]:
        """Return the lanes of the policy, with what waits in each."""
        lanes = lanes_of(self.policy.lanes)
        waiting: dict[str, list[Queued]] = {lane.name: [] for lane in lanes}
        for queued in self._sender.scheduler if lanes else ():
            if queued.state is State.WAITING:
                waiting.get(queued.lane, waiting[DEFAULT_LANE]).append(queued)
        now_ns, total = self._clock.boottime_ns(), sum(lane.weight for lane in lanes)
        return tuple(
            LaneStatus(
                lane.name,
                100 * lane.weight / total,
                self.policy.lanes[lane.name].ceiling if lane.has_ceiling else None,
                len(its),
                sum(queued.recipients_left for queued in its),
                max((now_ns - queued.arrived_at_ns for queued in its), default=0),
            )
            for lane, its in zip(lanes, waiting.values(), strict=True)
        )

    def _upstream(self, name: str, counts: dict[QueueState, QueueCounts]) -> UpstreamStatus:
        upstream = self.policy.upstreams[name]
        heart = self._sender.hearts.get(name)
        if heart is None:
            return UpstreamStatus(name, upstream.host, upstream.port, UpstreamState.OPEN)
        waiting = counts[QueueState.WAITING] if heart.is_used else QueueCounts()
        return UpstreamStatus(
            name,
            upstream.host,
            upstream.port,
            self._state(heart),
            self._paused_until_ns(heart),
            heart.pausing.because,
            heart.pool.open,
            heart.pool.idle,
            self._limits(heart),
            waiting.messages,
            waiting.recipients,
            heart.in_flight,
        )

    @staticmethod
    def _state(heart: Heart) -> UpstreamState:
        if not heart.pausing.because:
            return UpstreamState.OPEN
        return UpstreamState.STOPPED if heart.pausing.is_stopped else UpstreamState.PAUSED

    def _paused_until_ns(self, heart: Heart) -> int | None:
        """Return when it is tried again (wall clock); None where it is in use, or nobody can tell."""
        if self._state(heart) is not UpstreamState.PAUSED:
            return None
        return self._wall(heart.pausing.paused_until_ns)

    def _limits(self, heart: Heart) -> tuple[LimitStatus, ...]:
        return tuple(
            LimitStatus(
                heart.name,
                usage.label,
                usage.unit,
                usage.used,
                usage.count,
                usage.span_ns,
                self._wall(usage.opens_at_ns) if usage.used >= usage.count else None,
                tuple(self._wall(opening) for opening in usage.openings_ns),
                usage.for_each,
                usage.key,
                heart.gate.most.get(usage.label),
            )
            for usage in heart.gate.usage()
        )

    def _rooms(self) -> list[Room]:
        heart = self._sender.hearts.get(self.policy.default_upstream)
        if heart is None:
            return []
        now_ns = self._clock.boottime_ns()
        return [
            Room(u.unit, u.count, u.used, u.span_ns, tuple(opening - now_ns for opening in u.openings_ns))
            for u in heart.gate.usage()
            if u.for_each is None
        ]

    def _pause_left_ns(self) -> int | None:
        """Return how long the pause still takes; None where nobody can tell."""
        heart = self._sender.hearts.get(self.policy.default_upstream)
        if heart is None or heart.pausing.is_stopped:
            return None
        if not heart.pausing.because:
            return 0
        return max(0, heart.pausing.paused_until_ns - self._clock.boottime_ns())

    def _wall(self, boottime_ns: int) -> int:
        return self._clock.wall_ns() + boottime_ns - self._clock.boottime_ns()
