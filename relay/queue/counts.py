"""How much is queued, by state and lane, and by owner, kept up to date message by message.  Pure.

A snapshot of a long queue costs no pass over it: 20,000 messages would hold up the event
loop for 40 ms.  Cost: O(log n) a change, O(states and lanes) a question.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from relay.queue.groups import CountGroup
from relay.queue.queued import Queued, State


class Sums(NamedTuple):
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0
    oldest_arrived_at_ns: int | None = None
    """Boottime; None where there is no message."""


class Counts:
    def __init__(self) -> None:
        self._groups: dict[tuple[State, str], CountGroup] = {}

    def note(self, message: Queued) -> None:
        key = message.state, message.lane
        if (group := self._groups.get(key)) is None:
            group = self._groups[key] = CountGroup()
        counted = group.counted(message.recipients_left, is_message=message.is_counted)
        if message.counted is counted:
            return
        self.forget(message)
        # Its octets and its arrival never change.
        message.counted = counted
        group.enter(counted, message.size_bytes, message.arrived_at_ns)

    def forget(self, message: Queued) -> None:
        """Count a message no longer; one that is not counted is ignored."""
        if (counted := message.counted) is not None:
            message.counted = None
            counted.group.leave(counted, message.size_bytes, message.arrived_at_ns)

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
