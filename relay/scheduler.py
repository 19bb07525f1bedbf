"""Which message next, and when to look again.  Pure: no clock, no disk, no waiting.

The queue in memory: one `Queued` a message.  First come, first served among those that
may go; a deferred one comes back when its back-off is over; one that was taken but could
not be attempted (no room in a window, no connection) goes back to the front and has lost
nothing: that is *waiting*, not *deferred*.

All instants are nanoseconds of one boot (`Clock.boottime_ns`), so that no step of the
wall clock moves a message; the caller converts once, when a message comes in.
"""

import enum
import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from relay.envelope import QueueId


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
    """When a deferred one may be attempted again."""
    reason: str = ""
    """Why it is still here: the last refusal, or what it waits for."""
    is_warned: bool = False
    recipients_shown: tuple[str, ...] = ()
    """The first few, for a listing."""
    ready_at_ns: int = 0
    """Since when it could go, but for limits and connections."""
    tried: frozenset[int] = frozenset()
    """Recipients that were deferred in this round and wait for the others to be tried."""


def back_off_ns(age_ns: int, min_ns: int, max_ns: int) -> int:
    """Return how long to wait after a deferral: as long as the message is old (Postfix's rule).

    Never shorter than `min_ns`, never longer than `max_ns`; nothing has to be remembered.
    """
    return max(min_ns, min(max_ns, age_ns))


class Scheduler:
    """The queue of one relay, in memory."""

    def __init__(self) -> None:
        self._messages: dict[QueueId, Queued] = {}
        self._ready: deque[QueueId] = deque()
        self._deferred: list[tuple[int, QueueId]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Queued]:
        return iter(self._messages.values())

    def __contains__(self, queue_id: QueueId) -> bool:
        return queue_id in self._messages

    def get(self, queue_id: QueueId) -> Queued | None:
        """Return a message of the queue."""
        return self._messages.get(queue_id)

    def add(self, message: Queued) -> None:
        """Put a message into the queue, in the state that it says."""
        self._messages[message.queue_id] = message
        self._place(message)

    def next_ready(self, now_ns: int) -> Queued | None:
        """Take the next message that may be attempted; it is ACTIVE from here on."""
        self._wake(now_ns)
        while self._ready:
            message = self._messages.get(self._ready.popleft())
            if message is not None and message.state is State.WAITING:
                message.state = State.ACTIVE
                return message
        return None

    def has_ready(self, now_ns: int) -> bool:
        """Return whether `next_ready` would give a message."""
        self._wake(now_ns)
        while self._ready:
            message = self._messages.get(self._ready[0])
            if message is not None and message.state is State.WAITING:
                return True
            self._ready.popleft()
        return False

    @property
    def most_ready(self) -> int:
        """Return how many messages `next_ready` would give, or a few more."""
        return len(self._ready)

    def first_ready(self, now_ns: int) -> Queued | None:
        """Return the message that `next_ready` would take, and leave it."""
        return self._messages[self._ready[0]] if self.has_ready(now_ns) else None

    def next_due_at_ns(self) -> int | None:
        """Return when the next back-off ends, or None if there is none."""
        while self._deferred:
            due_at_ns, queue_id = self._deferred[0]
            if self._is_deferred_until(queue_id, due_at_ns):
                return due_at_ns
            heapq.heappop(self._deferred)
        return None

    def give_back(self, queue_id: QueueId, reason: str) -> None:
        """Put an active message that was not attempted back in front."""
        message = self._messages.get(queue_id)
        if message is not None and message.state is State.ACTIVE:
            message.state, message.reason = State.WAITING, reason
            self._ready.appendleft(queue_id)

    def again(self, queue_id: QueueId, recipients_left: int, reason: str) -> None:
        """Put a message that made progress, or was told to come again at once, at the end of the line."""
        message = self._messages.get(queue_id)
        if message is not None:
            message.recipients_left, message.reason = recipients_left, reason
            message.state = State.WAITING
            self._ready.append(queue_id)

    def postpone(self, queue_id: QueueId, due_at_ns: int, recipients_left: int, reason: str) -> None:
        """Defer a message until an instant."""
        message = self._messages.get(queue_id)
        if message is not None:
            message.recipients_left, message.reason = recipients_left, reason
            message.state, message.due_at_ns = State.DEFERRED, due_at_ns
            self._place(message)

    def hold(self, queue_id: QueueId) -> None:
        """Take a message out of the order until it is released."""
        if (message := self._messages.get(queue_id)) is not None:
            message.state = State.HELD

    def release(self, queue_id: QueueId) -> None:
        """Bring a held or deferred message to the end of the line, to be attempted at once."""
        message = self._messages.get(queue_id)
        if message is not None and message.state in (State.HELD, State.DEFERRED):
            message.state, message.reason = State.WAITING, ""
            self._place(message)

    def remove(self, queue_id: QueueId) -> None:
        """Forget a message that is gone from the spool."""
        self._messages.pop(queue_id, None)

    def _place(self, message: Queued) -> None:
        match message.state:
            case State.WAITING:
                self._ready.append(message.queue_id)
            case State.DEFERRED:
                heapq.heappush(self._deferred, (message.due_at_ns, message.queue_id))
            case State.ACTIVE | State.HELD:
                pass

    def _wake(self, now_ns: int) -> None:
        """Move what is due to the end of the line."""
        while self._deferred and self._deferred[0][0] <= now_ns:
            due_at_ns, queue_id = heapq.heappop(self._deferred)
            if self._is_deferred_until(queue_id, due_at_ns):
                self._messages[queue_id].state = State.WAITING
                self._messages[queue_id].ready_at_ns = due_at_ns
                self._ready.append(queue_id)

    def _is_deferred_until(self, queue_id: QueueId, due_at_ns: int) -> bool:
        """Return whether a place in the heap still says the truth; moves leave old ones behind."""
        message = self._messages.get(queue_id)
        return message is not None and message.state is State.DEFERRED and message.due_at_ns == due_at_ns
