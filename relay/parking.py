"""A place of the queue where messages wait that only something of their own keeps back.  Pure."""

import heapq
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from relay.envelope import QueueId
from relay.queued import Queued, State


@dataclass(slots=True)
class Parking:
    """One place, and who is parked there."""

    due_at_ns: int = 0
    may_leave: int = 0
    turns: list[tuple[int, QueueId]] = field(default_factory=list)
    """A heap; who left another way is not taken out of it."""
    stands: QueueId | None = None
    """Who of them is in the order for all of them, perhaps."""

    def first(self, place: Hashable, messages: Mapping[QueueId, Queued]) -> Queued | None:
        """Return whose turn it is here, and forget who left another way."""
        while self.turns:
            message = messages.get(self.turns[0][1])
            if message is not None and message.state is State.WAITING and message.place == place:
                return message
            heapq.heappop(self.turns)
        return None
