"""What the wall clock may say, and when a period of a calendar is surely over.  Pure.

An offset is how far the wall clock is ahead of boottime.  Each decision reads it.  Offsets that were
read within the longest period before now are all possible: the clock was right before a step or
behind it, and nobody can tell which.  `WallBounds` are the least and the most of them; after a
reboot that the clock cannot explain the most is not known at all.

The rule.  A slot that ended at e is occupied until no period that may hold e can go on: at the end of
the period that holds e + guard by the upstream's clock, and a guard later.  What is in flight is
occupied.

The proof.  Let the upstream's clock be ahead of boottime by an offset that is within the bounds, up to
the guard.  Suppose it counted more than N in one period.  Take the transaction of these that started
last, at s: s lies before the period's end, by the guard at most behind it.  Each other one ended
after the period's begin, less the guard, or was in flight at s.  By that offset its slot opens at the
period's end and a guard, or later, so it was occupied at s; `opens_at` is the latest of all offsets
within the bounds.  So at s all of them together weighed more than N, and the last would not have started.

A period is at most as long as the calendar's longest, so a slot never opens later than one of a
sliding window of that length: a clock that is wholly in doubt costs the reset, and nothing more.

HistoryBounds are rounded outwards to `grain_ns`, so that a clock that is slewed moves them rarely.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from relay.clock import LONGEST_DURATION_NS, SECOND_NS
from relay.throttle.bounds import BOUNDS, HistoryBounds
from relay.throttle.history_format import ClockReading
from relay.throttle.limit import Calendar, Ramp

RAMP_DOUBT_NS = 86_400 * SECOND_NS
"""For so long an earlier reading of the clock holds a dated ramp back."""


class WallBounds(NamedTuple):
    least_ns: int = 0
    most_ns: int | None = 0
    """None: not known."""

    def rounded(self, grain_ns: int) -> "WallBounds":
        most_ns = None if self.most_ns is None else -(-self.most_ns // grain_ns) * grain_ns
        return WallBounds(self.least_ns // grain_ns * grain_ns, most_ns)

    def holds(self, other: "WallBounds") -> bool:
        if self.least_ns > other.least_ns:
            return False
        return self.most_ns is None or (other.most_ns is not None and other.most_ns <= self.most_ns)

    def and_of(self, other: "WallBounds") -> "WallBounds":
        most_ns = None
        if self.most_ns is not None and other.most_ns is not None:
            most_ns = max(self.most_ns, other.most_ns)
        return WallBounds(min(self.least_ns, other.least_ns), most_ns)


class Readings:
    """Every offset that was read, in bounded memory: never less is possible than was read."""

    def __init__(self, kept: Iterable[ClockReading] = (), bounds: HistoryBounds = BOUNDS) -> None:
        self._kept: list[ClockReading] = []
        self._most, self._alike_ns = bounds.most_readings, bounds.alike_ns
        for each in kept:
            self.add(each)

    def __iter__(self) -> Iterator[ClockReading]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, now_ns: int, wall_ns: int) -> None:
        self.add(ClockReading(now_ns, now_ns, wall_ns - now_ns, wall_ns - now_ns))

    def add(self, new: ClockReading) -> None:
        for index in range(len(self._kept) - 1, -1, -1):
            before = self._kept[index]
            is_next = index == len(self._kept) - 1 and new.since_ns >= before.since_ns
            is_beside = new.since_ns <= before.until_ns and before.since_ns <= new.until_ns
            # Never over another reading in between: the clock did not say this all along.
            if (is_next or is_beside) and (both := self._together(before, new)) is not None:
                self._kept[index] = both
                return
            if is_next and new.until_ns > before.until_ns:
                break
        self._kept.append(new)
        self._kept.sort(key=lambda each: each.until_ns)
        while len(self._kept) > self._most:
            first, second, *later = self._kept
            bounds = WallBounds(*first[2:]).and_of(WallBounds(*second[2:]))
            merged = ClockReading(min(first.since_ns, second.since_ns), second.until_ns, *bounds)
            self._kept = [merged, *later]

    def forget(self, now_ns: int) -> None:
        """Drop what no limit can ask for."""
        self._kept = [each for each in self._kept if each.until_ns >= now_ns - LONGEST_DURATION_NS]

    def bounds(self, since_ns: int) -> WallBounds:
        """Return what was read since an instant; the last one read, where that is earlier."""
        found = [WallBounds(*each[2:]) for each in self._kept if each.until_ns >= since_ns]
        if not found:
            found = [WallBounds(*each[2:]) for each in self._kept[-1:]]
        if not found:
            return WallBounds(0, None)
        bounds = found[0]
        for each in found[1:]:
            bounds = bounds.and_of(each)
        return bounds

    def _together(self, before: ClockReading, new: ClockReading) -> ClockReading | None:
        """Return one reading for both, where they are alike."""
        if before == new:
            return new
        if before.most_ns is None or new.most_ns is None:
            return None
        least_ns, most_ns = min(before.least_ns, new.least_ns), max(before.most_ns, new.most_ns)
        if most_ns - least_ns > self._alike_ns:
            return None
        return ClockReading(
            min(before.since_ns, new.since_ns), max(before.until_ns, new.until_ns), least_ns, most_ns
        )


class Times:
    """All that limits ask of time but the present instant (boottime)."""

    def __init__(
        self,
        readings: Iterable[ClockReading] = (),
        begun_at_ns: int | None = None,
        bounds: HistoryBounds = BOUNDS,
    ) -> None:
        self._bounds = bounds
        self.readings = Readings(readings, bounds)
        self.begun_at_ns = begun_at_ns
        """When the account had its first slot."""
        self.ahead_ns = 0
        """How far the wall clock was ahead of boottime when it was last read."""
        if last := list(self.readings)[-1:]:
            self.ahead_ns = last[0].least_ns

    def read(self, now_ns: int, wall_ns: int) -> None:
        self.ahead_ns = wall_ns - now_ns
        self.readings.read(now_ns, wall_ns)

    def began(self, at_ns: int) -> None:
        """Know that it had a slot at an instant."""
        self.begun_at_ns = at_ns if self.begun_at_ns is None else min(at_ns, self.begun_at_ns)

    def copy(self) -> "Times":
        twin = Times(self.readings, self.begun_at_ns, self._bounds)
        twin.ahead_ns = self.ahead_ns
        return twin

    def elapsed_ns(self, ramp: Ramp, now_ns: int) -> int:
        """Return for how long a ramp has gone on for sure."""
        return now_ns - self.ramp_begins_ns(ramp, now_ns)

    def ramp_begins_ns(self, ramp: Ramp, now_ns: int) -> int:
        """Return when it began (boottime), or the latest that this may have been."""
        if ramp.since_ns is None:
            return now_ns if self.begun_at_ns is None else self.begun_at_ns
        return ramp.since_ns - self.readings.bounds(now_ns - RAMP_DOUBT_NS).least_ns


def opens_at(calendar: Calendar, guard_ns: int, bounds: WallBounds, ended_at_ns: int) -> tuple[int, bool]:
    """Return when a slot opens that ended at an instant (boottime), and whether that is a boundary."""
    first_ns = calendar.after(ended_at_ns + bounds.least_ns + guard_ns)
    at_ns = first_ns + guard_ns - bounds.least_ns
    if bounds.most_ns is not None and ended_at_ns + bounds.most_ns + guard_ns < first_ns:
        return at_ns, True
    # Some clock has a new period begin just then: it is over one period later.
    return max(at_ns, ended_at_ns + 2 * guard_ns + calendar.longest_ns), False


def resets_at(calendar: Calendar, guard_ns: int, bounds: WallBounds, now_ns: int) -> int:
    """Return the first instant at which what ended before now is free."""
    return opens_at(calendar, guard_ns, bounds, now_ns)[0]
