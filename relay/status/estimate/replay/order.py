"""The order of ready messages: lanes by weight, senders in turn, then first come first served.  Pure.

Guarantees, while nothing waits beyond its lane's patience:
- two lanes that always have mail differ by at most one message each, measured in shares; no lane is
  more than one message above its own share;
- an idle lane earns no credit; once it has mail it goes next, unless it had its share just before;
- within a lane senders take turns, a message each; a sender's messages leave in order, behind those
  put in front (`add_in_front`); only messages that were taken and given back go ahead of all senders;
- a lane at its ceiling keeps back no other.
Messages beyond their lane's patience go oldest first, as one more lane with as much weight as all lanes
together: it gets half, and a lane that uses less than half of its share is as quick as ever.

How: start-time fair queuing (Goyal, Vin, Cheng 1996).  Each message that a lane gives moves the lane's
tag by cost / weight; the lowest tag goes next, and an idle lane's tag is raised to the last one that went.
The caller sets the cost, in one unit for all.  Without lanes there is one, and senders take no turns.

Every call but `copy`, `front` and `ahead` is O(lanes + log n), amortized.  The caller tells when a
message is no longer ready (`remove`).
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, count, islice
from math import lcm
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from relay.mail.envelope import QueueId
from relay.queue.lanes import DEFAULT_LANE, Lane, turn_of
from relay.status.estimate.replay.fifo import Fifo

Ordered = TypeVar("Ordered", bound=tuple[Any, ...])


def smallest(heap: Sequence[Ordered], most: int) -> list[Ordered]:
    """Return the first entries of a heap, in order: O(most · log most), however long the heap is."""
    found: list[Ordered] = []
    near = [(heap[0], 0)] if heap else []
    while near and len(found) < most:
        entry, at = heapq.heappop(near)
        found.append(entry)
        for child in range(2 * at + 1, min(2 * at + 3, len(heap))):
            heapq.heappush(near, (heap[child], child))
    return found


MOST_FIRST = 64
"""Messages that are to go before all others (`Order.firsts`) and are looked at."""
SPARE_AGES = 1024
"""Entries of gone messages that a heap may hold beyond as many as are ready."""


class _Spot(NamedTuple):
    """Where a message stands: one value for all that stand there."""

    lane: str
    sender: str | None = None
    """None: ahead of all senders of its lane."""
    is_in_front: bool = False


class _Ages:
    """Since when the messages of a lane are ready, oldest first; of one instant, as they came.

    Nearly all come in that order.  Those that do are a list and an instant each; only the others a heap.
    """

    __slots__ = ("_heap", "_in_order", "_last_ns", "_odd", "since")

    def __init__(self) -> None:
        self.since: dict[QueueId, int] = {}
        self._in_order = Fifo()
        self._last_ns = 0
        """Since when the last one of `_in_order` is ready, also once it left."""
        self._odd: dict[QueueId, int] = {}
        """The others, and their numbers in the heap."""
        self._heap: list[tuple[int, int, QueueId]] = []
        """Entries of messages that left stay in it."""

    def add(self, queue_id: QueueId, since_ns: int, numbers: Iterator[int]) -> None:
        """Add a message; the next of `numbers` was never used here."""
        if not self.since or since_ns >= self._last_ns:
            self._in_order.add(queue_id)
            self._last_ns = since_ns
        else:
            number = self._odd[queue_id] = next(numbers)
            heapq.heappush(self._heap, (since_ns, number, queue_id))
            if len(self._heap) > 2 * len(self._odd) + SPARE_AGES:
                self._heap = [age for age in self._heap if self._is_true(age)]
                heapq.heapify(self._heap)
        self.since[queue_id] = since_ns

    def remove(self, queue_id: QueueId) -> None:
        """Forget a message; absent ids are ignored."""
        if self.since.pop(queue_id, None) is None:
            return
        if self._odd.pop(queue_id, None) is None:
            self._in_order.remove(queue_id)

    def oldest(self) -> tuple[int, QueueId] | None:
        while self._heap and not self._is_true(self._heap[0]):
            heapq.heappop(self._heap)
        if not self._in_order:
            return (self._heap[0][0], self._heap[0][2]) if self._heap else None
        first = self._in_order.first
        # An odd one of that instant came when a later one was there already.
        if self._heap and self._heap[0][0] < self.since[first]:
            return self._heap[0][0], self._heap[0][2]
        return self.since[first], first

    def first(self, most: int) -> list[tuple[int, QueueId]]:
        """Return the oldest, at most so many, and since when each is ready: O(most · log most)."""
        in_order = ((self.since[queue_id], queue_id) for queue_id in islice(self._in_order, most))
        odd = ((age[0], age[2]) for age in smallest(self._heap, 2 * most) if self._is_true(age))
        return list(islice(heapq.merge(in_order, odd, key=itemgetter(0)), most))

    def copy(self) -> "_Ages":
        twin = _Ages()
        twin.since, twin._in_order, twin._last_ns = self.since.copy(), self._in_order.copy(), self._last_ns
        twin._odd, twin._heap = self._odd.copy(), self._heap.copy()
        return twin

    def _is_true(self, age: tuple[int, int, QueueId]) -> bool:
        return self._odd.get(age[2]) == age[1]


@dataclass(slots=True, eq=False)
class _Flow:
    """A lane, or the overdue messages: gives messages by its weight."""

    step: int
    """How far its tag moves for a cost of 1."""
    tag: int = 0
    went: int = -1
    """When it last gave a message, counted in messages; of equal tags the one that waited longer goes."""


@dataclass(slots=True, eq=False)
class _Line(_Flow):
    lane: Lane = field(default_factory=lambda: Lane(DEFAULT_LANE))
    room: int | None = None
    """How many more may go; None: any number."""
    length: int = 0
    ahead: Fifo = field(default_factory=Fifo)
    senders: OrderedDict[str, Fifo] = field(default_factory=OrderedDict)
    """The first sender is next."""
    fronts: dict[str, Fifo] = field(default_factory=dict)
    """By sender: its messages that go before its others."""
    ages: _Ages = field(default_factory=_Ages)
    """Of a lane with patience."""

    def copy(self) -> "_Line":
        twin = copy(self)
        twin.ahead, twin.ages = self.ahead.copy(), self.ages.copy()
        twin.senders = OrderedDict((sender, its.copy()) for sender, its in self.senders.items())
        twin.fronts = {sender: its.copy() for sender, its in self.fronts.items()}
        return twin

    def first(self, most: int) -> list[QueueId]:
        """Return what goes first while nothing comes: so many messages at most, and O(that)."""
        found = list(islice(self.ahead, most))
        turns = deque(
            chain(self.fronts.get(sender, ()), its) for sender, its in islice(self.senders.items(), most)
        )
        while turns and len(found) < most:
            its = turns.popleft()
            if (queue_id := next(its, None)) is not None:
                found.append(queue_id)
                turns.append(its)
        return found

    def front(self, only: Collection[QueueId], spots: Mapping[QueueId, "_Spot"]) -> "_Line":
        """Return a copy with these messages alone, in the order of `only` where they are of one sender."""
        twin = copy(self)
        twin.length = len(only)
        twin.ahead, twin.senders, twin.fronts, twin.ages = Fifo(), OrderedDict(), {}, _Ages()
        since = self.ages.since
        for queue_id in sorted(filter(since.__contains__, only), key=since.__getitem__):
            twin.ages.add(queue_id, since[queue_id], count())
        # The turns of senders are kept: the first of each comes in that order.
        for queue_id in only:
            spot = spots[queue_id]
            if spot.sender is None:
                twin.ahead.add(queue_id)
                continue
            its = twin.senders.setdefault(spot.sender, Fifo())
            if spot.is_in_front:
                its = twin.fronts.setdefault(spot.sender, Fifo())
            its.add(queue_id)
        return twin


class _Charge(NamedTuple):
    flow: _Flow
    line: _Line
    cost: int
    went: int
    went_before: int
    tag: int
    tag_before: int


class Order:
    def __init__(self, lanes: Sequence[Lane] = ()) -> None:
        """`lanes` include one named DEFAULT_LANE; none at all is one lane without turns."""
        self._has_turns = bool(lanes)
        lanes = lanes or (Lane(DEFAULT_LANE),)
        unit = lcm(*(lane.weight for lane in lanes), sum(lane.weight for lane in lanes))
        self._lines = {lane.name: _Line(unit // lane.weight, lane=lane) for lane in lanes}
        self._overdue = _Flow(unit // sum(lane.weight for lane in lanes))
        self._spots: dict[QueueId, _Spot] = {}
        """In the order in which they came."""
        self._charged: dict[QueueId, _Charge] = {}
        """Messages that were taken and are not known to have gone."""
        self._tag = 0
        """The tag of what went last: no lane or overdue flow is behind it."""
        self._numbers = count()
        self._found: tuple[int, tuple[_Flow, _Line, QueueId] | None] | None = None
        """What goes next, and as of when; None after a change."""
        self.firsts: dict[QueueId, None] = {}
        """Messages that go before those of all lanes, in this order; `charge` ends that."""

    def __len__(self) -> int:
        return len(self._spots)

    def __contains__(self, queue_id: QueueId) -> bool:
        return queue_id in self._spots

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return the lanes; without any, the one there is."""
        return tuple(line.lane for line in self._lines.values())

    def most(self, following: Mapping[str, int]) -> int:
        """Return how many `take` could give; `following` is how many more would come of each lane."""
        lengths = [(line, line.length + following.get(name, 0)) for name, line in self._lines.items()]
        return sum(length if line.room is None else min(length, line.room) for line, length in lengths)

    def home_of(self, lane: str) -> str:
        """Return this lane, or the default one where there is none of this name."""
        return lane if lane in self._lines else DEFAULT_LANE

    def is_open(self, lane: str) -> bool:
        """Return whether a lane may give any now, or that which stands for it."""
        return self._line(lane).room != 0

    def length(self, lane: str) -> int:
        return self._lines[lane].length

    def add(self, queue_id: QueueId, lane: str, sender: str, since_ns: int) -> None:
        """Put a message behind the others of its sender; an unknown lane is the default one."""
        line, turn = self._line(lane), self._turn(sender)
        self._enter(queue_id, line, turn, since_ns)
        its = line.senders.get(turn) or line.senders.setdefault(turn, Fifo())
        its.add(queue_id)

    def add_in_front(self, queue_id: QueueId, lane: str, sender: str, since_ns: int) -> None:
        """Put a message before the others of its sender, but behind those that are in front already."""
        line, turn = self._line(lane), self._turn(sender)
        self._enter(queue_id, line, turn, since_ns, is_in_front=True)
        line.senders.setdefault(turn, Fifo())
        line.fronts.setdefault(turn, Fifo()).add(queue_id)

    def add_ahead(self, queue_id: QueueId, lane: str, since_ns: int, *, is_first: bool = True) -> None:
        """Put a message ahead of its lane: before the messages ahead already, or behind them."""
        line = self._line(lane)
        self._enter(queue_id, line, None, since_ns)
        (line.ahead.add_first if is_first else line.ahead.add)(queue_id)

    def remove(self, queue_id: QueueId) -> None:
        """Forget a message; absent ids are ignored."""
        if (spot := self._spots.pop(queue_id, None)) is not None:
            self._leave(queue_id, spot)

    def take_last(self, most: int) -> list[QueueId]:
        """Remove the messages that came last, at most so many; return those that were in line, latest first.

        Messages ahead of their lane, or in front of their sender's others, are not among them.
        """
        in_line = []
        for _ in range(min(most, len(self._spots))):
            queue_id, spot = self._spots.popitem()
            self._leave(queue_id, spot)
            if spot.sender is not None and not spot.is_in_front:
                in_line.append(queue_id)
        return in_line

    def _leave(self, queue_id: QueueId, spot: _Spot) -> None:
        self._found = None
        line = self._lines[spot.lane]
        line.length -= 1
        line.ages.remove(queue_id)
        if spot.sender is None:
            line.ahead.remove(queue_id)
            return
        its = line.fronts if spot.is_in_front else line.senders
        its[spot.sender].remove(queue_id)
        if spot.is_in_front and not its[spot.sender]:
            del its[spot.sender]
        if not line.senders[spot.sender] and spot.sender not in line.fronts:
            del line.senders[spot.sender]

    def first(self, now_ns: int) -> QueueId | None:
        found = self._next(now_ns)
        return None if found is None else found[2]

    def first_of(self, lane: str) -> QueueId | None:
        """Return what would go next of a lane, were it its turn; also of a lane at its ceiling."""
        line = self._lines[lane]
        return _first_of(line) if line.length else None

    def take(self, now_ns: int, cost: int) -> QueueId | None:
        """Take the next message and charge its lane; `charge` or `refund` must follow."""
        if (found := self._next(now_ns)) is None:
            return None
        flow, line, queue_id = found
        sender = self._spots[queue_id].sender
        self.remove(queue_id)
        if flow is line and sender is not None and sender in line.senders:
            line.senders.move_to_end(sender)
        tag_before, self._tag = self._tag, max(flow.tag, self._tag)
        flow.tag = self._tag + cost * flow.step
        before, flow.went = flow.went, next(self._numbers)
        if line.room is not None:
            line.room -= 1
        self._found = None
        self._charged[queue_id] = _Charge(flow, line, cost, flow.went, before, self._tag, tag_before)
        return queue_id

    def charge(self, queue_id: QueueId, cost: int) -> None:
        """Correct the charge of a taken message to its final cost."""
        if (charged := self._charged.pop(queue_id, None)) is not None:
            self._found = None
            self.firsts.pop(queue_id, None)
            charged.flow.tag += (cost - charged.cost) * charged.flow.step

    def refund(self, queue_id: QueueId) -> bool:
        """Undo the charge of a message that was not attempted; False if it was `charge`d already."""
        if (charged := self._charged.pop(queue_id, None)) is None:
            return False
        self._found = None
        flow, line = charged.flow, charged.line
        flow.tag -= charged.cost * flow.step
        if self._tag == charged.tag:
            # Else others went since, and who was idle meanwhile would have saved something.
            self._tag = charged.tag_before
        if flow.went == charged.went:
            flow.went = charged.went_before
        if line.room is not None:
            line.room += 1
        return True

    def let(self, lane: str, room: int | None) -> None:
        """Let a lane give so many more (None: any number), until the next call."""
        if lane in self._lines and self._lines[lane].room != room:
            self._found = None
            self._lines[lane].room = room

    def ahead(self) -> list[QueueId]:
        """Return the messages ahead of their lane, in that order."""
        return [queue_id for line in self._lines.values() for queue_id in line.ahead]

    def copy(self) -> "Order":
        """Return an independent copy of the order; O(n), and quick."""
        return self._twin({name: line.copy() for name, line in self._lines.items()}, self._spots.copy())

    def front(self, most: int) -> "Order":
        """Return a copy of what goes first: each lane has its share of `most`.  O(most · log most)."""
        share = max(1, most // len(self._lines))
        lines: dict[str, _Line] = {}
        spots: dict[QueueId, _Spot] = {}
        for name, line in self._lines.items():
            overdue = [queue_id for _, queue_id in line.ages.first(share)]
            only = dict.fromkeys([*line.first(share), *overdue])
            lines[name] = line.front(only, self._spots)
            spots |= {queue_id: self._spots[queue_id] for queue_id in only}
        return self._twin(lines, spots)

    def ids(self) -> Collection[QueueId]:
        """Return the messages that are ready, or were taken and may come back."""
        return [*self._spots, *self._charged]

    def taken(self) -> Collection[QueueId]:
        """Return the messages that were taken, and of which it is not known whether they go."""
        return self._charged.keys()

    def _twin(self, lines: dict[str, _Line], spots: dict[QueueId, _Spot]) -> "Order":
        twin = Order()
        twin._has_turns, twin._tag = self._has_turns, self._tag
        twin._lines, twin._spots = lines, spots
        twin._overdue = copy(self._overdue)
        flows = {id(line): lines[name] for name, line in self._lines.items()}
        twin._charged = {
            queue_id: each._replace(flow=flows.get(id(each.flow), twin._overdue), line=flows[id(each.line)])
            for queue_id, each in self._charged.items()
        }
        twin.firsts = self.firsts.copy()
        twin._numbers = count(next(self._numbers))
        return twin

    def _next(self, now_ns: int) -> tuple[_Flow, _Line, QueueId] | None:
        """Return what goes next, with its lane and the flow that is charged."""
        if self._found is None or self._found[0] != now_ns:
            self._found = now_ns, self._find(now_ns)
        return self._found[1]

    def _find(self, now_ns: int) -> tuple[_Flow, _Line, QueueId] | None:
        lines = [line for line in self._lines.values() if line.length and line.room != 0]
        if not lines:
            return None
        for queue_id in islice(self.firsts, MOST_FIRST):
            spot = self._spots.get(queue_id)
            if spot is not None and (line := self._lines[spot.lane]).room != 0:
                return line, line, queue_id
        line = min(lines, key=self._rank)
        if late := [age for each in lines if (age := _overdue(each, now_ns)) is not None]:
            queue_id = min(late)[1]
            if self._rank(self._overdue) < self._rank(line):
                return self._overdue, self._lines[self._spots[queue_id].lane], queue_id
        return line, line, _first_of(line)

    def _rank(self, flow: _Flow) -> tuple[int, int]:
        return max(flow.tag, self._tag), flow.went

    def _line(self, lane: str) -> _Line:
        return self._lines[self.home_of(lane)]

    def _turn(self, sender: str) -> str:
        return turn_of(sender) if self._has_turns else ""

    def _enter(
        self, queue_id: QueueId, line: _Line, turn: str | None, since_ns: int, *, is_in_front: bool = False
    ) -> None:
        self.remove(queue_id)
        self._found = None
        self._spots[queue_id] = _spot(line.lane.name, turn, is_in_front)
        line.length += 1
        if line.lane.patience_ns is not None:
            line.ages.add(queue_id, since_ns, self._numbers)


@lru_cache(65_536)  # the same senders over and over
def _spot(lane: str, sender: str | None, is_in_front: bool) -> _Spot:  # noqa: FBT001 - a key of the cache
    return _Spot(lane, sender, is_in_front)


def _overdue(line: _Line, now_ns: int) -> tuple[int, QueueId] | None:
    """Return the message of a lane that exceeded its patience first, and when; None if none did."""
    if line.lane.patience_ns is None or (oldest := line.ages.oldest()) is None:
        return None
    due_ns = oldest[0] + line.lane.patience_ns
    return (due_ns, oldest[1]) if due_ns <= now_ns else None


def _first_of(line: _Line) -> QueueId:
    if line.ahead:
        return line.ahead.first
    sender, its = next(iter(line.senders.items()))
    return line.fronts.get(sender, its).first
