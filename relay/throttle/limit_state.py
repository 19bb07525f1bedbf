"""One limit with all that occupies it: a window, or one for each key.  Pure.

The rule.  A slot is occupied from its reservation until one span after its transaction *ended*; a span is
the period T and a guard.  A transaction may start only if occupied + its weight <= N.  Half-open, and
defined here only: a slot that ended at e is free at every now >= e + T.

The proof.  Suppose the upstream counted more than N within some half-open window of length T.  It counts a
transaction somewhere between our start and our end of it, at an instant that we never learn.  Take the one
that started last, at s; it was counted at c >= s.  Each other one was counted after c - T, so it ended
after c - T >= s - T: at s it was in flight, or had ended less than T ago.  So at s all others were
occupied and together with this one weighed more than N; it would not have started.  Stamping the
slot at its start instead lets an upstream with slow replies see 17 of 10.

A limit that says `for_each` has a window for each sender, domain, client, user or lane.  One more window,
that of the key None, counts for all keys: it holds what was recorded without this kind of key.  A key's room
is N less its own window less that one.  A ceiling is a limit of kind `lane` with `only` one key.

What was granted and is not durable yet is `taken`, beside the windows, and counts too.

Every `now_ns` is the truth or earlier.  A decision looks at one number, never at all N slots.  A window
forgets what is free when it is asked; those of keys that nobody asks about go when the book merges its past,
and fills a new state from that.  So memory is that of the book, whatever N and T are.
"""

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from relay.throttle.history import Slot, weights_in
from relay.throttle.limit import ForEach, Limit, Unit

LONGEST_DEFAULT_GUARD_NS = 1_000_000_000
Opening = tuple[int, int]
"""When slots open, and what they weigh."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a limit with keys, the fullest key."""

    label: str
    unit: Unit
    used: int
    """Above `count` after an edit that lowered it."""
    count: int
    span_ns: int
    """The period and its guard."""
    opens_at_ns: int
    """When there may be room for one more; now, if there is."""
    for_each: ForEach | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Limited:
    """A limit with what occupies it, as an estimate goes on from it."""

    label: str
    unit: Unit
    count: int
    """N."""
    span_ns: int
    """T and its guard."""
    for_each: ForEach | None
    only: str | None
    """The only key that it judges: the lane of a ceiling."""
    taken: tuple[Opening, ...]
    """What counts for that key, or for all of them."""


class Window:
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


class LimitState:
    def __init__(self, limit: Limit, guard_ns: int | None) -> None:
        """`guard_ns` None: 1 % of T, at most a second."""
        self.label, self.unit, self.count = limit.label, limit.unit, limit.count
        self.for_each, self.only = limit.for_each, limit.only
        guard_ns = min(limit.per_ns // 100, LONGEST_DEFAULT_GUARD_NS) if guard_ns is None else guard_ns
        self.span_ns = limit.per_ns + guard_ns
        self._windows = defaultdict[str | None, Window](Window)
        self.taken = Counter[str | None]()
        """By key, what was granted and is not durable yet."""

    # What happens.

    def take(self, slot: Slot) -> None:
        """Count a slot that is granted, until it is known to be durable or `taken` is cleared."""
        for key, weight in self._weights(slot):
            self.taken[key] += weight

    def charge(self, slot: Slot, now_ns: int) -> None:
        """Count a slot that is durable, whether it has ended or not."""
        free_at_ns = slot.until_ns + self.span_ns
        if slot.is_open or free_at_ns > now_ns:
            for key, weight in self._weights(slot):
                window = self._windows[key]
                window.used += weight
                if not slot.is_open:
                    window.open_at(free_at_ns, weight)

    def end(self, slot: Slot, at_ns: int) -> None:
        """Have a slot that was charged open one span after an instant."""
        for key, weight in self._weights(slot):
            self._windows[key].open_at(at_ns + self.span_ns, weight)

    # Questions.

    def used(self, key: str | None, now_ns: int) -> int:
        """Return what counts against N for a key; for None, what counts for all."""
        used = 0
        for each in {None, key}:
            used += self.taken[each]
            if (window := self._windows.get(each)) is not None:
                window.free(now_ns)
                used += window.used
        return used

    def room(self, key: str | None, now_ns: int) -> int:
        return max(0, self.count - self.used(key, now_ns))

    def opens_at(self, key: str | None, now_ns: int, weight: int = 1) -> int:
        """Return the earliest instant at which `weight` may fit beside all that there is.

        Never later than the truth: the first transaction in flight that stands in the way could end this
        moment.  More than N never fits, and is taken as N: the caller splits.
        """
        excess = self.used(key, now_ns) + min(weight, self.count) - self.count
        if excess <= 0:
            return now_ns
        for opens_at_ns, opening in heapq.merge(*self._openings({None, key})):
            excess -= opening
            if excess <= 0:
                return opens_at_ns
        return now_ns + self.span_ns

    def fullest_key(self, now_ns: int) -> str | None:
        """Return the key with the most of N; None where there is none.  Needs no lock: a guess is enough."""
        fullest, most = None, 0
        for key, window in self._windows.copy().items():
            # Most keys are below the fullest even with what is free by now.
            if key is not None and window.used > most:
                used = window.used - sum([weight for at_ns, weight in window.openings if at_ns <= now_ns])
                if used > most:
                    fullest, most = key, used
        return fullest

    def usage(self, now_ns: int, key: str | None) -> Usage:
        key = self.only or key
        used, opens_at_ns = self.used(key, now_ns), self.opens_at(key, now_ns)
        return Usage(self.label, self.unit, used, self.count, self.span_ns, opens_at_ns, self.for_each, key)

    def limited(self, in_flight: Iterable[tuple[Slot, int]], now_ns: int) -> Limited:
        """Return what occupies it, those in flight as if they ended at the instants given with them."""
        self.used(self.only, now_ns)
        keys = {None, self.only}
        taken = [opening for openings in self._openings(keys) for opening in openings]
        for slot, ends_ns in in_flight:
            taken += [(ends_ns + self.span_ns, weight) for key, weight in self._weights(slot) if key in keys]
        its = self.label, self.unit, self.count, self.span_ns, self.for_each, self.only
        return Limited(*its, tuple(taken))

    @property
    def size(self) -> int:
        """Return how much memory it takes, in windows and instants."""
        return sum([1 + len(window.openings) for window in self._windows.values()])

    def _openings(self, keys: Iterable[str | None]) -> list[list[Opening]]:
        return [self._windows[key].openings for key in keys if key in self._windows]

    def _weights(self, slot: Slot) -> list[tuple[str | None, int]]:
        return weights_in(slot, self.unit, self.for_each, self.only)
