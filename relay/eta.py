"""When what is waiting will have gone: an estimate for people.  Pure.

The throttle decides exactly, message by message, on its own history; this only
foretells it.  The model: a unit that is waiting takes the next slot that opens, and
occupies it for exactly one window.  So of N slots that open after f1 <= f2 <= ... <= fN
the k-th waiting unit gets slot k modulo N, one window later in each round.  That is
exact where every opening is known, each message weighs one, and transactions take no
time; a slot whose opening is not known is put evenly between the last known one and
the end of the window.  Retries, new mail and split transactions are not foreseen.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Unit = Literal["messages", "recipients", "connections"]


@dataclass(frozen=True, slots=True)
class Room:
    """One window, as the estimate sees it.  Spans count from now."""

    unit: Unit
    count: int
    """N: how many slots there are."""
    used: int
    """How many are occupied now; above `count` after an edit that lowered it."""
    period_ns: int
    opens_in_ns: tuple[int, ...] = ()
    """When occupied slots open, ascending: the first ones, as far as they are known."""


def starts_in_ns(nth: int, room: Room) -> int:
    """Return how long until the `nth` unit that is waiting may start; 0 for none, and for "now"."""
    if nth <= 0:
        return 0
    rounds, position = divmod(nth - 1, room.count)
    # Slots that are free come first; with more used than N, the first openings free nothing.
    rank = position - (room.count - room.used)
    return rounds * room.period_ns + (0 if rank < 0 else _opening_in_ns(rank, room))


def drain_in_ns(messages: int, recipients: int, rooms: Iterable[Room]) -> int:
    """Return how long until the last of so many waiting messages may start, all limits together.

    One on connections has no say: how many messages go over each is not known.
    """
    waiting = {"messages": messages, "recipients": recipients, "connections": 0}
    return max((starts_in_ns(waiting[room.unit], room) for room in rooms), default=0)


def _opening_in_ns(rank: int, room: Room) -> int:
    """Return when the occupied slot of this rank opens, counted from the first to open."""
    known = room.opens_in_ns
    if rank < len(known):
        return max(0, known[rank])
    last_ns = max(0, known[-1]) if known else 0
    unknown = room.used - len(known)
    return last_ns + max(0, room.period_ns - last_ns) * (rank - len(known) + 1) // unknown
