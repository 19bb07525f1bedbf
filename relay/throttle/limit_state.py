"""One limit with all that occupies it: a window, or one for each key.  Pure.

A limit that says `for_each` has a window for each sender, domain, client, user or lane.  One more window is
shared by all keys: it holds what was recorded without this kind of key, and the keys that memory has
no room for.  A key's room is N less its own window less the shared one.  All of a key's past is in
those two, so no key ever exceeds N.  A shared slot counts against more keys than it has to, which
wastes; `Usage.is_crowded` tells of it.  A ceiling is a limit of kind `lane` with `only` one key.

What was decided and is not durable yet is a draft, in windows of its own that count too: `drop` forgets it.

Memory: at most `most_entries` instants, where a key weighs KEY_ENTRIES.  Beyond that no further key gets
a window, and the keys that have one keep further ends more coarsely.  A key leaves once its window is
empty.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from relay.throttle.events import Slot, weights_in
from relay.throttle.limit import ForEach, Limit, Unit
from relay.throttle.window import EXACT_SLOTS, Window, opens_at

MOST_ENTRIES = 1_000_000
"""Instants that the windows of one limit keep, some 55 MB; with the coarse ones 150 MB at worst."""
KEY_ENTRIES = 8
"""What a key and its window weigh: at most 111,111 keys, of one instant each, have a window of their own."""
LOOKED_AT = 2
"""Other keys that each new one looks at, to let go of the empty ones."""
FULLEST_KEPT = 16
"""Keys among which `usage` looks for the fullest: those that were fullest at their last start."""
LONGEST_DEFAULT_GUARD_NS = 1_000_000_000

Openings = tuple[tuple[int, int], ...]
"""When occupied slots open, and how many."""
Place = tuple[str | None, int]
"""The key by whose window a slot counts, None for the shared one, and its weight."""


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
    most: int = 0
    """The most that was occupied at a start, of any key, since this process judges by the limit."""
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
    def per_ns(self) -> int:
        return self.span_ns


class LimitState:
    def __init__(self, limit: Limit, guard_ns: int | None, most_entries: int = MOST_ENTRIES) -> None:
        self.label, self.unit, self.count = limit.label, limit.unit, limit.count
        self.for_each, self.only = limit.for_each, limit.only
        self.span_ns = span_of(limit, guard_ns)
        self._is_exact = limit.count <= EXACT_SLOTS
        self._most_entries = most_entries
        self._entries = self._most = 0
        self._crowded_until_ns = -1
        self._shared = Window(limit.count, self.span_ns)
        self._of_key: OrderedDict[str, Window] = OrderedDict()
        self._drafts: dict[str | None, Window] = {}
        self._places: dict[int, list[Place]] = {}
        """Where each slot in flight counts, of a limit with keys: a key may get a window of its own later."""
        self._fullest: dict[str, int] = {}

    def is_about(self, key: str | None) -> bool:
        return self.only is None or self.only == key

    def may_go_on_as(self, limit: Limit, guard_ns: int | None) -> bool:
        """Return whether what is known is as good for a limit: only N is another, if that."""
        mine = self.unit, self.for_each, self.only, self.span_ns, self._is_exact
        its = limit.unit, limit.for_each, limit.only, span_of(limit, guard_ns), limit.count <= EXACT_SLOTS
        return mine == its

    def go_on_as(self, limit: Limit) -> None:
        """Keep what is known; `may_go_on_as` said that it is good."""
        self.label, self.count = limit.label, limit.count

    # What is durable.

    def start(self, slot: Slot, now_ns: int) -> None:
        if self.for_each is None:
            self._entries -= self._shared.free(now_ns)
            self._shared.fly(slot.of(self.unit))
            self._most = max(self._most, self._shared.occupied(now_ns))
            return
        places = self._places[slot.id] = []
        for key, weight in weights_in(slot, self.unit, self.for_each, self.only):
            home = self._home(key, now_ns)
            places.append((home, weight))
            # At once: an empty window would be let go of by the next key.
            window = self._window(home)
            self._entries -= window.free(now_ns)
            window.fly(weight)
            used = self.used(key, now_ns)
            self._most = max(self._most, used)
            if home is not None:
                self._note(home, used)

    def end(self, slot: Slot, at_ns: int) -> None:
        for home, weight in self._places_of(slot):
            window = self._window(home)
            window.fly(-weight)
            self._occupy(window, weight, at_ns + self.span_ns)
        self._places.pop(slot.id, None)

    def charge(self, slot: Slot, now_ns: int) -> None:
        """Count a slot that has ended."""
        if slot.until_ns + self.span_ns > now_ns:
            for key, weight in weights_in(slot, self.unit, self.for_each, self.only):
                self.occupy(key, slot.until_ns + self.span_ns, weight, now_ns)

    def occupy(self, key: str | None, free_at_ns: int, weight: int, now_ns: int) -> None:
        home = self._home(key, now_ns)
        self._occupy(self._window(home), weight, free_at_ns)
        if home is not None:
            self._note(home, self.used(home, now_ns))

    # What is decided.

    def propose_start(self, slot: Slot) -> None:
        for key, weight in weights_in(slot, self.unit, self.for_each, self.only):
            self._draft(key).fly(weight)

    def propose_end(self, slot: Slot, at_ns: int) -> None:
        for home, weight in self._places_of(slot):
            self._draft(home).fly(-weight)
            self._draft(home).occupy(weight, at_ns + self.span_ns)

    def propose_charge(self, slot: Slot) -> None:
        for key, weight in weights_in(slot, self.unit, self.for_each, self.only):
            self._draft(key).occupy(weight, slot.until_ns + self.span_ns)

    def drop(self) -> None:
        """Forget what was only decided."""
        if self._drafts:
            self._drafts = {}

    # Questions.

    def used(self, key: str | None, now_ns: int) -> int:
        """Return what counts against N for a key; for None, what counts for all."""
        return sum([window.occupied(now_ns) for window in self._windows(key)])

    def room(self, key: str | None, now_ns: int) -> int:
        return max(0, self.count - self.used(key, now_ns))

    def opens_at(self, key: str | None, now_ns: int, weight: int = 1) -> int:
        return opens_at(self._windows(key), weight, self.count, self.span_ns, now_ns)

    def usage(self, now_ns: int) -> Usage:
        """Take no longer for many keys: what is told of may be a key that was fullest a little earlier."""
        key = self.only
        if key is None and self.for_each is not None:
            used = {key: self.used(key, now_ns) for key in self._fullest if key in self._of_key}
            self._fullest = {key: each for key, each in used.items() if each > self.used(None, now_ns)}
            key = max(self._fullest, key=self._fullest.__getitem__, default=None)
        return Usage(
            self.label,
            self.unit,
            self.used(key, now_ns),
            self.count,
            self.span_ns,
            self.opens_at(key, now_ns),
            self.for_each,
            key,
            self._most,
            now_ns < self._crowded_until_ns,
        )

    def limited(self, in_flight: Sequence[tuple[Slot, int]], now_ns: int) -> Limited:
        """All that occupies it, those in flight as if they ended at the instants given with them."""
        more: dict[str | None, list[tuple[int, int]]] = {}
        for slot, ends_ns in in_flight:
            # A ceiling knows nothing of what is in another lane.
            for home, weight in self._places_of(slot):
                if weight:
                    more.setdefault(home, []).append((ends_ns + self.span_ns, weight))

        def openings(key: str | None, window: Window) -> Openings:
            return (*window.openings(now_ns), *more.get(key, ()))

        of_key = {key: openings(key, window) for key, window in self._of_key.items()}
        shared = openings(None, self._shared)
        whole = self.label, self.unit, self.count, self.span_ns
        return Limited(*whole, shared, self.for_each, of_key, self.only)

    def _window(self, home: str | None) -> Window:
        return self._shared if home is None else self._of_key[home]

    def _windows(self, key: str | None) -> list[Window]:
        windows = [self._shared]
        if key is not None and (own := self._of_key.get(key)) is not None:
            windows.append(own)
        if self._drafts:
            windows += [self._drafts[each] for each in {None, key} if each in self._drafts]
        return windows

    def _draft(self, key: str | None) -> Window:
        if (draft := self._drafts.get(key)) is None:
            draft = self._drafts[key] = Window(self.count, self.span_ns)
        return draft

    def _places_of(self, slot: Slot) -> Sequence[Place]:
        if self.for_each is None:
            return [(None, slot.of(self.unit))]
        return self._places.get(slot.id, ())

    def _home(self, key: str | None, now_ns: int) -> str | None:
        if key is None or key in self._of_key:
            return key
        self._let_go(now_ns)
        if self._is_short:
            self._crowded_until_ns = now_ns + self.span_ns
            return None
        self._of_key[key] = Window(self.count, self.span_ns)
        return key

    @property
    def _is_short(self) -> bool:
        return self._entries + KEY_ENTRIES * len(self._of_key) >= self._most_entries

    def _occupy(self, window: Window, weight: int, free_at_ns: int) -> None:
        # What all share holds no more than N of the keys that have no window.
        is_coarse = window is not self._shared and self._is_short
        self._entries += window.occupy(weight, free_at_ns, is_coarse=is_coarse)

    def _let_go(self, now_ns: int) -> None:
        """Look at the keys that were not looked at for longest, and forget the empty ones."""
        for _ in range(min(LOOKED_AT, len(self._of_key))):
            key, window = next(iter(self._of_key.items()))
            self._entries -= window.free(now_ns)
            if window.occupied(now_ns):
                self._of_key.move_to_end(key)
            else:
                del self._of_key[key]

    def _note(self, key: str, used: int) -> None:
        # The newest last: of two that are as full, the older one is empty sooner.
        self._fullest.pop(key, None)
        self._fullest[key] = used
        if len(self._fullest) > FULLEST_KEPT:
            del self._fullest[min(self._fullest, key=self._fullest.__getitem__)]


def span_of(limit: Limit, guard_ns: int | None) -> int:
    """Return T and the guard; None: 1 % of T, at most a second."""
    guard_ns = min(limit.per_ns // 100, LONGEST_DEFAULT_GUARD_NS) if guard_ns is None else guard_ns
    return limit.per_ns + guard_ns
