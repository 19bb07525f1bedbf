"""How many processes a listener has on this host, and what clients may have of their descriptors."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.daemon.capacity import fitted, listener_processes
from relay.policy.model import Listen

MANY = st.integers(1, 10_000)
PROCESSORS = os.sched_getaffinity(0)
ADDRESS = "127.0.0.1:2525"


@given(st.integers(64, 200_000), st.lists(st.tuples(MANY, MANY), min_size=1, max_size=5))
def test_clients_have_no_more_than_half_of_the_limit(limit: int, counts: Sequence[tuple[int, int]]) -> None:
    listens = [
        Listen.model_validate(
            {"address": "127.0.0.1:25", "max_connections": most, "max_connections_per_client": each}
        )
        for most, each in counts
    ]
    found = fitted(listens, limit)

    assert all(each.max_connections >= 1 <= each.max_connections_per_client for each in found)
    # One each at least, however low the limit.
    assert 2 * sum(each.max_connections for each in found) <= limit // 2 + 2 * len(found)
    assert found == listens or 4 * sum(each.max_connections for each in listens) > limit


def test_the_usual_policy_needs_less_than_the_usual_limit() -> None:
    usual = [Listen.model_validate({"address": "127.0.0.1:25"})]
    assert fitted(usual, 1024) == usual


@contextmanager
def on_processors(processors: set[int]) -> Iterator[None]:
    """Let this thread use no others."""
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, PROCESSORS)


def test_a_listener_has_no_process_on_one_processor() -> None:
    with on_processors({min(PROCESSORS)}):
        assert listener_processes(Listen.model_validate({"address": ADDRESS})) == 0


@pytest.mark.skipif(len(PROCESSORS) < 2, reason="this machine has one processor")
def test_a_listener_has_a_process_where_two_may_run() -> None:
    with on_processors(set(sorted(PROCESSORS)[:2])):
        assert listener_processes(Listen.model_validate({"address": ADDRESS})) == 1


@pytest.mark.parametrize("count", [0, 3])
def test_a_number_counts_on_any_machine(count: int) -> None:
    listen = Listen.model_validate({"address": ADDRESS, "processes": count})
    with on_processors({min(PROCESSORS)}):
        assert listener_processes(listen) == count
