"""Where messages are parked that only a limit of their own keeps back.  Pure: no clock.

A place is due at an instant; then the dispatcher asks, once, how many may leave it (`let`).
While a place has room, its first message in each lane stands for it in the order, in front of
the other mail of that sender.  So a lane at its ceiling keeps back no other lane.  When as
many left as were let, the place is due again; where none may leave, at a later instant.

Guarantees: parked messages of one lane leave their place in turn; no more leave than were let;
a place that no message may leave has none in the order.

Cost: O(log n) a call, times the lanes of the place.  Does not: know a limit, or a message's cost.
"""

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice

from relay.mail.envelope import QueueId
from relay.queue.queued import State
from relay.status.estimate.replay.order import Order, smallest
from relay.status.estimate.replay.twin import Twin as Queued

MOST_PLACES = 64
"""Places that `due` returns at once."""
AT_ONCE_NS = 0


@dataclass(slots=True)
class _Lot:
    due_at_ns: int | None = None
    """None: the place is to be asked now, or was asked and may be left."""
    may_leave: int = 0
    turns: dict[str, list[tuple[int, QueueId]]] = field(default_factory=dict)
    """A heap by the lane that each message names; entries of messages that left stay in it."""
    stands: dict[str, QueueId] = field(default_factory=dict)
    """By lane, the message that stands for the place, if it is still in the order."""
    following: dict[str, int] = field(default_factory=dict)
    """By lane, how many may leave behind the message that stands."""

    def copy(self) -> "_Lot":
        turns = {lane: its.copy() for lane, its in self.turns.items()}
        return _Lot(self.due_at_ns, self.may_leave, turns, self.stands.copy(), self.following.copy())


