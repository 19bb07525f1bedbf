import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.cli.top.rates import OVER_NS, Rate, Rates
from relay.clock import SECOND_NS
from relay.spool.interface import Totals

COUNTS = st.integers(min_value=0, max_value=10**6)


def test_one_look_tells_no_rate() -> None:
    rates = Rates()
    assert rates.rate() is None
    rates.note(0, Totals(accepted=7))
    assert rates.rate() is None
    rates.note(0, Totals(accepted=9))
    assert rates.rate() is None


def test_the_rate_is_of_the_last_minute_only() -> None:
    rates = Rates()
    for second in range(121):
        # A flood in the first minute, then nothing in, and two a second out.
        rates.note(
            second * SECOND_NS, Totals(accepted=min(second, 60) * 100, relayed=max(0, second - 60) * 2)
        )

    assert rates.rate() == Rate(0, 120, OVER_NS)


def test_another_spool_begins_anew() -> None:
    rates = Rates()
    rates.note(0, Totals(accepted=1_000, relayed=900))
    rates.note(SECOND_NS, Totals(accepted=1, relayed=0))
    assert rates.rate() is None
    rates.note(2 * SECOND_NS, Totals(accepted=2, relayed=1))
    assert rates.rate() == Rate(60, 60, SECOND_NS)


@given(st.lists(st.tuples(st.integers(1, 90), COUNTS, COUNTS), min_size=2, max_size=50))
def test_a_rate_is_never_below_zero_nor_of_less_than_there_is(steps: list[tuple[int, int, int]]) -> None:
    rates, at_ns, accepted, relayed = Rates(), 0, 0, 0
    spans = []
    for seconds, more, fewer in steps:
        at_ns, accepted, relayed = at_ns + seconds * SECOND_NS, accepted + more, relayed + fewer
        spans.append(at_ns)
        rates.note(at_ns, Totals(accepted=accepted, relayed=relayed))

    rate = rates.rate()

    assert rate is not None
    assert min(rate.accepted, rate.relayed) >= 0
    assert rate.over_ns >= min(OVER_NS, spans[-1] - spans[0])
    assert rate.accepted * rate.over_ns <= accepted * 60 * SECOND_NS * (1 + 1e-9)


@pytest.mark.parametrize("minutes", [1, 10])
def test_what_is_kept_does_not_grow(minutes: int) -> None:
    rates = Rates()
    for second in range(60 * minutes):
        rates.note(second * SECOND_NS, Totals(accepted=second))

    assert len(rates._seen) <= OVER_NS // SECOND_NS + 1
