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
"""Entries of gone messages that a heap may hold beyond twice its live ones."""


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
    ages: list[tuple[int, QueueId]] = field(default_factory=list)
    """A heap by arrival; entries of messages that left stay in it."""


class Counts:
    def __init__(self) -> None:
        self._groups: dict[tuple[State, str], _Group] = {}
        self._counted: dict[QueueId, tuple[_Group, int, int, bool]] = {}
        """The group, recipients and bytes that each is counted with, and whether it counts as a message."""

    def note(self, message: Queued) -> None:
        key = message.state, message.lane
        if (group := self._groups.get(key)) is None:
            group = self._groups[key] = _Group()
        size_bytes = message.size_bytes if message.is_counted else 0
        counted = group, message.recipients_left, size_bytes, message.is_counted
        before = self._counted.get(message.key)
        if before is not None and before[0] is group and before[1:] == counted[1:]:
            return
        self.forget(message.key)
        self._counted[message.key] = counted
        group.members += 1
        group.messages += message.is_counted
        group.recipients += message.recipients_left
        group.size_bytes += size_bytes
        heapq.heappush(group.ages, (message.arrived_at_ns, message.key))
        if len(group.ages) > 2 * group.members + SPARE_AGES:
            group.ages = list({age for age in group.ages if self._is_in(age[1], group)})
            heapq.heapify(group.ages)

    def forget(self, queue_id: QueueId) -> None:
        """Count a message no longer; absent ids are ignored."""
        if (counted := self._counted.pop(queue_id, None)) is not None:
            group, recipients, size_bytes, is_counted = counted
            group.members -= 1
            group.messages -= is_counted
            group.recipients -= recipients
            group.size_bytes -= size_bytes

    def members(self, state: State) -> int:
        """Return how many messages and parts of messages are in a state."""
        return sum(group.members for (its, _), group in self._groups.items() if its is state)

    def of(self, state: State) -> dict[str, Sums]:
        """Return the sums of a state by lane; lanes without mail are left out."""
        groups = ((lane, group) for (its, lane), group in self._groups.items() if its is state)
        return {lane: self._sums(group) for lane, group in groups if group.members}

    def _sums(self, group: _Group) -> Sums:
        while not self._is_in(group.ages[0][1], group):
            heapq.heappop(group.ages)
        return Sums(group.messages, group.recipients, group.size_bytes, group.ages[0][0])

    def _is_in(self, queue_id: QueueId, group: _Group) -> bool:
        counted = self._counted.get(queue_id)
        return counted is not None and counted[0] is group


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
