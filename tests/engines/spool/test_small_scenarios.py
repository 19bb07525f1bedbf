"""Every small scenario, on the models of a disk, cut and killed at every instant, twice.

The space is in tests.engines.spool.scenarios, the models in tests.fakes.power, the judge in
tests.engines.spool.oracle, and how much of it is walked through in tests.engines.spool.campaign.  Each
test tells how many different crash states it judged, and from which seed.  The long run has
one recipient on every model, and goes on with two: RELAY_CRASH_SEED, RELAY_CRASH_BUDGET.
"""

import functools
import random
from collections.abc import Callable, Sequence

import pytest

from tests.engines.spool.campaign import LEAST_SECOND, LEAST_STATES, few_folders, judge_slice, walk
from tests.engines.spool.cuts import Judge
from tests.engines.spool.engine import OnModel
from tests.engines.spool.scenarios import of_size
from tests.fakes.platter import Model
from tests.fakes.tally import Tally, on_all_cores

CUTS_AT_ONCE = 10
CUTS_AT_ONCE_IN_THE_LONG_RUN = 256
SHORT_STEP = 7
"""Of the scenarios, every so-manieth in the short run; no divisor of how many belong together."""
SHARE = 0.75
"""Of the budget of all crash runs."""


def judge_one_recipient(
    monkeypatch: pytest.MonkeyPatch,
    engine: OnModel,
    models_of: Callable[[int], Sequence[Model]],
    *,
    each: int = 1,
) -> Tally:
    """Judge one of `each` so many scenarios of one recipient, on these models of a disk by its number."""
    few_folders(monkeypatch)
    # One judge for all models: what two of them allow is one state.
    judge, runs = Judge(engine=engine), list(of_size(1))
    for number, scenario in list(enumerate(runs))[::each]:
        for model in models_of(number):
            judge_slice(judge, scenario, model, random.Random(number), CUTS_AT_ONCE)
            judge.tally.runs += 1
    return judge.tally


def two_in_turn(number: int) -> Sequence[Model]:
    """Return a mild model of a disk and a worse one."""
    return list(Model)[number % 2 :: 2]


@pytest.mark.parametrize("each", [SHORT_STEP, pytest.param(1, marks=pytest.mark.full)])
def test_one_recipient_survives_any_two_crashes(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None], engine: OnModel, each: int
) -> None:
    # The long run has each on all models.
    tally = judge_one_recipient(monkeypatch, engine, two_in_turn, each=each)
    assert len(tally.states) * each > 10_000
    assert len(tally.second) * each > 3_000
    tell(f"spool: {tally}: nothing lost")


@pytest.mark.crash
def test_one_recipient_survives_them_on_every_model(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None], engine: OnModel
) -> None:
    tally = judge_one_recipient(monkeypatch, engine, lambda _number: list(Model))
    assert len(tally.states) > 20_000
    assert len(tally.second) > 5_000
    tell(f"spool: {tally}: nothing lost")


@pytest.mark.crash
def test_up_to_three_messages_survive_any_two_crashes(
    tell: Callable[[str], None], engine: OnModel, crash_seed: int, crash_budget_s: float
) -> None:
    seed, budget_s, most = crash_seed, crash_budget_s * SHARE, CUTS_AT_ONCE_IN_THE_LONG_RUN
    tally = on_all_cores(
        functools.partial(walk, seed=seed, budget_s=budget_s, smallest=2, most=most, engine=engine)
    )

    tell(f"spool: {tally}, seed {seed}: nothing lost")
    assert len(tally.states) >= LEAST_STATES
    assert len(tally.second) >= LEAST_SECOND
