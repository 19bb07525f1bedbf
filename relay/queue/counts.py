"""How much is queued, by state and lane, and by owner, kept up to date message by message.  Pure.

A snapshot of a long queue costs no pass over it: 20,000 messages would hold up the event
loop for 40 ms.  Cost: O(log n) a change, O(states and lanes) a question.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from relay.queue.instants import Instants
from relay.queue.queued import Queued, State


class Sums(NamedTuple):
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0
    oldest_arrived_at_ns: int | None = None
    """Boottime; None where there is no message."""


class Counted(NamedTuple):
    """As what a message is counted, and where."""

    group: "_Group"
    recipients: int
    is_message: bool
    """Else it is a further part of one."""


class _Group:
    """Messages of one state and lane."""

    def __init__(self) -> None:
        self.members = 0
        """Messages, and further parts of those that go by several routes."""
        self.messages = self.recipients = self.size_bytes = 0
        self.arrivals: Instants[Queued] = Instants(lambda _, message: self._has(message))
        self._alike: dict[tuple[int, bool], Counted] = {}

    def counted(self, recipients: int, *, is_message: bool) -> Counted:
        """Return one value for all that are counted alike."""
        key = recipients, is_message
        return self._alike.get(key) or self._alike.setdefault(key, Counted(self, *key))

    def oldest_ns(self) -> int | None:
        first = self.arrivals.first()
        return None if first is None else first[0]

    def _has(self, message: Queued) -> bool:
        return message.counted is not None and message.counted.group is self


class Counts:
    def __init__(self) -> None:
        self._groups: dict[tuple[State, str], _Group] = {}

    def note(self, message: Queued) -> None:
        """Count a message by what it is by now."""
        key = message.state, message.lane
        if (group := self._groups.get(key)) is None:
            group = self._groups[key] = _Group()
        before = message.counted
        counted = group.counted(message.recipients_left, is_message=message.is_counted)
        if before is counted:
            return
        self.forget(message)
        message.counted = counted
        group.members += 1
        group.messages += counted.is_message
        group.recipients += counted.recipients
        group.size_bytes += message.size_bytes if counted.is_message else 0
        if before is None or before.group is not group:
            group.arrivals.add(message.arrived_at_ns, message)

    def forget(self, message: Queued) -> None:
        """Count a message no longer; one that is not counted is ignored."""
        if (counted := message.counted) is not None:
            message.counted, group = None, counted.group
            group.members -= 1
            group.messages -= counted.is_message
            group.recipients -= counted.recipients
            group.size_bytes -= message.size_bytes if counted.is_message else 0

    def has(self, message: Queued) -> bool:
        """Return whether a message is counted here."""
        group = self._groups.get((message.state, message.lane))
        return message.counted is not None and message.counted.group is group

    def members(self, *states: State) -> int:
        """Return how many messages and parts of messages are in these states; none named: in any."""
        groups = self._groups.items()
        return sum(group.members for (state, _), group in groups if not states or state in states)

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
        self._of: Counter[tuple[str, str]] = Counter()

    def add(self, message: Queued) -> None:
        self._of[_owner(message)] += 1

    def remove(self, message: Queued) -> None:
        owner = _owner(message)
        self._of[owner] -= 1
        if self._of[owner] <= 0:
            del self._of[owner]

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
