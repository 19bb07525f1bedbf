"""The arithmetic of a line agrees with the throttle itself, and keeps to pauses and connections."""

from hypothesis import given, settings
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.status.eta import Expected, Load, Pace
from relay.throttle.admission import Request, Reservation, Wait
from relay.throttle.limit import PlainLimit
from relay.throttle.throttle import Throttle
from tests.engines.history.memory_history import Kept, MemoryHistory
from tests.fakes.clock import FakeClock

MINUTE_NS = 60 * SECOND_NS


LIMIT = st.builds(
    lambda unit, count, seconds: PlainLimit(unit, count, seconds * SECOND_NS, f"{count} {unit}"),
    st.sampled_from(("messages", "recipients")),
    st.integers(1, 9),
    st.integers(1, 90),
)


def sent_at(throttle: Throttle, clock: FakeClock) -> int:
    """Send a message as soon as it may go, in no time; return when that was."""
    while isinstance(answer := throttle.reserve([Request(1)])[0], Wait):
        clock.advance(answer.until_ns - clock.boottime_ns())
    assert isinstance(answer, Reservation)
    throttle.settle(answer, clock.boottime_ns())
    return clock.boottime_ns()


@settings(max_examples=150, deadline=None)
@given(st.lists(LIMIT, min_size=1, max_size=2), st.lists(st.integers(0, 40), max_size=12), st.integers(1, 25))
def test_each_message_of_a_line_goes_when_it_is_expected(
    limits: list[PlainLimit], pauses: list[int], waiting: int
) -> None:
    clock = FakeClock()
    throttle = Throttle(MemoryHistory(Kept(clock)), limits, None, clock)
    for seconds in pauses:
        sent_at(throttle, clock)
        clock.advance(seconds * SECOND_NS)
    throttle.flush()
    pace = Pace(clock.boottime_ns(), throttle.limited(0))
    expected = [pace.at(Load(number, number, number)).eta_ns or 0 for number in range(1, waiting + 1)]

    sent = [sent_at(throttle, clock) for _ in expected]
    if len(limits) == 1:
        assert sent == expected
    else:
        # What one limit keeps back uses its slot of the other one later: then it is an estimate.
        assert all(at_ns >= early_ns for at_ns, early_ns in zip(sent, expected, strict=True))


def test_connections_carry_so_many_at_once() -> None:
    pace = Pace(0, connections=2, transaction_ns=SECOND_NS)

    ends = [pace.at(Load(messages=number)) for number in range(1, 6)]

    assert [end.eta_ns for end in ends] == [seconds * SECOND_NS for seconds in (1, 1, 2, 2, 3)]
    assert [end.held_by for end in ends] == ["", "", "connections", "connections", "connections"]


def test_nothing_goes_before_a_pause_is_over() -> None:
    pace = Pace(0, rests="pause: 421 no", until_ns=MINUTE_NS)

    assert pace.at(Load(1)) == Expected(MINUTE_NS, "pause: 421 no")


def test_nobody_can_tell_when_a_stop_ends() -> None:
    assert Pace(0, rests="stop: 535", until_ns=None).at(Load(1)) == Expected(None, "stop: 535")
