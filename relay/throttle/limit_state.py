"""One limit with all that occupies it: a window, or one for each key.  Pure.

A limit that says `for_each` has a window for each sender, domain, client, user or lane.  One more window,
that of the key None, counts for all keys: it holds what was recorded without this kind of key.  A key's room
is N less its own window less that one.  A ceiling is a limit of kind `lane` with `only` one key.

What was granted and is not durable yet is `taken`, beside the windows, and counts too.

Memory: at most `most_entries`, where each key and each instant at which something opens is one, and what
other relays record beyond that.  A limit with keys that is so crowded has no room until something opens.  A
key leaves once its window is empty.

Every `now_ns` is the truth or earlier, and what is free by it is forgotten.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from relay.throttle.events import Slot, weights_in
from relay.throttle.limit import ForEach, Limit, Unit
from relay.throttle.window import Opening, Window, bucket_of, opening_of

MOST_ENTRIES = 1_000_000
"""Of one limit: 200,000 keys of one message take 100 MB."""
LONGEST_DEFAULT_GUARD_NS = 1_000_000_000

Openings = tuple[Opening, ...]


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
    is_crowded: bool = False


@dataclass(frozen=True, slots=True)
class Limited:
    """A limit with all that occupies it, as an estimate goes on from it."""

    label: str
    unit: Unit
    count: int
    """N."""
    span_ns: int
    """T and its guard."""
    shared: Openings = ()
    for_each: ForEach | None = None
    of_key: Mapping[str, Openings] = field(default_factory=dict)
    only: str | None = None
    """The only key that it judges: the lane of a ceiling."""

    @property
    def taken(self) -> Openings:
        """What occupies it, where it has one window: without keys, or for one of them only."""
        return self.shared if self.only is None else (*self.shared, *self.of_key.get(self.only, ()))


class LimitState:
    def __init__(self, limit: Limit, guard_ns: int | None, most_entries: int = MOST_ENTRIES) -> None:
        self.label, self.unit, self.count = limit.label, limit.unit, limit.count
        self.for_each, self.only = limit.for_each, limit.only
        self.span_ns = span_of(limit, guard_ns)
        self._bucket_ns = bucket_of(limit.count, self.span_ns, has_keys=limit.for_each is not None)
        self._most_entries = most_entries
        self._instants = 0
        self.windows: dict[str | None, Window] = {None: Window()}
        self._first: list[tuple[int, bool, str | None]] = []
        """A heap of the windows in which something opens, by the first instant of each."""
        self.taken: dict[str | None, int] = {}
        """By key, what was granted and is not durable yet."""

    def is_about(self, key: str | None) -> bool:
        return self.only is None or self.only == key

    # What happens.

    def take(self, slot: Slot) -> None:
        """Count a slot that is granted, until it is known to be durable or `taken` is cleared."""
        for key, weight in self._weights(slot):
            self.taken[key] = self.taken.get(key, 0) + weight

    def start(self, slot: Slot) -> None:
        for key, weight in self._weights(slot):
            self._window(key).used += weight

    def end(self, slot: Slot, at_ns: int) -> None:
        for key, weight in self._weights(slot):
            self._open(key, weight, at_ns + self.span_ns)

    def charge(self, slot: Slot, now_ns: int) -> None:
        """Count a slot that has ended."""
        for key, weight in self._weights(slot):
            self.occupy(key, slot.until_ns + self.span_ns, weight, now_ns)

    def occupy(self, key: str | None, free_at_ns: int, weight: int, now_ns: int) -> None:
        if weight and free_at_ns > now_ns:
            self._window(key).used += weight
            self._open(key, weight, free_at_ns)

    def free(self, now_ns: int) -> None:
        """Forget what is free by now, and keys of which nothing is left."""
        while self._first and self._first[0][0] <= now_ns:
            _, _, key = heapq.heappop(self._first)
            window = self._window(key)
            freed = window.free(now_ns)
            self._instants -= freed
            # One that frees nothing was pushed twice.
            if freed and window.openings:
                heapq.heappush(self._first, (window.openings[0][0], key is None, key))
            if not window.used and key is not None:
                del self.windows[key]

    # Questions.

    def used(self, key: str | None, now_ns: int) -> int:
        """Return what counts against N for a key; for None, what counts for all."""
        self.free(now_ns)
        used = self.windows[None].used + self.taken.get(None, 0)
        if key is not None:
            used += self.taken.get(key, 0)
            if (window := self.windows.get(key)) is not None:
                used += window.used
        return used

    def room(self, key: str | None, now_ns: int) -> int:
        used = self.used(key, now_ns)
        return 0 if self.is_crowded else max(0, self.count - used)

    def opens_at(self, key: str | None, now_ns: int, weight: int = 1) -> int:
        """Return the earliest instant at which `weight` may fit beside all that there is.

        Never later than the truth: the first transaction in flight that stands in the way could end this
        moment.  More than N never fits, and is taken as N: the caller splits.
        """
        excess = self.used(key, now_ns) + min(weight, self.count) - self.count
        if excess <= 0:
            return self._first[0][0] if self.is_crowded else now_ns
        windows = [self.windows[each] for each in {None, key} if each in self.windows]
        opens_ns = opening_of(excess, [window.openings for window in windows])
        return now_ns + self.span_ns if opens_ns is None else opens_ns

    def usage(self, now_ns: int, key: str | None = None) -> Usage:
        """Of a limit with keys, `key` is the one that is told of; by default the fullest of them all."""
        self.free(now_ns)
        if self.for_each is not None:
            key = self.only or key or fullest(self.windows)
        return Usage(
            self.label,
            self.unit,
            self.used(key, now_ns),
            self.count,
            self.span_ns,
            self.opens_at(key, now_ns),
            self.for_each,
            key,
            self.is_crowded,
        )

    def limited(self, in_flight: Sequence[tuple[Slot, int]], now_ns: int) -> Limited:
        """All that occupies it, those in flight as if they ended at the instants given with them."""
        self.free(now_ns)
        openings = {key: list(window.openings) for key, window in self.windows.items()}
        for slot, ends_ns in in_flight:
            for key, weight in self._weights(slot):
                if weight:
                    openings[key].append((ends_ns + self.span_ns, weight))
        shared = tuple(openings.pop(None))
        of_key = {str(key): tuple(each) for key, each in openings.items()}
        whole = self.label, self.unit, self.count, self.span_ns
        return Limited(*whole, shared, self.for_each, of_key, self.only)

    @property
    def is_crowded(self) -> bool:
        is_full = self._instants + len(self.windows) > self._most_entries
        return is_full and self.for_each is not None and bool(self._first)

    def _weights(self, slot: Slot) -> list[tuple[str | None, int]]:
        return weights_in(slot, self.unit, self.for_each, self.only)

    def _window(self, key: str | None) -> Window:
        if (window := self.windows.get(key)) is None:
            window = self.windows[key] = Window()
        return window

    def _open(self, key: str | None, weight: int, free_at_ns: int) -> None:
        if not weight:
            return
        window = self.windows[key]
        free_at_ns = -(-free_at_ns // self._bucket_ns) * self._bucket_ns
        if window.open_at(free_at_ns, weight):
            self._instants += 1
            if window.openings[0][0] == free_at_ns:
                heapq.heappush(self._first, (free_at_ns, key is None, key))


def fullest(windows: Mapping[str | None, Window]) -> str | None:
    """Return the key of the fullest window of a key; None where there is none."""
    key, used = None, 0
    for each, window in windows.items():
        if window.used > used and each is not None:
            key, used = each, window.used
    return key


def span_of(limit: Limit, guard_ns: int | None) -> int:
    """Return T and the guard; None: 1 % of T, at most a second."""
    guard_ns = min(limit.per_ns // 100, LONGEST_DEFAULT_GUARD_NS) if guard_ns is None else guard_ns
    return limit.per_ns + guard_ns
