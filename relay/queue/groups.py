"""Running sums of messages that have something in common.  Pure.

Cost: O(log n) a message that enters or leaves.  What many are counted as is one value for all, which each
message keeps (`Queued.counted`); a table of a million of them takes 31 bytes each.
"""

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

SPARE_AGES = 1024
"""Instants of gone messages that are kept beyond as many as there are messages."""


class Counted(NamedTuple):
    """As what a message is counted, and where."""

    group: "CountGroup"
    recipients: int
    is_message: bool
    """Else it is a further part of one."""


@dataclass(slots=True, eq=False)
class CountGroup:
    members: int = 0
    """Messages, and further parts of those that go by several routes."""
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0
    arrived: list[int] = field(default_factory=list)
    """A heap of instants, also of members that left."""
    left: list[int] = field(default_factory=list)
    """A heap of those of members that left."""
    entries: dict[tuple[int, bool], Counted] = field(default_factory=dict)

    def counted(self, recipients: int, *, is_message: bool) -> Counted:
        """Return one value for all that are counted alike."""
        key = recipients, is_message
        return self.entries.get(key) or self.entries.setdefault(key, Counted(self, *key))

    def enter(self, counted: Counted, size_bytes: int, arrived_at_ns: int) -> None:
        self.members += 1
        self.messages += counted.is_message
        self.recipients += counted.recipients
        self.size_bytes += size_bytes if counted.is_message else 0
        heapq.heappush(self.arrived, arrived_at_ns)

    def leave(self, counted: Counted, size_bytes: int, arrived_at_ns: int) -> None:
        self.members -= 1
        self.messages -= counted.is_message
        self.recipients -= counted.recipients
        self.size_bytes -= size_bytes if counted.is_message else 0
        heapq.heappush(self.left, arrived_at_ns)
        if len(self.left) > self.members + SPARE_AGES:
            self.drop_left()

    def oldest_ns(self) -> int:
        """Return when the first of its members came; there must be one."""
        while self.left and self.left[0] == self.arrived[0]:
            heapq.heappop(self.left)
            heapq.heappop(self.arrived)
        return self.arrived[0]

    def drop_left(self) -> None:
        """Forget members that left; takes time in proportion to all."""
        self.arrived.sort()
        self.left.sort()
        left = iter(self.left)
        next_left = next(left, None)
        kept = []
        for at_ns in self.arrived:
            if at_ns == next_left:
                next_left = next(left, None)
            else:
                kept.append(at_ns)
        self.arrived, self.left = kept, []
