"""Counts the most that any window of a limit can have held.  Pure.

The audit shares no arithmetic with `limit`, which it judges.  A slot is occupied from its reservation
until T after its end, or T after its deadline if it has no end.  All that an upstream counted in one window
of length T was occupied when the last of it began.  So the most that is occupied at one instant is the most
that any window can hold.  T is the policy's; the guard is beyond what is promised.

The audit counts slots since the last that compaction merged, which are known one by one.  It leaves out
shares that may belong to any key.  It judges by today's limits: if N was lowered or a limit added, earlier
mail may exceed it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relay.throttle.history import Slot
from relay.throttle.limit import Limit


@dataclass(frozen=True, slots=True)
class Peak:
    label: str
    unit: str
    count: int
    period_ns: int
    most: int
    """The most that was occupied at once; by one key if the limit has keys."""
    most_at_ns: int | None
    """The first instant at which `most` was occupied; None if it is 0."""
    key: str | None

    @property
    def is_exceeded(self) -> bool:
        return self.most > self.count


@dataclass(frozen=True, slots=True)
class Audit:
    transactions: int
    """Known one by one."""
    connections: int
    in_flight: int
    """Transactions and connections without an end."""
    merged: int
    """Older messages and connections; not all are known one by one."""
    since_ns: int | None
    """The earliest instant that is known; None for an empty history."""
    exact_since_ns: int | None
    """The last end of a merged slot: all that is later is known exactly.  None if nothing was merged."""
    findings: tuple[Peak, ...]
    """In the order of the limits."""


def audit(slots: Sequence[Slot], limits: Sequence[Limit]) -> Audit:
    """Audit slots, which must ascend by their ends."""
    merged = [index for index, slot in enumerate(slots, 1) if slot.messages + slot.connections > 1]
    older = slots[: max(merged, default=0)]
    # A slot that outlived its deadline was charged twice under one id; the later record has its end.
    known = {slot.id: slot for slot in slots[len(older) :]}.values()
    return Audit(
        sum(slot.messages for slot in known),
        sum(slot.connections for slot in known),
        sum(slot.is_open for slot in known),
        sum(slot.messages + slot.connections for slot in older),
        min((slot.started_at_ns for slot in slots), default=None),
        older[-1].until_ns if older else None,
        tuple(_peak(limit, known) for limit in limits),
    )


def _peak(limit: Limit, known: Iterable[Slot]) -> Peak:
    # For each key: the instants at which its weight changes, and by how much.  An end sorts before a start.
    steps_of = defaultdict[str | None, list[tuple[int, int]]](list)
    for slot in known:
        for key, weight in limit.weights(slot):
            if key is not None or limit.for_each is None:
                steps_of[key] += [(slot.started_at_ns, weight), (slot.until_ns + limit.per_ns, -weight)]
    most, most_at_ns, of_key = 0, None, None
    for key, steps in steps_of.items():
        occupied = 0
        for at_ns, weight in sorted(steps):
            occupied += weight
            if occupied > most:
                most, most_at_ns, of_key = occupied, at_ns, key
    return Peak(limit.label, limit.unit, limit.count, limit.per_ns, most, most_at_ns, of_key)
