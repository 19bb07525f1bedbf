"""Every small scenario, on the models of a disk, cut and killed at every instant, twice.

The space is in tests.engines.spool.scenarios, the models in tests.fakes.power, the judge in
tests.engines.spool.oracle.  A slice is one scenario on one model of a disk: every instant of it is killed and
cut, so is a run of it in which one sync failed, and of some images so is the recovery, the rest of the run,
one message more: the second crash.  Each test tells how many different crash states it judged.  The long run
draws from all scenarios of one recipient on every model, and then from the whole space: RELAY_CRASH_SEED,
RELAY_CRASH_BUDGET.
"""

import errno
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.engines.spool.cuts import Images, Judge, cuts, killed
from tests.engines.spool.engine import OnModel
from tests.engines.spool.scenarios import Scenario, drawn, of_one_recipient
from tests.engines.spool.world import Snapshot, Violation
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model

pytestmark = pytest.mark.usefixtures("few_folders")

CUTS_AT_ONCE = 10
CUTS_AT_ONCE_IN_THE_LONG_RUN = 256
SHORT_STEP, FULL_STEP = 7, 5
"""Of the scenarios, every so-manieth; no divisor of how many belong together."""
SHARE = 0.5
"""Of the budget of all crash runs."""
SYNCS = frozenset({"sync", "sync_content", "sync_directory"})
FIRST_CRASHES = 6
SECOND_STATES = 24


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
    judge.tally.runs += 1


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


@pytest.mark.parametrize("each", [SHORT_STEP, pytest.param(FULL_STEP, marks=pytest.mark.full)])
def test_one_recipient_survives_any_two_crashes(
    tell: Callable[[str], None], engine: OnModel, each: int
) -> None:
    # One judge for all models: what two of them allow is one state.
    judge = Judge(engine=engine)
    # Between two of the short run, in the full one; the long run has each on all models.
    for number, scenario in list(enumerate(of_one_recipient()))[each % SHORT_STEP :: each]:
        for model in list(Model)[number % 2 :: 2]:
            judge_slice(judge, scenario, model, random.Random(number), CUTS_AT_ONCE)
    assert len(judge.tally.states) * each > 10_000
    assert len(judge.tally.second) * each > 3_000
    tell(f"spool: {judge.tally}: nothing lost")


@pytest.mark.crash
def test_one_recipient_survives_them_on_every_model(
    tell: Callable[[str], None],
    engine: OnModel,
    drawn_in_time: Callable[[Iterable[Scenario], float], Iterator[tuple[int, Scenario]]],
) -> None:
    judge = Judge(engine=engine)
    for (number, scenario), model in itertools.product(drawn_in_time(of_one_recipient(), SHARE), Model):
        judge_slice(judge, scenario, model, random.Random(number), CUTS_AT_ONCE)
    assert len(judge.tally.states) > 20 * judge.tally.runs
    tell(f"spool: {judge.tally}: nothing lost")


@pytest.mark.crash
def test_up_to_three_messages_survive_any_two_crashes(
    tell: Callable[[str], None], engine: OnModel, crash_seed: int, crash_budget_s: float
) -> None:
    until_s, judge = time.monotonic() + crash_budget_s * SHARE, Judge(engine=engine)
    for number in itertools.count():
        rng = random.Random(f"{crash_seed}/slice {number}")
        engine.vary(rng)
        try:
            judge_slice(judge, drawn(rng), rng.choice(list(Model)), rng, CUTS_AT_ONCE_IN_THE_LONG_RUN)
        except Violation as violation:
            raise Violation(f"RELAY_CRASH_SEED={crash_seed}, slice {number}: {violation}") from violation
        if time.monotonic() > until_s:
            break
    tell(f"spool: {judge.tally}, seed {crash_seed}: nothing lost")
