"""What one connection lacks is believed of its upstream only when others, apart in time, agree."""

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.smtp.reply import Reply
from relay.verdicts.offers import (
    APART_AGAIN_NS,
    APART_NS,
    Need,
    Offers,
    is_about_dsn,
)

SIZES = (100, 1000, 35_000_000, None)


@dataclass(frozen=True)
class Seen:
    """One connection, and how long after the one before."""

    after_ns: int
    eight_bit: bool = True
    size: int | None = None


def after(*connections: Seen) -> Offers:
    offers, at_ns = Offers(), 0
    for each in connections:
        at_ns += each.after_ns
        offers = offers.seen(at_ns, smtputf8=True, eight_bit=each.eight_bit, max_size_bytes=each.size)
    return offers


def lacking(*after_ns: int) -> list[Seen]:
    return [Seen(each, eight_bit=False) for each in after_ns]


def test_one_connection_is_never_believed() -> None:
    assert not after(*lacking(0)).is_believed(Need.EIGHT_BIT)
    assert not after(Seen(0, size=100)).is_believed(Need.SIZE, 101)


def test_three_that_agree_apart_in_time_are_believed() -> None:
    assert not after(*lacking(0, APART_NS)).is_believed(Need.EIGHT_BIT)
    assert after(*lacking(0, APART_NS, APART_NS)).is_believed(Need.EIGHT_BIT)


def test_what_was_offered_before_is_missed_for_a_day() -> None:
    before = [Seen(0)]
    assert not after(*before, *lacking(*[APART_NS] * 100)).is_believed(Need.EIGHT_BIT)
    assert not after(*before, *lacking(0, APART_AGAIN_NS)).is_believed(Need.EIGHT_BIT)
    assert after(*before, *lacking(0, APART_AGAIN_NS, APART_AGAIN_NS)).is_believed(Need.EIGHT_BIT)


connections = st.lists(
    st.builds(
        Seen,
        st.sampled_from([0, SECOND_NS, APART_NS, APART_AGAIN_NS]),
        st.sampled_from([True, False, False, False]),
        st.sampled_from(SIZES),
    ),
    max_size=14,
)


@pytest.mark.parametrize(
    ("code", "enhanced", "is_about_it"),
    [
        *((555, None, True), (555, "5.5.4", True), (501, "5.5.2", True), (504, "5.5.4", True)),
        *((500, None, True), (501, "5.1.3", False), (501, "5.1.7", False), (550, None, False)),
        *((553, "5.5.4", False), (455, "4.5.0", False)),
    ],
)
def test_a_refusal_of_parameters_is_known_by_its_codes(
    code: int, enhanced: str | None, *, is_about_it: bool
) -> None:
    assert is_about_dsn(Reply(code, enhanced, "what?")) is is_about_it
