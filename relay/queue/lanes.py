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
Without lanes there is one, and senders take no turns.  Each call is O(lanes + log n), amortized.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import lcm
from typing import NamedTuple

from relay.mail.address import comparable
from relay.queue.lines import Instants, MessageLine, earliest
from relay.queue.queued import DEFAULT_LANE, Queued

__all__ = ["DEFAULT_LANE", "Arrangement", "Lane", "LaneQueue", "Price", "Turn", "turn_of"]

MOST_FIRST = 64
"""Messages that are to go before all others (`put_first`) and are looked at."""


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    weight: int = 1
    """A lane's share is its weight over the sum of all weights."""
    patience_ns: int | None = None
    """A message that is ready for longer goes before its turn."""
    has_ceiling: bool = False


@dataclass(frozen=True, slots=True)
class Price:
    """What a transaction costs its lane: how long its slots take of the limit that they take longest of."""

    of_message_ns: int = 1
    of_recipient_ns: int = 0

    def of(self, recipients: int) -> int:
        return max(1, self.of_message_ns, recipients * self.of_recipient_ns)


class Arrangement(NamedTuple):
    """By what a policy orders the line of an upstream."""

    lanes: Sequence[Lane] = ()
    """None, or one of them is named DEFAULT_LANE."""
    price: Price = Price()
    most_recipients: int = 1
    """In a transaction."""


class _Flow:
    """A lane, or the overdue messages: gives messages by its weight."""

    def __init__(self, step: int, patience_ns: int | None = None) -> None:
        """`step`: how far its tag moves for a cost of 1."""
        self.step, self.patience_ns = step, patience_ns
        self.tag = self.closed_until_ns = self.length = 0
        self.senders: OrderedDict[str, _SenderLine] = OrderedDict()
        """The first sender is next."""
        self.ages: Instants[Queued] = Instants(self._is_there)
        """Since when each message is ready; of a lane with patience."""

    def overdue(self, now_ns: int) -> tuple[int, Queued] | None:
        """Return when the lane's patience ended first, and for which message; None where it did not."""
        if self.patience_ns is None or (oldest := self.ages.first()) is None:
            return None
        due_ns = oldest[0] + self.patience_ns
        return (due_ns, oldest[1]) if due_ns <= now_ns else None

    def _is_there(self, since_ns: int, message: Queued) -> bool:
        line = message.spot
        return isinstance(line, _SenderLine) and line.lane is self and message.since_ns == since_ns


class _SenderLine(MessageLine):
    __slots__ = ("lane", "turn")
    lane: _Flow
    turn: str


class Turn(NamedTuple):
    """Which message goes next."""

    message: Queued
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
        self._lanes = {lane.name: _Flow(unit // lane.weight, lane.patience_ns) for lane in lanes}
        self._overdue = _Flow(unit // weights)
        self._tag = 0
        """The tag of what went last: no lane and no overdue message is behind it."""
        self._charged: dict[Queued, _Charge] = {}
        """Messages that were taken, and of which it is not known whether they go."""
        self.firsts: dict[Queued, None] = {}
        """Messages that go before those of all lanes, in this order; `granted` ends that."""

    def __len__(self) -> int:
        return sum(lane.length for lane in self._lanes.values())

    def __iter__(self) -> Iterator[Queued]:
        for lane in self._lanes.values():
            for line in lane.senders.values():
                yield from line

    @property
    def names(self) -> Collection[str]:
        return self._lanes.keys()

    def home_of(self, lane: str) -> str:
        """Return this lane, or the default one where there is none of this name."""
        return lane if lane in self._lanes else DEFAULT_LANE

    def add(self, message: Queued, *, is_in_front: bool = False, is_next: bool = False) -> None:
        """Put a message behind the others of its sender, or in front of them.

        `is_next`: in front, and the next turn of its lane is its sender's.
        """
        lane = self._lanes[self.home_of(message.lane)]
        turn = turn_of(message.reverse_path) if self.by.lanes else ""
        line = lane.senders.get(turn)
        if line is None:
            line = lane.senders[turn] = _SenderLine()
            line.lane, line.turn = lane, turn
        line.put(message, is_in_front=is_in_front or is_next)
        lane.length += 1
        if is_next:
            lane.senders.move_to_end(turn, last=False)
        if lane.patience_ns is not None:
            lane.ages.add(message.since_ns, message)

    def remove(self, message: Queued) -> None:
        """Take a message out of the order; one that is not in it is ignored."""
        if isinstance(line := message.spot, _SenderLine):
            line.discard(message)
            line.lane.length -= 1
            if not line:
                del line.lane.senders[line.turn]

    def next(self, now_ns: int) -> Turn | None:
        able = [lane for lane in self._lanes.values() if lane.length and lane.closed_until_ns <= now_ns]
        if not able:
            return None
        for message in islice(self.firsts, MOST_FIRST):
            if isinstance(line := message.spot, _SenderLine) and line.lane in able:
                return Turn(message, line.lane)
        lane = min(able, key=self._tag_of)
        if self._tag_of(self._overdue) < self._tag_of(lane):
            late = [found for each in able if (found := each.overdue(now_ns)) is not None]
            if late:
                return Turn(min(late, key=lambda each: each[0])[1], self._overdue)
        return Turn(next(iter(lane.senders.values())).first(), lane)

    def take(self, turn: Turn) -> None:
        """Take what goes next, and charge its lane; `granted` or `refund` must follow."""
        message, flow = turn
        line = message.spot
        self.remove(message)
        if isinstance(line, _SenderLine) and line and line.lane is flow:
            flow.senders.move_to_end(line.turn)
        cost = self._cost(message.recipients_left)
        before, self._tag = self._tag, self._tag_of(flow)
        flow.tag = self._tag + cost * flow.step
        self._charged[message] = _Charge(flow, cost, self._tag, before)

    def granted(self, message: Queued, recipients: int) -> None:
        """Correct the charge of a taken message to what goes."""
        self.firsts.pop(message, None)
        if (charged := self._charged.pop(message, None)) is not None:
            charged.flow.tag += (self._cost(recipients) - charged.cost) * charged.flow.step

    def refund(self, message: Queued) -> None:
        """Undo the charge of a taken message that does not go.  The last one that was taken comes first."""
        if (charged := self._charged.pop(message, None)) is not None:
            charged.flow.tag -= charged.cost * charged.flow.step
            if self._tag == charged.tag:
                # Else others went since, and a lane that was idle meanwhile would have saved something.
                self._tag = charged.tag_before

    def close(self, lane: str, until_ns: int) -> None:
        """Have a lane give nothing until an instant."""
        self._lanes[self.home_of(lane)].closed_until_ns = until_ns

    def opens_ns(self, now_ns: int) -> int | None:
        """Return when the first of the closed lanes with mail gives again."""
        lanes = [lane for lane in self._lanes.values() if lane.length and lane.closed_until_ns > now_ns]
        return earliest(*(lane.closed_until_ns for lane in lanes))

    def _tag_of(self, flow: _Flow) -> int:
        return max(flow.tag, self._tag)

    def _cost(self, recipients: int) -> int:
        return self.by.price.of(min(recipients, self.by.most_recipients))


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
