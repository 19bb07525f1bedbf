"""Every small scenario, on the models of a disk, cut and killed at every instant, twice.

The space is in tests.engines.spool.scenarios, the models in tests.fakes.power, the judge in
tests.engines.spool.oracle, and how much of it is walked through in tests.engines.spool.campaign.  Each
test tells how many different crash states it judged, and from which seed.  `make test-all` has one
fifth of one recipient; the long run draws from all of them on every model, and from two
recipients on: RELAY_CRASH_SEED, RELAY_CRASH_BUDGET.
"""

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from tests.engines.spool.campaign import few_folders, judge_slice, walk
from tests.engines.spool.cuts import Judge
from tests.engines.spool.engine import OnModel
from tests.engines.spool.scenarios import Scenario, of_size
from tests.fakes.platter import Model
from tests.fakes.tally import Tally, on_all_cores

CUTS_AT_ONCE = 10
CUTS_AT_ONCE_IN_THE_LONG_RUN = 256
SHORT_STEP, FULL_STEP = 7, 5
"""Of the scenarios, every so-manieth; no divisor of how many belong together."""
SHARE = 0.5
"""Of the budget of all crash runs."""


def judge_one_recipient(
    monkeypatch: pytest.MonkeyPatch,
    engine: OnModel,
    models_of: Callable[[int], Sequence[Model]],
    scenarios: Iterable[tuple[int, Scenario]],
) -> Tally:
    few_folders(monkeypatch)
    # One judge for all models: what two of them allow is one state.
    judge = Judge(engine=engine)
    for number, scenario in scenarios:
        for model in models_of(number):
            judge_slice(judge, scenario, model, random.Random(number), CUTS_AT_ONCE)
            judge.tally.runs += 1
    return judge.tally


def two_in_turn(number: int) -> Sequence[Model]:
    return list(Model)[number % 2 :: 2]


@pytest.mark.parametrize("each", [SHORT_STEP, pytest.param(FULL_STEP, marks=pytest.mark.full)])
def test_one_recipient_survives_any_two_crashes(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None], engine: OnModel, each: int
) -> None:
    # The long run has each on all models.  Between two of the short run, in the full one.
    some = list(enumerate(of_size(1)))[each % SHORT_STEP :: each]
    tally = judge_one_recipient(monkeypatch, engine, two_in_turn, some)
    assert len(tally.states) * each > 10_000
    assert len(tally.second) * each > 3_000
    tell(f"spool: {tally}: nothing lost")


@pytest.mark.crash
def test_one_recipient_survives_them_on_every_model(
    monkeypatch: pytest.MonkeyPatch,
    tell: Callable[[str], None],
    engine: OnModel,
    drawn_in_time: Callable[[Iterable[Scenario], float], Iterator[tuple[int, Scenario]]],
) -> None:
    some = drawn_in_time(of_size(1), SHARE)
    tally = judge_one_recipient(monkeypatch, engine, lambda _number: list(Model), some)
    assert len(tally.states) > 20 * tally.runs
    assert len(tally.second) > 5 * tally.runs
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
    assert len(tally.states) > 100 * tally.runs
    assert len(tally.second) > 10 * tally.runs
