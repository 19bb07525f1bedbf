"""Random stories of the whole relay: every promise holds, and mail that may go, goes.

A failing story is shortened and printed. `python -m tests.simulation` runs more stories.
"""

import os
import random
import time

import pytest

from tests.simulation.__main__ import broken_by, shortened, told
from tests.simulation.script import Script, drawn
from tests.simulation.story import Story
from tests.simulation.worlds import WORLDS

SEEDS = range(2, 3) if os.environ.get("RELAY_TESTS") == "full" else range(1, 2)
"""The seeds for each world and engine. `make crash` starts from its own seed and runs for its budget."""


def _judge(script: Script) -> None:
    if broken := broken_by(script):
        pytest.fail(f"{broken}\n{told(shortened(script, broken.promise))}")


@pytest.mark.draws
@pytest.mark.parametrize(
    ("world", "engine"), [(name, engine) for name, world in WORLDS.items() for engine in world.engines]
)
def test_every_promise_holds_in_drawn_stories(world: str, engine: str) -> None:
    for seed in SEEDS:
        _judge(drawn(WORLDS[world], seed, engine))


@pytest.mark.parametrize("world", ["two relays", "damage", "one queue"])
def test_equal_seeds_give_equal_stories(world: str) -> None:
    for engine in WORLDS[world].engines:
        digests = {Story(drawn(WORLDS[world], 7, engine)).run().digest for _ in range(2)}
        assert len(digests) == 1


@pytest.mark.crash
def test_every_promise_holds_in_drawn_stories_within_the_crash_budget(
    crash_seed: int, crash_budget_s: float
) -> None:
    dice, until = random.Random(crash_seed), time.monotonic() + crash_budget_s
    while time.monotonic() < until:
        world = WORLDS[dice.choice(list(WORLDS))]
        _judge(drawn(world, dice.getrandbits(32), dice.choice(world.engines)))
