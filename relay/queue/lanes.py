"""The order of messages that may go now: lanes by weight, senders in turn, first come first served.  Pure.

Guarantees, while no message has waited longer than its lane's patience:
- two lanes that always have mail differ by at most one message each, measured in shares; no lane gets
  more than one message above its own share;
- an idle lane earns no credit; once it has mail it goes next, unless it had its share just before;
- within a lane senders take turns, one message each; a sender's messages leave in order.  Only a message
  that was taken and given back goes ahead of all senders;
- a closed lane delays no other lane.
Messages beyond their lane's patience go oldest first.  They form one more lane, with as much weight as all
lanes together.  So they get half, and do not delay a lane that uses less than half of its share.

How: start-time fair queuing (Goyal, Vin, Cheng 1996).  The lane with the lowest tag goes next.  Each message
raises its lane's tag by cost / weight; the tag of an idle lane is raised to the tag that went last.  A policy
without lanes has one lane, in which senders take no turns.  Each call is O(lanes + log n), amortized.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import lcm
from typing import NamedTuple

from relay.mail.address import comparable
from relay.queue.lines import MessageLine, TimedHeap, earliest
from relay.queue.queued import DEFAULT_LANE, Queued

__all__ = ["DEFAULT_LANE", "Arrangement", "Lane", "LaneQueue", "Price", "Turn", "turn_of"]

MOST_FIRST = 64
"""How many of the messages that go before all others (`put_first`) are examined for the next turn."""


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    weight: int = 1
    """A lane's share is its weight over the sum of all weights."""
    patience_ns: int | None = None
    """A message that is ready for longer than this goes before its turn."""
    has_ceiling: bool = False


@dataclass(frozen=True, slots=True)
class Price:
    """What a transaction costs its lane: the highest T / N of the limits over all mail, for each unit."""

    of_message_ns: int = 1
    of_recipient_ns: int = 0

    def of(self, recipients: int) -> int:
        return max(1, self.of_message_ns, recipients * self.of_recipient_ns)


class Arrangement(NamedTuple):
    """The settings of a policy that order the line of an upstream."""

    lanes: Sequence[Lane] = ()
    """Empty, or one lane is named DEFAULT_LANE."""
    price: Price = Price()
    most_recipients: int = 1
    """In one transaction."""


class _Flow:
    """A lane, or the overdue messages as one more lane: it gives messages by its weight."""

    def __init__(self, step: int, patience_ns: int | None = None) -> None:
        """`step` is how far a cost of 1 moves the tag."""
        self.step, self.patience_ns = step, patience_ns
        self.tag = self.closed_until_ns = self.length = 0
        self.senders: OrderedDict[str, _SenderLine] = OrderedDict()
        """The first sender has the next turn."""
        self.ages: TimedHeap[Queued] = TimedHeap(self._is_there)
        """Since when each message is ready; used in a lane with patience."""

    def overdue(self, now_ns: int) -> tuple[int, Queued] | None:
        """Return when the lane's patience first ended, and for which message; None if it has not ended."""
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
    message: Queued
    flow: _Flow
    """The flow that is charged: the lane, or the overdue messages."""


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
        """The tag of the message that went last: no lane and no overdue message is behind it."""
        self._charged: dict[Queued, _Charge] = {}
        """Messages that were taken, until it is known whether they go."""
        self.firsts: dict[Queued, None] = {}
        """Messages that go before those of all lanes, in this order, until `granted`."""

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
        """Return this lane, or the default lane if no lane has this name."""
        return lane if lane in self._lanes else DEFAULT_LANE

    def add(self, message: Queued, *, is_in_front: bool = False, is_next: bool = False) -> None:
        """Put a message behind its sender's others, or in front; `is_next` also gives its sender the turn."""
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
        """Take a message out of the order; a message that is not in it is ignored."""
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
        """Take the message of this turn, and charge its flow; `granted` or `refund` must follow."""
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
        """Correct the charge of a taken message to the recipients that go."""
        self.firsts.pop(message, None)
        if (charged := self._charged.pop(message, None)) is not None:
            charged.flow.tag += (self._cost(recipients) - charged.cost) * charged.flow.step

    def refund(self, message: Queued) -> None:
        """Undo the charge of a taken message that does not go.  Refund the last taken message first."""
        if (charged := self._charged.pop(message, None)) is not None:
            charged.flow.tag -= charged.cost * charged.flow.step
            if self._tag == charged.tag:
                # If other messages went since, this would give credit to a lane that was idle meanwhile.
                self._tag = charged.tag_before

    def close(self, lane: str, until_ns: int) -> None:
        """Let a lane give no message until an instant."""
        self._lanes[self.home_of(lane)].closed_until_ns = until_ns

    def opens_ns(self, now_ns: int) -> int | None:
        """Return when the first closed lane with mail opens; None without such a lane."""
        lanes = [lane for lane in self._lanes.values() if lane.length and lane.closed_until_ns > now_ns]
        return earliest(*(lane.closed_until_ns for lane in lanes))

    def _tag_of(self, flow: _Flow) -> int:
        return max(flow.tag, self._tag)

    def _cost(self, recipients: int) -> int:
        return self.by.price.of(min(recipients, self.by.most_recipients))


def turn_of(reverse_path: str) -> str:
    """Return the sender that takes turns: the address without what bulk mail adds for each recipient.

    A list that names the recipient in its return address (VERP: `list-return-7-me=here.example@…`,
    `list+me=here.example@…`) is one sender.  Otherwise it would have a turn for each recipient.
    """
    local, at, domain = comparable(reverse_path).rpartition("@")
    if local.startswith("prvs="):  # BATV: a tag before the address
        local = local.rpartition("=")[2]
    local = local.partition("+")[0] or local
    if "=" in local:
        kept = local.partition("=")[0]
        local = kept.rpartition("-")[0] or kept
    return f"{local}{at}{domain}"