class Parking:
    def __init__(self, messages: Mapping[QueueId, Queued], order: Order) -> None:
        """`messages` are all of the queue, `order` the ready ones; both change."""
        self._messages, self._order = messages, order
        self._parked: dict[Hashable, _Lot] = {}
        self._until: list[tuple[int, int, Hashable]] = []
        """A heap; an entry counts only if the place has the same instant."""
        self._due: dict[Hashable, None] = {}
        """Places to be asked, in that order."""
        self._open: dict[Hashable, None] = {}
        """Places that may be left."""
        self._entries = 0
        self.following = Counter[str]()
        """By lane, how many may leave behind the messages that stand; never too few."""

    def park(self, message: Queued, place: Hashable, due_at_ns: int) -> bool:
        """Park a message until its place is due; return whether the place was empty."""
        is_first = place not in self._parked
        parking = self._parked.setdefault(place, _Lot())
        self._enter(parking, message)
        self._put_off(place, parking, due_at_ns)
        return is_first

    def due(self, now_ns: int) -> list[Hashable]:
        """Return the next places to ask how many may leave (`let`)."""
        while self._until and self._until[0][0] <= now_ns and len(self._due) < MOST_PLACES:
            entry = heapq.heappop(self._until)
            if self._is_true(entry):
                self._parked[entry[2]].due_at_ns = None
                self._due[entry[2]] = None
        for place in self._first_due():
            if self._is_empty(place, self._parked[place]):
                self._forget(place)
        return self._first_due()

    def has_due(self, now_ns: int) -> bool:
        """Return whether a place may still have to be asked."""
        return bool(self._due) or bool(self._until and self._until[0][0] <= now_ns)

    def let(self, place: Hashable, room: int, due_at_ns: int) -> None:
        """Let so many leave a due place; with no room, it is due again at an instant."""
        parking = self._parked[place]
        if room < 1:
            self._put_off(place, parking, due_at_ns)
            return
        self._due.pop(place, None)
        parking.may_leave = room
        self._open[place] = None
        for lane in self._homes(parking):
            self._stand(place, parking, lane)

    def ask_anew(self) -> None:
        """Make every place due: the limits may have changed."""
        for parking in self._parked.values():
            parking.due_at_ns = None
        self._until.clear()
        self._due = dict.fromkeys(self._parked)

    def is_let(self, message: Queued) -> bool:
        parking = self._parked.get(message.place)
        return parking is not None and message.key in parking.stands.values()

    def left(self, place: Hashable, lane: str, *, was_let: bool = False) -> None:
        """Replace a message that left its place: as it was let, or another way."""
        if (parking := self._parked.get(place)) is None or not parking.may_leave:
            return
        parking.may_leave -= was_let
        if parking.may_leave:
            self._stand(place, parking, self._order.home_of(lane))
        else:
            self._close(place, parking)
            self._due[place] = None
            if self._is_empty(place, parking):
                self._forget(place)

    def move(self, message: Queued, lane: str) -> None:
        """Move a parked message to a lane, in its turn there."""
        before, message.lane = message.lane, lane
        if (parking := self._parked.get(message.place)) is None:
            return
        self._order.remove(message.key)
        self._enter(parking, message)
        for each in (before, lane):
            self.left(message.place, each)

    def go_by(self, order: Order) -> None:
        """Go by another order, of other lanes perhaps; messages stand in it once they are let again.

        Parked messages stay: a place is asked by the lanes that there are by then.
        """
        self._order = order
        self.following.clear()
        for place in self._open:
            parking = self._parked[place]
            parking.may_leave, parking.stands, parking.following = 0, {}, {}
            self._due[place] = None
        self._open.clear()

    def next_due_ns(self) -> int | None:
        if self._due:
            return AT_ONCE_NS
        while self._until and not self._is_true(self._until[0]):
            heapq.heappop(self._until)
        return self._until[0][0] if self._until else None

    def next_due(self) -> Hashable:
        """Return the next place to be asked, leaving out those due by now; None if none is."""
        return None if self._due or self.next_due_ns() is None else self._until[0][2]

    def copy(self, messages: Mapping[QueueId, Queued], order: Order) -> "Parking":
        twin = Parking(messages, order)
        twin._parked = {place: parking.copy() for place, parking in self._parked.items()}
        twin._until, twin._due, twin._entries = self._until.copy(), self._due.copy(), self._entries
        twin._open = self._open.copy()
        twin.following = self.following.copy()
        return twin

    def front(self, most: int, messages: Mapping[QueueId, Queued], order: Order) -> "Parking":
        """Return a copy with the places asked next, and of `most` messages each place its share."""
        twin = Parking(messages, order)
        twin._until = smallest(self._until, most)
        soon = (entry[2] for entry in twin._until if self._is_true(entry))
        places = dict.fromkeys(chain(islice(self._open, most), islice(self._due, most), soon))
        share = max(1, most // max(1, len(places)))
        for place in islice(places, most):
            parking = self._parked[place]
            turns = {lane: smallest(its, share) for lane, its in parking.turns.items()}
            twin._parked[place] = lot = _Lot(
                parking.due_at_ns, parking.may_leave, turns, parking.stands.copy(), parking.following.copy()
            )
            twin.following.update(lot.following)
        twin._due = {place: None for place in islice(self._due, most) if place in twin._parked}
        twin._open = {place: None for place in islice(self._open, most) if place in twin._parked}
        twin._entries = self._entries
        return twin

    def ids(self) -> Iterator[QueueId]:
        """Yield the messages that are parked, and some that were."""
        for parking in self._parked.values():
            for turns in parking.turns.values():
                yield from (queue_id for _, queue_id in turns)

    def places(self) -> Iterable[Hashable]:
        return self._parked

    def length(self, place: Hashable) -> int:
        """Return how many are parked at a place, a few that left among them."""
        parking = self._parked.get(place)
        return 0 if parking is None else sum(map(len, parking.turns.values()))

    def _enter(self, parking: _Lot, message: Queued) -> None:
        heapq.heappush(parking.turns.setdefault(message.lane, []), (message.turn, message.key))

    def _homes(self, parking: _Lot) -> list[str]:
        return list(dict.fromkeys(map(self._order.home_of, parking.turns)))

    def _first(self, place: Hashable, parking: _Lot, home: str) -> Queued | None:
        """Return the message whose turn it is in a lane, and forget messages that left another way."""
        firsts = []
        for lane in [lane for lane in parking.turns if self._order.home_of(lane) == home]:
            turns = parking.turns[lane]
            while turns and not self._is_there(turns[0][1], place, lane):
                heapq.heappop(turns)
            if turns:
                firsts.append(turns[0])
            else:
                del parking.turns[lane]
        return self._messages[min(firsts)[1]] if firsts else None

    def _is_there(self, queue_id: QueueId, place: Hashable, lane: str) -> bool:
        message = self._messages.get(queue_id)
        return message is not None and (message.state, message.place, message.lane) == (
            State.WAITING,
            place,
            lane,
        )

    def _is_empty(self, place: Hashable, parking: _Lot) -> bool:
        return all(self._first(place, parking, lane) is None for lane in self._homes(parking))

    def _stand(self, place: Hashable, parking: _Lot, lane: str) -> None:
        message = self._first(place, parking, lane)
        if message is None:
            parking.stands.pop(lane, None)
            if not parking.turns:
                self._forget(place)
                return
        elif message.key != parking.stands.get(lane) or message.key not in self._order:
            parking.stands[lane] = message.key
            self._order.add_in_front(message.key, message.lane, message.reverse_path, message.since_ns)
        self._count(parking, self._homes(parking))

    def _close(self, place: Hashable, parking: _Lot) -> None:
        for queue_id in parking.stands.values():
            if (message := self._messages.get(queue_id)) is not None and message.place == place:
                self._order.remove(queue_id)
        parking.stands.clear()
        parking.may_leave = 0
        self._open.pop(place, None)
        self._count(parking, ())

    def _count(self, parking: _Lot, lanes: Iterable[str]) -> None:
        self.following.subtract(parking.following)
        lengths = Counter[str]()
        for lane, turns in parking.turns.items():
            lengths[self._order.home_of(lane)] += len(turns)
        parking.following = {lane: min(parking.may_leave, lengths[lane]) - 1 for lane in lanes}
        self.following.update(parking.following)

    def _put_off(self, place: Hashable, parking: _Lot, due_at_ns: int) -> None:
        self._close(place, parking)
        self._due.pop(place, None)
        if parking.due_at_ns == due_at_ns:
            return  # as it was: the heap says so already
        parking.due_at_ns = due_at_ns
        self._entries += 1
        # The number in the middle is unique: places themselves need not have an order.
        heapq.heappush(self._until, (due_at_ns, self._entries, place))

    def _forget(self, place: Hashable) -> None:
        self._count(self._parked.pop(place), ())
        self._due.pop(place, None)
        self._open.pop(place, None)

    def _first_due(self) -> list[Hashable]:
        return list(islice(self._due, MOST_PLACES))

    def _is_true(self, entry: tuple[int, int, Hashable]) -> bool:
        parking = self._parked.get(entry[2])
        return parking is not None and parking.due_at_ns == entry[0]
