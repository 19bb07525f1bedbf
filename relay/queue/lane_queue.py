"""The order of what may go now: lanes by weight, senders in turn, then first come first served.  Pure.

Guarantees, while nothing waits beyond its lane's patience:
- two lanes that always have mail differ by at most one message each, measured in shares; no lane is
  more than one message above its own share;
- an idle lane earns no credit; once it has mail it goes next, unless it had its share just before;
- within a lane senders take turns, a message each; a sender's messages leave in order.  Only a message that
  was taken and given back goes ahead of all senders;
- a closed lane keeps back no other.
Messages beyond their lane's patience go oldest first, as one more lane with as much weight as all lanes
together: it gets half, and a lane that uses less than half of its share is as quick as ever.

How: start-time fair queuing (Goyal, Vin, Cheng 1996).  Each message that a lane gives moves the lane's
tag by cost / weight; the lowest tag goes next, and an idle lane's tag is raised to the last one that went.
Without lanes there is one, and senders take no turns.

A message that leaves otherwise than by its turn stays in its sender's deque until it is first, or until such
entries are half of the lane's: it counts only while `Queued.spot` is that deque's line.  Each call is
O(lanes + log n), amortized.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import lcm
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.queue.instants import Instants
from relay.queue.lanes import DEFAULT_LANE, Arrangement, Lane, turn_of
from relay.queue.queued import Queued

MOST_FIRST = 64
"""Messages that are to go before all others (`put_first`) and are looked at."""
SPARE = 1024
"""Entries of messages that left, which a lane may have beyond as many as wait."""


@dataclass(slots=True, eq=False)
class _Flow:
    """A lane, or the overdue messages: gives messages by its weight."""

    step: int
    """How far its tag moves for a cost of 1."""
    tag: int = 0


@dataclass(slots=True, eq=False)
class _SenderLine:
    lane: "_Lane"
    turn: str
    messages: deque[Queued] = field(default_factory=deque)
    length: int = 0
    """Without the messages that left."""


@dataclass(slots=True, eq=False)
class _Lane(_Flow):
    lane: Lane = field(default_factory=lambda: Lane(DEFAULT_LANE))
    is_closed: bool = False
    length: int = 0
    entries: int = 0
    """In the deques, those of messages that left too."""
    senders: OrderedDict[str, _SenderLine] = field(default_factory=OrderedDict)
    """The first sender is next."""
    ages: Instants[Queued] = field(init=False)
    """Since when each message is ready; of a lane with patience."""

    def __post_init__(self) -> None:
        self.ages = Instants(self._is_there)

    def first(self) -> Queued:
        """Return whose turn it is; the lane must not be empty."""
        line = next(iter(self.senders.values()))
        while line.messages[0].spot is not line:
            line.messages.popleft()
            self.entries -= 1
        return line.messages[0]

    def overdue(self, now_ns: int) -> tuple[int, Queued] | None:
        """Return the message that exceeded the lane's patience first, and when; None if none did."""
        if self.lane.patience_ns is None or (oldest := self.ages.first()) is None:
            return None
        due_ns = oldest[0] + self.lane.patience_ns
        return (due_ns, oldest[1]) if due_ns <= now_ns else None

    def __iter__(self) -> Iterator[Queued]:
        for line in self.senders.values():
            # One that left and came back has two entries.
            yield from (each for each in dict.fromkeys(line.messages) if each.spot is line)

    def sweep(self) -> None:
        """Forget the entries of messages that left, where they are more than those that wait."""
        if self.entries > 2 * self.length + SPARE:
            for line in self.senders.values():
                line.messages = deque(each for each in dict.fromkeys(line.messages) if each.spot is line)
            self.entries = self.length

    def _is_there(self, since_ns: int, message: Queued) -> bool:
        spot = message.spot
        return isinstance(spot, _SenderLine) and spot.lane is self and message.since_ns == since_ns


class Turn(NamedTuple):
    """Who goes next."""

    message: Queued
    lane: _Lane
    flow: _Flow
    """Which is charged: the lane, or the overdue messages."""


class _Charge(NamedTuple):
    flow: _Flow
    cost: int
    tag: int
    tag_before: int


