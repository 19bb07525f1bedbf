"""How many processes a listener has on this host, and how many descriptors clients may use."""

import os
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.daemon.capacity import fitted, listener_processes
from relay.policy.model import Listen

MANY = st.integers(1, 10_000)


@given(st.integers(64, 200_000), st.lists(st.tuples(MANY, MANY), min_size=1, max_size=5))
def test_clients_get_at_most_half_of_the_descriptors(limit: int, counts: Sequence[tuple[int, int]]) -> None:
    listens = [
        Listen.model_validate(
            {"address": "127.0.0.1:25", "max_connections": most, "max_connections_per_client": each}
        )
        for most, each in counts
    ]
    found = fitted(listens, limit)

    assert all(each.max_connections >= 1 <= each.max_connections_per_client for each in found)
    # Each listener keeps at least one connection, however low the limit is.
    assert 2 * sum(each.max_connections for each in found) <= limit // 2 + 2 * len(found)
    assert found == listens or 4 * sum(each.max_connections for each in listens) > limit


@pytest.mark.parametrize(
    ("processes", "processors", "count"), [("auto", 1, 0), ("auto", 2, 1), (0, 1, 0), (3, 1, 3)]
)
def test_auto_gives_a_listener_a_process_only_if_there_are_two_processors(
    processes: str | int, processors: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(processors)))
    listen = Listen.model_validate({"address": "127.0.0.1:2525", "processes": processes})
    assert listener_processes(listen) == count
