"""Periods of a calendar and hours of a week, in a time zone.  Pure but for the zone's table.

A period is an hour, a day or a month as a clock on the wall shows it.  `after` returns when the one
that holds an instant is over.  Where clocks go back an hour, that hour is one of two hours, and the
day has 25; where they go forward, the day has 23.  An upstream that counts a repeated hour twice,
or by its name once, is held to its limit either way.

Hours are a list of days and spans, `Mon-Fri 08:00-18:00, Sat 10:00-12:00`.  A span that ends at or
before its begin ends on the next day: `Fri 22:00-06:00` is Friday night.

Instants are wall clock in nanoseconds since 1970, and half-open spans hold their first instant.
Zones are those of the IANA database, of the system or the package tzdata; UTC needs neither.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from relay.clock import SECOND_NS
from relay.mail.formats import LAST_SECOND

PeriodName = Literal["hour", "day", "month"]
PERIODS: tuple[str, ...] = get_args(PeriodName)
NOMINAL_NS = {"hour": 3600 * SECOND_NS, "day": 86_400 * SECOND_NS, "month": 31 * 86_400 * SECOND_NS}
REPEATED_NS = 2 * 3600 * SECOND_NS
"""No zone of today sets its clocks back by more."""
_LAST_LABEL = datetime(9990, 1, 1)  # noqa: DTZ001 - what a clock on the wall shows has no zone
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = f"(?:{'|'.join(_DAYS)})"
_TIME = "([01][0-9]|2[0-3]):([0-5][0-9])"
_SPAN = re.compile(rf"({_DAY}(?:-{_DAY})?(?:,{_DAY}(?:-{_DAY})?)*) {_TIME}-(?:{_TIME}|(24):(00))\Z")
_DAY_MINUTES = 24 * 60
MOST_SPANS = 32


@functools.lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """Raise ValueError for a name that is none."""
    if name == "UTC":
        return UTC
    # A name is a path to the system's database: none may lead elsewhere.
    if re.fullmatch(r"[A-Za-z0-9_+-]{1,32}(?:/[A-Za-z0-9_+-]{1,32}){0,2}", name) is None:
        raise ValueError("not the name of a zone")
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError("not the name of a zone") from error


@dataclass(frozen=True)
class CalendarPeriod:
    """The hours, days or months of a zone."""

    unit: PeriodName
    zone: str = "UTC"
    _now: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False, compare=False)
    """The last period asked for: most questions are about one."""

    @property
    def name(self) -> str:
        """Such as `day/Europe/Berlin`."""
        return f"{self.unit}/{self.zone}"

    @property
    def nominal_ns(self) -> int:
        return NOMINAL_NS[self.unit]

    @property
    def longest_ns(self) -> int:
        """No period is longer."""
        return self.nominal_ns + (0 if self.zone == "UTC" else REPEATED_NS)

    def after(self, wall_ns: int) -> int:
        """Return the end of the period that holds an instant, which is the begin of the next one."""
        for begin_ns, end_ns in self._now:
            if begin_ns <= wall_ns < end_ns:
                return end_ns
        second = max(0, min(wall_ns // SECOND_NS, LAST_SECOND // 2))
        zone = zone_of(self.zone)
        label = self._floor(_shown(second, zone))
        while (end := _first_showing(label := self._next(label), zone)) <= second:
            pass
        # Known from this instant on only; where the period began is not asked for.
        self._now[:] = [(second * SECOND_NS, end * SECOND_NS)]
        return end * SECOND_NS

    def _floor(self, label: datetime) -> datetime:
        match self.unit:
            case "hour":
                return label.replace(minute=0, second=0)
            case "day":
                return label.replace(hour=0, minute=0, second=0)
            case _:
                return label.replace(day=1, hour=0, minute=0, second=0)

    def _next(self, label: datetime) -> datetime:
        match self.unit:
            case "hour":
                return label + timedelta(hours=1)
            case "day":
                return label + timedelta(days=1)
            case _:
                return (label + timedelta(days=31)).replace(day=1)


@dataclass(frozen=True)
class OpenHours:
    """When something may start; `text` is what the policy says."""

    text: str
    zone: str = "UTC"
    _now: list[tuple[int, int, bool]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        spans_of(self.text)

    def opens_at(self, wall_ns: int) -> int:
        """Return an instant itself if it is within the hours, else when they begin next."""
        begin_ns, end_ns, is_open = self._around(wall_ns)
        return max(wall_ns, begin_ns) if is_open else end_ns

    def closes_at(self, wall_ns: int) -> int:
        """Return when the hours that hold an instant end; the instant itself if none do."""
        _, end_ns, is_open = self._around(wall_ns)
        return end_ns if is_open else wall_ns

    def _around(self, wall_ns: int) -> tuple[int, int, bool]:
        """Return from when until when it is as at an instant, and whether that is open."""
        for kept in self._now:
            if kept[0] <= wall_ns < kept[1]:
                return kept
        found = self._found(wall_ns)
        self._now[:] = [found]
        return found

    def _found(self, wall_ns: int) -> tuple[int, int, bool]:
        second = max(0, min(wall_ns // SECOND_NS, LAST_SECOND // 2))
        closed_since = 0
        zone = zone_of(self.zone)
        first = _shown(second, zone).date() - timedelta(days=9)
        open_from = open_until = -1
        for begin, end in self._seconds(first, zone):
            if begin > open_until:
                if open_from <= second < open_until:
                    break
                closed_since, open_from = max(closed_since, open_until), begin
                if begin > second:
                    return closed_since * SECOND_NS, begin * SECOND_NS, False
            open_until = max(open_until, end)
        return open_from * SECOND_NS, open_until * SECOND_NS, True

    def _seconds(self, first: date, zone: tzinfo) -> Iterator[tuple[int, int]]:
        """Yield spans of three weeks by their begins; those that touch are one."""
        week = spans_of(self.text)
        found = []
        for number in range(3 * 7):
            day = first + timedelta(days=number)
            midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001 - as shown on the wall
            for of_day, begin, end in week:
                if of_day == day.weekday():
                    from_second, until = (
                        _first_showing(midnight + timedelta(minutes=minutes), zone)
                        for minutes in (begin, end)
                    )
                    if from_second < until:
                        found.append((from_second, until))
        return iter(sorted(found))


@functools.lru_cache(maxsize=64)
def spans_of(text: str) -> tuple[tuple[int, int, int], ...]:
    """Return day of the week, and minutes from its midnight, of each span.  Raises ValueError."""
    found: list[tuple[int, int, int]] = []
    parts = text.split(", ")
    if len(parts) > MOST_SPANS:
        raise ValueError(f"at most {MOST_SPANS} spans")
    for part in parts:
        match = _SPAN.match(part)
        if match is None:
            raise ValueError("expected hours such as 'Mon-Fri 08:00-18:00, Sat 10:00-12:00'")
        begin = 60 * int(match[2]) + int(match[3])
        end = 60 * int(match[4] or match[6]) + int(match[5] or match[7])
        if begin == end:
            raise ValueError("a span that begins and ends at one time: write 00:00-24:00 for a whole day")
        found += [(day, begin, end if end > begin else end + _DAY_MINUTES) for day in _days_of(match[1])]
    return tuple(found)


@functools.lru_cache(maxsize=64)
def minutes_of(text: str) -> frozenset[int]:
    """Return the minutes of a week, from Monday's midnight, that some span holds.  Raises ValueError."""
    return frozenset(
        (day * _DAY_MINUTES + minute) % (7 * _DAY_MINUTES)
        for day, begin, end in spans_of(text)
        for minute in range(begin, end)
    )


def _days_of(words: str) -> Iterator[int]:
    for word in words.split(","):
        first, _, last = word.partition("-")
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        # Over the end of the week too: Sat-Mon.
        yield from ((begin + number) % 7 for number in range((end - begin) % 7 + 1))


def _shown(second: int, zone: tzinfo) -> datetime:
    """Return what a clock on the wall shows."""
    return datetime.fromtimestamp(second, zone).replace(tzinfo=None, fold=0)


def _first_showing(label: datetime, zone: tzinfo) -> int:
    """Return the first second at which a clock on the wall shows a time, or has passed over it."""
    if label > _LAST_LABEL:
        return LAST_SECOND
    early, late = (int(label.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
    if _shown(early, zone) == label:
        return early
    # Clocks go forward over it: `late` is before they do, and `early` behind.
    early, late = late, early
    while late - early > 1:
        middle = (early + late) // 2
        early, late = (early, middle) if _shown(middle, zone) >= label else (middle, late)
    return late


def first_instant_of(day: date, zone: str) -> int:
    """Return when a day begins in a zone.  Raises ValueError for a zone that is none."""
    midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001 - as shown on the wall
    return _first_showing(midnight, zone_of(zone)) * SECOND_NS
