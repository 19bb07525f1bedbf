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

Every call but `copy`, `front` and `keys` is O(lanes + log n).  The caller tells when a message is no
longer ready (`remove`).
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, count, islice
from math import lcm
from typing import Any, NamedTuple, TypeVar

from relay.mail.address import comparable
from relay.mail.envelope import QueueId

Ordered = TypeVar("Ordered", bound=tuple[Any, ...])

DEFAULT_LANE = "default"
"""The lane of messages that match no other."""


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    weight: int = 1
    """A lane's share is its weight over the sum of all weights."""
    patience_ns: int | None = None
    """A message that is ready for longer goes before its turn."""
    has_ceiling: bool = False
    """The lane may give no more than `Order.let` says."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a transaction costs its lane: how long its slots take of the limit that they take longest of."""

    of_message_ns: int = 1
    of_recipient_ns: int = 0

    def of(self, recipients: int) -> int:
        """Return the cost of so many recipients, at least 1."""
        return max(1, self.of_message_ns, recipients * self.of_recipient_ns)


class Arrangement(NamedTuple):
    """By what a policy orders the queue."""

    lanes: Sequence[Lane]
    price: Price
    most_recipients: int
    """In a transaction."""


def turn_of(reverse_path: str) -> str:
    """Return the sender that takes turns: the address without what bulk mail adds for each recipient.

    A list that names the recipient in its return address (VERP: `list-return-7-me=here.example@…`,
    `list+me=here.example@…`) is one sender, or it would have a turn for each recipient.
    """
    local, at, domain = comparable(reverse_path).rpartition("@")
    if local.startswith("prvs="):  # BATV: tag before the address
        local = local.rpartition("=")[2]
    local = local.partition("+")[0] or local
    if "=" in local:
        kept = local.partition("=")[0]
        local = kept.rpartition("-")[0] or kept
    return f"{local}{at}{domain}"


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


SPARE_AGES = 1024
"""Entries of gone messages that a heap may hold beyond as many as are ready."""


class InLine(NamedTuple):
    """A message as an order has it; sorted, by since when they are ready, then as they came."""

    since_ns: int
    number: int
    queue_id: QueueId


