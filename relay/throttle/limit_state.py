"""One limit and the slots that occupy it, in one window or in a window for each key.  Pure.

The rule.  A slot is occupied from its reservation until one span after its transaction *ended*.  A span is
the period T plus a guard.  A transaction may start only if occupied + its weight <= N.  The interval is
half-open, and defined here only: a slot that ended at e is free at every now >= e + span.

The proof.  Suppose the upstream counted more than N in some half-open window of length T.  It counts a
transaction at some instant between our start and our end of it; we never learn which.  Let s be the start of
the transaction that started last; it was counted at c >= s.  Each other one was counted after c - T, so it
ended after c - T >= s - T: at s it was in flight, or had ended less than T ago.  So at s all the others were
occupied, and together with the last one they weighed more than N: it would not have started.
If slots were stamped at their start instead, an upstream with slow replies would see 17 of 10.

A limit with `for_each` has a window for each sender, domain, client, user or lane.  The window of the key
None counts for every key: it holds the slots that were recorded without this kind of key.  A key's room is N
less its own window and less the window of None.  A ceiling is a limit of kind `lane` with `only` one key.

Every `now_ns` is the true time or earlier.  A decision reads one number, never all N slots.  A query drops
the free slots of the windows that it reads.  Windows of other keys go when the history has become long: then
the book fills a new state from its merged past.  So the history bounds the memory, whatever N and T are.
"""

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from relay.throttle.history import Slot, weights_in
from relay.throttle.limit import Limit

Opening = tuple[int, int]
"""An instant at which slots become free, and their weight."""


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a limit is; of a limit with keys, how full its fullest key is."""

    limit: Limit
    key: str | None
    """The fullest key, or the only key that the limit judges."""
    used: int
    """May exceed N after an edit that lowered it."""
    opens_at_ns: int
    """The earliest instant at which one more may fit; now if one fits."""
    openings: tuple[Opening, ...]
    """When the slots that are used become free, if those in flight take a given time; in no order."""


class Window:
    __slots__ = ("openings", "used")

    def __init__(self) -> None:
        self.used = 0
        """The weight of the slots in flight, and of the ended slots that are not freed yet."""
        self.openings: list[Opening] = []
        """Of the ended slots, ascending.  A list: with 200,000 keys, each deque would take 600 bytes."""

    def open_at(self, free_at_ns: int, weight: int) -> None:
        """Let `weight` of `used` become free at an instant."""
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
        """Drop the slots that are free by now."""
        if freed := bisect_left(self.openings, (now_ns + 1,)):
            self.used -= sum([weight for _, weight in self.openings[:freed]])
            del self.openings[:freed]


class LimitState:
    def __init__(self, limit: Limit) -> None:
        self.limit, self.unit, self.count = limit, limit.unit, limit.count
        self.for_each, self.only = limit.for_each, limit.only
        self.span_ns = limit.span_ns
        self._windows = defaultdict[str | None, Window](Window)

    def charge(self, slot: Slot, now_ns: int) -> None:
        """Count a slot, in flight or ended."""
        free_at_ns = slot.until_ns + self.span_ns
        if slot.is_open or free_at_ns > now_ns:
            for key, weight in self._weights(slot):
                window = self._windows[key]
                window.used += weight
                if not slot.is_open:
                    window.open_at(free_at_ns, weight)

    def end(self, slot: Slot, at_ns: int) -> None:
        """Let a charged slot become free one span after `at_ns`."""
        for key, weight in self._weights(slot):
            self._windows[key].open_at(at_ns + self.span_ns, weight)

    def used(self, key: str | None, now_ns: int) -> int:
        """Return the weight that counts against N for a key; for None, what counts for every key."""
        used = 0
        for each in {None, key}:
            if (window := self._windows.get(each)) is not None:
                window.free(now_ns)
                used += window.used
        return used

    def room(self, key: str | None, now_ns: int) -> int:
        return max(0, self.count - self.used(key, now_ns))

    def opens_at(self, key: str | None, now_ns: int, weight: int = 1) -> int:
        """Return the earliest instant at which `weight` may fit beside what is used.

        It is never too late: the first transaction in flight that stands in the way could end now.  A weight
        above N never fits and counts as N here; the caller answers it with `TooLarge`.
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
        """Return the key that uses the most of N; None if none does.  Needs no lock: a guess is enough."""
        fullest, most = None, 0
        for key, window in self._windows.copy().items():
            # Most keys are below the fullest even with their free slots, so few windows are summed.
            if key is not None and window.used > most:
                used = window.used - sum([weight for at_ns, weight in window.openings if at_ns <= now_ns])
                if used > most:
                    fullest, most = key, used
        return fullest

    def usage(self, in_flight: Iterable[tuple[Slot, int]], now_ns: int, key: str | None) -> Usage:
        """Return the usage by a key, as if slots in flight ended at the instants given with them."""
        key = self.only or key
        used, opens_at_ns = self.used(key, now_ns), self.opens_at(key, now_ns)
        openings = [opening for window in self._openings({None, key}) for opening in window]
        for slot, ends_ns in in_flight:
            weights = [weight for each, weight in self._weights(slot) if each in (None, key)]
            openings += [(ends_ns + self.span_ns, weight) for weight in weights]
        return Usage(self.limit, key, used, opens_at_ns, tuple(openings))

    def _openings(self, keys: Iterable[str | None]) -> list[list[Opening]]:
        return [self._windows[key].openings for key in keys if key in self._windows]

    def _weights(self, slot: Slot) -> list[tuple[str | None, int]]:
        return weights_in(slot, self.unit, self.for_each, self.only)
