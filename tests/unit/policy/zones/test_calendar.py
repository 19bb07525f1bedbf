"""Periods of a calendar and hours of a week, as clocks on the wall show them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.policy.zones.calendar import CalendarPeriod, OpenHours, PeriodName, minutes_of, spans_of, zone_of

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Santiago",
    "Asia/Kolkata",
]
INSTANTS = st.integers(1_600_000_000, 2_000_000_000).map(lambda second: second * SECOND_NS)


def _at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    shown = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(shown.timestamp()) * SECOND_NS


def _shown(wall_ns: int, zone: str) -> str:
    return datetime.fromtimestamp(wall_ns // SECOND_NS, ZoneInfo(zone)).strftime("%Y-%m-%dT%H:%M")


@pytest.mark.parametrize("unit", ["hour", "day", "month"])
@pytest.mark.parametrize("zone", ZONES)
def test_a_period_ends_later_and_is_never_longer_than_said(unit: PeriodName, zone: str) -> None:
    @given(INSTANTS, st.integers(0, 40))
    def hold(wall_ns: int, further: int) -> None:
        period = CalendarPeriod(unit, zone)
        end_ns = period.after(wall_ns)
        assert wall_ns < end_ns <= wall_ns + period.longest_ns
        # Asked in any order, it says the same: what it remembers is no other period's.
        inside_ns = wall_ns + (end_ns - wall_ns - 1) * further // 40
        assert period.after(inside_ns) == end_ns
        assert CalendarPeriod(unit, zone).after(inside_ns) == end_ns
        assert end_ns < period.after(end_ns) <= end_ns + period.longest_ns

    hold()


@given(INSTANTS, st.sampled_from(ZONES))
def test_a_day_ends_where_the_date_on_the_wall_changes(wall_ns: int, zone: str) -> None:
    end_ns = CalendarPeriod("day", zone).after(wall_ns)

    assert _shown(end_ns - SECOND_NS, zone)[:10] == _shown(wall_ns, zone)[:10] < _shown(end_ns, zone)[:10]


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


def test_a_day_without_a_midnight_begins_when_clocks_go_forward() -> None:
    end_ns = CalendarPeriod("day", "America/Santiago").after(_at("2026-09-05T12:00", "America/Santiago"))

    assert _shown(end_ns, "America/Santiago") == "2026-09-06T01:00"
    assert _shown(end_ns - SECOND_NS, "America/Santiago") == "2026-09-05T23:59"


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


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Mon", "Tue-Thu", "Sat,Sun", "Fri-Mon"]),
            st.integers(0, 23),
            st.integers(0, 59),
            st.integers(0, 23),
            st.integers(0, 59),
        ).filter(lambda span: span[1:3] != span[3:5]),
        min_size=1,
        max_size=3,
    ),
    INSTANTS,
)
def test_hours_are_those_that_a_look_at_each_minute_finds(
    spans: list[tuple[str, int, int, int, int]], wall_ns: int
) -> None:
    text = ", ".join(f"{days} {a:02}:{b:02}-{c:02}:{d:02}" for days, a, b, c, d in spans)
    hours = OpenHours(text)
    minute_ns = 60 * SECOND_NS
    wall_ns -= wall_ns % minute_ns

    def is_open(at_ns: int) -> bool:
        now = datetime.fromtimestamp(at_ns // SECOND_NS, UTC)
        for back in (0, 1):
            day = now - timedelta(days=back)
            into = 60 * now.hour + now.minute + 1440 * back
            if any(day.weekday() == of and begin <= into < end for of, begin, end in spans_of(text)):
                return True
        return False

    opens_ns = hours.opens_at(wall_ns)
    assert (opens_ns == wall_ns) == is_open(wall_ns)
    assert is_open(opens_ns)
    assert opens_ns == wall_ns or not is_open(opens_ns - minute_ns)


@pytest.mark.parametrize(
    "text",
    [
        *("", "Mon", "Mon 8:00-9:00", "mon 08:00-09:00", "Mon 08:00-08:00", "Mon 08:00-25:00"),
        *("Mon 24:00-01:00", "Mon 08:00-09:00,Tue 08:00-09:00", "Mon 08:00-09:00; Tue 08:00-09:00"),
        ", ".join(["Mon 08:00-09:00"] * 33),
    ],
)
def test_other_hours_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        spans_of(text)


@pytest.mark.parametrize("name", ["", "Mars", "../../etc/passwd", "/etc/passwd", "Europe", "Europe/../UTC"])
def test_a_zone_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a zone"):
        zone_of(name)


def test_minutes_of_a_week_go_over_midnight_and_over_its_end() -> None:
    assert minutes_of("Sun 23:59-00:01") == {0, 7 * 24 * 60 - 1}
    assert minutes_of("Mon-Fri 08:00-12:00, Mon-Fri 12:00-18:00") == minutes_of("Mon-Fri 08:00-18:00")
    assert len(minutes_of("Mon-Sun 00:00-24:00")) == 7 * 24 * 60
