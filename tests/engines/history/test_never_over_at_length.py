"""Never over: random events, each grant held against a brute-force oracle; 36,000 of them in test-all."""

import concurrent.futures
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from relay.throttle.bounds import BOUNDS, HistoryBounds
from relay.throttle.gauge import KEY_ENTRIES
from tests.engines.history.world import World

EVENTS_A_WORLD = 200
WORLDS = 180


def _bounds(number: int) -> HistoryBounds:
    """Make small, in some worlds, what takes thousands of messages to reach."""
    bounds = BOUNDS
    if number % 5:
        # These worlds last for microseconds: a step of the clock within a second is none, or is one.
        bounds = replace(bounds, alike_ns=1, most_readings=4 if number % 7 == 3 else 64)
    if number % 2:
        bounds = replace(bounds, compact_above_bytes=0, record_bytes=10)
    if number % 4 == 3:
        # What is merged is rounded so coarsely that it reaches into windows of today.
        most_shares = 6 if number % 8 == 7 else 1000
        bounds = replace(bounds, exact_ends=3, merged_at_once=3, most_shares=most_shares, parts=4)
    if number % 3 == 2:
        # Two keys have a window of their own, of some instants, and are counted coarsely beyond that.
        bounds = replace(bounds, most_entries=2 * KEY_ENTRIES + number % 5)
    return bounds


def _live(seed: str, number: int) -> tuple[int, int]:
    """Live through one world; return how much was granted in it, and how much of that behind a reset."""
    world = World(Random(f"{seed} {number}"), _bounds(number))
    try:
        world.live(EVENTS_A_WORLD)
        assert world.all_is_free_at_last(), "stuck, or wasteful"
    except AssertionError as error:
        raise AssertionError(f"world {number} of seed {seed}: {error}") from error
    return world.grants, world.boundaries


def _live_for(seconds: float, seed: str, first: int, step: int) -> int:
    """Live through worlds for so long, each step-th of them; return through how many."""
    until, number = time.monotonic() + seconds, first
    while time.monotonic() < until:
        _live(seed, number)
        number += step
    return (number - first) // step


@pytest.mark.parametrize("worlds", [range(100), pytest.param(range(100, WORLDS), marks=pytest.mark.full)])
def test_no_random_events_are_ever_over(worlds: range) -> None:
    lives = [_live("0", number) for number in worlds]

    # It is not that nothing was ever granted, or that all windows slid.
    assert sum(grants for grants, _ in lives) > len(worlds) * EVENTS_A_WORLD // 20
    assert sum(resets for _, resets in lives) > len(worlds) // 8


@pytest.mark.crash
def test_as_many_random_events_as_the_budget_allows_are_never_over(
    tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    """Over all cores, for a quarter of the budget; 10^8 events are a matter of hours, which it tells."""
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
