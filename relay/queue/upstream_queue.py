"""The line of one upstream account: which messages go next, and what the others wait for.  Pure: no clock.

`LaneQueue` orders the messages that may go.  All others wait in one heap, ordered by the end of the wait:
- a *deferred* message waits until its back-off is over;
- a *key*, of a limit or of a sender's pause, waits until it is asked again.  The messages of a key wait in
  order, separately for each lane.  A message that reaches the front while its key is closed joins them.
  When the key is due, its first message also has a turn in its lane: it asks.  Its refusal closes the key
  again; its grant, or its leaving, lets the next one ask.
A lane at its ceiling is closed until an instant.  If the account has no room, the first message keeps its
place and all others wait behind it: until the instant, or until another message is first.

Every change that may let a message go calls `on_change`; `next_look_ns` returns when time alone may.  A look
moves at most `SLICE` messages.  If more must move first, nothing goes, and `next_look_ns` returns AT_ONCE_NS.
Only an edit of lanes or limits touches each message that is ready: 0.5 s for 200,000 messages.
Instants are nanoseconds of one boot (`Clock.boottime_ns`).
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from relay.queue.lanes import Arrangement, LaneQueue, Turn
from relay.queue.lines import Counts, TimedHeap, earliest
from relay.queue.queued import NO_REASON, Queued, State, WaitReason
from relay.queue.sender_pauses import SenderPauses
from relay.verdicts.account import PauseSpan, within_ns

SLICE = 1000
"""How many messages one look moves at most: some milliseconds."""
AT_ONCE_NS = 0

KeysOf = Callable[[Queued], Iterable[Hashable]]
"""Returns the keys for which a message may have to wait, as far as the queue knows them."""


class ThrottledMessage(NamedTuple):
    """The throttle refused this message for now."""

    message: Queued
    until_ns: int
    key: Hashable
    """The key whose limit is full; ("lane", NAME) if the lane's ceiling is; None if the whole account is."""
    why: WaitReason


class _ClosedKey(OrderedDict[Queued, None]):
    """The messages of one lane that wait for one key, in order; `Queued.spot` of each is this key."""

    def __init__(self, key: Hashable, lane: str) -> None:
        super().__init__()
        self.key, self.lane, self.why = key, lane, NO_REASON
        self.until_ns: int | None = None
        """None while the first message asks for the key, and once the key is open."""

    def first(self) -> Queued | None:
        return next(iter(self), None)

    def asking(self) -> Queued | None:
        return self.first() if self.until_ns is None else None


