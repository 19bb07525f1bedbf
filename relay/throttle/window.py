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

Cost.  A decision looks at sums, never at all N slots.  Up to EXACT_SLOTS every end is kept to the
nanosecond; for a larger N the instants at which slots open are rounded *up* into buckets of 1/1024 of the
span, which bounds memory and wastes at most that much time; and into 1/16 of it where a limit has so many
keys that memory is short.
"""

import heapq
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

EXACT_SLOTS = 4096
BUCKETS = 1024
COARSE_BUCKETS = 16


class Window:
    __slots__ = ("_bucket_ns", "_coarse_ns", "_ended", "_free_at_ns", "_in_flight", "_weights")

    def __init__(self, count: int, span_ns: int) -> None:
        self._bucket_ns = 1 if count <= EXACT_SLOTS else max(1, span_ns // BUCKETS)
        self._coarse_ns = max(self._bucket_ns, span_ns // COARSE_BUCKETS)
        self._in_flight = self._ended = 0
        # Ended and still occupied: when each opens, ascending, and what it weighs.
        self._free_at_ns: list[int] = []
        self._weights: list[int] = []

    def fly(self, weight: int) -> None:
        """Occupy `weight` until further notice; a negative one ends that."""
        self._in_flight += weight

    def occupy(self, weight: int, free_at_ns: int, *, is_coarse: bool = False) -> int:
        """Occupy `weight` until an instant, in any order of instants; return how many more are kept."""
        bucket_ns = self._coarse_ns if is_coarse else self._bucket_ns
        free_at_ns = -(-free_at_ns // bucket_ns) * bucket_ns
        self._ended += weight
        index = bisect_left(self._free_at_ns, free_at_ns)
        if index < len(self._free_at_ns) and self._free_at_ns[index] == free_at_ns:
            self._weights[index] += weight
            return 0
        self._free_at_ns.insert(index, free_at_ns)
        self._weights.insert(index, weight)
        return 1

    def free(self, now_ns: int) -> int:
        """Forget what is free by now; return how many instants that were."""
        index = bisect_right(self._free_at_ns, now_ns)
        if index:
            self._ended -= sum(self._weights[:index])
            del self._free_at_ns[:index], self._weights[:index]
        return index

    def occupied(self, now_ns: int) -> int:
        """Above N only after an edit that lowered N.  Changes nothing: `now_ns` may be a guess."""
        index = bisect_right(self._free_at_ns, now_ns)
        occupied = self._in_flight + self._ended
        return occupied - sum(self._weights[:index]) if index else occupied

    def openings(self, now_ns: int) -> Iterator[tuple[int, int]]:
        """Yield when each of what has ended and is occupied opens, ascending, and its weight."""
        index = bisect_right(self._free_at_ns, now_ns)
        opens = zip(self._free_at_ns, self._weights, strict=True)
        return itertools.islice(opens, index, None) if index else opens


def opens_at(windows: Sequence[Window], weight: int, count: int, span_ns: int, now_ns: int) -> int:
    """Return the earliest instant at which `weight` may fit beside all that these windows hold.

    Never later than the truth: the first transaction in flight that stands in the way could end this moment.
    More than N never fits, and is taken as N: the caller splits.
    """
    excess = sum(window.occupied(now_ns) for window in windows) + min(weight, count) - count
    if excess <= 0:
        return now_ns
    for free_at_ns, freed in heapq.merge(*(window.openings(now_ns) for window in windows)):
        excess -= freed
        if excess <= 0:
            return free_at_ns
    return now_ns + span_ns
