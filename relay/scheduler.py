"""Which message next, and when to look again.  Pure: no clock, no disk, no waiting.

The queue in memory: one `Queued` a message.  `relay.lanes` has the order of those that may
go: without lanes, first come, first served.  A deferred one comes back when its back-off is
over; one that was taken but could not be attempted (no room in a window, no connection)
goes back to the front of its lane and has lost nothing: that is *waiting*, not *deferred*.

All instants are nanoseconds of one boot (`Clock.boottime_ns`), so that no step of the
wall clock moves a message; the caller converts once, when a message comes in.

A message that only something of its own keeps back (no room for its sender, say) is parked
in a place, behind those that came there before it, and out of the way of all others.  A
place is due when its first message may go; it is asked how many may leave then, and only
so many do: the first of a place stands for those behind it, in front of its sender's line, and
leaves in that sender's turn (without lanes: before all that was not parked).
"""

import heapq
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice

from relay.blame import REFUSALS_IN_PLACE
from relay.doubts import Doubts
from relay.envelope import QueueId
from relay.lanes import Lane, Order, Price
from relay.parking import Parking
from relay.queued import Queued as Queued  # noqa: PLC0414 - part of the door
from relay.queued import State as State  # noqa: PLC0414 - part of the door
from relay.resting import Resting

MOST_PLACES = 64
"""Places that are asked about at once."""


