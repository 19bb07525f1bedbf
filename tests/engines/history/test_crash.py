"""The power is cut, and processes are killed, after every operation on the history: no slot is freed early.

Runs are all sequences of a few deeds of two processes, on every model of a disk
(tests.fakes.power), with a file that is never replaced, or often; with
a sync that fails; and with a second crash while the first is recovered from.  The long run
goes on with longer ones from a seed: RELAY_CRASH_SEED and RELAY_CRASH_BUDGET (seconds).
"""

import copy
import errno
import itertools
import random
import time
from collections.abc import Callable

import pytest

from relay.throttle.file_history import REPLACE_ABOVE_BYTES
from tests.engines.history.cuts import DEEDS, PATH, Account, Instant, Judge, Overrun, instants_of, runs
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model

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


def test_folders_of_a_killed_start_are_durable_before_a_grant() -> None:
    for instant in instants_of(("A reserves",), Model.ANY_SUBSET):
        disk = ModelDisk(instant.platter).after_kill()
        account = Account(disk, FakeClock())
        account.reserve(0)
        # Nothing of what is pending survives.
        cut = ModelDisk(disk.platter.after_cut(()))
        Account(cut, FakeClock()).flush(0)
        assert cut.length(str(PATH))


def test_groups_of_the_dead_are_durable_before_another_is_added() -> None:
    judge, rng = Judge(), random.Random(0)
    for instant in instants_of(("A reserves", "A reserves"), Model.ANY_SUBSET):
        disk = ModelDisk(instant.platter).after_kill()
        account = Account(disk, copy.copy(instant.clock), instant.true_ns, instant.slots)
        account.reserve(0)
        judge.judge(account.instants, rng, CUTS_AT_ONCE, story=instant.step)


def test_the_judge_sees_slots_freed_early_or_never_asked_for() -> None:
    instants = instants_of(("A reserves two", "A settles", "A flushes"), Model.ANY_SUBSET)
    told = instants[-1]

    empty = Instant(ModelDisk().platter, told.slots, told.clock, told.true_ns, "nothing is left")
    with pytest.raises(Overrun, match="granted beside 2"):
        Judge().judge([empty], random.Random(0), 1, story="")
    late = Instant(told.platter, (), told.clock, told.true_ns, "nobody asked")
    with pytest.raises(Overrun, match="not 0 to 0,"):
        Judge().judge([late], random.Random(0), 1, story="")


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
