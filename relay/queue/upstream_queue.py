"""The line of one upstream account: which messages go next, and what the others wait for.  Pure: no clock.

`LaneQueue` orders the messages that may go.  All others wait in one heap, by when that ends:
- a *deferred* message until its back-off is over;
- a key of a limit, or of a sender's pause, until it is to be asked again.  The messages of a key wait in
  order, those of each lane by themselves; one that comes to the front meanwhile joins them.  When the key is
  due the first of them comes back, and each that gets a grant, or leaves, lets the next one come.
A lane at its ceiling is closed until an instant.  Where the account has no room, the message that was asked
for waits in its place, and all behind it: until the instant, or until another message is first.

Every change that may let a message go calls `on_change`; `next_look_ns` is when time alone does.  A look
moves at most `SLICE` messages; where more are to be moved first, nothing goes, and `next_look_ns` says at
once.  Only an edit of lanes or limits touches each message that is ready: 0.5 s of 200,000.
Instants are nanoseconds of one boot (`Clock.boottime_ns`).
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from relay.queue.lanes import Arrangement, LaneQueue, Turn
from relay.queue.lines import Counts, Instants, MessageLine, earliest
from relay.queue.queued import NO_REASON, Queued, RecipientsLeft, State, WaitKind, WaitReason
from relay.queue.sender_pauses import SenderPauses
from relay.verdicts.account import Paused, within_ns

SLICE = 1000
"""Messages in one look: some milliseconds."""
AT_ONCE_NS = 0

KeysOf = Callable[[Queued], Iterable[Hashable]]
"""The keys of a message for which it may have to wait, as far as the queue knows them."""


class Waits(NamedTuple):
    """A message that was asked for in vain."""

    message: Queued
    until_ns: int
    key: Hashable
    """Which has no room; ("lane", its lane) for the ceiling of that; None where no message has room."""
    why: WaitReason


class _ClosedKey(MessageLine):
    """The messages of one lane that wait for one key."""

    __slots__ = ("of", "until_ns", "why")
    of: tuple[Hashable, str]
    """The key and the lane."""
    why: WaitReason
    until_ns: int | None
    """None while a message that came back is on its way to ask."""


class UpstreamQueue:
    def __init__(
        self,
        keys_of: KeysOf = lambda _: (),
        noticed: Callable[[Queued], None] = lambda _: None,
    ) -> None:
        """`noticed` is called where a message waits for its turn, and where it is active no more."""
        self.on_change: Callable[[], None] = lambda: None
        """Called where another message may go next."""
        self.counts = Counts()
        self.sender_pauses = SenderPauses()
        """Senders whose mail waits; `trust_sender` ends it."""
        self.pauses: tuple[Paused, ...] = ()
        """As `Availability.pauses`, also of an upstream that left the policy."""
        self._keys_of, self._noticed = keys_of, noticed
        self._lanes = LaneQueue()
        self._waiting: Instants[Queued | _ClosedKey] = Instants(self._waits)
        """Deferred messages, whose spot this is, and keys."""
        self._keys: dict[tuple[Hashable, str], _ClosedKey] = {}
        self._asking: dict[Queued, _ClosedKey] = {}
        """Messages that came back, each for a key."""
        self._blocked: tuple[Queued, int] | None = None
        """The first message, where the account has no room, and until when."""
        self._now_ns, self._steps_left = 0, SLICE

    def __len__(self) -> int:
        """Return how many messages and parts of messages stand here."""
        return self.counts.members()

    def __iter__(self) -> Iterator[Queued]:
        """Yield what waits: what is ready, by lanes and senders, then what waits for a key."""
        yield from self._lanes
        for key in self._keys.values():
            yield from key

    @property
    def ready_count(self) -> int:
        """Return how many messages wait for their turn alone, or a few more."""
        return len(self._lanes)

    def lane_of(self, message: Queued) -> str:
        return self._lanes.home_of(message.lane) if self._lanes.by.lanes else ""

    def rests_of(self, message: Queued, until_ns: int) -> tuple[int, int]:
        """Return for how long a message waited for paused upstreams, and for those or for its sender."""
        past, since_ns = message.past, message.stands_since_ns
        either = (*self.pauses, *self.sender_pauses.rests_of(message.sender))
        return (
            past.paused_ns + within_ns(self.pauses, since_ns, until_ns),
            past.rested_ns + within_ns(either, since_ns, until_ns),
        )

    def take(self, most: int, now_ns: int) -> list[Queued]:
        """Take the messages that go next, at most so many: they become ACTIVE."""
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
        """Return when time alone may let a message go; None if nothing waits for that.

        Without meaning while there is a `first`.
        """
        if self._steps_left <= 0:
            return AT_ONCE_NS
        blocked_ns = None if self._blocked is None else self._blocked[1]
        return earliest(self._waiting.first_ns(), self._lanes.opens_ns(self._now_ns), blocked_ns)

    def granted(self, message: Queued, recipients: int) -> None:
        """Begin an active message, with so many recipients."""
        self._lanes.granted(message, recipients)
        self._resolve(message)

    def wait(self, waits: Sequence[Waits]) -> None:
        """Have active messages that were asked for in vain wait, in the order in which they were taken."""
        in_place: list[Waits] = []
        for each in waits:
            message, until_ns, key, why = each
            if key is None or key == ("lane", self._lanes.home_of(message.lane)):
                in_place.append(each)
            elif self._returns(message, why):
                self._join(message, key, until_ns, why)
        for message, until_ns, key, why in reversed(in_place):
            if key is None:
                self._blocked = message, until_ns
            else:
                self._lanes.close(message.lane, until_ns)
            self.give_back(message, why)
        self.on_change()

    def give_back(self, message: Queued, why: WaitReason) -> None:
        """Put an unattempted active message back to the front.  The last one that was taken comes first."""
        if self._returns(message, why):
            self._place(message, is_next=True)

    def again(self, message: Queued, why: WaitReason) -> None:
        """Put an active message behind its sender's others: it made progress, or is to go again at once."""
        if _is_going(message):
            # Ready from now on: or a large one is overdue for all of its transactions once it is for one.
            self.put(message, State.WAITING, why=why, ready_at_ns=self._now_ns)

    def postpone(self, message: Queued, due_at_ns: int, why: WaitReason) -> None:
        """Have an active message wait for its back-off."""
        if _is_going(message):
            self.put(message, State.DEFERRED, why=why, due_at_ns=due_at_ns)

    def attempted(self, message: Queued, tried: frozenset[int], refusals: int, left: RecipientsLeft) -> None:
        """Note what an attempt left of an active message."""
        self.note_left(message, left)
        message.past = message.past.but(tried=tried, refusals=refusals)

    def note_left(self, message: Queued, left: RecipientsLeft) -> None:
        listed = message.shown._replace(recipients=left.shown).text()
        self.update(message, recipients_left=left.recipients, domain=left.domain, listed=listed)

    def trust_sender(self, sender: str, now_ns: int) -> None:
        """End a sender's pause: the upstream took mail of it, or an operator acted."""
        self.sender_pauses.end(sender, now_ns)
        for lane in self._lanes.names:
            for refusals in (0, 1):
                self._open(self._keys.get((_pause_key(sender, refusals), lane)))

    def enter(self, message: Queued, *, is_in_front: bool = False) -> None:
        """Take in a message, in whichever state; `is_in_front`: ahead of its sender's others."""
        self.counts.add(message)
        self._place(message, is_in_front=is_in_front)

    def leave(self, message: Queued) -> None:
        """Let go of a message that ended or goes to another line; what this line alone knows is lost."""
        self._unplace(message)
        self.counts.add(message, -1)
        self.on_change()

    def put_back(self, message: Queued, state: State) -> None:
        """Put an active message into a state."""
        if _is_going(message):
            self.put(message, state)

    def put(self, message: Queued, state: State, **changes: Any) -> None:
        """Take a message from wherever it is, and put it into a state: ACTIVE is kept from being sent."""
        self._unplace(message)
        self.update(message, state=state, **changes)
        self._place(message)

    def release(self, message: Queued) -> None:
        """Put a held or deferred message into the line, to be attempted at once."""
        if message.state in (State.HELD, State.DEFERRED):
            self.put(message, State.WAITING, why=NO_REASON, ready_at_ns=self._now_ns)

    def put_first(self, message: Queued) -> None:
        """Have a message that waits go before all others, behind those that were put first already.

        It stays first until it was attempted, or leaves its place otherwise; limits still hold.
        """
        if message.state is State.WAITING:
            if isinstance(key := message.spot, _ClosedKey):
                key.discard(message)
                key.put(message, is_in_front=True)
            self._lanes.firsts[message] = None
            self.on_change()

    def arrange(self, by: Arrangement) -> None:
        """Go by other lanes or another price; what is ready goes on in the order in which it came."""
        if by == self._lanes.by:
            return
        old, self._lanes = self._lanes, LaneQueue(by)
        self._lanes.firsts = old.firsts
        for message in sorted(old, key=lambda each: each.since_ns):
            self._lanes.add(message)
        self.ask_anew()

    def ask_anew(self) -> None:
        """Wait for no limit any more: they may have changed."""
        self._blocked = None
        for lane in self._lanes.names:
            self._lanes.close(lane, AT_ONCE_NS)
        for key in list(self._keys.values()):
            self._open(key)
        self.on_change()

    def update(self, message: Queued, **changes: Any) -> None:
        """Change what a message is counted by; nothing else changes that."""
        self.counts.add(message, -1)
        for name, value in changes.items():
            setattr(message, name, value)
        self.counts.add(message)

    def _look(self, now_ns: int) -> Turn | None:
        """Bring the line to an instant, and return what goes next."""
        self._now_ns, self._steps_left = now_ns, SLICE
        while self._steps_left > 0 and (due := self._waiting.pop_due(now_ns)) is not None:
            self._steps_left -= 1
            if isinstance(due, _ClosedKey):
                self._let_next_come(due)
            else:
                self.update(due, state=State.WAITING)
                due.ready_at_ns = due.due_at_ns
                self._place(due)
        turn = self._next()
        if self._blocked is not None and now_ns < self._blocked[1]:
            # Another message that is first by now may need less room.
            return None if turn is not None and turn.message is self._blocked[0] else turn
        self._blocked = None
        return turn

    def _next(self) -> Turn | None:
        """Return what goes next; a message whose key is closed joins those that wait for it."""
        while self._steps_left > 0 and (turn := self._lanes.next(self._now_ns)) is not None:
            if (closed := self.closed_for(turn.message, self._now_ns)) is None:
                return turn
            self._steps_left -= 1
            self._lanes.remove(turn.message)
            self._join(turn.message, *closed)
        return None

    def closed_for(self, message: Queued, now_ns: int) -> tuple[Hashable, int, WaitReason] | None:
        """Return the key that a message, of this line or not, must wait for, until when, and why; or None."""
        of_pause = _pause_key(message.sender, message.past.refusals)
        if (pause := self.sender_pauses.of(message.sender, now_ns)) is not None:
            return of_pause, pause.until_ns, WaitReason(pause.reason, WaitKind.SENDER_PAUSE)
        if self._keys:  # nearly never
            lane = self._lanes.home_of(message.lane)
            for key in (of_pause, *self._keys_of(message)):
                closed = self._keys.get((key, lane))
                if closed is not None and self._asking.get(message) is not closed:
                    return key, closed.until_ns or AT_ONCE_NS, closed.why
        return None

    def _join(self, message: Queued, key: Hashable, until_ns: int, why: WaitReason) -> None:
        """Have a message wait for a key, behind those that do already; one that came back, before them."""
        message.why, of = why, (key, self._lanes.home_of(message.lane))
        if (closed := self._keys.get(of)) is None:
            closed = self._keys[of] = _ClosedKey()
            closed.of, closed.why, closed.until_ns = of, why, until_ns
            self._waiting.add(until_ns, closed)
        if self._asking.get(message) is closed:
            del self._asking[message]
            closed.put(message, is_in_front=True)
            closed.until_ns = until_ns
            self._waiting.add(until_ns, closed)
        else:
            closed.put(message, is_in_front=message in self._lanes.firsts)
            self._resolve(message)
        self._noticed(message)

    def _let_next_come(self, key: _ClosedKey) -> None:
        """Have the first message that waits for a key ask for it; where none does, the key is open."""
        if not key:
            del self._keys[key.of]
            return
        key.until_ns, message = None, key.first()
        key.discard(message)
        self._asking[message] = key
        message.why = NO_REASON
        self._place(message, is_in_front=True)

    def _open(self, key: _ClosedKey | None) -> None:
        """Ask for a key at once, unless a message does."""
        if key is not None and key.until_ns is not None:
            self._let_next_come(key)

    def _resolve(self, message: Queued) -> None:
        """Let the next one come where a message had come back: it got its grant, or waits elsewhere."""
        if (key := self._asking.pop(message, None)) is not None:
            self._let_next_come(key)

    def _place(self, message: Queued, *, is_in_front: bool = False, is_next: bool = False) -> None:
        if message.state is State.WAITING:
            self._lanes.add(message, is_in_front=is_in_front, is_next=is_next)
        elif message.state is State.DEFERRED:
            message.spot = self
            self._waiting.add(message.due_at_ns, message)
        self._noticed(message)
        self.on_change()

    def _unplace(self, message: Queued) -> None:
        """Take a message out of wherever it waits."""
        self._lanes.refund(message)
        self._lanes.remove(message)
        self._lanes.firsts.pop(message, None)
        self._resolve(message)
        if isinstance(key := message.spot, _ClosedKey):
            is_first = key.first() is message
            key.discard(message)
            if is_first:
                # What waits behind it may need less room.
                self._open(key)
        message.spot = None

    def _returns(self, message: Queued, why: WaitReason) -> bool:
        """End that a message is active, unattempted; False where it is not, or is gone."""
        if is_going := _is_going(message):
            self._lanes.refund(message)
            self.update(message, state=State.WAITING, why=why)
        return is_going

    def _waits(self, at_ns: int, item: Queued | _ClosedKey) -> bool:
        """Whether an entry of the heap is current; moves leave old ones behind."""
        if isinstance(item, _ClosedKey):
            return item.until_ns == at_ns and self._keys.get(item.of) is item
        return item.spot is self and item.due_at_ns == at_ns


def _is_going(message: Queued) -> bool:
    return message.state is State.ACTIVE and message.upstream != ""


def _pause_key(sender: str, refusals: int) -> Hashable:
    """Return the key for which the mail of a paused sender waits: what was refused waits by itself.

    So neither does one message keep all others of its sender, nor what comes keep older mail from being
    asked about, and from being returned at the end of its life.
    """
    return ("sender pause", sender, refusals > 0)
