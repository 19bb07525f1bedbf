from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.sender.late_mail import is_to_be_told, soon_ns

MINUTE_NS, HOUR_NS = 60 * SECOND_NS, 3600 * SECOND_NS
spans = st.integers(0, 1 << 60)


@given(st.integers(0, 4 * HOUR_NS - 1), st.none() | spans)
def test_what_is_not_late_yet_is_not_told_of(late_ns: int, left_ns: int | None) -> None:
    assert not is_to_be_told(late_ns=late_ns, left_ns=left_ns, warn_after_ns=4 * HOUR_NS)


@given(spans, spans)
def test_whose_turn_comes_in_minutes_is_not_told_of(late_ns: int, more_ns: int) -> None:
    warn_after_ns = 4 * HOUR_NS + more_ns

    assert not is_to_be_told(late_ns=late_ns, left_ns=59 * MINUTE_NS, warn_after_ns=warn_after_ns)


@given(spans, spans, spans)
def test_what_is_late_and_stays_for_an_hour_is_told_of(
    warn_after_ns: int, more_ns: int, left_ns: int
) -> None:
    late_ns = warn_after_ns + more_ns

    assert is_to_be_told(late_ns=late_ns, left_ns=HOUR_NS + left_ns, warn_after_ns=warn_after_ns)
    assert is_to_be_told(late_ns=late_ns, left_ns=None, warn_after_ns=warn_after_ns)


@given(spans, spans)
def test_what_stays_as_long_again_as_it_is_late_is_told_of(warn_after_ns: int, more_ns: int) -> None:
    late_ns = warn_after_ns + more_ns

    assert is_to_be_told(late_ns=late_ns, left_ns=late_ns, warn_after_ns=warn_after_ns)


@given(spans, st.none() | spans)
def test_nobody_is_told_where_the_policy_says_null(late_ns: int, left_ns: int | None) -> None:
    assert not is_to_be_told(late_ns=late_ns, left_ns=left_ns, warn_after_ns=None)


def test_a_quarter_of_warn_after_is_soon_and_an_hour_at_most() -> None:
    assert soon_ns(HOUR_NS) == 15 * MINUTE_NS
    assert soon_ns(4 * HOUR_NS) == soon_ns(4 * 24 * HOUR_NS) == HOUR_NS