class LaneQueue:
    def __init__(self, by: Arrangement = Arrangement()) -> None:  # noqa: B008 - it does not change
        self.by = by
        lanes = by.lanes or (Lane(DEFAULT_LANE),)
        weights = sum(lane.weight for lane in lanes)
        unit = lcm(*(lane.weight for lane in lanes), weights)
        self._lanes = {lane.name: _Lane(unit // lane.weight, lane=lane) for lane in lanes}
        self._overdue = _Flow(unit // weights)
        self._tag = 0
        """The tag of what went last: no lane and no overdue message is behind it."""
        self._charged: dict[QueueId, _Charge] = {}
        """Messages that were taken, and of which it is not known whether they go."""
        self.firsts: dict[QueueId, Queued] = {}
        """Messages that go before those of all lanes, in this order; `granted` ends that."""

    def __len__(self) -> int:
        return sum(lane.length for lane in self._lanes.values())

    def __iter__(self) -> Iterator[Queued]:
        for lane in self._lanes.values():
            yield from lane

    def home_of(self, lane: str) -> str:
        """Return this lane, or the default one where there is none of this name."""
        return lane if lane in self._lanes else DEFAULT_LANE

    def add(self, message: Queued, *, is_in_front: bool = False, is_next: bool = False) -> None:
        """Put a message behind the others of its sender, or in front of them.

        `is_next`: the next turn of its lane is its sender's.
        """
        lane = self._lanes[self.home_of(message.lane)]
        turn = turn_of(message.reverse_path) if self.by.lanes else ""
        line = lane.senders.get(turn)
        if line is None:
            line = lane.senders[turn] = _SenderLine(lane, turn)
        if is_in_front:
            line.messages.appendleft(message)
        else:
            line.messages.append(message)
        if is_next:
            lane.senders.move_to_end(turn, last=False)
        message.spot = line
        line.length += 1
        lane.length += 1
        lane.entries += 1
        if lane.lane.patience_ns is not None:
            lane.ages.add(message.since_ns, message)

    def remove(self, message: Queued) -> None:
        """Take a message out of the order; one that is not in it is ignored."""
        if isinstance(line := message.spot, _SenderLine):
            message.spot = None
            line.length -= 1
            line.lane.length -= 1
            if not line.length:
                del line.lane.senders[line.turn]
                line.lane.entries -= len(line.messages)
            line.lane.sweep()

    def next(self, now_ns: int) -> Turn | None:
        lanes = [lane for lane in self._lanes.values() if lane.length and not lane.is_closed]
        if not lanes:
            return None
        for message in islice(self.firsts.values(), MOST_FIRST):
            if isinstance(line := message.spot, _SenderLine) and not line.lane.is_closed:
                return Turn(message, line.lane, line.lane)
        lane = min(lanes, key=self._tag_of)
        if self._tag_of(self._overdue) < self._tag_of(lane):
            late = [(*found, each) for each in lanes if (found := each.overdue(now_ns)) is not None]
            if late:
                _, message, of = min(late, key=lambda each: each[0])
                return Turn(message, of, self._overdue)
        return Turn(lane.first(), lane, lane)

    def take(self, turn: Turn) -> None:
        """Take who goes next, and charge its lane; `granted` or `refund` must follow."""
        message, lane, flow = turn
        line = message.spot
        self.remove(message)
        if flow is lane and isinstance(line, _SenderLine) and line.length:
            lane.senders.move_to_end(line.turn)
        cost = self._cost(message.recipients_left)
        before, self._tag = self._tag, self._tag_of(flow)
        flow.tag = self._tag + cost * flow.step
        self._charged[message.key] = _Charge(flow, cost, self._tag, before)

    def granted(self, message: Queued, recipients: int) -> None:
        """Correct the charge of a taken message to what goes."""
        self.firsts.pop(message.key, None)
        if (charged := self._charged.pop(message.key, None)) is not None:
            charged.flow.tag += (self._cost(recipients) - charged.cost) * charged.flow.step

    def refund(self, message: Queued) -> None:
        """Undo the charge of a taken message that does not go.  The last one that was taken comes first."""
        if (charged := self._charged.pop(message.key, None)) is not None:
            charged.flow.tag -= charged.cost * charged.flow.step
            if self._tag == charged.tag:
                # Else others went since, and who was idle meanwhile would have saved something.
                self._tag = charged.tag_before

    def put_first(self, message: Queued) -> None:
        """Have a message go before all others, behind those that were put first already."""
        self.firsts[message.key] = message

    def set_closed(self, lane: str, *, is_closed: bool) -> None:
        """Have a lane give nothing, or give again."""
        self._lanes[self.home_of(lane)].is_closed = is_closed

    @property
    def names(self) -> Collection[str]:
        return self._lanes.keys()

    def _tag_of(self, flow: _Flow) -> int:
        return max(flow.tag, self._tag)

    def _cost(self, recipients: int) -> int:
        return self.by.price.of(min(recipients, self.by.most_recipients))