class Scheduler:
    """The queue of one relay, in memory."""

    def __init__(self) -> None:
        self._messages: dict[QueueId, Queued] = {}
        self._order = Order()
        self._deferred: list[tuple[int, QueueId]] = []
        self.resting = Resting()
        """Senders whose mail waits; `trust_sender` ends it."""
        self._doubts = Doubts()
        self._parked: dict[Hashable, Parking] = {}
        self._parked_until: list[tuple[int, int, Hashable]] = []
        """A heap; what a place says itself counts."""
        self._due: dict[Hashable, None] = {}
        self._last_turn = self._entries = self._now_ns = 0
        self._has_lanes = False
        self._price, self._most_recipients = Price(), 1
        self._opens_at_ns: dict[str, int] = {}
        """When a lane that may give nothing now may give something."""

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

    def arrange(self, lanes: Sequence[Lane], price: Price, most_recipients: int) -> None:
        """Go on by other lanes; what a transaction costs one, and how many recipients it has at most."""
        before = self._order.lanes if self._has_lanes else ()
        is_same = (tuple(lanes), price) == (before, self._price)
        self._price, self._most_recipients = price, most_recipients
        if is_same:
            return
        # Also for another price alone: what was charged so far is in another unit.
        old, self._order, self._has_lanes = self._order, Order(lanes), bool(lanes)
        self._opens_at_ns.clear()
        for queue_id, since_ns, standing in old.entries():
            if (message := self._messages.get(queue_id)) is None:
                continue
            self._order.enter(queue_id, message.lane, message.reverse_path, since_ns, standing)

    def move(self, queue_id: QueueId, lane: str) -> None:
        """Have a message be in a lane from now on; who is ready goes behind the others there."""
        message = self._messages.get(queue_id)
        if message is None or message.lane == lane:
            return
        message.lane = lane
        if queue_id in self._order and message.place is None:
            self._line_up(message)

    def lane_of(self, message: Queued) -> str:
        """Return the lane that a message goes by, empty where there are none."""
        return self._order.home_of(message.lane) if self._has_lanes else ""

    def with_ceiling(self) -> list[str]:
        """Return the lanes to be asked about: `let_lane`."""
        return [lane.name for lane in self._order.lanes if lane.has_ceiling]

    def let_lane(self, lane: str, room: int | None, opens_at_ns: int) -> Queued | None:
        """Let a lane give so many and no more; return who has to wait because it may give none."""
        self._order.let(lane, room)
        self._opens_at_ns.pop(lane, None)
        if room != 0 or (queue_id := self._order.first_of(lane)) is None:
            return None
        self._opens_at_ns[lane] = opens_at_ns
        return self._messages.get(queue_id)

    def in_order(self, now_ns: int) -> Iterator[Queued]:
        """Yield who is ready in the order in which they would leave; takes nothing, see `Order.in_order`.

        Who is parked is not among them, but for the first of a place that is due.
        """
        cost_of = self._messages.__getitem__
        for queue_id in self._order.in_order(now_ns, lambda queue_id: self._cost(cost_of(queue_id))):
            if self._messages[queue_id].state is State.WAITING:
                yield self._messages[queue_id]

    def next_ready(self, now_ns: int) -> Queued | None:
        """Take the next message that may be attempted; it is ACTIVE from here on."""
        if (message := self.first_ready(now_ns)) is None:
            return None
        self._order.take(now_ns, self._cost(message))
        if message.place is not None:
            self._parked[message.place].may_leave -= 1
        place, message.place, message.state = message.place, None, State.ACTIVE
        self._stand_for(place)
        self.resting.prove(message.reverse_path, now_ns)
        return message

    def has_ready(self, now_ns: int) -> bool:
        """Return whether `next_ready` would give a message."""
        return self.first_ready(now_ns) is not None

    @property
    def most_ready(self) -> int:
        """Return how many messages `next_ready` would give, or a few more."""
        return self._order.most + sum(self._parked[place].may_leave for place in self._first_due())

    def first_ready(self, now_ns: int) -> Queued | None:
        """Return the message that `next_ready` would take, and leave it."""
        self._wake(now_ns)
        while (queue_id := self._order.first(now_ns) or self._from_aside(now_ns)) is not None:
            message = self._messages.get(queue_id)
            place = None if message is None else message.place
            if message is not None and self._may_go(message, now_ns):
                return message
            self._order.remove(queue_id)
            self._stand_for(place)
        return None

    def reserved(self, queue_id: QueueId, recipients: int) -> None:
        """Know how many recipients of an active message go: its lane is charged for them."""
        self._order.charge(queue_id, self._price.of(recipients))

    def next_due_at_ns(self) -> int | None:
        """Return when the next back-off ends, place is due or lane may give, or None if there is none."""
        while self._deferred and not self._is_deferred_until(self._deferred[0][1], self._deferred[0][0]):
            heapq.heappop(self._deferred)
        while self._parked_until and not self._is_parked_until(self._parked_until[0]):
            heapq.heappop(self._parked_until)
        heaps = [heap[0][0] for heap in (self._deferred, self._parked_until) if heap]
        lanes = [at_ns for lane, at_ns in self._opens_at_ns.items() if self._order.length(lane)]
        return min(heaps + lanes, default=None)

    def park(self, queue_id: QueueId, place: Hashable, due_at_ns: int, reason: str) -> bool:
        """Park an active message that was not attempted until its place is due; say if it is alone there."""
        message = self._messages.get(queue_id)
        if message is None or message.state is not State.ACTIVE:
            return False
        if message.turn == 0:
            self._last_turn += 1
            message.turn = self._last_turn
        self._order.refund(queue_id)
        message.state, message.reason = State.WAITING, reason
        message.place, message.due_at_ns = place, due_at_ns
        is_first = place not in self._parked
        parking = self._parked.setdefault(place, Parking())
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
            if self._parked[place].first(place, self._messages) is None:
                del self._parked[place], self._due[place]
        return self._first_due()

    def let_leave(self, place: Hashable, room: int, due_at_ns: int) -> None:
        """Let so many go from a place that is due; where none may, it is due again at an instant."""
        if room:
            self._parked[place].may_leave = room
            self._stand_for(place)
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
            self._order.refund(queue_id)
            message.state, message.reason = State.WAITING, reason
            self._order.add_ahead(queue_id, message.lane, message.since_ns)

    def again(self, queue_id: QueueId, recipients_left: int, reason: str) -> None:
        """Put a message that made progress, or was told to come again at once, at the end of the line."""
        message = self._messages.get(queue_id)
        if message is not None:
            self._order.refund(queue_id)
            message.recipients_left, message.reason = recipients_left, reason
            message.state, message.turn = State.WAITING, 0
            # Or a large one would be overdue for all of its transactions once it is for one.
            message.ready_at_ns = self._now_ns
            self._line_up(message)

    def postpone(self, queue_id: QueueId, due_at_ns: int, recipients_left: int, reason: str) -> None:
        """Defer a message until an instant."""
        message = self._messages.get(queue_id)
        if message is not None:
            self._order.refund(queue_id)
            message.recipients_left, message.reason = recipients_left, reason
            message.state, message.due_at_ns = State.DEFERRED, due_at_ns
            message.turn = 0
            self._place(message)

    def trust_sender(self, reverse_path: str, now_ns: int) -> None:
        """End the rest of a sender: the upstream took mail of it, or somebody acted."""
        if self.resting.end(reverse_path, now_ns):
            for message in self._messages.values():
                if message.reverse_path == reverse_path and message.is_sitting_out:
                    self.release(message.queue_id)

    def doubt(self, reverse_path: str) -> None:
        """Let others go before the mail of a sender: the upstream took some of it for an offence of ours."""
        self._doubts.add(reverse_path)

    def trust(self) -> None:
        """Give all that let others go first their places again: the upstream is well."""
        for queue_id in reversed(self._doubts.clear()):
            message = self._messages[queue_id]
            if queue_id in self._order or message.state is not State.WAITING:
                continue
            if message.refusals < REFUSALS_IN_PLACE:
                self._order.add_ahead(queue_id, message.lane, message.since_ns)
            else:
                self._line_up(message)

    def in_leaving_order(self, now_ns: int) -> Iterator[Queued]:
        """Return what waits as it would leave now: the parked by their turns, the line, what is deferred.

        Not to be used across a change.  One that was held and let go may come twice: the first time counts.
        """
        waiting = [m for m in self._messages.values() if m.state is State.WAITING and m.place is not None]
        yield from sorted(waiting, key=lambda message: message.turn)
        yield from (m for m in self.in_order(now_ns) if m.place is None)
        yield from (self._messages[queue_id] for queue_id in self._doubts)
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
            self._leave_order(queue_id, message.place)

    def release(self, queue_id: QueueId) -> None:
        """Bring a held or deferred message to the end of the line, to be attempted at once."""
        message = self._messages.get(queue_id)
        if message is not None and message.state in (State.HELD, State.DEFERRED):
            message.state, message.reason = State.WAITING, ""
            message.place, message.turn = None, 0
            message.ready_at_ns = self._now_ns
            self._place(message)

    def remove(self, queue_id: QueueId) -> None:
        """Forget a message that is gone from the spool."""
        if (message := self._messages.pop(queue_id, None)) is not None:
            self._leave_order(queue_id, message.place)

    def _leave_order(self, queue_id: QueueId, place: Hashable) -> None:
        self._order.refund(queue_id)
        self._order.remove(queue_id)
        self._doubts.forget(queue_id)
        self._stand_for(place)

    def _from_aside(self, now_ns: int) -> QueueId | None:
        """Have one go that let others go first, since there is none; return who goes next by now."""
        if (queue_id := self._doubts.take()) is None:
            return None
        message = self._messages[queue_id]
        self._order.add_ahead(queue_id, message.lane, message.since_ns)
        return self._order.first(now_ns)

    def _may_go(self, message: Queued, now_ns: int) -> bool:
        """Return whether a message of the order may go; one that others go before leaves it."""
        if message.state is not State.WAITING or not (message.place is None or self._stands(message)):
            return False
        message.is_sitting_out = False
        rest = self.resting.of(message.reverse_path, now_ns)
        if rest is None and not self._doubts.keep(message):
            return True
        message.place, message.turn = None, 0
        if rest is not None:
            message.state, message.due_at_ns, message.reason = State.DEFERRED, rest.until_ns, rest.reason
            message.is_sitting_out = True
            heapq.heappush(self._deferred, (message.due_at_ns, message.queue_id))
        return False

    def _cost(self, message: Queued) -> int:
        return self._price.of(min(message.recipients_left, self._most_recipients))

    def _line_up(self, message: Queued) -> None:
        self._order.add(message.queue_id, message.lane, message.reverse_path, message.since_ns)

    def _place(self, message: Queued) -> None:
        match message.state:
            case State.WAITING:
                self._line_up(message)
            case State.DEFERRED:
                heapq.heappush(self._deferred, (message.due_at_ns, message.queue_id))
            case State.ACTIVE | State.HELD | State.REPORTING:
                pass

    def _wake(self, now_ns: int) -> None:
        """Move what is due to the end of the line."""
        self._now_ns = now_ns
        while self._deferred and self._deferred[0][0] <= now_ns:
            due_at_ns, queue_id = heapq.heappop(self._deferred)
            if self._is_deferred_until(queue_id, due_at_ns):
                self._messages[queue_id].state = State.WAITING
                self._messages[queue_id].ready_at_ns = due_at_ns
                self._line_up(self._messages[queue_id])

    def _stand_for(self, place: Hashable) -> None:
        """Have the first of a place that may be left stand in its lane, ahead of its sender's others."""
        parking = self._parked.get(place)
        if parking is None or not parking.may_leave or not (message := parking.first(place, self._messages)):
            return
        if message.queue_id != parking.stands or message.queue_id not in self._order:
            parking.stands = message.queue_id
            self._order.add_in_front(message.queue_id, message.lane, message.reverse_path, message.since_ns)

    def _first_due(self) -> list[Hashable]:
        return list(islice(self._due, MOST_PLACES))

    def _stands(self, message: Queued) -> bool:
        parking = self._parked.get(message.place)
        return parking is not None and parking.stands == message.queue_id

    def _set_due(self, place: Hashable, due_at_ns: int) -> None:
        parking = self._parked[place]
        if (
            stands := self._messages.get(parking.stands or QueueId(""))
        ) is not None and stands.place == place:
            self._order.remove(stands.queue_id)
        parking.stands = None
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
