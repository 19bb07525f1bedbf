"""A place of the queue where messages wait that only something of their own keeps back.  Pure."""

from dataclasses import dataclass, field

from relay.envelope import QueueId


@dataclass(slots=True)
class Parking:
    """One place, and who is parked there."""

    due_at_ns: int = 0
    may_leave: int = 0
    turns: list[tuple[int, QueueId]] = field(default_factory=list)
    """A heap; who left another way is not taken out of it."""
    stands: QueueId | None = None
    """Who of them is in the order for all of them, perhaps."""
