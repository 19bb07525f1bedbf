"""What the wall clock may say: readings of it lose nothing, however many there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import LONGEST_DURATION_NS, SECOND_NS
from relay.policy.zones.calendar import CalendarPeriod, OpenHours
from relay.throttle.history_format import ALIKE_NS, Charged, ClockReading, Highest
from relay.throttle.limit import plain_words
from relay.throttle.peaks import ProofSpan, highest, spans_of, subject_of
from relay.throttle.wall import MOST_READINGS, Readings, WallBounds, opens_at, resets_at
from tests.unit.throttle.limits import PerPeriod, Rise

HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
DAY = CalendarPeriod("day")


@given(
    st.lists(
        st.tuples(st.integers(0, DAY_NS), st.integers(-DAY_NS, DAY_NS)),
        min_size=1,
        max_size=3 * MOST_READINGS,
    ),
    st.integers(0, DAY_NS),
)
def test_what_was_read_stays_possible(read: list[tuple[int, int]], since_ns: int) -> None:
    readings, at_ns = Readings(), 0
    for later_ns, offset_ns in read:
        at_ns += later_ns
        readings.read(at_ns, at_ns + offset_ns)

    assert len(readings) <= MOST_READINGS
    asked_ns = at_ns - since_ns
    bounds, passed_ns = readings.bounds(asked_ns), 0
    for later_ns, offset_ns in read:
        passed_ns += later_ns
        if passed_ns >= asked_ns:
            assert bounds.holds(WallBounds(offset_ns, offset_ns))


def test_of_too_many_readings_the_oldest_are_one() -> None:
    readings = Readings()
    for number in range(MOST_READINGS + 10):
        readings.read(number * DAY_NS, number * DAY_NS + number * 10 * ALIKE_NS)

    kept = list(readings)
    assert len(kept) == MOST_READINGS
    assert (kept[0].since_ns, kept[0].least_ns, kept[0].most_ns) == (0, 0, 100 * ALIKE_NS)


def test_nothing_read_is_nothing_known() -> None:
    assert Readings().bounds(0) == WallBounds(0, None)
    assert WallBounds(0, None).rounded(10) == WallBounds(0, None)
    assert not WallBounds(0, 5).holds(WallBounds(0, None))
    assert not WallBounds(1, None).holds(WallBounds(0, 0))


def test_a_reading_that_no_limit_asks_for_is_forgotten() -> None:
    readings = Readings(
        [ClockReading(0, 10, 0, 0), ClockReading(20, LONGEST_DURATION_NS + 20, DAY_NS, DAY_NS)]
    )
    readings.forget(LONGEST_DURATION_NS + 20)
    assert [each.since_ns for each in readings] == [20]


def test_it_resets_where_its_slots_open() -> None:
    for bounds in (WallBounds(), WallBounds(0, None), WallBounds(-HOUR_NS, HOUR_NS)):
        at_ns, is_boundary = opens_at(DAY, SECOND_NS, bounds, DAY_NS // 2)
        assert resets_at(DAY, SECOND_NS, bounds, DAY_NS // 2) == at_ns
        assert is_boundary is (bounds.most_ns is not None)


def test_a_day_by_a_clock_in_doubt_proves_nothing() -> None:
    limit = PerPeriod(2, DAY_NS, calendar=DAY)
    for reading in (ClockReading(0, DAY_NS, 0, None), ClockReading(0, DAY_NS, 0, HOUR_NS)):
        found = highest(limit, None, [], DAY_NS, [reading])
        assert (found.most, found.at_most) == (0, 0)


def test_a_day_of_merged_slots_is_proven_from_their_end() -> None:
    limit = PerPeriod(2, DAY_NS, calendar=DAY)
    merged = Charged(HOUR_NS, 5, 5, started_at_ns=SECOND_NS, is_merged=True)
    before = Highest(0, 0, 0, 0, 0, None, None, *subject_of(limit))

    found = highest(limit, before, _spans(merged), 3 * DAY_NS, [ClockReading(0, 3 * DAY_NS, 0, 0)])

    assert (found.most, found.at_most, found.earlier) == (0, 0, 5)
    assert found.since_ns >= DAY_NS


def _spans(*records: Charged) -> list[ProofSpan]:
    return spans_of(records)[0]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (PerPeriod(2, DAY_NS, calendar=DAY), "2 messages per day UTC"),
        (PerPeriod(3, HOUR_NS, for_each="lane", only="bulk"), "3 messages per 1h for lane bulk"),
        (PerPeriod(3, HOUR_NS, for_each="sender_domain"), "3 messages per 1h for each sender domain"),
        (
            PerPeriod(9, HOUR_NS, rise=Rise(1, 9, 14 * DAY_NS)),
            "9 messages per 1h, from 1 over 14d",
        ),
        (
            PerPeriod(9, HOUR_NS, open_hours=OpenHours("Mon-Fri 08:00-18:00")),
            "9 messages per 1h, Mon-Fri 08:00-18:00 UTC",
        ),
        (PerPeriod(1 << 30, DAY_NS, "bytes"), "1G per 24h"),
    ],
)
def test_a_limit_is_told_as_people_write_it(limit: PerPeriod, words: str) -> None:
    assert plain_words(limit) == words
