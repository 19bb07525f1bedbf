"""Periods of a calendar and hours of a week, as clocks on the wall show them."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from relay.clock import SECOND_NS
from relay.policy.zones.calendar import CalendarPeriod, OpenHours, PeriodName


def _at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    shown = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(shown.timestamp()) * SECOND_NS


def _shown(wall_ns: int, zone: str) -> str:
    return datetime.fromtimestamp(wall_ns // SECOND_NS, ZoneInfo(zone)).strftime("%Y-%m-%dT%H:%M")


@pytest.mark.parametrize(
    ("unit", "begin", "end", "hours"),
    [
        ("day", "2026-10-25T00:00", "2026-10-26T00:00", 25),
        ("day", "2026-03-29T00:00", "2026-03-30T00:00", 23),
        ("hour", "2026-10-25T02:00", "2026-10-25T03:00", 2),
        ("month", "2026-02-01T00:00", "2026-03-01T00:00", 28 * 24),
        ("month", "2026-12-01T00:00", "2027-01-01T00:00", 31 * 24),
    ],
)
def test_a_period_in_berlin(unit: PeriodName, begin: str, end: str, hours: int) -> None:
    begin_ns, end_ns = _at(begin, "Europe/Berlin"), _at(end, "Europe/Berlin")

    assert CalendarPeriod(unit, "Europe/Berlin").after(begin_ns) == end_ns
    assert CalendarPeriod(unit, "Europe/Berlin").after(begin_ns - 1) == begin_ns
    assert end_ns - begin_ns == hours * 3600 * SECOND_NS


def test_hours_open_and_close() -> None:
    hours = OpenHours("Mon-Fri 08:00-18:00, Fri 22:00-06:00", "Europe/Berlin")
    friday = _at("2026-11-20T17:00", "Europe/Berlin")

    told = []
    for _ in range(3):
        closes_ns = hours.closes_at(friday)
        friday = hours.opens_at(closes_ns)
        told.append((_shown(closes_ns, "Europe/Berlin"), _shown(friday, "Europe/Berlin")))

    assert told == [
        ("2026-11-20T18:00", "2026-11-20T22:00"),
        ("2026-11-21T06:00", "2026-11-23T08:00"),
        ("2026-11-23T18:00", "2026-11-24T08:00"),
    ]
