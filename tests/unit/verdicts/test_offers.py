"""What one connection lacks is believed of its upstream only when others, apart in time, agree."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.sender.state_file import OFFERS_FORMAT
from relay.smtp.reply import Reply
from relay.verdicts.offers import (
    APART_AGAIN_NS,
    APART_NS,
    LOOKS,
    MOST_SIZES,
    Need,
    Offers,
    OffersRecord,
    Row,
    is_about_dsn,
)
from tests.fakes.clock import FakeClock

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


def test_any_number_at_once_counts_as_one() -> None:
    assert not after(*lacking(*[0] * 100, *[1] * 100)).is_believed(Need.EIGHT_BIT)


def test_what_was_offered_before_is_missed_for_a_day() -> None:
    before = [Seen(0)]
    assert not after(*before, *lacking(*[APART_NS] * 100)).is_believed(Need.EIGHT_BIT)
    assert not after(*before, *lacking(0, APART_AGAIN_NS)).is_believed(Need.EIGHT_BIT)
    assert after(*before, *lacking(0, APART_AGAIN_NS, APART_AGAIN_NS)).is_believed(Need.EIGHT_BIT)


def test_one_that_offers_it_ends_the_row() -> None:
    row = lacking(0, APART_NS, APART_NS)
    assert not after(*row, Seen(0)).is_believed(Need.EIGHT_BIT)
    assert not after(*row, Seen(0), *lacking(1)).is_believed(Need.EIGHT_BIT)


def test_each_size_is_believed_as_long_as_it_was_said() -> None:
    said = [Seen(0, size=1000), Seen(APART_NS, size=1000), Seen(APART_NS, size=1000)]
    offers = after(*said)
    assert offers.is_believed(Need.SIZE, 1001)
    assert not offers.is_believed(Need.SIZE, 1000)
    once_less = after(*said, Seen(APART_NS, size=100))
    assert not once_less.is_believed(Need.SIZE, 500)
    assert once_less.is_believed(Need.SIZE, 1001)
    assert not after(*said, Seen(APART_NS, size=None), Seen(APART_NS, size=100)).is_believed(Need.SIZE, 1001)


def by_all(connections: Sequence[Seen], lacks: Sequence[bool]) -> bool:
    """Decide by looking at every connection once more, from the last one backwards."""
    at_ns, instants = 0, []
    for each in connections:
        at_ns += each.after_ns
        instants.append(at_ns)
    begin = max((index + 1 for index, lack in enumerate(lacks) if not lack), default=0)
    apart_ns = APART_AGAIN_NS if begin else APART_NS
    looks: list[int] = []
    for instant in instants[begin:]:
        if not looks or instant - looks[-1] >= apart_ns:
            looks.append(instant)
    return len(looks) >= LOOKS


connections = st.lists(
    st.builds(
        Seen,
        st.sampled_from([0, SECOND_NS, APART_NS, APART_AGAIN_NS]),
        st.sampled_from([True, False, False, False]),
        st.sampled_from(SIZES),
    ),
    max_size=14,
)


@given(connections, st.sampled_from([50, 100, 101, 1000, 1001, 35_000_000, 35_000_001]))
def test_the_rows_say_what_all_connections_say(seen: list[Seen], size: int) -> None:
    offers = after(*seen)
    assert offers.is_believed(Need.EIGHT_BIT) == by_all(seen, [not each.eight_bit for each in seen])
    lacks = [each.size is not None and each.size < size for each in seen]
    if lacks and lacks[-1]:
        # Asked only where the connection at hand does not take it.
        assert offers.is_believed(Need.SIZE, size) == by_all(seen, lacks)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 200), min_size=MOST_SIZES, max_size=60), st.integers(1, 201))
def test_too_many_sizes_make_nothing_believed_sooner(sizes: list[int], size: int) -> None:
    seen = [Seen(APART_NS, size=each) for each in sizes]
    offers = after(*seen)
    assert len(offers.sizes) <= MOST_SIZES
    if offers.is_believed(Need.SIZE, size):
        assert by_all(seen, [each < size for each in sizes])


def a_record(offers: Offers, clock: FakeClock) -> OffersRecord:
    return OffersRecord(clock.boot_id(), clock.boottime_ns(), clock.wall_ns(), "isp.example:587", offers)


def test_a_record_is_read_as_it_was_written() -> None:
    offers = after(Seen(0), *lacking(0, APART_AGAIN_NS), Seen(1, size=100))
    clock = FakeClock(boottime_ns=10**15)
    assert OFFERS_FORMAT.parse(OFFERS_FORMAT.render(a_record(offers, clock))) == a_record(offers, clock)


@pytest.mark.parametrize("stepped_ns", [0, -(10**15)], ids=["true", "set back"])
def test_time_passes_over_a_reboot_and_never_too_much(stepped_ns: int) -> None:
    clock = FakeClock()
    offers = Offers(eight_bit=Row(2, clock.boottime_ns()))
    record = a_record(offers, clock)
    clock.step_wall(stepped_ns)
    clock.reboot(APART_NS)
    now = record.moved(clock.boot_id(), clock.boottime_ns(), clock.wall_ns())
    now = now.seen(clock.boottime_ns(), smtputf8=True, eight_bit=False, max_size_bytes=None)
    assert now.is_believed(Need.EIGHT_BIT) == (stepped_ns == 0)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\xff", b"[1]", b"null"],
)
def test_what_is_no_record_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="record of offers"):
        OFFERS_FORMAT.parse(content)


def test_a_record_out_of_order_is_refused() -> None:
    clock = FakeClock()
    later = Offers(eight_bit=Row(3, clock.boottime_ns() + 1))
    twice = Offers(sizes=((100, Row()), (100, Row())))
    for offers in (later, twice):
        with pytest.raises(ValueError, match="out of order"):
            OFFERS_FORMAT.parse(OFFERS_FORMAT.render(a_record(offers, clock)))


@pytest.mark.parametrize(
    ("code", "enhanced", "is_about_it"),
    [
        (555, None, True),
        (555, "5.5.4", True),
        (501, "5.5.2", True),
        (504, "5.5.4", True),
        (500, None, True),
        (501, "5.1.3", False),
        (501, "5.1.7", False),
        (550, None, False),
        (553, "5.5.4", False),
        (455, "4.5.0", False),
    ],
)
def test_a_refusal_of_parameters_is_known_by_its_codes(
    code: int, enhanced: str | None, *, is_about_it: bool
) -> None:
    assert is_about_dsn(Reply(code, enhanced, "what?")) is is_about_it
