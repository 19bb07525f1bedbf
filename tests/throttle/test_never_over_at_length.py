"""A hundred thousand random events, each grant held against a brute-force oracle; more in crash runs."""

import time
from random import Random

import pytest

from relay.throttle import gauge, history, slots
from tests.throttle.world import World

EVENTS_A_WORLD = 200
WORLDS = 500


def _shrink(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Make small, in some worlds, what takes thousands of messages to reach."""
    if number % 2:
        monkeypatch.setattr(history, "COMPACT_ABOVE_BYTES", 0)
        monkeypatch.setattr(history, "LONGEST_RECORD_BYTES", 10)
    if number % 4 == 3:
        monkeypatch.setattr(slots, "EXACT_ENDS", 3)
        monkeypatch.setattr(slots, "EXACT_SLOTS", 3)
        monkeypatch.setattr(slots, "MOST_SHARES", 6 if number % 8 == 7 else 1000)
        # What is merged is rounded so coarsely that it reaches into windows of today.
        monkeypatch.setattr(slots, "BUCKETS", 4)
    if number % 3 == 2:
        monkeypatch.setattr(gauge, "MOST_KEYS", 2)


def _live(monkeypatch: pytest.MonkeyPatch, seed: str, number: int) -> int:
    with monkeypatch.context() as patched:
        _shrink(patched, number)
        world = World(Random(f"{seed} {number}"))
        try:
            world.live(EVENTS_A_WORLD)
            assert world.all_is_free_at_last(), "stuck, or wasteful"
        except AssertionError as error:
            raise AssertionError(f"world {number} of seed {seed}: {error}") from error
        return world.grants


def test_a_hundred_thousand_random_events_are_never_over(monkeypatch: pytest.MonkeyPatch) -> None:
    grants = sum(_live(monkeypatch, "0", number) for number in range(WORLDS))

    # It is not that nothing was ever granted.
    assert grants > WORLDS * EVENTS_A_WORLD // 20


@pytest.mark.crash
def test_as_many_random_events_as_the_budget_allows_are_never_over(
    monkeypatch: pytest.MonkeyPatch, crash_seed: int, crash_budget_s: float
) -> None:
    until = time.monotonic() + crash_budget_s / 4
    number = 0
    while time.monotonic() < until:
        _live(monkeypatch, str(crash_seed), number)
        number += 1
    assert number
