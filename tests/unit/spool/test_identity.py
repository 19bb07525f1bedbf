"""Queue ids: unique without a lock, sorted by time, short, and never a path of their own making."""

import os
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.envelope import QUEUE_ID_PATTERN
from relay.spool.identity import Identities, is_queue_id, report_id, warning_id
from tests.fakes.clock import START_WALL_NS, FakeClock


def always(chance: bytes) -> Callable[[int], bytes]:
    return lambda _size: chance


YEARS_30_NS = 30 * 365 * 86400 * SECOND_NS


def test_ids_are_unique_though_the_clock_stands_or_goes_back() -> None:
    clock = FakeClock()
    identities = Identities(clock, bytes)
    found = []
    for number in range(3000):
        found.append(identities.next_id())
        if number % 1000 == 500:
            clock.step_wall(-3600 * SECOND_NS)

    assert len(set(found)) == len(found)
    assert found == sorted(found)
    # Two processes that share an instant differ by chance.
    assert len({Identities(clock, os.urandom).next_id() for _ in range(1000)}) == 1000


@given(
    steps=st.lists(st.integers(1000, YEARS_30_NS // 50), max_size=50),
    chance=st.binary(min_size=4, max_size=4),
)
def test_ids_sort_by_time_whatever_the_chance(steps: list[int], chance: bytes) -> None:
    clock, found = FakeClock(), []
    for number, step in enumerate(steps):
        # A new process each time, with the least helpful chance.
        identities = Identities(clock, always((b"\xff" * 4, bytes(4), chance)[number % 3]))
        found.append(identities.next_id())
        clock.advance(step)

    assert found == sorted(found)
    assert all(QUEUE_ID_PATTERN.match(queue_id) and len(queue_id) == 16 for queue_id in found)


@given(st.binary(min_size=4, max_size=4), st.integers(-YEARS_30_NS, YEARS_30_NS))
def test_an_id_is_the_microsecond_and_thirty_bits_of_chance(chance: bytes, later_ns: int) -> None:
    wall_ns = START_WALL_NS + later_ns
    queue_id = Identities(FakeClock(wall_ns=wall_ns), always(chance)).next_id()

    assert is_queue_id(queue_id)
    assert len(queue_id) == 16
    # Crockford's letters in the order of Python's own base 32.
    number = int(queue_id.translate(str.maketrans("abcdefghjkmnpqrstvwxyz", "abcdefghijklmnopqrstuv")), 32)
    assert number >> 30 == max(1, wall_ns // 1000 - 1_704_067_200_000_000)
    assert number % 2**30 == int.from_bytes(chance, "big") % 2**30


def test_a_report_has_the_id_of_its_message_and_little_more() -> None:
    queue_id = Identities(FakeClock(), os.urandom).next_id()

    assert report_id(queue_id) == queue_id + "r"
    assert report_id(queue_id, 0) == queue_id + "r1"
    assert is_queue_id(report_id(queue_id, 9_999_998))
    assert warning_id(queue_id) == queue_id + "w"
    assert is_queue_id(report_id(queue_id))
    assert is_queue_id(warning_id(queue_id))
    assert warning_id(report_id(queue_id)) == warning_id(queue_id)
    assert report_id(warning_id(queue_id)) == report_id(queue_id)


@given(st.text(max_size=20) | st.from_regex(r"[0-9a-z]{15,17}[0-9a-z]{0,8}\n?", fullmatch=True))
def test_only_an_id_becomes_part_of_a_path(name: str) -> None:
    is_one = 16 <= len(name) <= 24 and name.isascii() and name.isalnum() and name[:16] == name[:16].lower()
    number = name[17:]
    is_one = is_one and (name[16:] in ("", "r", "w") or (name[16] == "r" and number.isdecimal()))

    assert is_queue_id(name) == is_one
