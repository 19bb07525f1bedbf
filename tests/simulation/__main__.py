"""python -m tests.simulation [--world NAME] [--engine NAME] SEED [COUNT]: run COUNT stories from SEED on.

Exits 1 at the first story that breaks a promise, and prints it, shortened (with `--whole`: as it is).
"""

import argparse
import sys
import time
from itertools import product

from tests.simulation.oracle import Broken
from tests.simulation.script import Script, drawn
from tests.simulation.story import Outcome, Story
from tests.simulation.worlds import WORLDS

ENGINES = sorted({engine for world in WORLDS.values() for engine in world.engines})

MOST_RUNS = 200
"""The most runs to shorten a script."""


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def told(script: Script) -> str:
    """Return the events of a script, line by line, with the end of the relay's log."""
    story = Story(script)
    try:
        story.run()
        end = "all promises are kept"
    except Broken as broken:
        end = str(broken)
    head = f"world {script.world}, engine {script.engine}, seed {script.seed}"
    return "\n".join([head, *story.outcome.lines, "the log:", story.outcome.log[-8000:], f"=> {end}"])


def broken_by(script: Script) -> Broken | None:
    try:
        Story(script).run()
    except Broken as broken:
        return broken
    return None


def shortened(script: Script, promise: str) -> Script:
    """Return the shortest script found that breaks the same promise, at worst the given one."""
    size, runs = max(1, len(script.events) // 2), 0
    while size and runs < MOST_RUNS:
        for start in range(0, len(script.events), size):
            shorter, runs = script.without(range(start, start + size)), runs + 1
            broken = broken_by(shorter)
            if broken is not None and broken.promise == promise:
                script = shorter
                break
            if runs >= MOST_RUNS:
                break
        else:
            size //= 2
    return script


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--world", choices=WORLDS, action="append")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--whole", action="store_true")
    asked = parser.parse_args()
    seeds = range(asked.seed, asked.seed + asked.count)
    began, outcomes = time.monotonic(), list[Outcome]()
    for seed, world, engine in product(seeds, asked.world or WORLDS, asked.engine or ENGINES):
        if engine not in WORLDS[world].engines:
            continue
        script = drawn(WORLDS[world], seed, engine)
        try:
            outcome = Story(script).run()
        except Broken as broken:
            _say(f"seed {seed}, world {world!r}, engine {engine}: {broken}")
            _say(told(script if asked.whole else shortened(script, broken.promise)))
            return 1
        outcomes.append(outcome)
        if asked.count == 1:
            _say(f"{world:14} {engine:8} {outcome.digest} {outcome.accepted} accepted")
    _say(
        f"{len(outcomes)} stories, {sum(each.virtual_s for each in outcomes) / 86400:.1f} virtual days, "
        f"{sum(each.accepted for each in outcomes)} accepted, {sum(each.taken for each in outcomes)} taken, "
        f"{sum(each.crashes for each in outcomes)} crashes, {time.monotonic() - began:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
