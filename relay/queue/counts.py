"""How much is queued, by state and lane, and by owner, kept up to date message by message.  Pure.

A snapshot of a long queue costs no pass over it: 20,000 messages would hold up the event
loop for 40 ms.  Cost: O(log n) a change, O(states and lanes) a question.
"""

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.queue.queued import Queued, State

SPARE_AGES = 1024
"""Instants of gone messages that are kept beyond as many as there are messages."""


class Sums(NamedTuple):
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0
    oldest_arrived_at_ns: int | None = None
    """Boottime; None where there is no message."""


@dataclass(slots=True, eq=False)
class _Group:
    members: int = 0
    """Messages, and further parts of those that go by several routes."""
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0
    arrived: list[int] = field(default_factory=list)
    """A heap of instants, also of members that left."""
    left: list[int] = field(default_factory=list)
    """A heap of those of members that left."""
    entries: dict[tuple[int, bool], "_CountedAs"] = field(default_factory=dict)

    def counted(self, message: Queued) -> "_CountedAs":
        """Return one value for all that are counted alike."""
        key = message.recipients_left, message.is_counted
        return self.entries.get(key) or self.entries.setdefault(key, _CountedAs(self, *key))

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


class _CountedAs(NamedTuple):
    group: _Group
    recipients: int
    is_message: bool


class Counts:
    def __init__(self) -> None:
        self._groups: dict[tuple[State, str], _Group] = {}
        self._counted: dict[QueueId, _CountedAs] = {}
        """As what each is counted; its octets and its arrival never change."""

    def note(self, message: Queued) -> None:
        key = message.state, message.lane
        if (group := self._groups.get(key)) is None:
            group = self._groups[key] = _Group()
        counted = group.counted(message)
        if self._counted.get(message.key) is counted:
            return
        self.forget(message)
        self._counted[message.key] = counted
        group.members += 1
        group.messages += counted.is_message
        group.recipients += counted.recipients
        group.size_bytes += message.size_bytes if counted.is_message else 0
        heapq.heappush(group.arrived, message.arrived_at_ns)

    def forget(self, message: Queued) -> None:
        """Count a message no longer; one that is not counted is ignored."""
        if (counted := self._counted.pop(message.key, None)) is not None:
            group = counted.group
            group.members -= 1
            group.messages -= counted.is_message
            group.recipients -= counted.recipients
            group.size_bytes -= message.size_bytes if counted.is_message else 0
            heapq.heappush(group.left, message.arrived_at_ns)
            if len(group.left) > group.members + SPARE_AGES:
                group.drop_left()

    def members(self, state: State) -> int:
        """Return how many messages and parts of messages are in a state."""
        return sum(group.members for (its, _), group in self._groups.items() if its is state)

    def of(self, state: State) -> dict[str, Sums]:
        """Return the sums of a state by lane; lanes without mail are left out."""
        groups = ((lane, group) for (its, lane), group in self._groups.items() if its is state)
        return {
            lane: Sums(group.messages, group.recipients, group.size_bytes, group.oldest_ns())
            for lane, group in groups
            if group.members
        }


class Owners:
    """How many messages each owner has in the queue, whatever their states: a user, else a client."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], int] = {}

    def add(self, message: Queued) -> None:
        owner = _owner(message)
        self._of[owner] = self._of.get(owner, 0) + 1

    def remove(self, message: Queued) -> None:
        """Ignore a message that was not counted."""
        owner = _owner(message)
        if (left := self._of.get(owner, 0) - 1) > 0:
            self._of[owner] = left
        else:
            self._of.pop(owner, None)

    def each(self) -> Iterable[tuple[tuple[str, str], int]]:
        """User and client, one of them empty, and the number."""
        return self._of.items()


def _owner(message: Queued) -> tuple[str, str]:
    return (message.user, "") if message.user else ("", message.client)


def total(sums: Collection[Sums]) -> Sums:
    if not sums:
        return Sums()
    messages, recipients, sizes, oldest = zip(*sums, strict=True)
    oldest_ns = min(at_ns for at_ns in oldest if at_ns is not None)
    return Sums(sum(messages), sum(recipients), sum(sizes), oldest_ns)
