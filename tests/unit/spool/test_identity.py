"""Queue ids are unique without a lock, sorted by time and short, and never form a path."""

import os
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.envelope import QUEUE_ID_PATTERN
from relay.spool.identity import Identities, is_queue_id
from tests.fakes.clock import FakeClock


def always(chance: bytes) -> Callable[[int], bytes]:
    return lambda _size: chance


YEARS_30_NS = 30 * 365 * 86400 * SECOND_NS


def test_ids_are_unique_even_if_the_clock_stands_still_or_goes_back() -> None:
    clock = FakeClock()
    identities = Identities(clock, bytes)
    found = []
    for number in range(3000):
        found.append(identities.next_id())
        if number % 1000 == 500:
            clock.step_wall(-3600 * SECOND_NS)

    assert len(set(found)) == len(found)
    assert found == sorted(found)
    # Two processes at the same instant differ by their random octets.
    assert len({Identities(clock, os.urandom).next_id() for _ in range(1000)}) == 1000


@given(
    steps=st.lists(st.integers(1000, YEARS_30_NS // 50), max_size=50),
    chance=st.binary(min_size=4, max_size=4),
)
def test_ids_sort_by_time_whatever_the_random_octets_are(steps: list[int], chance: bytes) -> None:
    clock, found = FakeClock(), []
    for number, step in enumerate(steps):
        # A new process each time, with the worst random octets.
        identities = Identities(clock, always((b"\xff" * 4, bytes(4), chance)[number % 3]))
        found.append(identities.next_id())
        clock.advance(step)

    assert found == sorted(found)
    assert all(QUEUE_ID_PATTERN.match(queue_id) and len(queue_id) == 16 for queue_id in found)


@given(st.text(max_size=20) | st.from_regex(r"[0-9a-z]{15,17}[0-9a-z]{0,8}\n?", fullmatch=True))
def test_only_a_well_formed_id_is_a_queue_id(name: str) -> None:
    is_one = 16 <= len(name) <= 24 and name.isascii() and name.isalnum() and name[:16] == name[:16].lower()
    number = name[17:]
    is_one = is_one and (name[16:] in ("", "r", "w") or (name[16] == "r" and number.isdecimal()))

    assert is_queue_id(name) == is_one
