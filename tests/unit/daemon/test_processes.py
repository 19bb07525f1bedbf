"""How many listener processes a policy asks for, on this host's processors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from relay.daemon.processes import listener_processes
from relay.policy.model import Listen

PROCESSORS = os.sched_getaffinity(0)
ADDRESS = "127.0.0.1:2525"


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
