"""A message as the queue in memory has it.  Pure.

Only the scheduler changes a `Queued`.  All instants but the arrival are nanoseconds of one
boot (`Clock.boottime_ns`).
"""

import enum
from collections.abc import Hashable
from dataclasses import dataclass, fields
from operator import attrgetter

from relay.mail.address import comparable
from relay.mail.envelope import QueueId
from relay.queue.lanes import DEFAULT_LANE


class State(enum.StrEnum):
    """Where a queued message stands, in the operator's words."""

    WAITING = "waiting"
    """Not attempted yet, or back from its back-off; it goes when there is room."""
    ACTIVE = "active"
    """In a transaction or about to be, or seized by an operator's verb."""
    DEFERRED = "deferred"
    """Attempted and refused for now, or its sender is paused (`Queued.is_sitting_out`)."""
    HELD = "held"
    REPORTING = "reporting"
    """No recipient is left; only the report about those that failed is owed."""


class Move(enum.Enum):
    TAKE = enum.auto()
    RETURN = enum.auto()
    """Back to the queue, untried or for its next transaction."""
    DEFER = enum.auto()
    SIT_OUT = enum.auto()
    """Its sender is paused."""
    WAKE = enum.auto()
    """Its back-off, or its sender's pause, is over."""
    HOLD = enum.auto()
    RELEASE = enum.auto()
    SEIZE = enum.auto()
    """An operator's verb, or the wait for a report, has it; `Scheduler.put_back` ends that."""


_ALL = frozenset(State)
AFTER: dict[Move, tuple[frozenset[State], State]] = {
    Move.TAKE: (frozenset({State.WAITING}), State.ACTIVE),
    Move.RETURN: (frozenset({State.ACTIVE}), State.WAITING),
    Move.DEFER: (frozenset({State.ACTIVE}), State.DEFERRED),
    Move.SIT_OUT: (frozenset({State.WAITING}), State.DEFERRED),
    Move.WAKE: (frozenset({State.DEFERRED}), State.WAITING),
    Move.HOLD: (_ALL, State.HELD),
    Move.RELEASE: (frozenset({State.HELD, State.DEFERRED}), State.WAITING),
    Move.SEIZE: (_ALL - {State.ACTIVE}, State.ACTIVE),
}
"""For each move, the states it is made from and the state it leads to; else it changes nothing."""


class WaitKind(enum.Enum):
    WORDS = "words"
    """No rule asks about it; its text is for the operator."""
    REFUSAL = "refusal"
    """The last reply of the upstream, or what went wrong without one."""
    SENDER_PAUSE = "sender pause"


@dataclass(frozen=True, slots=True)
class WaitReason:
    kind: WaitKind
    text: str
    """For showing only."""
    status: str = ""
    """The enhanced status code that a REFUSAL came with (RFC 3463)."""


NO_REASON = WaitReason(WaitKind.WORDS, "")

Why = WaitReason | str
"""A reason; plain words where no rule asks about it."""


def wait_reason(why: Why) -> WaitReason:
    return why if isinstance(why, WaitReason) else WaitReason(WaitKind.WORDS, why) if why else NO_REASON


@dataclass(slots=True)
class Queued:
    queue_id: QueueId
    reverse_path: str
    size_bytes: int
    arrived_at_ns: int
    """In this boot's time; negative for a message that came in before it."""
    arrival_at_ns: int
    """Wall clock, as the envelope has it; for showing."""
    recipients_left: int
    state: State = State.WAITING
    due_at_ns: int = 0
    """When a deferred message may be attempted again, or its place's first parked message may go."""
    why: WaitReason = NO_REASON
    is_warned: bool = False
    recipients_shown: tuple[str, ...] = ()
    """The first few, for listings."""
    ready_at_ns: int = 0
    """Since when it could go, but for limits and connections."""
    tried: frozenset[int] = frozenset()
    """Recipients deferred in this round, waiting for the others to be tried."""
    refusals: int = 0
    """In how many of its transactions the upstream refused us."""
    singled_out: int = 0
    """How often it did so where it had just relayed others."""
    place: Hashable = None
    """Where it is parked, if it is."""
    turn: int = 0
    """Its turn among the parked, kept while it is tried; 0: none yet."""
    lane: str = DEFAULT_LANE
    client: str = ""
    """The client that handed it over, as the envelope has it."""
    domains: tuple[tuple[str, int], ...] = ()
    """Runs of recipients of one domain, in order: domain and length; for the estimate."""

    @property
    def reason(self) -> str:
        return self.why.text

    @property
    def refusal(self) -> WaitReason | None:
        """Return the refusal that deferred a message in its back-off, if one did."""
        is_refused = self.state is State.DEFERRED and self.why.kind is WaitKind.REFUSAL
        return self.why if is_refused else None

    @property
    def is_sitting_out(self) -> bool:
        """Whether it is DEFERRED only because its sender is paused: it was not attempted."""
        return self.state is State.DEFERRED and self.why.kind is WaitKind.SENDER_PAUSE

    @property
    def sender(self) -> str:
        """Return the sender as all spellings of the address share it; never to be sent or shown."""
        return comparable(self.reverse_path)

    @property
    def since_ns(self) -> int:
        """Return since when it could go, but for limits and connections; never before it came in."""
        return max(self.ready_at_ns, self.arrived_at_ns)

    def __copy__(self) -> "Queued":
        return Queued(*_VALUES(self))


_VALUES = attrgetter(*(field.name for field in fields(Queued)))
