"""One limit with what it knows: a window, or one for each key.  Pure.

A limit that says `for_each` has a window for each sender, domain, client or user.  One more window is
shared by all keys: it holds what was recorded without this kind of key, and the keys that memory has
no room for.  A key's room is N less its own window less the shared one.  All of a key's past is in
those two, so no key ever exceeds N.  A shared slot counts against more keys than it has to, which
wastes; `Usage.is_crowded` tells of it.

A ceiling is a limit of kind `lane` with `only` one key.

Of a calendar's periods `wall` says when slots open; a clock that says something new makes `fits` False,
and then the gauge is filled anew.  Outside a limit's hours there is no room.  A ramp's N is that of the
instant that is asked about; it only grows, so any window that ends then held no more than that N.

Memory is bounded by `HistoryBounds.most_entries` instants, where a key weighs KEY_ENTRIES.  Beyond that no
further key gets a window, and the keys that have one keep further ends more coarsely.  A key leaves
once its window is empty.

Instants are boottime of the current boot in nanoseconds.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from relay.clock import SECOND_NS
from relay.throttle.bounds import BOUNDS
from relay.throttle.history_format import UNKNOWN, UNKNOWN_BYTES, Charged, Reserved
from relay.throttle.limit import Calendar, ForEach, Hours, Limit, Ramp, Unit, count_at, reaches_after_ns
from relay.throttle.wall import Times, WallBounds, opens_at, resets_at
from relay.throttle.window import KeptSlots, Window

KEY_ENTRIES = 8
"""What a key and its window weigh: at most 111,111 keys, of one instant each, have a window of their own."""
LOOKED_AT = 2
"""Other keys that each new one looks at, to let go of the empty ones."""
LONGEST_DEFAULT_GUARD_NS = 1_000_000_000
GRAINS = 3600
"""Into how many a calendar's longest period is divided for the doubt about it, to a second at most."""

Openings = tuple[tuple[int, int], ...]
"""When occupied slots open, and how many."""


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
    """Boottime at which there may be room for one more; now, if there is."""
    for_each: ForEach | None = None
    key: str | None = None
    most: int = 0
    """The most that was occupied at a start, of any key, since the gauge was made."""
    is_crowded: bool = False
    resets_at_ns: int | None = None
    """Boottime at which what has ended is free, of a calendar's period; None where a window slides."""
    is_closed: bool = False
    """It is outside its hours."""


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
    calendar: Calendar | None = None
    open_hours: Hours | None = None
    rise: Ramp | None = None
    times: Times = field(default_factory=Times, compare=False)
    """What was known of the clock."""
    guard_ns: int = 0
    """Part of `span_ns`; a calendar's is on both sides."""

    @property
    def per_ns(self) -> int:
        return self.span_ns


class _Terms(NamedTuple):
    calendar: Calendar | None
    hours: Hours | None
    ramp: Ramp | None

    @classmethod
    def of(cls, limit: Limit) -> "_Terms":
        return cls(limit.calendar, limit.open_hours, limit.rise)


