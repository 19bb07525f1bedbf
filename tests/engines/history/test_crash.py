"""The power is cut, and processes are killed, after every operation on the history: no slot is freed early.

Runs are all sequences of a few deeds of two processes, on every model of a disk
(tests.fakes.power), with a file that is never replaced, or often; with
a sync that fails; and with a second crash while the first is recovered from.  The long run
goes on with longer ones from a seed: RELAY_CRASH_SEED and RELAY_CRASH_BUDGET (seconds).
"""

import errno
import itertools
import random
import time
from collections.abc import Callable

import pytest

from relay.throttle.file_history import REPLACE_ABOVE_BYTES
from tests.engines.history.cuts import DEEDS, PATH, Judge, instants_of, runs
from tests.engines.history.limits import granted, messages, throttle
from tests.engines.history.world import Killed
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model, Platter

SYNCS = frozenset({"sync", "sync_content", "sync_directory"})
REPLACES = {"never": REPLACE_ABOVE_BYTES, "often": 0}
"""Above how many bytes a file is replaced that is twice as long as it was."""
CUTS_AT_ONCE = 128
STEP = 5
"""Of the short runs `make test` has every so-manieth, `make test-all` as many others."""
SHARE = 0.1
"""Of the budget of all crash runs."""


def judge_run(judge: Judge, run: tuple[str, ...], model: Model, rng: random.Random) -> None:
    """Judge one run: as it is, with a sync that fails, and crashed twice."""
    story = f"{', '.join(run)} ({model.name})"
    instants = instants_of(run, model, replace_above_bytes=judge.replace_above_bytes)
    judge.judge(instants, rng, CUTS_AT_ONCE, story=story)
    nth, drops_pages = rng.randint(1, 6), rng.random() < 0.5
    fault = Fault(nth, errno.EIO, kinds=SYNCS, drops_pages=drops_pages)
    failed = f"{story}, sync {nth} failed{' and dropped its pages' * drops_pages}"
    judge.judge(instants_of(run, model, fault, judge.replace_above_bytes), rng, CUTS_AT_ONCE, story=failed)
    if instants:
        judge.crash_twice(instants, rng, 8, story=story)


@pytest.mark.parametrize(
    ("how_often", "first"),
    [(each, 0) for each in REPLACES] + [pytest.param(each, 2, marks=pytest.mark.full) for each in REPLACES],
)
def test_no_crash_frees_a_slot_early_or_stops_the_account(
    how_often: str, first: int, tell: Callable[[str], None]
) -> None:
    judge, rng = Judge(REPLACES[how_often]), random.Random(how_often)
    short = itertools.product(itertools.chain(runs(1), runs(2)), Model)
    # Of the longer ones each on one model, in turn: that is what time allows here.
    every_run = itertools.chain(short, zip(runs(3), itertools.cycle(Model), strict=False))
    for run, model in itertools.islice(every_run, first, None, STEP):
        judge_run(judge, run, model, rng)
        judge.tally.runs += 1

    tell(f"history replaced {how_often}: {judge.tally}, nothing freed early")
    assert len(judge.tally.states) > 3000 / STEP
    assert len(judge.tally.second) > 600 / STEP


@pytest.mark.parametrize("call", ["sync_content", "sync_directory"])
def test_what_the_dead_wrote_is_durable_before_another_adds_to_it(call: str) -> None:
    """One dies in its commit, or as it replaces the file; another goes on, and the power is cut."""
    limits, above = [messages(99, seconds=60)], 0 if call == "sync_directory" else REPLACE_ABOVE_BYTES
    disk, clock = ModelDisk(Platter(Model.ANY_SUBSET)), FakeClock()
    disk_of_one = disk.another()
    one = throttle(PATH, disk_of_one, clock, limits, replace_above_bytes=above)
    other = throttle(PATH, disk, clock, limits)
    granted(one, 1)
    other.flush()

    def die(kind: str) -> None:
        if kind.startswith(call):
            raise Killed

    disk_of_one.before = die
    with pytest.raises(Killed):
        [granted(one, *[1] * 8) for _ in range(9)]  # more than a sector each
    images: list[ModelDisk] = []
    disk.after = lambda: images.extend(disk.cuts(random.Random(0), CUTS_AT_ONCE))
    granted(other, 1)

    for image in images:
        throttle(PATH, image, clock, limits).flush()
    for image in disk.cuts(random.Random(0), CUTS_AT_ONCE):
        account = throttle(PATH, image, clock, limits)
        account.flush()
        assert account.usage()[0].used >= other.usage()[0].used


@pytest.mark.crash
def test_no_crash_of_a_longer_run_does_either(
    crash_seed: int, crash_budget_s: float, tell: Callable[[str], None]
) -> None:
    until, judge = time.monotonic() + crash_budget_s * SHARE, Judge()
    for number in itertools.count():
        rng = random.Random(f"{crash_seed}/history {number}")
        judge.replace_above_bytes = rng.choice(list(REPLACES.values()))
        run = ("A reserves", *rng.choices(list(DEEDS), k=6))
        model = rng.choice(list(Model))
        for deeds in range(1, len(run) + 1):
            judge_run(judge, run[:deeds], model, rng)
        judge.tally.runs += 1
        if time.monotonic() > until:
            break

    tell(f"history: {judge.tally}, seed {crash_seed}: nothing freed early")
    assert judge.tally.second
