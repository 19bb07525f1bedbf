"""A message as the queue in memory has it.  Pure.

All instants but the arrival are nanoseconds of one boot (`Clock.boottime_ns`).
"""

import enum
from collections.abc import Hashable
from dataclasses import dataclass

from relay.mail.address import comparable
from relay.mail.envelope import QueueId
from relay.queue.lanes import DEFAULT_LANE
from relay.verdicts.decision import UNKNOWN_STATUS


class State(enum.StrEnum):
    """Where a queued message stands, in the words of the operator."""

    WAITING = "waiting"
    """Not attempted yet, or back from its back-off; it goes when there is room."""
    ACTIVE = "active"
    """In a transaction, or about to be."""
    DEFERRED = "deferred"
    """Attempted, refused for now."""
    HELD = "held"
    """An operator said stop."""
    REPORTING = "reporting"
    """No recipient is left; only the report about those that failed is owed."""


@dataclass(slots=True)
class Queued:
    """A message in the queue."""

    queue_id: QueueId
    reverse_path: str
    size_bytes: int
    arrived_at_ns: int
    """In this boot's time; negative for what came in before it."""
    arrival_at_ns: int
    """Wall clock, as the envelope has it; for showing."""
    recipients_left: int
    state: State = State.WAITING
    due_at_ns: int = 0
    """When a deferred one may be attempted again, or the first of a parked one's place may go."""
    reason: str = ""
    """Why it is still here: the last refusal, or what it waits for."""
    status: str = UNKNOWN_STATUS
    """Of a deferred one: the enhanced code of its refusal (RFC 3463)."""
    is_warned: bool = False
    recipients_shown: tuple[str, ...] = ()
    """The first few, for a listing."""
    ready_at_ns: int = 0
    """Since when it could go, but for limits and connections."""
    is_sitting_out: bool = False
    """DEFERRED only because its sender rests: it was not attempted."""
    tried: frozenset[int] = frozenset()
    """Recipients that were deferred in this round and wait for the others to be tried."""
    refusals: int = 0
    """In how many of its transactions the upstream refused us."""
    singled_out: int = 0
    """How often it did so where it had just relayed others."""
    place: Hashable = None
    """Where it is parked; None while it is not."""
    turn: int = 0
    """Its turn among the parked; kept while it is tried, 0 for none yet."""
    lane: str = DEFAULT_LANE
    client: str = ""
    """Who handed it over, as the envelope has it."""
    domains: tuple[tuple[str, int], ...] = ()
    """Of its recipients, in their order: how many of one domain there are in a row; for the estimate."""

    @property
    def sender(self) -> str:
        """Return who sent it, told by what all spellings of the address share; never to be sent or shown."""
        return comparable(self.reverse_path)

    @property
    def since_ns(self) -> int:
        """Return since when it could go, but for limits and connections; never before it came in."""
        return max(self.ready_at_ns, self.arrived_at_ns)
