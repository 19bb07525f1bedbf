"""Walking through the space of scenarios on all cores: slices of work that a seed decides.

A slice is one scenario on one model of a disk: every instant of it is killed and cut, so
is a run of it in which one sync failed, and of some images so is the recovery, the rest of
the run and one message more: the second crash.  What slice
number n is depends on the seed and n alone; how many there are depends on the time.

Scenarios come smallest first, each size whole before the next, in an order drawn from
the seed; behind the last whole size they are drawn at random from the whole space.
"""

import errno
import gc
import itertools
import random
import time
from collections.abc import Iterator

import pytest

from relay.spool.maildir import layout
from tests.engines.spool.cuts import Images, Judge, cuts, killed
from tests.engines.spool.engine import OnModel
from tests.engines.spool.maildir_engine import MAILDIR
from tests.engines.spool.scenarios import Scenario, drawn, of_size
from tests.engines.spool.world import Snapshot, Violation
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model
from tests.fakes.tally import Packed, Part

SPLITS = 2
"""Parts of cur/, instead of 64 that are mostly empty: messages share one, or not."""
LARGEST_WHOLE_SIZE = 4
SYNCS = frozenset({"sync", "sync_content", "sync_directory"})
FIRST_CRASHES = 6
SECOND_STATES = 24


def few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a spool have few folders, so that most of the time is not spent on looking into empty ones."""
    monkeypatch.setattr(layout, "SPLITS", SPLITS)


def scenarios(seed: int, smallest: int, largest: int = LARGEST_WHOLE_SIZE) -> Iterator[Scenario]:
    for size in range(smallest, largest + 1):
        whole = list(of_size(size))
        random.Random(f"{seed}/{size}").shuffle(whole)
        yield from whole
    for number in itertools.count():
        yield drawn(random.Random(f"{seed}/drawn/{number}"))


def judge_slice(judge: Judge, scenario: Scenario, model: Model, rng: random.Random, most: int) -> None:
    """Judge one scenario on one model, `most` images of an instant where not all."""
    story = f"{scenario} ({model.name})"
    snapshots = scenario.run(model, judge.engine)
    judge.judge(snapshots, killed, story=story)
    judge.judge(snapshots, lambda snapshot: cuts(snapshot, rng, most), story=story)
    first_crashes = [_first_crash(snapshots, rng) for _ in range(FIRST_CRASHES)]
    _judge_failed_sync(judge, scenario, model, rng, most)
    for label, image, snapshot in first_crashes:
        told = f"{story}, {label}"
        again = judge.go_on(image, snapshot, told, record=True)
        # The recovery itself and what comes after it, equally.
        some = rng.sample(again, min(len(again), SECOND_STATES))

        def second(instant: Snapshot) -> Images:
            return itertools.islice(itertools.chain(cuts(instant, rng, 4), killed(instant)), 5)

        judge.judge(some, second, story=told, is_second=True)


def _first_crash(snapshots: list[Snapshot], rng: random.Random) -> tuple[str, ModelDisk, Snapshot]:
    snapshot = rng.choice(snapshots)
    images = [*killed(snapshot), *cuts(snapshot, rng, 8)]
    return (*rng.choice(images), snapshot)


def _judge_failed_sync(judge: Judge, scenario: Scenario, model: Model, rng: random.Random, most: int) -> None:
    """Let one sync fail, and judge what a restart finds, with the power on and cut."""
    nth, drops_pages = rng.randint(1, 12), rng.random() < 0.5
    fault = Fault(nth, errno.EIO, kinds=SYNCS, drops_pages=drops_pages)
    snapshots = scenario.run(model, judge.engine, fault)
    story = f"{scenario} ({model.name}), sync {nth} failed{' and dropped its pages' * drops_pages}"
    judge.judge(snapshots, killed, story=story)
    judge.judge(snapshots, lambda snapshot: cuts(snapshot, rng, most), story=story)


def walk(
    part: Part, *, seed: int, budget_s: float, smallest: int, most: int, engine: OnModel = MAILDIR
) -> Packed:
    """Judge the slices of one part until the time is up.

    Raises Violation, which names its slice.
    """
    layout.SPLITS = SPLITS
    # Worlds are cycles: collected a slice at a time, they cost a tenth less.
    gc.disable()
    (first, many), until, judge = part, time.monotonic() + budget_s, Judge(engine=engine)
    slices = ((scenario, model) for scenario in scenarios(seed, smallest) for model in Model)
    for number, (scenario, model) in enumerate(slices):
        if number % many != first:
            continue
        rng = random.Random(f"{seed}/slice {number}")
        engine.vary(rng)
        try:
            judge_slice(judge, scenario, model, rng, most)
        except Violation as violation:
            raise Violation(f"RELAY_CRASH_SEED={seed}, slice {number}: {violation}") from violation
        judge.tally.runs += 1
        gc.collect()
        if time.monotonic() > until:
            break
    return judge.tally.packed()