class Gauge:
    def __init__(
        self,
        limit: Limit,
        guard_ns: int | None,
        times: Times | None = None,
        now_ns: int = 0,
        most_entries: int = BOUNDS.most_entries,
    ) -> None:
        """Share `times`, which goes on to be told of the clock."""
        self.label = limit.label
        self.unit = limit.unit
        self.for_each = limit.for_each
        self.only = limit.only
        self.count = limit.count
        self._terms = _Terms.of(limit)
        self._times = times or Times()
        self._period_ns = limit.per_ns
        self._guard_ns = _guard_of(limit, guard_ns)
        self._bounds = self._bounds_now(now_ns)
        self._kept = KeptSlots()
        self._most_entries = most_entries
        self._most = 0
        self._crowded_until_ns = -1
        self._shared = self._window()
        self._of_key: OrderedDict[str, Window] = OrderedDict()
        self._places: dict[int, list[tuple[Window, int]]] = {}
        """Where each reservation in flight is counted, since a key may get a window of its own later."""

    @property
    def span_ns(self) -> int:
        return self._shared.span_ns

    def is_about(self, key: str | None) -> bool:
        return self.only is None or self.only == key

    def may_go_on_as(self, limit: Limit, guard_ns: int | None) -> bool:
        """Return whether what is known is as good for a limit: only N is another, if that."""
        mine = self.unit, self.for_each, self.only, self._terms.calendar, self._period_ns, self._guard_ns
        its = limit.unit, limit.for_each, limit.only, limit.calendar, limit.per_ns, _guard_of(limit, guard_ns)
        return mine == its and self._shared.is_as_fine_for(limit.count)

    def go_on_as(self, limit: Limit) -> None:
        """Keep what is known; `may_go_on_as` said that it is good."""
        self.label, self.count = limit.label, limit.count
        self._terms = _Terms.of(limit)
        for window in (self._shared, *self._of_key.values()):
            window.count = limit.count

    def fits(self, now_ns: int) -> bool:
        """Return False where the clock may be another than the windows were filled by."""
        if self._terms.calendar is None:
            return True
        bounds = self._bounds_now(now_ns)
        fits = self._bounds.holds(bounds)
        if fits:
            # What is charged from now on need not know of readings that are too old to matter.
            self._bounds = bounds
        return fits

    def take_most_of(self, before: "Gauge") -> None:
        """Go on from the most that another gauge of this limit held."""
        self._most = max(self._most, before._most)  # noqa: SLF001 - of the same class

    def occupy(self, key: str | None, free_at_ns: int, weight: int, now_ns: int) -> None:
        """Occupy until an instant, by `Limited`."""
        self._home(key, now_ns).occupy(weight, free_at_ns)

    def count_now(self, now_ns: int) -> int:
        """Return the N of an instant."""
        if self._terms.ramp is None:
            return self.count
        return count_at(self.count, self._terms.ramp, self._times.elapsed_ns(self._terms.ramp, now_ns))

    def is_closed(self, now_ns: int) -> bool:
        return self._open_from(now_ns) > now_ns

    def start(self, reserved: Reserved, now_ns: int) -> None:
        if self._times.begun_at_ns is None:
            # An estimate's first: a ramp would never go on.
            self._times.began(now_ns)
        if self.for_each is None:
            self._shared.start(reserved.of(self.unit))
            self._most = max(self._most, self.used(None, now_ns))
            return
        places = self._places[reserved.id] = []
        for key, weight in self._weights(reserved):
            window = self._home(key, now_ns)
            # At once: an empty window would be let go of by the next key.
            window.start(weight)
            places.append((window, weight))
            self._most = max(self._most, self.used(key, now_ns))

    def end(self, reserved: Reserved, ended_at_ns: int) -> None:
        if self.for_each is None:
            self._shared.end(reserved.of(self.unit), ended_at_ns)
            return
        for window, weight in self._places.pop(reserved.id):
            window.end(weight, ended_at_ns, is_short=self._is_coarse(window))

    def charge(self, charged: Charged, now_ns: int) -> None:
        if charged.ended_at_ns + self.span_ns > now_ns:
            for key, weight in self._weights(charged):
                window = self._home(key, now_ns)
                window.charge(weight, charged.ended_at_ns, is_short=self._is_coarse(window))

    def used(self, key: str | None, now_ns: int) -> int:
        """Return what counts against N for a key; for None, what counts for all."""
        occupied = self._shared.occupied(now_ns)
        if key is not None and (own := self._of_key.get(key)) is not None:
            occupied += own.occupied(now_ns)
        return occupied

    def room(self, key: str | None, now_ns: int) -> int:
        if self._terms.hours is not None and self.is_closed(now_ns):
            return 0
        return max(0, self.count_now(now_ns) - self.used(key, now_ns))

    def opens_at(self, key: str | None, now_ns: int, weight: int = 1) -> int:
        """As `Window.opens_at`, for one key."""
        beside = None if key is None else self._of_key.get(key)
        if (ramp := self._terms.ramp) is None:
            return self._open_from(self._shared.opens_at(weight, now_ns, beside))
        weight = min(weight, self.count_now(now_ns))
        return self._open_from(self._shared.opens_at(weight, now_ns, beside, self._reaches_at(ramp, now_ns)))

    def usage(self, now_ns: int) -> Usage:
        """Look at every key."""
        key = self.only or max(self._of_key, key=lambda key: self._of_key[key].occupied(now_ns), default=None)
        return Usage(
            self.label,
            self.unit,
            self._shown(self.used(key, now_ns)),
            self.count_now(now_ns),
            self.span_ns,
            self.opens_at(key, now_ns),
            self.for_each,
            key,
            self._shown(self._most),
            now_ns < self._crowded_until_ns,
            self._resets_at(now_ns),
            self.is_closed(now_ns),
        )

    def limited(self, in_flight: Sequence[tuple[Reserved, int]], now_ns: int) -> Limited:
        """All that occupies it, those in flight as if they ended at the instants given with them."""
        ends_of: dict[int, list[tuple[int, int]]] = {}
        for reserved, ends_ns in in_flight:
            for_all = [(self._shared, reserved.of(self.unit))] if self.for_each is None else []
            # A ceiling knows nothing of what is in another lane.
            for window, weight in self._places.get(reserved.id, for_all):
                if weight:
                    ends_of.setdefault(id(window), []).append((window.free_at(ends_ns), weight))

        def openings(window: Window) -> Openings:
            ended = window.openings(now_ns)
            return (*ended, *more) if (more := ends_of.get(id(window))) else ended

        return Limited(
            self.label,
            self.unit,
            self.count,
            self.span_ns,
            openings(self._shared),
            self.for_each,
            {key: openings(window) for key, window in self._of_key.items()},
            self.only,
            self._terms.calendar,
            self._terms.hours,
            self._terms.ramp,
            self._times.copy(),
            0 if self._terms.calendar is None else self._guard_ns,
        )

    def _home(self, key: str | None, now_ns: int) -> Window:
        if key is None:
            return self._shared
        if (window := self._of_key.get(key)) is None:
            self._let_go(now_ns)
            if self._is_short():
                self._crowded_until_ns = now_ns + self.span_ns
                return self._shared
            window = self._of_key[key] = self._window()
        return window

    def _is_coarse(self, window: Window) -> bool:
        # What all share holds no more than N of the keys that have no window.
        return window is not self._shared and self._is_short()

    def _is_short(self) -> bool:
        weight = self._kept.entries + KEY_ENTRIES * len(self._of_key)
        return weight >= self._most_entries

    def _let_go(self, now_ns: int) -> None:
        """Look at the keys that were not looked at for longest, and forget the empty ones."""
        for _ in range(min(LOOKED_AT, len(self._of_key))):
            key, window = next(iter(self._of_key.items()))
            if window.occupied(now_ns):
                self._of_key.move_to_end(key)
            else:
                del self._of_key[key]

    def _weights(self, record: Reserved | Charged) -> Iterator[tuple[str | None, int]]:
        """Return weights by key; None stands for every key."""
        shares = [share for share in record.shares if share.for_each == self.for_each]
        if not shares:
            yield None, record.of(self.unit)
        for share in shares:
            if share.key != UNKNOWN and not self.is_about(share.key):
                continue
            if weight := share.of(self.unit):
                yield None if share.key == UNKNOWN else share.key, weight

    def _window(self) -> Window:
        if self._terms.calendar is None:
            return Window(self.count, self._period_ns, self._guard_ns, self._kept)
        calendar = self._terms.calendar

        def opens(ended_at_ns: int) -> tuple[int, bool]:
            return opens_at(calendar, self._guard_ns, self._bounds, ended_at_ns)

        return Window(self.count, calendar.longest_ns, 2 * self._guard_ns, self._kept, opens)

    def _resets_at(self, now_ns: int) -> int | None:
        return (
            None
            if self._terms.calendar is None
            else resets_at(self._terms.calendar, self._guard_ns, self._bounds, now_ns)
        )

    def _bounds_now(self, now_ns: int) -> WallBounds:
        if self._terms.calendar is None:
            return WallBounds()
        longest_ns = self._terms.calendar.longest_ns
        bounds = self._times.readings.bounds(now_ns - longest_ns - 2 * self._guard_ns)
        return bounds.rounded(max(1, min(SECOND_NS, longest_ns // GRAINS)))

    def _open_from(self, at_ns: int) -> int:
        """Return the first instant from one on that is within its hours."""
        if self._terms.hours is None:
            return at_ns
        # The owner's clock as it is: no count of the upstream depends on it.
        ahead_ns = self._times.ahead_ns
        return self._terms.hours.opens_at(at_ns + ahead_ns) - ahead_ns

    def _reaches_at(self, ramp: Ramp, now_ns: int) -> Callable[[int], int | None]:
        """Return what says when N is so large; None for never."""
        begins_ns = self._times.ramp_begins_ns(ramp, now_ns)

        def reaches(wanted: int) -> int | None:
            after_ns = reaches_after_ns(self.count, ramp, wanted)
            return None if after_ns is None else max(now_ns, begins_ns + after_ns)

        return reaches

    def _shown(self, used: int) -> int:
        """Return what is used as people read it: all of N, where the sizes of some are not known."""
        return (
            max(self.count, used % UNKNOWN_BYTES) if self.unit == "bytes" and used >= UNKNOWN_BYTES else used
        )


def _guard_of(limit: Limit, guard_ns: int | None) -> int:
    return min(limit.per_ns // 100, LONGEST_DEFAULT_GUARD_NS) if guard_ns is None else guard_ns
