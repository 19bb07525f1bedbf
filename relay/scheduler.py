"""Which message next, and when to look again.  Pure: no clock, no disk, no waiting.

The queue in memory: one `Queued` a message.  First come, first served among those that
may go; a deferred one comes back when its back-off is over; one that was taken but could
not be attempted (no room in a window, no connection) goes back to the front and has lost
nothing: that is *waiting*, not *deferred*.

All instants are nanoseconds of one boot (`Clock.boottime_ns`), so that no step of the
wall clock moves a message; the caller converts once, when a message comes in.

A message that only something of its own keeps back (no room for its sender, say) is parked
in a place, behind those that came there before it, and out of the way of all others.  A
place is due when its first message may go; it is asked how many may leave then, and only
so many do, in front of the line.
"""

import enum
import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from relay.envelope import QueueId

FIRST_REST_NS = 15 * 60 * 10**9
"""How long the mail of a sender waits that the upstream refuses."""
LONGEST_REST_NS = 4 * 3600 * 10**9
PROOF_NS = 60 * 10**9
"""How long the others wait while one message proves that a sender is welcome again."""
MOST_RESTING = 10_000
"""Senders that are remembered as resting."""
MOST_PLACES = 64
"""Places that are asked about at once."""


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
    REPORTING = "reporting"
    """No recipient is left; only the report about those that failed is owed."""


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
    """When a deferred one may be attempted again, or the first of a parked one's place may go."""
    reason: str = ""
    """Why it is still here: the last refusal, or what it waits for."""
    is_warned: bool = False
    recipients_shown: tuple[str, ...] = ()
    """The first few, for a listing."""
    ready_at_ns: int = 0
    """Since when it could go, but for limits and connections."""
    is_sitting_out: bool = False
    """DEFERRED only because its sender rests: it was not attempted."""
    tried: frozenset[int] = frozenset()
    """Recipients that were deferred in this round and wait for the others to be tried."""
    refusals: int = 0
    """In how many of its transactions the upstream refused us."""
    place: Hashable = None
    """Where it is parked; None while it is not."""
    turn: int = 0
    """Its turn among the parked; kept while it is tried, 0 for none yet."""
    client: str = ""
    """Who handed it over, as the envelope has it."""
    domains: tuple[tuple[str, int], ...] = ()
    """Of its recipients, in their order: how many of one domain there are in a row; for the estimate."""


@dataclass(slots=True)
class _Parking:
    """One place, and who is parked there."""

    due_at_ns: int = 0
    may_leave: int = 0
    turns: list[tuple[int, QueueId]] = field(default_factory=list)
    """A heap; who left another way is not taken out of it."""


def back_off_ns(age_ns: int, min_ns: int, max_ns: int) -> int:
    """Return how long to wait after a deferral: as long as the message is old (Postfix's rule).

    Never shorter than `min_ns`, never longer than `max_ns`; nothing has to be remembered.
    """
    return max(min_ns, min(max_ns, age_ns))


@dataclass(slots=True)
class _Rest:
    """A sender whose mail the upstream refuses for now."""

    until_ns: int
    reason: str
    in_a_row: int = 0


