"""StepWatch notices that the wall clock was set."""

from hypothesis import given
from hypothesis import strategies as st

from relay.clock import LEAST_STEP_NS, SECOND_NS, StepWatch
from tests.fakes.clock import FakeClock

YEAR_NS = 365 * 86_400 * SECOND_NS
STEPS_NS = st.integers(-YEAR_NS, YEAR_NS)


@given(STEPS_NS, st.integers(0, YEAR_NS))
def test_a_step_of_the_wall_clock_is_reported_once_whatever_time_passes(by_ns: int, passes_ns: int) -> None:
    clock = FakeClock(wall_ns=2 * YEAR_NS)
    watch = StepWatch(clock)

    clock.step_wall(by_ns)
    clock.advance(passes_ns)

    assert watch.stepped_ns() == (by_ns if abs(by_ns) >= LEAST_STEP_NS else 0)
    assert watch.stepped_ns() == 0