class UpstreamQueue:
    def __init__(
        self,
        keys_of: KeysOf = lambda _: (),
        noticed: Callable[[Queued], None] = lambda _: None,
    ) -> None:
        """`noticed` is called with each message that is placed: as ready, at a key, or in another state."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when another message may go next."""
        self.counts = Counts()
        self.sender_pauses = SenderPauses()
        """Senders whose mail waits; `trust_sender` ends a pause."""
        self.pauses: tuple[PauseSpan, ...] = ()
        """As in `Availability.pauses`, also after the upstream left the policy."""
        self._keys_of, self._noticed = keys_of, noticed
        self._lanes = LaneQueue()
        self._waiting: TimedHeap[Queued | _ClosedKey] = TimedHeap(self._is_current)
        """Deferred messages, whose `spot` is this line, and keys."""
        self._keys: dict[tuple[Hashable, str], _ClosedKey] = {}
        self._full: dict[str | None, tuple[Queued | None, int]] = {}
        """Lanes at their ceilings, and None for the account: which message got no room, and until when."""
        self._now_ns, self._steps_left = 0, SLICE

    def __len__(self) -> int:
        """Return how many parts stand here, in any state."""
        return self.counts.by_route().total()

    def __iter__(self) -> Iterator[Queued]:
        """Yield the messages that wait: the ready ones by lane and sender, then those that wait for a key."""
        yield from self._lanes
        for key in self._keys.values():
            yield from islice(key, key.until_ns is None, None)

    @property
    def ready_count(self) -> int:
        """Return how many messages wait only for their turn; a few of them may yet wait for a key."""
        return len(self._lanes)

    def lane_of(self, message: Queued) -> str:
        return self._lanes.home_of(message.lane) if self._lanes.by.lanes else ""

    def rests_of(self, message: Queued, until_ns: int) -> tuple[int, int]:
        """Return how long (ns) a message waited for paused upstreams, and for these or its sender."""
        since_ns = message.stands_since_ns
        either = (*self.pauses, *self.sender_pauses.rests_of(message.sender))
        return (
            message.paused_ns + within_ns(self.pauses, since_ns, until_ns),
            message.either_paused_ns + within_ns(either, since_ns, until_ns),
        )

    def take(self, most: int, now_ns: int) -> list[Queued]:
        """Make the messages that go next ACTIVE, at most `most` of them, and return them."""
        taken: list[Queued] = []
        turn = self._look(now_ns)
        while turn is not None and len(taken) < most:
            self._lanes.take(turn)
            self.update(turn.message, state=State.ACTIVE, why=NO_REASON)
            taken.append(turn.message)
            turn = self._next()
        return taken

    def first(self, now_ns: int) -> Queued | None:
        """Return the message that `take` would take first."""
        return None if (turn := self._look(now_ns)) is None else turn.message

    def next_look_ns(self) -> int | None:
        """Return when time alone may let a message go; None: never.  Meaningless while there is a `first`."""
        if self._steps_left <= 0:
            return AT_ONCE_NS
        return earliest(self._waiting.first_ns(), *(until_ns for _, until_ns in self._full.values()))

    def granted(self, message: Queued, recipients: int) -> None:
        """Record the grant of an active message, with the number of recipients that go."""
        self._lanes.granted(message, recipients)
        self._leave_spot(message)

    def wait(self, waits: Sequence[ThrottledMessage]) -> None:
        """Let active messages that got no grant wait, given in the order in which they were taken."""
        in_place: list[ThrottledMessage] = []
        for each in waits:
            message, until_ns, key, why = each
            if key is None or key == ("lane", self._lanes.home_of(message.lane)):
                in_place.append(each)
            elif self._returns(message, why):
                self._join(message, key, until_ns, why)
        for message, until_ns, key, why in reversed(in_place):
            self._full[None if key is None else self._lanes.home_of(message.lane)] = message, until_ns
            self.give_back(message, why)
        self.on_change()

    def give_back(self, message: Queued, why: WaitReason) -> None:
        """Put an active message back to the front, unattempted.  Give back the last taken message first."""
        if self._returns(message, why):
            self._place(message, is_next=True)

    def put_back(self, message: Queued, state: State, **changes: Any) -> None:
        """Put an active message into a state, behind its sender's others; any other message is ignored."""
        if _is_going(message):
            self.put(message, state, **changes)

    def put(self, message: Queued, state: State, **changes: Any) -> None:
        """Move a message from any place into a state; ACTIVE keeps it from being sent."""
        self._unplace(message)
        self.update(message, state=state, **changes)
        self._place(message)

    def trust_sender(self, sender: str, now_ns: int) -> None:
        """End a sender's pause, because the upstream relayed mail of the sender or an operator acted."""
        if self.sender_pauses.end(sender, now_ns):
            self._open({_pause_key(sender, 0), _pause_key(sender, 1)})

    def enter(self, message: Queued, *, is_in_front: bool = False) -> None:
        """Take in a message in any state; `is_in_front`: ahead of its sender's others."""
        self.counts.add(message)
        self._place(message, is_in_front=is_in_front)

    def leave(self, message: Queued) -> None:
        """Let a message go that ended or moves to another line; what only this line knows of it is lost."""
        self._unplace(message)
        self.counts.add(message, -1)
        self.on_change()

    def arrange(self, by: Arrangement) -> None:
        """Use other lanes or another price; ready messages keep the order in which they became ready."""
        if by == self._lanes.by:
            return
        old, self._lanes = self._lanes, LaneQueue(by)
        for message in sorted(old, key=lambda each: each.ready_at_ns):
            self._lanes.add(message)
        self.ask_anew()

    def ask_anew(self) -> None:
        """Let all messages ask for their keys again, because the limits may have changed."""
        self._full.clear()
        self._open({key for key, _ in self._keys})
        self.on_change()

    def update(self, message: Queued, **changes: Any) -> None:
        """Change fields by which a message is counted; nothing else changes them."""
        self.counts.add(message, -1)
        for name, value in changes.items():
            setattr(message, name, value)
        self.counts.add(message)

    def closed_for(self, message: Queued, now_ns: int) -> tuple[Hashable, int, WaitReason] | None:
        """Return the key that a message, of any line, must wait for, until when, and why; else None."""
        of_pause = _pause_key(message.sender, message.refusals)
        if (pause := self.sender_pauses.current(message.sender, now_ns)) is not None:
            return of_pause, pause.until_ns, WaitReason(pause.reason, is_sender_pause=True)
        if self._keys:  # rare
            lane = self._lanes.home_of(message.lane)
            for key in (of_pause, *self._keys_of(message)):
                closed = self._keys.get((key, lane))
                if closed is not None and closed.asking() is not message:
                    return key, closed.until_ns or AT_ONCE_NS, closed.why
        return None

    def has_room_for(self, message: Queued, now_ns: int) -> bool:
        """Return whether a message, of any line, need not wait for the account, its lane or a key."""
        places = (None, self._lanes.home_of(message.lane))
        is_full = any(self._full[place][1] > now_ns for place in places if place in self._full)
        return not is_full and self.closed_for(message, now_ns) is None

    def _look(self, now_ns: int) -> Turn | None:
        """Advance the line to an instant, and return the next turn."""
        self._now_ns, self._steps_left = now_ns, SLICE
        while self._steps_left > 0 and (due := self._waiting.pop_due(now_ns)) is not None:
            self._steps_left -= 1
            if isinstance(due, _ClosedKey):
                self._ask(due)
            else:
                self.put(due, State.WAITING, ready_at_ns=due.due_at_ns)
        self._full = {place: its for place, its in self._full.items() if its[1] > now_ns}
        turn, (blocked, _) = self._next(), self._full.get(None, (None, 0))
        # Another message that is first by now may need less room.
        return None if turn is not None and turn.message is blocked else turn

    def _next(self) -> Turn | None:
        """Return the next turn; a message whose key is closed joins those that wait for the key."""
        while self._steps_left > 0 and (turn := self._lanes.next(self._now_ns, self._full)) is not None:
            if (closed := self.closed_for(turn.message, self._now_ns)) is None:
                return turn
            self._steps_left -= 1
            self._lanes.remove(turn.message)
            key = self._join(turn.message, *closed)
            if len(key) == 1 and not key.why.is_sender_pause:
                # The message that closed the key has left: this one may need less room.
                self._ask(key)
        return None

    def _join(self, message: Queued, key: Hashable, until_ns: int, why: WaitReason) -> _ClosedKey:
        """Let a message wait for a key, behind the others, or before them if it asked for this key."""
        lane = self._lanes.home_of(message.lane)
        closed = self._keys.setdefault((key, lane), _ClosedKey(key, lane))
        if message.spot is not closed:
            self._leave_spot(message)
            message.spot = closed
            closed[message] = None
        if closed.first() is message:
            closed.until_ns, closed.why = until_ns, why
            self._waiting.add(until_ns, closed)
        message.why = why
        self._noticed(message)
        return closed

    def _leave_spot(self, message: Queued) -> None:
        """If the message was the first of a key, let the next one ask: it may need less room."""
        key, message.spot = message.spot, None
        if isinstance(key, _ClosedKey):
            was_first = key.first() is message
            del key[message]
            # A closed key without messages stays closed until its instant.
            if was_first and (key or key.until_ns is None):
                self._ask(key)

    def _open(self, keys: Collection[Hashable]) -> None:
        """Ask for these keys at once, unless a message is asking already."""
        for closed in [*self._keys.values()]:
            if closed.key in keys and closed.until_ns is not None:
                self._ask(closed)

    def _ask(self, key: _ClosedKey) -> None:
        """Let the first message of a key have a turn; a key without messages is open."""
        key.until_ns = None
        if (message := key.asking()) is None:
            del self._keys[key.key, key.lane]
        else:
            message.why = NO_REASON
            self._place(message, is_in_front=True)

    def _place(self, message: Queued, *, is_in_front: bool = False, is_next: bool = False) -> None:
        if message.state is State.WAITING:
            self._lanes.add(message, is_in_front=is_in_front, is_next=is_next)
        elif message.state is State.DEFERRED:
            message.spot = self
            self._waiting.add(message.due_at_ns, message)
        self._noticed(message)
        self.on_change()

    def _unplace(self, message: Queued) -> None:
        self._lanes.refund(message)
        self._lanes.remove(message)
        self._leave_spot(message)

    def _returns(self, message: Queued, why: WaitReason) -> bool:
        """Make an active message WAITING, unattempted; return False if it is not active or has left."""
        if is_going := _is_going(message):
            self._lanes.refund(message)
            self.update(message, state=State.WAITING, why=why)
        return is_going

    def _is_current(self, at_ns: int, entry: Queued | _ClosedKey) -> bool:
        """Return whether an entry of the heap is current; moves leave stale entries behind."""
        if isinstance(entry, _ClosedKey):
            return entry.until_ns == at_ns
        return entry.spot is self and entry.due_at_ns == at_ns


def _is_going(message: Queued) -> bool:
    return message.state is State.ACTIVE and message.upstream != ""


def _pause_key(sender: str, refusals: int) -> Hashable:
    """Return the key for which mail of a paused sender waits; messages that were refused have their own key.

    Otherwise a refused message would delay all others of its sender.  Or new mail would keep an older
    message from being asked for, and so from being returned at the end of its lifetime.
    """
    return ("sender pause", sender, refusals > 0)
