"""Limits as tests write them, and what tests do with a throttle."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relay.clock import SECOND_NS
from relay.spool.disk.durable import Disk
from relay.throttle.admission import TooLarge, Wait
from relay.throttle.bounds import BOUNDS, HistoryBounds
from relay.throttle.limit import Calendar, ForEach, Hours, Limit, Ramp, Unit
from relay.throttle.throttle import Request, Reservation, Throttle
from tests.fakes.clock import FakeClock

TRANSACTION_NS = 100 * SECOND_NS
WRITTEN_ANEW = HistoryBounds(compact_above_bytes=0, record_bytes=10)
"""A history that is written anew at almost each append."""


@dataclass(frozen=True)
class PerPeriod:
    """A limit: `count` of `unit` in any window of `per_ns`."""

    count: int
    per_ns: int
    unit: Unit = "messages"
    for_each: ForEach | None = None
    only: str | None = None
    calendar: Calendar | None = None
    open_hours: Hours | None = None
    rise: Ramp | None = None

    @property
    def label(self) -> str:
        each = f" for each {self.for_each}" if self.for_each else ""
        per = f"{self.per_ns / SECOND_NS:g}s" if self.calendar is None else self.calendar.name
        return f"{self.count} {self.unit} per {per}{each}"


@dataclass(frozen=True)
class Ticks:
    """A calendar whose periods are of one length, or of two lengths in turn."""

    longest_ns: int
    shorter_ns: int = 0
    """By how much each second one is shorter."""
    zone: str = "UTC"
    unit: str = "tick"

    @property
    def name(self) -> str:
        return f"tick/{self.longest_ns}-{self.shorter_ns}"

    def begin_of(self, wall_ns: int) -> int:
        pair_ns = 2 * self.longest_ns - self.shorter_ns
        first_ns = wall_ns // pair_ns * pair_ns
        return first_ns if wall_ns < first_ns + self.longest_ns else first_ns + self.longest_ns

    def after(self, wall_ns: int) -> int:
        pair_ns = 2 * self.longest_ns - self.shorter_ns
        begin_ns = self.begin_of(wall_ns)
        return begin_ns + self.longest_ns - (self.shorter_ns if begin_ns % pair_ns else 0)


@dataclass(frozen=True)
class Shifts:
    """Hours of one length, in turn with a rest of another."""

    open_ns: int
    closed_ns: int
    zone: str = "UTC"
    text: str = "shifts"

    def opens_at(self, wall_ns: int) -> int:
        into_ns = wall_ns % (self.open_ns + self.closed_ns)
        return wall_ns if into_ns < self.open_ns else wall_ns - into_ns + self.open_ns + self.closed_ns


@dataclass(frozen=True)
class Rise:
    """A ramp."""

    first: int
    last: int
    over_ns: int
    since_ns: int | None = None


def messages(count: int, seconds: float, for_each: ForEach | None = None) -> PerPeriod:
    return PerPeriod(count, int(seconds * SECOND_NS), for_each=for_each)


def recipients(count: int, seconds: float, for_each: ForEach | None = None) -> PerPeriod:
    return PerPeriod(count, int(seconds * SECOND_NS), "recipients", for_each)


def connections(count: int, seconds: float) -> PerPeriod:
    return PerPeriod(count, int(seconds * SECOND_NS), "connections")


def throttle(
    path: Path,
    disk: Disk,
    clock: FakeClock,
    limits: Sequence[Limit],
    bounds: HistoryBounds = BOUNDS,
    *,
    guard_ns: int | None = 0,
) -> Throttle:
    return Throttle(path, limits, guard_ns, disk, clock, transaction_ns=TRANSACTION_NS, bounds=bounds)


def ask(throttle: Throttle, *wanted: int) -> list[Reservation | Wait | TooLarge]:
    return throttle.reserve([Request(each) for each in wanted])


def granted(throttle: Throttle, *wanted: int) -> list[Reservation]:
    """Ask, and return only what was granted."""
    return [answer for answer in ask(throttle, *wanted) if isinstance(answer, Reservation)]


def openings_ns(throttle: Throttle, clock: FakeClock) -> tuple[int, ...]:
    """Return when what has ended opens in the first limit, one instant a unit, ascending."""
    first = throttle.limited(TRANSACTION_NS)[0]
    # What is in flight ends later than now.
    last_ns = clock.boottime_ns() + first.span_ns
    return tuple(at_ns for at_ns, weight in first.shared if at_ns <= last_ns for _ in range(weight))


def waiting(throttle: Throttle, recipients: int = 1) -> Wait:
    """Ask for one message that must wait."""
    (answer,) = ask(throttle, recipients)
    assert isinstance(answer, Wait)
    return answer


def settle(throttle: Throttle, clock: FakeClock, *reservations: Reservation) -> None:
    """End transactions now."""
    for each in reservations:
        throttle.settle(each, clock.boottime_ns())