class _Spot(NamedTuple):
    lane: str
    sender: str | None
    """None: ahead of all senders of its lane."""
    number: int
    since_ns: int
    is_in_front: bool = False


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
    ahead: OrderedDict[QueueId, None] = field(default_factory=OrderedDict)
    senders: OrderedDict[str, OrderedDict[QueueId, None]] = field(default_factory=OrderedDict)
    """The first sender is next."""
    fronts: dict[str, OrderedDict[QueueId, None]] = field(default_factory=dict)
    """By sender: its messages that go before its others."""
    ages: list[tuple[int, int, QueueId]] = field(default_factory=list)
    """A heap by when each message exceeds the patience; entries of messages that left stay in it."""

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
        twin.ahead, twin.senders, twin.fronts = OrderedDict(), OrderedDict(), {}
        twin.ages = smallest(self.ages, 2 * len(only))
        # The turns of senders are kept: the first of each comes in that order.
        for queue_id in only:
            spot = spots[queue_id]
            if spot.sender is None:
                twin.ahead[queue_id] = None
                continue
            its = twin.senders.setdefault(spot.sender, OrderedDict())
            if spot.is_in_front:
                its = twin.fronts.setdefault(spot.sender, OrderedDict())
            its[queue_id] = None
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
        self._charged: dict[QueueId, _Charge] = {}
        """Messages that were taken and are not known to have gone."""
        self._tag = 0
        """The tag of what went last: no lane or overdue flow is behind it."""
        self._numbers = count()
        self._found: tuple[int, tuple[_Flow, _Line, QueueId] | None] | None = None
        """What goes next, and as of when; None after a change."""
        self._preferred: QueueId | None = None

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
        self._enter(queue_id, _Spot(line.lane.name, turn, next(self._numbers), since_ns))
        line.senders.setdefault(turn, OrderedDict())[queue_id] = None

    def add_in_front(self, queue_id: QueueId, lane: str, sender: str, since_ns: int) -> None:
        """Put a message before the others of its sender, but behind those that are in front already."""
        line, turn = self._line(lane), self._turn(sender)
        self._enter(queue_id, _Spot(line.lane.name, turn, next(self._numbers), since_ns, is_in_front=True))
        line.senders.setdefault(turn, OrderedDict())
        line.fronts.setdefault(turn, OrderedDict())[queue_id] = None

    def add_ahead(self, queue_id: QueueId, lane: str, since_ns: int, *, is_first: bool = True) -> None:
        """Put a message ahead of its lane: before the messages ahead already, or behind them."""
        line = self._line(lane)
        self._enter(queue_id, _Spot(line.lane.name, None, next(self._numbers), since_ns))
        line.ahead[queue_id] = None
        if is_first:
            line.ahead.move_to_end(queue_id, last=False)

    def remove(self, queue_id: QueueId) -> None:
        """Forget a message; absent ids are ignored."""
        if (spot := self._spots.pop(queue_id, None)) is None:
            return
        self._found = None
        line = self._lines[spot.lane]
        line.length -= 1
        if spot.sender is None:
            del line.ahead[queue_id]
            return
        its = line.fronts if spot.is_in_front else line.senders
        del its[spot.sender][queue_id]
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

    def prefer(self, queue_id: QueueId | None) -> None:
        """Have a ready message go next, whosever turn it is; None: only the order counts."""
        if queue_id != self._preferred:
            self._found, self._preferred = None, queue_id

    def near(self, most: int) -> Iterator[QueueId]:
        """Yield the first messages of each lane that may give any: so many, or of so many senders."""
        for line in self._lines.values():
            if line.room == 0:
                continue
            yield from islice(line.ahead, most)
            for sender, its in islice(line.senders.items(), most):
                first = chain(line.fronts.get(sender, ()), its)
                yield from islice(first, 1 if self._has_turns else most)

    def let(self, lane: str, room: int | None) -> None:
        """Let a lane give so many more (None: any number), until the next call."""
        if lane in self._lines and self._lines[lane].room != room:
            self._found = None
            self._lines[lane].room = room

    def keys(self) -> list[QueueId]:
        """Return the messages that are ready, in no order; quick, as none is looked at."""
        return list(self._spots)

    def in_line(self, queue_ids: Iterable[QueueId]) -> Iterator[InLine]:
        """Yield those of some messages that are behind others of their sender.

        Messages ahead of their lane, or in front of their sender's others, are not among them.
        """
        for queue_id in queue_ids:
            spot = self._spots[queue_id]
            if spot.sender is not None and not spot.is_in_front:
                yield InLine(spot.since_ns, spot.number, queue_id)

    def ahead(self) -> list[tuple[QueueId, int]]:
        """Return the messages ahead of their lane, in that order, and since when each is ready."""
        ahead = (queue_id for line in self._lines.values() for queue_id in line.ahead)
        return [(queue_id, self._spots[queue_id].since_ns) for queue_id in ahead]

    def copy(self) -> "Order":
        """Return an independent copy of the order; O(n), and quick."""
        return self._twin({name: line.copy() for name, line in self._lines.items()}, self._spots.copy())

    def front(self, most: int) -> "Order":
        """Return a copy of what goes first: each lane has its share of `most`.  O(most · log most)."""
        share = max(1, most // len(self._lines))
        lines: dict[str, _Line] = {}
        spots: dict[QueueId, _Spot] = {}
        for name, line in self._lines.items():
            overdue = [age[2] for age in smallest(line.ages, share) if self._is_true(age)]
            only = dict.fromkeys([*line.first(share), *overdue])
            lines[name] = line.front(only, self._spots)
            spots |= {queue_id: self._spots[queue_id] for queue_id in only}
        return self._twin(lines, spots)

    def ids(self) -> Collection[QueueId]:
        """Return the messages that are ready, or were taken and may come back."""
        return [*self._spots, *self._charged]

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
        twin._preferred = self._preferred
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
        if self._preferred is not None and (spot := self._spots.get(self._preferred)) is not None:
            line = self._lines[spot.lane]
            if line.room != 0:
                return line, line, self._preferred
        line = min(lines, key=self._rank)
        if late := [age for each in lines if (age := self._oldest(each)) is not None and age[0] <= now_ns]:
            queue_id = min(late)[2]
            if self._rank(self._overdue) < self._rank(line):
                return self._overdue, self._lines[self._spots[queue_id].lane], queue_id
        return line, line, _first_of(line)

    def _rank(self, flow: _Flow) -> tuple[int, int]:
        return max(flow.tag, self._tag), flow.went

    def _line(self, lane: str) -> _Line:
        return self._lines[self.home_of(lane)]

    def _turn(self, sender: str) -> str:
        return turn_of(sender) if self._has_turns else ""

    def _enter(self, queue_id: QueueId, spot: _Spot) -> None:
        self.remove(queue_id)
        self._found = None
        self._spots[queue_id] = spot
        line = self._lines[spot.lane]
        line.length += 1
        if line.lane.patience_ns is not None:
            heapq.heappush(line.ages, (spot.since_ns + line.lane.patience_ns, spot.number, queue_id))
            if len(line.ages) > 2 * line.length + SPARE_AGES:
                line.ages = [age for age in line.ages if self._is_true(age)]
                heapq.heapify(line.ages)

    def _oldest(self, line: _Line) -> tuple[int, int, QueueId] | None:
        while line.ages and not self._is_true(line.ages[0]):
            heapq.heappop(line.ages)
        return line.ages[0] if line.ages else None

    def _is_true(self, age: tuple[int, int, QueueId]) -> bool:
        spot = self._spots.get(age[2])
        return spot is not None and spot.number == age[1]


def _first_of(line: _Line) -> QueueId:
    if line.ahead:
        return next(iter(line.ahead))
    sender, its = next(iter(line.senders.items()))
    return next(iter(line.fronts.get(sender, its)))
