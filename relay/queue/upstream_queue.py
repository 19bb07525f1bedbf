"""The line of one upstream account: which messages go next, and what the others wait for.  Pure: no clock.

`LaneQueue` orders the messages that may go.  All others wait in one heap, by when that ends:
- a *deferred* message until its back-off is over;
- a key of a limit, a lane's ceiling or a sender's rest until it is to be asked again.  The messages of a key
  wait in order, those of each lane by themselves; one that comes to the front meanwhile joins them.  When the
  key is due the first of them comes back, in front of its sender's others, and each that gets a grant, or
  leaves, lets the next one come.
Where the limits of the whole account leave no room, the message that was asked for waits in its place, and
all behind it: until the instant, or until another message is first.

Only this changes the state of a message, by the table `relay.queue.queued.AFTER`.  Every change that may let
a message go calls `on_change`; `next_look_ns` is when time alone does.

No call takes longer for a long queue, but for an edit of the lanes or prices, which sorts what is ready once:
0.2 s of 200,000 messages.  A look moves at most `SLICE` messages; where more are to be moved first, nothing
goes, and `next_look_ns` says at once.  All instants are nanoseconds of one boot (`Clock.boottime_ns`).
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.queue.counts import Counts
from relay.queue.instants import Instants
from relay.queue.lane_queue import LaneQueue, Turn
from relay.queue.lanes import Arrangement
from relay.queue.queued import (
    AFTER,
    NO_PAST,
    NO_REASON,
    Move,
    Queued,
    RecipientsLeft,
    State,
    WaitKind,
    WaitReason,
)
from relay.queue.sender_pauses import SenderPauses

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


@dataclass(slots=True, eq=False)
class _Key:
    """The messages of one lane that wait for one key."""

    of: tuple[Hashable, str]
    """The key and the lane."""
    why: WaitReason
    until_ns: int | None = None
    """None while `asks` is on its way."""
    messages: deque[Queued] = field(default_factory=deque)
    """In order; one that left stays until it is first, and counts only while this is its `spot`."""
    asks: Queued | None = None
    """The message that came back."""

    def first(self) -> Queued | None:
        while self.messages and self.messages[0].spot is not self:
            self.messages.popleft()
        return self.messages[0] if self.messages else None


class UpstreamQueue:
    def __init__(
        self,
        keys_of: KeysOf = lambda _: (),
        noticed: Callable[[Queued], None] = lambda _: None,
    ) -> None:
        """`noticed` is called where a message waits for its turn, and where it is active no more."""
        self.on_change: Callable[[], None] = lambda: None
        """Called where another message may go next, because one came, left, or was kept or released."""
        self.counts = Counts()
        self.sender_pauses = SenderPauses()
        """Senders whose mail waits; `trust_sender` ends it."""
        self._keys_of, self._noticed = keys_of, noticed
        self._lanes = LaneQueue()
        self._unplaced: deque[Queued] = deque()
        """Ready messages that an edit has not put into their lanes yet; those that come stand behind them."""
        self._waiting: Instants[Queued | _Key | str] = Instants(self._waits)
        """Deferred messages, keys, and the names of closed lanes."""
        self._keys: dict[tuple[Hashable, str], _Key] = {}
        self._asking: dict[QueueId, _Key] = {}
        """The keys for which a message has come back."""
        self._closed: dict[str, int] = {}
        """Lanes at their ceilings, and until when."""
        self._blocked: tuple[Queued, int] | None = None
        """The first message, where the account has no room, and until when."""
        self._now_ns, self._steps_left = 0, SLICE

    def __len__(self) -> int:
        """Return how many messages and parts of messages stand here."""
        return self.counts.members()

    @property
    def ready_count(self) -> int:
        """Return how many messages wait for their turn alone, or a few more."""
        return len(self._lanes) + len(self._unplaced)

    @property
    def has_candidate(self) -> bool:
        """Whether a message is on its way, or could be."""
        return bool(self.ready_count or self.counts.members(State.ACTIVE))

    def lane_of(self, message: Queued) -> str:
        return self._lanes.home_of(message.lane) if self._lanes.by.lanes else ""

    # What goes, and what it comes to.

    def take(self, most: int, now_ns: int) -> list[Queued]:
        """Take the messages that go next, at most so many: they become ACTIVE."""
        taken: list[Queued] = []
        turn = self._look(now_ns)
        if turn is not None and self._is_blocked(turn):
            return taken
        while turn is not None and len(taken) < most:
            self._lanes.take(turn)
            self._become(turn.message, Move.TAKE)
            taken.append(turn.message)
            turn = self._next()
        return taken

    def first(self, now_ns: int) -> Queued | None:
        """Return the message that `take` would take first, and leave it."""
        turn = self._look(now_ns)
        return None if turn is None or self._is_blocked(turn) else turn.message

    def next_look_ns(self) -> int | None:
        """Return when time alone may let a message go; None if nothing waits for that.

        Without meaning while there is a `first`.
        """
        if self._is_behind:
            return AT_ONCE_NS
        waiting = self._waiting.first()
        dues = [] if waiting is None else [waiting[0]]
        if self._blocked is not None:
            dues.append(self._blocked[1])
        return min(dues, default=None)

    def granted(self, message: Queued, recipients: int) -> None:
        """Charge the lane of an active message for the recipients that go."""
        self._lanes.granted(message, recipients)
        self._resolve(message)

    def wait(self, waits: Sequence[Waits]) -> None:
        """Have active messages that were asked for in vain wait, in the order in which they were taken."""
        of_keys = [each for each in waits if each.key is not None and each.key != self._ceiling(each.message)]
        others = [each for each in waits if each.key is None or each.key == self._ceiling(each.message)]
        for each in of_keys:
            if self._returns(each.message, each.why):
                self._join(each.key, each.message, each.why, each.until_ns)
                self._noticed(each.message)
        for each in reversed(others):
            if self._returns(each.message, each.why):
                self._lanes.add(each.message, is_in_front=True, is_next=True)
                if each.key is None:
                    self._blocked = each.message, each.until_ns
                else:
                    self._close(self._lanes.home_of(each.message.lane), each.until_ns)
                self._noticed(each.message)
        self.on_change()

    def give_back(self, message: Queued, why: WaitReason) -> None:
        """Put an unattempted active message back to the front.  The last one that was taken comes first."""
        if self._returns(message, why):
            self._lanes.add(message, is_in_front=True, is_next=True)
            self._changed(message)

    def again(self, message: Queued, recipients_left: int, why: WaitReason) -> None:
        """Put an active message behind its sender's others: it made progress, or is to go again at once."""
        message.recipients_left = recipients_left
        if self._returns(message, why):
            # Or a large one would be overdue for all of its transactions once it is for one.
            message.ready_at_ns = self._now_ns
            self._resolve(message)
            self._line_up(message)

    def postpone(self, message: Queued, due_at_ns: int, recipients_left: int, why: WaitReason) -> None:
        """Have an active message wait for its back-off."""
        message.recipients_left = recipients_left
        if self._becomes(message, Move.DEFER):
            self._lanes.refund(message)
            self._resolve(message)
            message.why, message.due_at_ns = why, due_at_ns
            self._waiting.add(due_at_ns, message)
            self._changed(message)

    def attempted(self, message: Queued, tried: frozenset[int], refusals: int, left: RecipientsLeft) -> None:
        """Note what an attempt left of a message."""
        message.note_left(left)
        message.past = message.past.but(tried=tried, refusals=refusals)

    def trust_sender(self, sender: str, now_ns: int) -> None:
        """End a sender's pause: the upstream took mail of it, or an operator acted."""
        self.sender_pauses.end(sender, now_ns)
        rests = (self._keys.get((_rest(sender, was), lane)) for lane in self._lanes.names for was in (0, 1))
        for key in list(rests):
            if key is not None and key.asks is None:
                self._let_next_come(key)
                self.on_change()

    # What comes and leaves, and what an operator does.

    def enter(self, message: Queued, *, is_in_front: bool = False) -> None:
        """Take in a message, in whichever state; `is_in_front`: ahead of its sender's others."""
        self._place(message, is_in_front=is_in_front)

    def leave(self, message: Queued) -> None:
        """Let go of a message that ended or goes to another line; what this line alone knows is lost."""
        self._unplace(message)
        self.counts.forget(message)
        if message.past is not NO_PAST:
            message.past = message.past.but(refusals=0)
        self.on_change()

    def hold(self, message: Queued, why: WaitReason) -> None:
        """Take a message out of the order until `release`."""
        self._unplace(message)
        self._become(message, Move.HOLD)
        message.why = why
        self._changed(message)

    def release(self, message: Queued) -> None:
        """Put a held or deferred message into the line, to be attempted at once."""
        if self._becomes(message, Move.RELEASE):
            message.why, message.ready_at_ns = NO_REASON, self._now_ns
            self._line_up(message)

    def put_first(self, message: Queued) -> None:
        """Have a message that waits go before all others, behind those that were put first already.

        It stays first until a transaction of it begins, or it leaves this line; limits still hold.
        """
        if message.state is State.WAITING:
            if isinstance(key := message.spot, _Key) and key.first() is not message:
                key.messages.appendleft(message)
            self._lanes.put_first(message)
            self.on_change()

    def seize(self, message: Queued) -> None:
        """Keep a message from being sent until `put_back`; not one that is active."""
        if message.state is not State.ACTIVE:
            self._unplace(message)
            self._become(message, Move.SEIZE)
            self.on_change()

    def put_back(self, message: Queued, state: State, left: tuple[int, RecipientsLeft] | None = None) -> None:
        """Put a message that was seized into a state; `left`: how many recipients it has, and which."""
        if message.state is State.ACTIVE and message.upstream:
            message.state = state
            if left is not None:
                message.recipients_left = left[0]
                message.note_left(left[1])
            self._place(message)

    def owe_report(self, message: Queued, why: WaitReason) -> None:
        """Keep a message of which only the report is left; it is sent nowhere."""
        self._unplace(message)
        message.state, message.recipients_left, message.why = State.REPORTING, 0, why
        self._place(message)

    # What an edit does.

    def arrange(self, by: Arrangement) -> None:
        """Go by other lanes and another price."""
        before, self._lanes.by = self._lanes.by, by
        if before._replace(most_recipients=0) == by._replace(most_recipients=0):
            return
        # Also for another price alone: what was charged so far is in another unit.
        old, self._lanes = self._lanes, LaneQueue(by)
        ready = sorted(old, key=lambda message: message.since_ns)
        for message in ready:
            message.spot = self._unplaced
        self._unplaced.extendleft(reversed(ready))
        self._lanes.firsts = old.firsts
        self.ask_anew()

    def move(self, message: Queued, lane: str) -> None:
        """Have a message stand in another lane."""
        if message.lane != lane:
            is_ready = message.state is State.WAITING
            if is_ready:
                self._unplace(message)
            message.lane = lane
            self.counts.note(message)
            if is_ready:
                self._line_up(message)

    def ask_anew(self) -> None:
        """Wait for no limit any more: they may have changed."""
        self._blocked = None
        for lane in list(self._closed):
            self._open(lane)
        for key in list(self._keys.values()):
            if key.asks is None:
                self._let_next_come(key)
        self.on_change()

    # What is shown.

    def __iter__(self) -> Iterator[Queued]:
        """Yield what is ready, by lanes and senders, what waits for a key, and what is deferred."""
        yield from self._lanes
        spots = [(self._unplaced, self._unplaced), *((key, key.messages) for key in self._keys.values())]
        for spot, messages in spots:
            # One that left and came back is there twice.
            yield from (each for each in dict.fromkeys(messages) if each.spot is spot)
        yield from (each for each in self._waiting if isinstance(each, Queued))

    # How it is done.

    @property
    def _is_behind(self) -> bool:
        """Whether messages must be moved before it is known what goes next: look again at once."""
        return bool(self._unplaced) or self._steps_left <= 0

    def _look(self, now_ns: int) -> Turn | None:
        """Bring the line to an instant, and return who goes next."""
        self._now_ns, self._steps_left = now_ns, SLICE
        if self._blocked is not None and now_ns >= self._blocked[1]:
            self._blocked = None
        while self._steps_left > 0 and (due := self._waiting.pop_due(now_ns)) is not None:
            self._steps_left -= 1
            if isinstance(due, _Key):
                self._let_next_come(due)
            elif isinstance(due, str):
                self._open(due)
            else:
                self._become(due, Move.WAKE)
                due.ready_at_ns = due.due_at_ns
                self._line_up(due)
        while self._unplaced and self._steps_left > 0:
            self._steps_left -= 1
            if (message := self._unplaced.popleft()).spot is self._unplaced:
                self._lanes.add(message)
        return self._next()

    def _next(self) -> Turn | None:
        """Return who goes next; a message whose key is closed joins those that wait for it."""
        while not self._is_behind and (turn := self._lanes.next(self._now_ns)) is not None:
            if not self._meets_closed(turn.message):
                return turn
            self._steps_left -= 1
        return None

    def _meets_closed(self, message: Queued) -> bool:
        key: Hashable = _rest(message.sender, message.past.refusals)
        rest = self.sender_pauses.of(message.sender, self._now_ns)
        if rest is not None:
            until_ns, why = rest.until_ns, WaitReason(rest.reason, WaitKind.SENDER_PAUSE)
        else:
            if not self._keys:
                return False  # as nearly always
            lane = self._lanes.home_of(message.lane)
            closed = (self._keys.get((each, lane)) for each in (key, *self._keys_of(message)))
            met = next((each for each in closed if each is not None and each.asks is not message), None)
            if met is None:
                return False
            key, until_ns, why = met.of[0], met.until_ns or AT_ONCE_NS, met.why
        self._lanes.remove(message)
        message.why = why
        self._join(key, message, why, until_ns)
        return True

    def _is_blocked(self, turn: Turn) -> bool:
        """Whether the account had no room for this very message, and has none yet."""
        return self._blocked is not None and self._blocked[0] is turn.message

    def _join(self, key: Hashable, message: Queued, why: WaitReason, until_ns: int) -> None:
        """Have a message wait for a key, behind those that do already; one that came back, before them."""
        of = key, self._lanes.home_of(message.lane)
        if (closed := self._keys.get(of)) is None:
            closed = self._keys[of] = _Key(of, why)
        if closed.asks is message or (message.key in self._lanes.firsts and closed.asks is None):
            closed.messages.appendleft(message)
        else:
            closed.messages.append(message)
        message.spot = closed
        if closed.asks is message:
            closed.asks = None
            del self._asking[message.key]
        else:
            self._resolve(message)
        if closed.asks is None and closed.until_ns is None:
            closed.until_ns = until_ns
            self._waiting.add(until_ns, closed)

    def _let_next_come(self, key: _Key) -> None:
        key.until_ns, key.asks = None, key.first()
        if (message := key.asks) is not None:
            key.messages.popleft()
            self._asking[message.key] = key
            message.why = NO_REASON
            self._lanes.add(message, is_in_front=True)
            self._noticed(message)
            return
        del self._keys[key.of]

    def _resolve(self, message: Queued) -> None:
        """Let the next one come where a message had come back: it got its grant, or waits elsewhere."""
        if (key := self._asking.pop(message.key, None)) is not None:
            self._let_next_come(key)

    def _close(self, lane: str, until_ns: int) -> None:
        self._closed[lane] = until_ns
        self._lanes.set_closed(lane, is_closed=True)
        self._waiting.add(until_ns, lane)

    def _open(self, lane: str) -> None:
        del self._closed[lane]
        self._lanes.set_closed(lane, is_closed=False)

    def _place(self, message: Queued, *, is_in_front: bool = False) -> None:
        match message.state:
            case State.WAITING:
                self._line_up(message, is_in_front=is_in_front)
            case State.DEFERRED:
                self._waiting.add(message.due_at_ns, message)
                self._changed(message)
            case State.ACTIVE | State.HELD | State.REPORTING:
                self._changed(message)

    def _line_up(self, message: Queued, *, is_in_front: bool = False) -> None:
        if self._unplaced:
            message.spot = self._unplaced
            self._unplaced.append(message)
        else:
            self._lanes.add(message, is_in_front=is_in_front)
        self._changed(message)

    def _unplace(self, message: Queued) -> None:
        """Take a message out of wherever it waits."""
        self._lanes.refund(message)
        self._lanes.remove(message)
        self._lanes.firsts.pop(message.key, None)
        self._resolve(message)
        key = message.spot
        is_first = isinstance(key, _Key) and key.asks is None and key.first() is message
        message.spot = None
        if isinstance(key, _Key) and is_first:
            # What waits behind it may need less room.
            self._let_next_come(key)

    def _returns(self, message: Queued, why: WaitReason) -> bool:
        if not self._becomes(message, Move.RETURN):
            return False
        self._lanes.refund(message)
        message.why = why
        return True

    def _becomes(self, message: Queued, move: Move) -> bool:
        """Make a move by the table; False where the message's state does not allow it, or it is gone."""
        from_states, state = AFTER[move]
        if message.state not in from_states or not message.upstream:
            return False
        message.state = state
        self.counts.note(message)
        return True

    def _become(self, message: Queued, move: Move) -> None:
        self._becomes(message, move)

    def _changed(self, message: Queued) -> None:
        self.counts.note(message)
        self._noticed(message)
        self.on_change()

    def _ceiling(self, message: Queued) -> Hashable:
        return ("lane", self._lanes.home_of(message.lane))

    def _waits(self, at_ns: int, item: Queued | _Key | str) -> bool:
        """Whether an entry of the heap is current; moves leave old ones behind."""
        if isinstance(item, _Key):
            return item.until_ns == at_ns and self._keys.get(item.of) is item
        if isinstance(item, str):
            return self._closed.get(item) == at_ns
        return item.state is State.DEFERRED and item.due_at_ns == at_ns and self.counts.has(item)


def _rest(sender: str, refusals: int) -> Hashable:
    """Return the key for which the mail of a paused sender waits: what was refused waits by itself.

    So neither does one message keep all others of its sender, nor what comes keep older mail from being
    asked about, and from being returned at the end of its life.
    """
    return ("rest", sender, refusals > 0)
