"""Who goes last while an upstream is in doubt: senders whose mail it refused, as if because of us.  Pure.

Each pause that a proving transaction does not end costs everybody as long as it lasts.
So the next one to prove is a message that was never refused, of a sender that was not since
the upstream last relayed something; else any that was never refused; else the one whose
refusal is the longest ago.  Once something is relayed all have their places again.

Memory, and how far is looked for another one, are bounded.
"""

from collections.abc import Iterator

from relay.mail.envelope import QueueId
from relay.queue.queued import Queued

MOST_SENDERS = 10_000
"""Senders that are remembered."""
MOST_ASIDE = 64
"""Messages of theirs that are passed over, but for those that were refused themselves."""


class ProbeOrder:
    """The senders that are passed over, and the messages."""

    def __init__(self) -> None:
        self._senders: set[str] = set()
        self._fresh: dict[QueueId, None] = {}
        self._refused: dict[QueueId, None] = {}
        self._goes: QueueId | None = None
        """The one that goes all the same, since there is no other."""

    def add(self, sender: str) -> None:
        """Pass over a sender from now on."""
        self._goes = None
        if len(self._senders) < MOST_SENDERS:
            self._senders.add(sender)

    def keep(self, message: Queued) -> bool:
        """Return whether a message lets others go first; then it is aside from now on."""
        is_doubted = message.sender in self._senders or (self._senders and message.refusals)
        if not is_doubted or message.queue_id == self._goes:
            return False
        aside = self._refused if message.refusals else self._fresh
        if aside is self._fresh and len(aside) >= MOST_ASIDE:
            return False
        aside[message.queue_id] = None
        return True

    def take(self) -> QueueId | None:
        """Return who goes where there is no other, and keep it no longer."""
        aside = self._fresh or self._refused
        self._goes = next(iter(aside), None)
        if self._goes is not None:
            del aside[self._goes]
        return self._goes

    def forget(self, queue_id: QueueId) -> None:
        """Keep a message no longer."""
        self._fresh.pop(queue_id, None)
        self._refused.pop(queue_id, None)

    def copy(self) -> "ProbeOrder":
        """Return the same, to go its own way."""
        twin = ProbeOrder()
        twin._senders, twin._goes = self._senders.copy(), self._goes
        twin._fresh, twin._refused = self._fresh.copy(), self._refused.copy()
        return twin

    def clear(self) -> list[QueueId]:
        """Pass over nobody; return who was aside, in the order of their places."""
        aside = list(self)
        self._senders.clear()
        self._fresh.clear()
        self._refused.clear()
        self._goes = None
        return aside

    def __iter__(self) -> Iterator[QueueId]:
        yield from self._fresh
        yield from self._refused