class Scheduler:
    """The queue of one relay, in memory."""

    def __init__(self) -> None:
        self._messages: dict[QueueId, Queued] = {}
        self._ready: deque[QueueId] = deque()
        self._deferred: list[tuple[int, QueueId]] = []
        self._resting: dict[str, _Rest] = {}
        self._parked: dict[Hashable, _Parking] = {}
        self._parked_until: list[tuple[int, int, Hashable]] = []
        """A heap; what a place says itself counts."""
        self._due: dict[Hashable, None] = {}
        self._last_turn = self._entries = 0

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
        # Its place may have let it go while somebody had it; who still has no room is parked again, in turn.
        message.place = None
        self._place(message)

    def next_ready(self, now_ns: int) -> Queued | None:
        """Take the next message that may be attempted; it is ACTIVE from here on."""
        self._wake(now_ns)
        if (parking := self._leaving(now_ns)) is not None:
            parking.may_leave -= 1
            message = self._messages[heapq.heappop(parking.turns)[1]]
            message.state, message.place = State.ACTIVE, None
            self._prove(message.reverse_path, now_ns)
            return message
        while self._ready:
            if (next_one := self._in_line(self._ready.popleft(), now_ns)) is not None:
                next_one.state = State.ACTIVE
                self._prove(next_one.reverse_path, now_ns)
                return next_one
        return None

    def has_ready(self, now_ns: int) -> bool:
        """Return whether `next_ready` would give a message."""
        return self.first_ready(now_ns) is not None

    @property
    def most_ready(self) -> int:
        """Return how many messages `next_ready` would give, or a few more."""
        return len(self._ready) + sum(self._parked[place].may_leave for place in self._first_due())

    def first_ready(self, now_ns: int) -> Queued | None:
        """Return the message that `next_ready` would take, and leave it."""
        self._wake(now_ns)
        if (parking := self._leaving(now_ns)) is not None:
            return self._messages[parking.turns[0][1]]
        while self._ready:
            if (message := self._in_line(self._ready[0], now_ns)) is not None:
                return message
            self._ready.popleft()
        return None

    def next_due_at_ns(self) -> int | None:
        """Return when the next back-off ends or the next place is due, or None if there is none."""
        while self._deferred and not self._is_deferred_until(self._deferred[0][1], self._deferred[0][0]):
            heapq.heappop(self._deferred)
        while self._parked_until and not self._is_parked_until(self._parked_until[0]):
            heapq.heappop(self._parked_until)
        return min((heap[0][0] for heap in (self._deferred, self._parked_until) if heap), default=None)

    def park(self, queue_id: QueueId, place: Hashable, due_at_ns: int, reason: str) -> bool:
        """Park an active message that was not attempted until its place is due; say if it is alone there."""
        message = self._messages.get(queue_id)
        if message is None or message.state is not State.ACTIVE:
            return False
        if message.turn == 0:
            self._last_turn += 1
            message.turn = self._last_turn
        message.state, message.reason = State.WAITING, reason
        message.place, message.due_at_ns = place, due_at_ns
        is_first = place not in self._parked
        parking = self._parked.setdefault(place, _Parking())
        heapq.heappush(parking.turns, (message.turn, queue_id))
        self._set_due(place, due_at_ns)
        return is_first

    def places_due(self, now_ns: int) -> list[Hashable]:
        """Return the next places to ask of how many may leave: `let_leave`."""
        while self._parked_until and self._parked_until[0][0] <= now_ns:
            entry = heapq.heappop(self._parked_until)
            if self._is_parked_until(entry):
                self._due[entry[2]] = None
        for place in self._first_due():
            if self._first_parked(place) is None:
                del self._parked[place], self._due[place]
        return self._first_due()

    def let_leave(self, place: Hashable, room: int, due_at_ns: int) -> None:
        """Let so many go from a place that is due; where none may, it is due again at an instant."""
        if room:
            self._parked[place].may_leave = room
        else:
            self._set_due(place, due_at_ns)

    def ask_anew(self) -> None:
        """Have every place be due: there may be other limits now."""
        for parking in self._parked.values():
            parking.due_at_ns = 0
        self._parked_until.clear()
        self._due = dict.fromkeys(self._parked)

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
            message.state, message.turn = State.WAITING, 0
            self._ready.append(queue_id)

    def postpone(self, queue_id: QueueId, due_at_ns: int, recipients_left: int, reason: str) -> None:
        """Defer a message until an instant."""
        message = self._messages.get(queue_id)
        if message is not None:
            message.recipients_left, message.reason = recipients_left, reason
            message.state, message.due_at_ns = State.DEFERRED, due_at_ns
            message.turn = 0
            self._place(message)

    def rest_sender(self, reverse_path: str, now_ns: int, reason: str) -> int:
        """Let the mail of a sender wait, longer each time in a row; return until when.

        Its messages are neither attempted nor older for it; then one of them goes first,
        to prove that the others may follow.
        """
        if len(self._resting) >= MOST_RESTING:
            # The oldest is asked about again: it costs one refusal.
            self._resting.pop(next(iter(self._resting)))
        rest = self._resting.pop(reverse_path, None)
        if rest is not None and rest.until_ns > now_ns + PROOF_NS:
            # Nobody was proving: it was in flight together with the one that began this rest.
            self._resting[reverse_path] = rest
            return rest.until_ns
        in_a_row = 0 if rest is None else rest.in_a_row + 1
        until_ns = now_ns + min(LONGEST_REST_NS, FIRST_REST_NS << min(in_a_row, 10))
        self._resting[reverse_path] = _Rest(until_ns, reason, in_a_row)
        return until_ns

    def trust_sender(self, reverse_path: str) -> None:
        """End the rest of a sender: the upstream took mail of it, or somebody acted."""
        if self._resting and self._resting.pop(reverse_path, None) is not None:
            for message in self._messages.values():
                if message.reverse_path == reverse_path and message.is_sitting_out:
                    self.release(message.queue_id)

    def resting_senders(self) -> dict[str, int]:
        """Return the senders whose mail waits because the upstream refuses it, and until when."""
        return {reverse_path: rest.until_ns for reverse_path, rest in self._resting.items()}

    def in_leaving_order(self) -> Iterator[Queued]:
        """Return what waits as it would leave now: the parked by their turns, the line, what is deferred.

        Not to be used across a change.  One that was held and let go may come twice: the first time counts.
        """
        waiting = [m for m in self._messages.values() if m.state is State.WAITING and m.place is not None]
        yield from sorted(waiting, key=lambda message: message.turn)
        line = (self._messages.get(queue_id) for queue_id in self._ready)
        yield from (m for m in line if m is not None and m.state is State.WAITING and m.place is None)
        deferred = (entry for entry in sorted(self._deferred) if self._is_deferred_until(entry[1], entry[0]))
        yield from (self._messages[queue_id] for _, queue_id in deferred)

    def places_in_order(self) -> list[tuple[Hashable, int]]:
        """Return the places, in the order in which they will be asked, and when; 0 for those that are due."""
        entries = sorted(entry for entry in self._parked_until if self._is_parked_until(entry))
        return [(place, 0) for place in self._due] + [(place, due_at_ns) for due_at_ns, _, place in entries]

    def hold(self, queue_id: QueueId) -> None:
        """Take a message out of the order until it is released."""
        if (message := self._messages.get(queue_id)) is not None:
            message.state = State.HELD

    def release(self, queue_id: QueueId) -> None:
        """Bring a held or deferred message to the end of the line, to be attempted at once."""
        message = self._messages.get(queue_id)
        if message is not None and message.state in (State.HELD, State.DEFERRED):
            message.state, message.reason = State.WAITING, ""
            message.place, message.turn = None, 0
            self._place(message)

    def remove(self, queue_id: QueueId) -> None:
        """Forget a message that is gone from the spool."""
        self._messages.pop(queue_id, None)

    def _sits_out(self, message: Queued, now_ns: int) -> bool:
        """Set a message of a resting sender aside until the rest is over; return whether it was."""
        message.is_sitting_out = False
        rest = self._resting.get(message.reverse_path) if self._resting else None
        if rest is None or rest.until_ns <= now_ns:
            return False
        message.state, message.due_at_ns, message.reason = State.DEFERRED, rest.until_ns, rest.reason
        message.is_sitting_out = True
        heapq.heappush(self._deferred, (message.due_at_ns, message.queue_id))
        return True

    def _prove(self, reverse_path: str, now_ns: int) -> None:
        """Let one message of a sender whose rest is over go ahead of its others."""
        rest = self._resting.get(reverse_path) if self._resting else None
        if rest is not None:
            rest.until_ns = now_ns + PROOF_NS

    def _place(self, message: Queued) -> None:
        match message.state:
            case State.WAITING:
                self._ready.append(message.queue_id)
            case State.DEFERRED:
                heapq.heappush(self._deferred, (message.due_at_ns, message.queue_id))
            case State.ACTIVE | State.HELD | State.REPORTING:
                pass

    def _wake(self, now_ns: int) -> None:
        """Move what is due to the end of the line."""
        while self._deferred and self._deferred[0][0] <= now_ns:
            due_at_ns, queue_id = heapq.heappop(self._deferred)
            if self._is_deferred_until(queue_id, due_at_ns):
                self._messages[queue_id].state = State.WAITING
                self._messages[queue_id].ready_at_ns = due_at_ns
                self._ready.append(queue_id)

    def _in_line(self, queue_id: QueueId, now_ns: int) -> Queued | None:
        """Return a message of the line, if it is still there and its sender does not rest."""
        message = self._messages.get(queue_id)
        if message is None or message.state is not State.WAITING or message.place is not None:
            return None
        return None if self._sits_out(message, now_ns) else message

    def _leaving(self, now_ns: int) -> _Parking | None:
        """Return a place that somebody may leave now."""
        for place in self._first_due():
            parking = self._parked[place]
            while parking.may_leave and (message := self._first_parked(place)) is not None:
                if not self._sits_out(message, now_ns):
                    return parking
                message.place, message.turn = None, 0
        return None

    def _first_due(self) -> list[Hashable]:
        return list(islice(self._due, MOST_PLACES))

    def _first_parked(self, place: Hashable) -> Queued | None:
        """Return whose turn it is at a place, and forget who left it another way."""
        parking = self._parked[place]
        while parking.turns:
            message = self._messages.get(parking.turns[0][1])
            if message is not None and message.state is State.WAITING and message.place == place:
                return message
            heapq.heappop(parking.turns)
        return None

    def _set_due(self, place: Hashable, due_at_ns: int) -> None:
        parking = self._parked[place]
        parking.due_at_ns, parking.may_leave = due_at_ns, 0
        self._due.pop(place, None)
        self._entries += 1
        # The number in the middle is unique: places themselves need not have an order.
        heapq.heappush(self._parked_until, (due_at_ns, self._entries, place))

    def _is_parked_until(self, entry: tuple[int, int, Hashable]) -> bool:
        """Return whether an entry of the heap still says the truth."""
        parking = self._parked.get(entry[2])
        return parking is not None and entry[2] not in self._due and parking.due_at_ns == entry[0]

    def _is_deferred_until(self, queue_id: QueueId, due_at_ns: int) -> bool:
        """Return whether a place in the heap still says the truth; moves leave old ones behind."""
        message = self._messages.get(queue_id)
        return message is not None and message.state is State.DEFERRED and message.due_at_ns == due_at_ns
