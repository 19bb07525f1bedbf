"""One limit's window: how much of it is occupied, and when room opens.  Pure.

The rule of sliding windows; that of a calendar's periods, and its proof, stand in `wall`.  A slot is
occupied from its reservation until one span after its transaction
*ended*; a span is the period T plus a guard.  A transaction may start only if occupied +
its weight <= N.  Half-open, and defined here only: a slot that ended at e is free at
every now >= e + T.

The proof.  Suppose the upstream counted more than N within some half-open window of
length T.  It counts a transaction somewhere between our start and our end of it, at
an instant that we never learn.  Take the one that started last, at s; it was counted
at c >= s.  Each other one was counted after c - T, so it ended after c - T >= s - T: at s
it was in flight, or had ended less than T ago.  So at s all others were occupied and
together with this one weighed more than N; it would not have started.  Stamping the
slot at its start instead lets an upstream with slow replies see 17 of 10.

Cost.  A decision looks at sums, never at all N slots.  Up to EXACT_SLOTS every end is kept
to the nanosecond; for a larger N the instants at which slots open are rounded *up* into
buckets of 1/1024 of the span, which bounds memory and wastes at most that much time; and
into 1/16 of it where there are so many windows that memory is short.

Of a calendar's period all slots open at one instant, which is not rounded: one entry for any N.

Instants are boottime of the current boot in nanoseconds.  Does not: know what is counted,
or which reservation is whose (see `slots`).
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain

EXACT_SLOTS = 4096
"""The largest N that is kept exactly; 8 bytes an instant, moved at most once a decision."""
BUCKETS = 1024
"""Into how many a span is divided when N is larger."""
COARSE_BUCKETS = 16
"""Where memory is short."""


class KeptSlots:
    """Shared by several windows; 52 bytes an instant."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries = 0


class Window:
    __slots__ = (
        "_bucket_ns",
        "_ended",
        "_free_at_ns",
        "_in_flight",
        "_kept",
        "_opens",
        "_weights",
        "count",
        "span_ns",
    )

    def __init__(
        self,
        count: int,
        period_ns: int,
        guard_ns: int,
        kept: KeptSlots | None = None,
        opens: Callable[[int], tuple[int, bool]] | None = None,
    ) -> None:
        """`kept` counts the memory of several windows.

        `opens` says when a slot opens that ended at an instant, at most one span later, and whether many
        open just then; None: one span later.
        """
        self.count = count
        self.span_ns = period_ns + guard_ns
        self._opens = opens
        self._kept = kept or KeptSlots()
        self._bucket_ns = 1 if count <= EXACT_SLOTS else max(1, self.span_ns // BUCKETS)
        self._in_flight = 0
        # Ended and still occupied: when each opens, ascending, and what it weighs.
        self._free_at_ns: list[int] = []
        self._weights: list[int] = []
        self._ended = 0

    def is_as_fine_for(self, count: int) -> bool:
        return (self.count <= EXACT_SLOTS) == (count <= EXACT_SLOTS)

    def start(self, weight: int) -> None:
        """Occupy `weight` until further notice.  The caller has asked first."""
        self._in_flight += weight

    def end(self, weight: int, ended_at_ns: int, *, is_short: bool = False) -> None:
        self._in_flight -= weight
        self.charge(weight, ended_at_ns, is_short=is_short)

    def charge(self, weight: int, ended_at_ns: int, *, is_short: bool = False) -> None:
        """Occupy `weight` until one span after an end, in any order of ends.

        `is_short`: memory is; up to 1/16 of a span longer.
        """
        self.occupy(weight, self.free_at(ended_at_ns, is_short=is_short))

    def free_at(self, ended_at_ns: int, *, is_short: bool = False) -> int:
        """Return until when it would be occupied by a slot that ended at an instant."""
        free_at_ns = ended_at_ns + self.span_ns
        if self._opens is not None:
            free_at_ns, is_boundary = self._opens(ended_at_ns)
            if is_boundary:
                return free_at_ns
        bucket_ns = max(self._bucket_ns, self.span_ns // COARSE_BUCKETS) if is_short else self._bucket_ns
        return -(-free_at_ns // bucket_ns) * bucket_ns

    def occupy(self, weight: int, free_at_ns: int) -> None:
        """Occupy `weight` until an instant."""
        self._ended += weight
        index = bisect_left(self._free_at_ns, free_at_ns)
        if index < len(self._free_at_ns) and self._free_at_ns[index] == free_at_ns:
            self._weights[index] += weight
        else:
            self._kept.entries += 1
            self._free_at_ns.insert(index, free_at_ns)
            self._weights.insert(index, weight)

    def occupied(self, now_ns: int) -> int:
        """Above N only after an edit that lowered N."""
        index = bisect_right(self._free_at_ns, now_ns)
        if index:
            self._kept.entries -= index
            self._ended -= sum(self._weights[:index])
            del self._free_at_ns[:index], self._weights[:index]
        return self._in_flight + self._ended

    def opens_at(
        self,
        weight: int,
        now_ns: int,
        beside: "Window | None" = None,
        reaches: Callable[[int], int | None] | None = None,
    ) -> int:
        """Return the earliest instant at which `weight` may fit; `now_ns` if it fits now.

        What `beside`, a window of the same limit, holds counts too.  Never later than the truth: the first
        transaction in flight that stands in the way could end this moment.  More than N never fits, and is
        taken as N: the caller splits.  `reaches` says when an N that grows is so large, None for never.
        """
        windows = [self] if beside is None else [self, beside]
        needed = sum(window.occupied(now_ns) for window in windows) + min(weight, self.count)
        at_ns, found_ns = now_ns, None
        ends: Iterator[tuple[int | None, int]] = chain(
            heapq.merge(*(window.ends() for window in windows)), [(None, 0)]
        )
        for free_at_ns, ended in ends:
            fits_ns = (now_ns if needed <= self.count else None) if reaches is None else reaches(needed)
            if fits_ns is not None and (found_ns is None or max(at_ns, fits_ns) < found_ns):
                found_ns = max(at_ns, fits_ns)
            if found_ns is not None and (free_at_ns is None or free_at_ns >= found_ns):
                return found_ns
            if free_at_ns is not None:
                at_ns, needed = free_at_ns, needed - ended
        return now_ns + self.span_ns if self._opens is None else self._opens(now_ns)[0]

    def ends(self) -> Iterator[tuple[int, int]]:
        """When each opens, ascending, and its weight."""
        return zip(self._free_at_ns, self._weights, strict=True)

    def openings(self, now_ns: int) -> tuple[tuple[int, int], ...]:
        """Return `ends` without what is free by now."""
        if self._free_at_ns and self._free_at_ns[0] <= now_ns:
            self.occupied(now_ns)
        return tuple(zip(self._free_at_ns, self._weights, strict=True))
