"""python -m tests.simulation [--world NAME] [--engine NAME] SEED [COUNT]: run stories from a seed on.

Ends with 1 at the first one that breaks a promise, shortened and told in words (`--whole`: as it is).
"""

import argparse
import sys
import time
from itertools import product

from tests.simulation.oracle import Broken
from tests.simulation.script import Script, drawn
from tests.simulation.shrink import shortened
from tests.simulation.story import Story
from tests.simulation.worlds import WORLDS

ENGINES = sorted({engine for world in WORLDS.values() for engine in world.engines})


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def told(script: Script) -> str:
    """Return how a script goes, line by line, with the end of the relay's log."""
    story = Story(script)
    try:
        story.run()
        end = "all promises are kept"
    except Broken as broken:
        end = str(broken)
    head = f"world {script.world}, engine {script.engine}, seed {script.seed}"
    return "\n".join([head, *story.outcome.lines, "the log:", story.outcome.log[-8000:], f"=> {end}"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--world", choices=WORLDS, action="append")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--tell", action="store_true")
    asked = parser.parse_args()
    began, virtual_s, accepted, taken, crashes, stories = time.monotonic(), 0.0, 0, 0, 0, 0
    for seed in range(asked.seed, asked.seed + asked.count):
        for world, engine in product(asked.world or WORLDS, asked.engine or ENGINES):
            if engine not in WORLDS[world].engines:
                continue
            script = drawn(WORLDS[world], seed, engine)
            if asked.tell:
                _say(told(script))
            story = Story(script)
            try:
                outcome = story.run()
            except Broken as broken:
                _say(f"seed {seed}, world {world!r}, engine {engine}: {broken}")
                short = script if asked.whole else shortened(script, broken.promise)
                _say(told(short))
                return 1
            stories, virtual_s = stories + 1, virtual_s + outcome.virtual_s
            accepted, taken = accepted + outcome.accepted, taken + outcome.taken
            crashes += outcome.crashes
            if asked.count == 1:
                _say(f"{world:14} {engine:8} {outcome.digest} {outcome.accepted} accepted")
    seconds = time.monotonic() - began
    _say(
        f"{stories} stories, {virtual_s / 86400:.1f} virtual days, {accepted} accepted, {taken} taken, "
        f"{crashes} crashes, {seconds:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
