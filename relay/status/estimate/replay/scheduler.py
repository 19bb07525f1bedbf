"""Which message next, and when to look again.  Pure: no clock, no disk, no waiting.

The line of one upstream account: one `Queued` a message (or a part of one, `relay.queue.whole`), whose
state only the scheduler changes, by the table `relay.queue.queued.AFTER`.  `relay.queue.lanes` orders
the messages that may go.

- A *deferred* message comes back when its back-off is over.
- A message that was taken and not attempted (no room in a window, no connection) goes back to
  the front of its lane: it is *waiting*.
- A message that only a limit of its own keeps back (no room for its sender, say) is parked in a
  place (`relay.status.estimate.replay.parking`), and keeps back no other.
- The mail of a sender that the upstream refuses sits out that sender's pause
  (`relay.queue.sender_pauses`).

No call takes longer for a long queue.  `first_ready` moves a slice of messages; if more are
left it returns None, `next_due_at_ns` says at once, and what comes meanwhile stands behind them.

All instants are nanoseconds of one boot (`Clock.boottime_ns`), so that no step of the wall
clock moves a message; the caller converts once, when a message comes in.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import chain, islice

from relay.mail.envelope import QueueId
from relay.queue.counts import Counts
from relay.queue.lanes import Lane, Price
from relay.queue.queued import (
    NO_PAST,
    NO_REASON,
    RecipientsLeft,
    State,
    WaitKind,
    WaitReason,
)
from relay.queue.queued import Queued as Base
from relay.queue.sender_pauses import SenderPauses
from relay.status.estimate.replay.order import Order, smallest
from relay.status.estimate.replay.parking import AT_ONCE_NS, Parking
from relay.status.estimate.replay.regrouping import Regrouping
from relay.status.estimate.replay.twin import AFTER, Move
from relay.status.estimate.replay.twin import Twin as Queued

SLICE = 1000
"""Messages in one slice of an edit, or one look at what goes next: some ten milliseconds."""
LATEST_TURN = 1 << 62
"""More than the turns that are given."""


class Scheduler:
    def __init__(self, slice_of: int = SLICE) -> None:
        """`slice_of`: so many messages are moved in one look."""
        self.on_change: Callable[[], None] = lambda: None
        """Called where another message may go next, because one came, left, or was kept or released."""
        self._messages: dict[QueueId, Queued] = {}
        self._order = Order()
        self._deferred: list[tuple[int, QueueId]] = []
        self.sender_pauses = SenderPauses()
        """Senders whose mail waits; `trust_sender` ends it."""
        self._sitting_out: dict[str, dict[QueueId, None]] = {}
        """By sender: the messages that sit out its pause."""
        self._regrouping = Regrouping(Order(), self._since)
        """Messages of the order before an edit, which go to the end of the line ahead of `_coming`."""
        # A dict finds its first key by a walk over all that were removed before it.
        self._coming: OrderedDict[QueueId, None] = OrderedDict()
        """Messages yet to go to the end of the line, in that order."""
        self._is_waking = False
        """Some back-offs that ended are not moved yet: they go ahead of `_coming`."""
        self._slice = slice_of
        self._is_cut_off, self._steps_left = False, slice_of
        self.counts = Counts()
        self._parking = Parking(self._messages, self._order)
        self._last_turn = self._now_ns = 0
        self._taken_before: set[QueueId] = set()
        """Messages that were taken from an order before an edit, and not attempted yet."""
        self._has_lanes = False
        self._price, self._most_recipients = Price(), 1
        self._with_ceiling: tuple[str, ...] = ()
        self._opens_at_ns: dict[str, int] = {}
        """When a lane at its ceiling may give again."""

    def twin(self, messages: Iterable[Queued] = ()) -> "Scheduler":
        """Return an independent queue in the same order, of copies of its messages.

        O(n), and quick.  Messages that are not among the copies are unknown to it.
        """
        copies = {message.key: message for message in messages}
        order = self._order.copy()
        return self._twin(
            copies,
            order,
            self._parking.copy(copies, order),
            coming=[*(key for key in self._regrouping.left() if key not in self._coming), *self._coming],
            deferred=self._deferred,
            sitting_out=((sender, key) for sender, its in self._sitting_out.items() for key in its),
        )

    def front(self, most: int, also: Iterable[QueueId] = ()) -> tuple["Scheduler", list[Queued]]:
        """Return an independent queue of what comes next, and those messages, of which it has no copies.

        That are at most so many of those that are ready, parked, in their back-off and so on, and `also`.
        O(most · log most), however long the queue is.
        """
        order, none = self._order.front(most), dict[QueueId, Queued]()
        parking = self._parking.front(most, none, order)
        coming = list(islice(self._coming, most))
        deferred = smallest(self._deferred, most)
        due = (key for due_at_ns, key in deferred if self._is_deferred_until(key, due_at_ns))
        keys = dict.fromkeys(chain(order.ids(), parking.ids(), coming, due, also))
        found = [message for key in keys if (message := self._messages.get(key)) is not None]
        sitting_out = (
            (each.sender, each.key) for each in found if each.key in self._sitting_out.get(each.sender, ())
        )
        twin = self._twin(
            none,
            order,
            parking,
            coming=coming,
            deferred=deferred,
            sitting_out=sitting_out,
        )
        return twin, found

    def _twin(
        self,
        messages: dict[QueueId, Queued],
        order: Order,
        parking: Parking,
        *,
        coming: Iterable[QueueId],
        deferred: Iterable[tuple[int, QueueId]],
        sitting_out: Iterable[tuple[str, QueueId]],
    ) -> "Scheduler":
        twin = Scheduler(slice_of=self._slice)
        twin._messages, twin._order, twin._parking = messages, order, parking
        twin._coming = OrderedDict.fromkeys(coming)
        twin._deferred = list(deferred)
        for sender, key in sitting_out:
            twin._sitting_out.setdefault(sender, {})[key] = None
        twin._has_lanes, twin._with_ceiling = self._has_lanes, self._with_ceiling
        twin.sender_pauses = self.sender_pauses.copy()
        twin._taken_before = self._taken_before.copy()
        twin._is_waking, twin._opens_at_ns = self._is_waking, self._opens_at_ns.copy()
        twin._last_turn, twin._now_ns = self._last_turn, self._now_ns
        twin._price, twin._most_recipients = self._price, self._most_recipients
        return twin

    def places(self) -> Iterable[Hashable]:
        return self._parking.places()

    def parked_at(self, place: Hashable) -> int:
        """Return how many are parked at a place, a few that left among them."""
        return self._parking.length(place)

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Queued]:
        return iter(self._messages.values())

    def keys(self) -> Collection[QueueId]:
        return self._messages.keys()

    def __contains__(self, queue_id: QueueId) -> bool:
        return queue_id in self._messages

    def get(self, queue_id: QueueId) -> Queued | None:
        return self._messages.get(queue_id)

    def add(self, message: Queued) -> None:
        before = self._messages.get(message.key)
        if before is not None and before is not message:
            self.counts.forget(before)
        self._messages[message.key] = message
        # Its place may have let it go while somebody had it; who still has no room is parked again, in turn.
        self._leave_place(message)
        self._place(message)
        self.counts.note(message)
        self.on_change()

    def go_ahead(self, queue_id: QueueId) -> None:
        """Put a message that waits ahead of its lane, behind those that are there already."""
        message = self._messages.get(queue_id)
        if message is not None and message.state is State.WAITING:
            self._coming.pop(queue_id, None)
            self._order.add_ahead(queue_id, message.lane, message.since_ns, is_first=False)

    def go_first(self, queue_id: QueueId) -> None:
        """Have a message that waits go before all others, behind those that were put first already.

        It stays first until a transaction of it begins, or it leaves this line; a lane's ceiling still holds.
        """
        message = self._messages.get(queue_id)
        if message is None or message.state is not State.WAITING:
            return
        self._leave_place(message)
        self._coming.pop(queue_id, None)
        self._last_turn += 1
        # Where a limit of its own keeps it back, it is the first of its place.
        message.turn = self._last_turn - LATEST_TURN
        self._order.add_ahead(queue_id, message.lane, message.since_ns, is_first=False)
        self._order.firsts[queue_id] = None

    def seize(self, queue_id: QueueId) -> State | None:
        """Keep a message from being sent until `put_back`; return its state before, None if it is active."""
        message = self._messages.get(queue_id)
        before = None if message is None else message.state
        if message is None or not self._become(message, Move.SEIZE):
            return None
        self.on_change()
        return before

    def put_back(
        self, queue_id: QueueId, state: State, left: tuple[int, RecipientsLeft] | None = None
    ) -> None:
        """Put a message that was seized into a state; `left`: how many recipients it has, and which."""
        message = self._messages.get(queue_id)
        if message is not None and message.state is State.ACTIVE:
            message.state = state
            if left is not None:
                message.recipients_left = left[0]
                message.note_left(left[1])
            self.add(message)

    def attempted(
        self,
        queue_id: QueueId,
        *,
        tried: frozenset[int],
        refusals: int,
        left: RecipientsLeft,
    ) -> None:
        """Note what an attempt left of a message."""
        if (message := self._messages.get(queue_id)) is not None:
            message.note_left(left)
            message.past = message.past.but(tried=tried, refusals=refusals)

    def explain(self, queue_id: QueueId, why: WaitReason) -> None:
        if (message := self._messages.get(queue_id)) is not None:
            message.why = why

    def warned(self, queue_id: QueueId) -> None:
        if (message := self._messages.get(queue_id)) is not None:
            message.is_warned = True

    def owe_report(self, message: Queued, why: WaitReason) -> None:
        """Keep a message of which only the report is left; it is sent nowhere."""
        message.state, message.recipients_left, message.why = State.REPORTING, 0, why
        self.add(message)

    def arrange(self, lanes: Sequence[Lane], price: Price, most_recipients: int) -> None:
        """Go by other lanes; `price` prices a transaction of at most `most_recipients`.

        Waiting messages move to the new order in slices.
        """
        before = self._order.lanes if self._has_lanes else ()
        is_as_before = (tuple(lanes), price) == (before, self._price)
        self._price, self._most_recipients = price, most_recipients
        if is_as_before:
            return
        # Also for another price alone: what was charged so far is in another unit.
        old, self._order = self._order, Order(lanes)
        self._order.firsts = old.firsts
        self._taken_before.update(old.taken())
        self._has_lanes = bool(lanes)
        self._with_ceiling = tuple(lane.name for lane in lanes if lane.has_ceiling)
        self._opens_at_ns.clear()
        self._parking.go_by(self._order)
        for queue_id in old.ahead():
            if (message := self._messages.get(queue_id)) is not None:
                self._order.add_ahead(queue_id, message.lane, message.since_ns, is_first=False)
        self._regrouping = Regrouping(old, self._since, self._regrouping or None)

    def move(self, queue_id: QueueId, lane: str) -> None:
        message = self._messages.get(queue_id)
        if message is None or message.lane == lane:
            return
        if message.place is not None:
            self._parking.move(message, lane)
        else:
            message.lane = lane
            if queue_id in self._order:
                self._line_up(message)
        self.counts.note(message)

    def lane_of(self, message: Base) -> str:
        return self._order.home_of(message.lane) if self._has_lanes else ""

    def with_ceiling(self) -> tuple[str, ...]:
        return self._with_ceiling

    def let_lane(self, lane: str, room: int | None, opens_at_ns: int) -> Queued | None:
        """Let a lane give so many and no more; return the message that waits because it may give none."""
        self._order.let(lane, room)
        self._opens_at_ns.pop(lane, None)
        if room != 0:
            return None
        # Also while it has nobody: who leaves a place may stand there from now on.
        self._opens_at_ns[lane] = opens_at_ns
        queue_id = self._order.first_of(lane)
        return None if queue_id is None else self._messages.get(queue_id)

    def closed_lanes(self) -> list[str]:
        """Return the lanes with mail that may give none; empty where other mail may go now."""
        if self._order.most({}):
            return []
        return [lane for lane in self._opens_at_ns if self._has_mail(lane)]

    def next_place(self) -> Hashable:
        """Return the place that is due next; None if none is, or other mail may go now."""
        return None if self._order.most({}) else self._parking.next_due()

    def next_ready(self, now_ns: int) -> Queued | None:
        """Take the next message that may be attempted; it becomes ACTIVE."""
        if (message := self._first(now_ns)) is None:
            return None
        self._order.take(now_ns, self._cost(message))
        place, message.place = message.place, None
        self._become(message, Move.TAKE)
        if place is not None:
            self._parking.left(place, message.lane, was_let=True)
        return message

    def has_ready(self, now_ns: int) -> bool:
        return self.first_ready(now_ns) is not None

    @property
    def most_ready(self) -> int:
        """Return how many messages `next_ready` would give, or a few more."""
        return self._order.most(self._parking.following)

    @property
    def is_behind(self) -> bool:
        """Return whether messages must be moved before it is known what goes next: look again at once."""
        return self._is_cut_off or self._is_waking or bool(self._regrouping) or bool(self._coming)

    def first_ready(self, now_ns: int) -> Queued | None:
        """Return the message that `next_ready` would take, and leave it; None also while `is_behind`."""
        self._steps_left = self._slice
        return self._first(now_ns)

    def reserved(self, queue_id: QueueId, recipients: int) -> None:
        """Charge the lane of an active message for the recipients that go."""
        self._order.charge(queue_id, self._price.of(recipients))
        self._taken_before.discard(queue_id)

    def next_due_at_ns(self) -> int | None:
        """Return when the next back-off ends, place is due or lane may give; None if there is none."""
        if self.is_behind:
            return AT_ONCE_NS
        while self._deferred and not self._is_deferred_until(self._deferred[0][1], self._deferred[0][0]):
            heapq.heappop(self._deferred)
        dues = [at_ns for lane, at_ns in self._opens_at_ns.items() if self._has_mail(lane)]
        if self._deferred:
            dues.append(self._deferred[0][0])
        if (place_due_ns := self._parking.next_due_ns()) is not None:
            dues.append(place_due_ns)
        return min(dues, default=None)

    def park(self, queue_id: QueueId, place: Hashable, due_at_ns: int, why: WaitReason) -> bool:
        """Park an unattempted active message until its place is due; return whether it is alone there."""
        if (message := self._returned(queue_id, why)) is None:
            return False
        if message.turn == 0:
            self._last_turn += 1
            message.turn = self._last_turn
        message.place, message.due_at_ns = place, due_at_ns
        return self._parking.park(message, place, due_at_ns)

    def places_due(self, now_ns: int) -> list[Hashable]:
        return self._parking.due(now_ns)

    def has_places_due(self, now_ns: int) -> bool:
        return self._parking.has_due(now_ns)

    def let_leave(self, place: Hashable, room: int, due_at_ns: int) -> None:
        self._parking.let(place, room, due_at_ns)

    def ask_anew(self) -> None:
        self._parking.ask_anew()

    def give_back(self, queue_id: QueueId, why: WaitReason) -> None:
        """Put an unattempted active message back in front."""
        if (message := self._returned(queue_id, why)) is not None:
            self._order.add_ahead(queue_id, message.lane, message.since_ns)

    def again(self, queue_id: QueueId, recipients_left: int, why: WaitReason) -> None:
        """Put an active message at the end of the line: it made progress, or is to go again at once."""
        if (message := self._settled(queue_id, Move.RETURN, recipients_left, why)) is None:
            return
        # Or a large one would be overdue for all of its transactions once it is for one.
        message.ready_at_ns = self._now_ns
        self._line_up(message)

    def postpone(self, queue_id: QueueId, due_at_ns: int, recipients_left: int, why: WaitReason) -> None:
        if (message := self._settled(queue_id, Move.DEFER, recipients_left, why)) is not None:
            message.due_at_ns = due_at_ns
            self._place(message)

    def trust_sender(self, sender: str, now_ns: int) -> None:
        """End a sender's pause: the upstream took mail of it, or an operator acted."""
        self.sender_pauses.end(sender, now_ns)
        self._coming.update(self._sitting_out.pop(sender, {}))

    def hold(self, queue_id: QueueId) -> None:
        """Take a message out of the order until `release`."""
        if (message := self._messages.get(queue_id)) is not None:
            self._become(message, Move.HOLD)
            self._leave_order(message)
            self.on_change()

    def release(self, queue_id: QueueId) -> None:
        """Put a held or deferred message at the end of the line, to be attempted at once."""
        message = self._messages.get(queue_id)
        if message is not None and self._become(message, Move.RELEASE):
            message.why, message.turn = NO_REASON, 0
            self._sit_out_no_more(message)
            message.ready_at_ns = self._now_ns
            self._leave_place(message)
            self._place(message)
            self.on_change()

    def leave(self, queue_id: QueueId) -> Queued | None:
        """Take out a message that goes to another upstream's line; None while it is active, or absent.

        What this upstream alone knows of it is forgotten.
        """
        message = self._messages.get(queue_id)
        if message is None or message.state is State.ACTIVE:
            return None
        if message.is_sitting_out:
            self._become(message, Move.WAKE)
            message.why = NO_REASON
        self.remove(queue_id)
        message.place, message.turn = None, 0
        if message.past is not NO_PAST:
            message.past = message.past.but(refusals=0)
        return message

    def remove(self, queue_id: QueueId) -> None:
        if (message := self._messages.pop(queue_id, None)) is not None:
            self._leave_order(message)
            self.counts.forget(message)
            self.on_change()

    def _become(self, message: Queued, move: Move) -> bool:
        """Make a move by the table; False where the message's state does not allow it."""
        from_states, state = AFTER[move]
        if message.state not in from_states:
            return False
        message.state = state
        self.counts.note(message)
        return True

    def _returned(self, queue_id: QueueId, why: WaitReason) -> Queued | None:
        message = self._messages.get(queue_id)
        if message is None or not self._become(message, Move.RETURN):
            return None
        self._refund(queue_id)
        message.why = why
        return message

    def _settled(self, queue_id: QueueId, move: Move, recipients_left: int, why: WaitReason) -> Queued | None:
        message = self._messages.get(queue_id)
        if message is None or message.state is not State.ACTIVE:
            return None
        self._refund(queue_id)
        message.recipients_left, message.why, message.turn = recipients_left, why, 0
        self._become(message, move)
        return message

    def _refund(self, key: QueueId) -> None:
        """Undo the charge of a message that was taken, and not attempted."""
        self._taken_before.discard(key)
        self._order.refund(key)

    def _leave_place(self, message: Queued) -> None:
        place, message.place = message.place, None
        if place is not None:
            self._parking.left(place, message.lane)

    def _leave_order(self, message: Queued) -> None:
        self._refund(message.key)
        self._order.remove(message.key)
        self._order.firsts.pop(message.key, None)
        if self._sitting_out:
            self._sit_out_no_more(message)
        if message.place is not None:
            self._parking.left(message.place, message.lane)

    def _sit_out_no_more(self, message: Queued) -> None:
        if (its := self._sitting_out.get(message.sender)) is not None:
            its.pop(message.key, None)
            if not its:
                del self._sitting_out[message.sender]

    def _first(self, now_ns: int) -> Queued | None:
        self._now_ns, self._is_cut_off = now_ns, False
        if not self._catch_up(now_ns):
            return None
        while (queue_id := self._order.first(now_ns)) is not None:
            message = self._messages.get(queue_id)
            place = None if message is None else message.place
            if message is not None and self._may_go(message, now_ns):
                return message
            self._order.remove(queue_id)
            if message is not None:
                self._parking.left(place, message.lane)
            if self._is_cut():
                return None
        return None

    def _is_cut(self) -> bool:
        """Count a step; return whether it was the last of this look.  The next look has as many again."""
        self._steps_left -= 1
        if self._steps_left <= 0:
            self._steps_left, self._is_cut_off = self._slice, True
        return self._is_cut_off

    def _has_mail(self, lane: str) -> bool:
        """Return whether something of a lane waits for its turn."""
        return bool(self._order.length(lane))

    def _is_ready(self, message: Queued) -> bool:
        return message.state is State.WAITING and (message.place is None or self._parking.is_let(message))

    def _may_go(self, message: Queued, now_ns: int) -> bool:
        """Return whether a message may go; one that others overtake leaves the order."""
        if not self._is_ready(message):
            return False
        if self._sitting_out:
            self._sit_out_no_more(message)
        rest = self.sender_pauses.of(message.sender, now_ns)
        if rest is None:
            return True
        message.place, message.turn = None, 0
        self._become(message, Move.SIT_OUT)
        message.due_at_ns = rest.until_ns
        if rest.in_a_row % 2 == 0:
            # What was refused least often goes first: else one message could keep all others of its
            # sender.  Each other time the oldest does: else it would never be old enough to be returned.
            message.due_at_ns += message.past.refusals
        message.why = WaitReason(rest.reason, WaitKind.SENDER_PAUSE)
        self._sitting_out.setdefault(message.sender, {})[message.key] = None
        heapq.heappush(self._deferred, (message.due_at_ns, message.key))
        return False

    def _cost(self, message: Queued) -> int:
        return self._price.of(min(message.recipients_left, self._most_recipients))

    def _line_up(self, message: Queued) -> None:
        self._coming.pop(message.key, None)
        if self._regrouping or self._coming or self._is_waking:
            self._order.remove(message.key)
            self._coming[message.key] = None
        else:
            self._line_up_now(message)

    def _since(self, key: QueueId) -> int | None:
        message = self._messages.get(key)
        return None if message is None else message.since_ns

    def _line_up_now(self, message: Queued) -> None:
        self._order.add(message.key, message.lane, message.reverse_path, message.since_ns)

    def _place(self, message: Queued) -> None:
        match message.state:
            case State.WAITING:
                self._line_up(message)
            case State.DEFERRED:
                heapq.heappush(self._deferred, (message.due_at_ns, message.key))
            case State.ACTIVE | State.HELD | State.REPORTING:
                pass

    def _catch_up(self, now_ns: int) -> bool:
        """Move due messages to the end of the line, then those of an edit, then newcomers.

        Return False where some are left.
        """
        while self._regrouping or self._coming or (self._deferred and self._has_due(now_ns)):
            if self._has_due(now_ns):
                self._wake_first()
            elif self._regrouping:
                key = self._regrouping.step()
                # What came to the end of the line since the edit has its place there.
                self._come(None if key in self._coming else key)
            else:
                self._come(self._coming.popitem(last=False)[0])
            self._is_waking = self._has_due(now_ns)
            if self._is_cut():
                return False
        self._is_waking = False
        return True

    def _wake_first(self) -> None:
        due_at_ns, queue_id = heapq.heappop(self._deferred)
        if self._is_deferred_until(queue_id, due_at_ns):
            message = self._messages[queue_id]
            self._become(message, Move.WAKE)
            message.ready_at_ns = due_at_ns
            self._line_up_now(message)

    def _has_due(self, now_ns: int) -> bool:
        return bool(self._deferred) and self._deferred[0][0] <= now_ns

    def _come(self, queue_id: QueueId | None) -> None:
        if queue_id is None or (message := self._messages.get(queue_id)) is None:
            return
        if message.is_sitting_out:
            self._become(message, Move.WAKE)
            message.why, message.turn = NO_REASON, 0
            message.ready_at_ns = self._now_ns
        elif message.why.kind is WaitKind.SENDER_PAUSE and message.state is State.ACTIVE:
            # An operator has it just now; it may come back as it was.
            self._sitting_out.setdefault(message.sender, {})[queue_id] = None
        if message.state is State.WAITING and queue_id not in self._order:
            self._line_up_now(message)

    def _is_deferred_until(self, queue_id: QueueId, due_at_ns: int) -> bool:
        """Return whether a heap entry is current; moves leave old ones behind."""
        message = self._messages.get(queue_id)
        return message is not None and message.state is State.DEFERRED and message.due_at_ns == due_at_ns
