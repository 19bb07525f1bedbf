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
raises its lane's tag by cost / weight; the tag of an idle lane is raised to that of the last grant.  A policy
without lanes has one lane, in which senders take no turns.  Each call is O(lanes + log n), amortized.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from relay.queue.lines import TimedHeap
from relay.queue.queued import DEFAULT_LANE, Queued


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    weight: int = 1
    """A lane's share is its weight over the sum of all weights."""
    patience_ns: int | None = None
    """A message that is ready for longer than this goes before its turn."""


class Arrangement(NamedTuple):
    """The settings of a policy that order the line of an upstream."""

    lanes: Sequence[Lane] = ()
    """Empty, or one lane is named DEFAULT_LANE."""
    message_ns: int = 1
    recipient_ns: int = 0
    """What a message and a recipient cost their lane: the highest T / N of the limits over all mail."""
    most_recipients: int = 1
    """In one transaction."""

    def cost(self, recipients: int) -> int:
        return max(1, self.message_ns, min(recipients, self.most_recipients) * self.recipient_ns)


class _Flow:
    """A lane, or the overdue messages as one more lane: it gives messages by its weight."""

    def __init__(self, step: int, patience_ns: int | None = None) -> None:
        """`step` is how far a cost of 1 moves the tag."""
        self.step, self.patience_ns = step, patience_ns
        self.tag = 0
        self.senders: OrderedDict[str, OrderedDict[Queued, None]] = OrderedDict()
        """The messages of each sender, in order.  The first sender has the next turn."""
        self.ages: TimedHeap[Queued] = TimedHeap(self._is_there)
        """When the lane's patience with each message ends."""

    def _is_there(self, due_ns: int, message: Queued) -> bool:
        is_here = message in self.senders.get(message.origin.turn, ())
        return is_here and message.ready_at_ns + (self.patience_ns or 0) == due_ns


class Turn(NamedTuple):
    message: Queued
    flow: _Flow
    """The flow that is charged: the lane, or the overdue messages."""


class LaneQueue:
    def __init__(self, by: Arrangement = Arrangement()) -> None:  # noqa: B008 - it does not change
        self.by = by
        lanes = by.lanes or (Lane(DEFAULT_LANE),)
        weights = sum(lane.weight for lane in lanes)
        unit = lcm(*(lane.weight for lane in lanes), weights)
        self._lanes = {lane.name: _Flow(unit // lane.weight, lane.patience_ns) for lane in lanes}
        self._overdue = _Flow(unit // weights)
        self._length = 0
        self._tag = 0
        """The tag of the message that was granted last: no lane and no overdue message is behind it."""
        self._charged: dict[Queued, tuple[_Flow, int, int]] = {}
        """Messages that were taken, until it is known whether they go: the flow, its tag before, the cost."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Queued]:
        for lane in self._lanes.values():
            for line in lane.senders.values():
                yield from line

    def home_of(self, lane: str) -> str:
        """Return this lane, or the default lane if no lane has this name."""
        return lane if lane in self._lanes else DEFAULT_LANE

    def add(self, message: Queued, *, is_in_front: bool = False, is_next: bool = False) -> None:
        """Put a message behind its sender's others, or in front; `is_next` also gives its sender the turn."""
        lane, turn = self._lanes[self.home_of(message.lane)], self._turn_of(message)
        line = lane.senders.setdefault(turn, OrderedDict())
        line[message] = None
        self._length += 1
        if is_in_front or is_next:
            line.move_to_end(message, last=False)
        if is_next:
            lane.senders.move_to_end(turn, last=False)
        if lane.patience_ns is not None:
            lane.ages.add(message.ready_at_ns + lane.patience_ns, message)

    def remove(self, message: Queued) -> None:
        """Take a message out of the order; a message that is not in it is ignored."""
        senders, turn = self._lanes[self.home_of(message.lane)].senders, self._turn_of(message)
        if message in senders.get(turn, ()):
            del senders[turn][message]
            self._length -= 1
            if not senders[turn]:
                del senders[turn]

    def next(self, now_ns: int, closed: Collection[str | None] = ()) -> Turn | None:
        """Return the message that goes next; None if no lane has mail and is not among the `closed` ones."""
        able = [lane for name, lane in self._lanes.items() if lane.senders and name not in closed]
        if not able:
            return None
        lane = min(able, key=self._tag_of)
        if self._tag_of(self._overdue) < self._tag_of(lane):
            late = [first for each in able if (first := each.ages.first()) and first[0] <= now_ns]
            if late:
                return Turn(min(late, key=lambda each: each[0])[1], self._overdue)
        first_sender = next(iter(lane.senders.values()))
        return Turn(next(iter(first_sender)), lane)

    def take(self, turn: Turn) -> None:
        """Take the message of this turn, and charge its flow; `granted` or `refund` must follow."""
        message, flow = turn
        self.remove(message)
        if (sender := self._turn_of(message)) in flow.senders:
            flow.senders.move_to_end(sender)
        tag, cost = self._tag_of(flow), self.by.cost(message.recipients_left)
        flow.tag = tag + cost * flow.step
        self._charged[message] = flow, tag, cost

    def granted(self, message: Queued, recipients: int) -> None:
        """Correct the charge of a taken message to the recipients that go."""
        if message in self._charged:
            flow, tag, cost = self._charged.pop(message)
            flow.tag += (self.by.cost(recipients) - cost) * flow.step
            self._tag = max(self._tag, tag)

    def refund(self, message: Queued) -> None:
        """Undo the charge of a taken message that does not go."""
        if message in self._charged:
            flow, _, cost = self._charged.pop(message)
            flow.tag -= cost * flow.step

    def _turn_of(self, message: Queued) -> str:
        return message.origin.turn if self.by.lanes else ""

    def _tag_of(self, flow: _Flow) -> int:
        return max(flow.tag, self._tag)
