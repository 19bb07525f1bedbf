"""A brute-force oracle checks each grant of random events: 40,000 of them in `make test-all`."""

import concurrent.futures
import multiprocessing
import os
import time
from collections.abc import Callable
from random import Random

import pytest

from relay.throttle.book import BOUNDS, Bounds
from tests.engines.history.world import World

EVENTS_A_WORLD = 200


def _live(seed: str, number: int) -> int:
    """Run one world and return the number of its grants."""
    bounds = BOUNDS
    if number % 4 == 3:
        # Compaction rounds so coarsely here that its rounding reaches into current windows.
        bounds = Bounds(exact=3, parts=4, most_shares=6 if number % 8 == 7 else 1000)
    world = World(Random(f"{seed} {number}"), bounds, replaces_often=bool(number % 2))
    try:
        world.live(EVENTS_A_WORLD)
        assert world.all_is_free_at_last(), "stuck, or wasteful"
    except AssertionError as error:
        raise AssertionError(f"world {number} of seed {seed}: {error}") from error
    return world.grants


def _live_for(seconds: float, seed: str, first: int, step: int) -> int:
    """Run every step-th world for this long and return the number of worlds."""
    until, number = time.monotonic() + seconds, first
    while time.monotonic() < until:
        _live(seed, number)
        number += step
    return (number - first) // step


@pytest.mark.parametrize("worlds", [range(30), pytest.param(range(30, 200), marks=pytest.mark.full)])
def test_random_events_never_exceed_a_limit(worlds: range) -> None:
    grants = sum(_live("0", number) for number in worlds)

    # The test proves nothing if hardly anything was granted.
    assert grants > len(worlds) * EVENTS_A_WORLD // 20


@pytest.mark.crash
def test_random_events_never_exceed_a_limit_within_the_crash_budget(
    tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    """Use all cores for a quarter of the budget, and print the number of events."""
    seconds, cores = crash_budget_s / 4, os.cpu_count() or 1
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(cores, mp_context=fresh) as pool:
        walks = [pool.submit(_live_for, seconds, str(crash_seed), first, cores) for first in range(cores)]
        worlds = sum(walk.result() for walk in walks)
    events = worlds * EVENTS_A_WORLD
    rate = events / seconds
    tell(
        f"seed {crash_seed}: {events:,} random events, none over; {rate:,.0f} a second on {cores} cores, "
        f"10^8 would take {1e8 / rate / 3600:.1f} h"
    )
    assert worlds
