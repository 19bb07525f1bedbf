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
"""

from bisect import bisect_left

Opening = tuple[int, int]
"""When slots open, and what they weigh."""


class Window:
    """A decision looks at one number, never at all N slots."""

    __slots__ = ("openings", "used")

    def __init__(self) -> None:
        self.used = 0
        """What is in flight, and what has ended and is not freed yet."""
        self.openings: list[Opening] = []
        """Of the latter, ascending.  A list: of 200,000 keys each deque would take 600 bytes."""

    def open_at(self, free_at_ns: int, weight: int) -> None:
        """Have `weight` of what is used open at an instant."""
        openings = self.openings
        if not openings or openings[-1][0] < free_at_ns:
            openings.append((free_at_ns, weight))
            return
        index = bisect_left(openings, (free_at_ns,))
        if openings[index][0] == free_at_ns:
            openings[index] = free_at_ns, openings[index][1] + weight
        else:
            openings.insert(index, (free_at_ns, weight))

    def free(self, now_ns: int) -> None:
        """Forget what is free by now."""
        if freed := bisect_left(self.openings, (now_ns + 1,)):
            self.used -= sum([weight for _, weight in self.openings[:freed]])
            del self.openings[:freed]
