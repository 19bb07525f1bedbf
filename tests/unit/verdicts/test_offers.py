"""What one connection lacks is believed of its upstream only when others, apart in time, agree."""

import math

import pytest

from relay.smtp.reply import Reply
from relay.verdicts.offers import APART_NS, Need, Offer, Offers, is_about_dsn


def after(*connections: tuple[int, bool, float]) -> Offers:
    """Each has how long after the one before it was made, if it offered 8BITMIME, and its largest size."""
    offers, at_ns = Offers(), 0
    for after_ns, eight_bit, size in connections:
        at_ns += after_ns
        offers.seen(Offer(at_ns, smtputf8=True, eight_bit=eight_bit, most_bytes=size))
    return offers


def lacking(*after_ns: int) -> list[tuple[int, bool, float]]:
    return [(each, False, 100) for each in after_ns]


@pytest.mark.parametrize(
    ("connections", "is_believed"),
    [
        ([], False),
        (lacking(0), False),
        (lacking(0, APART_NS), False),
        (lacking(0, APART_NS, APART_NS), True),
        (lacking(0, APART_NS, APART_NS - 1), False),
        ([(0, True, math.inf), *lacking(APART_NS, APART_NS)], False),
        ([(0, True, math.inf), *lacking(APART_NS, APART_NS, APART_NS)], True),
        ([*lacking(0, APART_NS, APART_NS), (1, True, 101)], False),
        ([*lacking(0, APART_NS, APART_NS), (APART_NS, True, math.inf)], False),
    ],
)
def test_only_three_in_a_row_that_agree_apart_in_time_are_believed(
    connections: list[tuple[int, bool, float]], *, is_believed: bool
) -> None:
    offers = after(*connections)
    assert offers.is_believed(Need.EIGHT_BIT) is is_believed
    assert offers.is_believed(Need.SIZE, 101) is is_believed
    assert not offers.is_believed(Need.SIZE, 100)
    assert not offers.is_believed(Need.SMTPUTF8)


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
