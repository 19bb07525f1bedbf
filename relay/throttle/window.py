"""One limit's window: how much of it is occupied, and when room opens.  Pure.

The rule.  A slot is occupied from its reservation until one span after its transaction *ended*; a span is
the period T and a guard.  A transaction may start only if occupied + its weight <= N.  Half-open, and
defined here only: a slot that ended at e is free at every now >= e + T.

The proof.  Suppose the upstream counted more than N within some half-open window of length T.  It counts a
transaction somewhere between our start and our end of it, at an instant that we never learn.  Take the one
that started last, at s; it was counted at c >= s.  Each other one was counted after c - T, so it ended
after c - T >= s - T: at s it was in flight, or had ended less than T ago.  So at s all others were
occupied and together with this one weighed more than N; it would not have started.  Stamping the
slot at its start instead lets an upstream with slow replies see 17 of 10.

Cost.  A decision looks at one number, never at all N slots.  Up to EXACT_SLOTS every end is kept to the
nanosecond; for a larger N the instants at which slots open are rounded *up* into buckets of 1/1024 of the
span, which bounds memory and wastes at most that much time.  Of the windows of keys there are many: there an
N above KEY_BUCKETS has buckets of 1/256.
"""

import bisect
import heapq
from collections.abc import Iterable

EXACT_SLOTS = 4096
BUCKETS = 1024
KEY_BUCKETS = 256

Opening = tuple[int, int]
"""When slots open, and what they weigh."""


def bucket_of(count: int, span_ns: int, *, has_keys: bool) -> int:
    """Return how coarsely a window of N and a span keeps the instants at which slots open."""
    exact, buckets = (KEY_BUCKETS, KEY_BUCKETS) if has_keys else (EXACT_SLOTS, BUCKETS)
    return 1 if count <= exact else max(1, span_ns // buckets)


class Window:
    __slots__ = ("openings", "used")

    def __init__(self) -> None:
        self.used = 0
        """What is in flight, and what has ended and is still occupied."""
        self.openings: list[Opening] = []
        """Of the latter, ascending.  A list: of 200,000 keys each deque would take 600 bytes."""

    def open_at(self, free_at_ns: int, weight: int) -> bool:
        """Have `weight` of what is used open at an instant; return whether that is one instant more."""
        openings = self.openings
        if not openings or openings[-1][0] < free_at_ns:
            openings.append((free_at_ns, weight))
            return True
        index = bisect.bisect_left(openings, (free_at_ns,))
        if openings[index][0] == free_at_ns:
            openings[index] = free_at_ns, openings[index][1] + weight
            return False
        openings.insert(index, (free_at_ns, weight))
        return True

    def free(self, now_ns: int) -> int:
        """Forget what is free by now; return how many instants that were."""
        freed = bisect.bisect_left(self.openings, (now_ns + 1,))
        self.used -= sum([weight for _, weight in self.openings[:freed]])
        del self.openings[:freed]
        return freed


def opening_of(excess: int, openings: Iterable[Iterable[Opening]]) -> int | None:
    """Return when `excess` of all these will have opened; None where they are not as much."""
    for free_at_ns, weight in heapq.merge(*openings):
        excess -= weight
        if excess <= 0:
            return free_at_ns
    return None
