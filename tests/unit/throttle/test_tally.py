from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.throttle.history_format import Charged, Ended, Reserved
from relay.throttle.limit import Limit
from relay.throttle.limit_hints import Tally
from relay.throttle.slots import Slots
from relay.throttle.throttle import Request, Reservation, Throttle
from tests.fakes.clock import FakeClock
from tests.unit.throttle import limits
from tests.unit.throttle.memory_disk import MemoryDisk

HOUR_NS = 3600 * SECOND_NS
GRAIN_NS = 10 * SECOND_NS
gaps = st.lists(st.tuples(st.integers(0, 3 * GRAIN_NS), st.integers(1, 50)), min_size=1, max_size=60)


def ends(gaps: list[tuple[int, int]]) -> list[Charged]:
    at_ns, found = 0, []
    for gap_ns, recipients in gaps:
        at_ns += gap_ns
        found.append(Charged(at_ns + 7, 1, recipients, 0, at_ns))
    return found


def recipients_since(charges: list[Charged], after_ns: int) -> int:
    return sum(each.recipients for each in charges if each.ended_at_ns > after_ns)


@given(gaps, st.integers(1, 60 * GRAIN_NS))
def test_a_tally_has_what_ended_and_nothing_in_flight(gaps: list[tuple[int, int]], span_ns: int) -> None:
    slots, charges = Slots(), ends(gaps)
    now_ns = charges[-1].ended_at_ns
    slots.learn([Reserved(number, HOUR_NS, 1, each.recipients) for number, each in enumerate(charges)])
    slots.learn([Reserved(len(charges), HOUR_NS, 1, 1000)])
    slots.learn([Ended(number, each.ended_at_ns) for number, each in enumerate(charges)])

    found = slots.tally(span_ns, now_ns)

    assert found.recipients == recipients_since(charges, now_ns - span_ns)
    assert found.messages == sum(each.ended_at_ns > now_ns - span_ns for each in charges)


def test_what_began_first_tells_for_how_long_it_went_well() -> None:
    slots = Slots()
    slots.learn([Charged(50, 1, 3, 0, 20), Charged(60, 1, 4, 0, 30), Charged(70, 1, 5, 0, None)])

    assert slots.tally(30, 80) == Tally(2, 9, 0, 50)
    assert slots.tally(15, 80) == Tally(1, 5, 0, 10)
    assert slots.tally(5, 80) == Tally()


@given(gaps, st.integers(1, 30 * GRAIN_NS), st.integers(0, 60 * GRAIN_NS))
def test_a_peak_is_the_most_that_any_window_held_that_was_over_before(
    gaps: list[tuple[int, int]], span_ns: int, later_ns: int
) -> None:
    slots, charges = Slots(), ends(gaps)
    slots.learn(charges)
    now_ns = charges[-1].ended_at_ns + later_ns
    over = [each for each in charges if each.ended_at_ns <= now_ns - span_ns]

    def held(at_ns: int) -> int:
        return sum(each.recipients for each in over if at_ns - span_ns < each.ended_at_ns <= at_ns)

    assert slots.peak(span_ns, now_ns).recipients == max((held(e.ended_at_ns) for e in over), default=0)


def test_what_was_merged_proves_no_peak() -> None:
    slots = Slots()
    slots.learn([Charged(50, 9, 9, 0, 20, is_merged=True), Charged(60, 1, 4, 0, 30)])

    assert slots.peak(30, 1000) == Tally(1, 4, 0)


@pytest.mark.parametrize("given_limits", [[limits.recipients(100, 3600)], []], ids=["a limit", "no limit"])
def test_the_door_tells_of_both_kinds_of_account_what_ended_there(given_limits: list[Limit]) -> None:
    clock = FakeClock()
    throttle = Throttle(Path("history/isp"), given_limits, 0, MemoryDisk(), clock)
    for recipients in (3, 4):
        (granted,) = throttle.reserve([Request(recipients)])
        assert isinstance(granted, Reservation)
        clock.advance(SECOND_NS)
        throttle.settle(granted, clock.boottime_ns())
    connection = throttle.reserve_connection(SECOND_NS)
    assert isinstance(connection, Reservation)
    throttle.settle(connection, clock.boottime_ns())

    assert throttle.tally(HOUR_NS) == Tally(2, 7, 1, 2 * SECOND_NS)
    assert throttle.peak(HOUR_NS) == Tally()
    clock.advance(HOUR_NS)
    assert throttle.tally(HOUR_NS) == Tally()
    assert throttle.peak(HOUR_NS).recipients == 7
