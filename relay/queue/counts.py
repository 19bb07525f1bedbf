"""How much stands in a line, by state and lane, kept up to date message by message.  Pure."""

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from relay.queue.queued import Queued, State


class Sums(NamedTuple):
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0
    oldest_arrived_at_ns: int | None = None
    """Boottime; None where there is no message, or where nobody looked."""


class Counts:
    """A message is taken out before anything changes by which it is counted, and added again after that."""

    def __init__(self) -> None:
        self._of: defaultdict[tuple[State, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        """Parts of messages, messages, recipients, octets."""

    def add(self, message: Queued, by: int = 1) -> None:
        sums = self._of[message.state, message.lane]
        sums[0] += by
        sums[2] += by * message.recipients_left
        if message.is_counted:
            sums[1] += by
            sums[3] += by * message.size_bytes

    def members(self, *states: State) -> int:
        """Return how many messages and parts of messages are in these states; none named: in any."""
        return sum(sums[0] for (state, _), sums in self._of.items() if not states or state in states)

    def of(self, state: State) -> dict[str, Sums]:
        """Return the sums of a state by lane; lanes without mail are left out."""
        its = {lane: sums for (each, lane), sums in self._of.items() if each is state and sums[0]}
        return {lane: Sums(*sums[1:]) for lane, sums in its.items()}


def total(sums: Collection[Sums]) -> Sums:
    oldest = (each.oldest_arrived_at_ns for each in sums if each.oldest_arrived_at_ns is not None)
    return Sums(
        sum(each.messages for each in sums),
        sum(each.recipients for each in sums),
        sum(each.size_bytes for each in sums),
        min(oldest, default=None),
    )
