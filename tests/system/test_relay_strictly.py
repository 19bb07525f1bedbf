"""Never over, judged by the upstream, whatever happens to the relay; and little is wasted."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.system.strict import Terms, undergo

SMALLEST_SHARE = 0.95
"""Of N / (T + guard + mean transaction).  0.98 is wanted, and told; a machine that is busy with
something else starts each transaction late, which in windows of seconds counts for some hundredths: at a
load of two for each core the least was 0.986."""
SMALLEST_SHARE_WITH_KILLS = 0.97
"""The same, where a start takes no time; and each second everything starts anew."""
LESS_FOR_EACH_SECOND_OF_A_START = 0.25
"""READY=1 is not the end of a start: 40 connections are opened then, on a slow machine as slowly as all
before.  Seen at 0.16 s a start: 0.989 and 0.993; at 0.25 s 0.962, at 0.35 s 0.946, at 0.42 s 0.903."""
COUNT_WITH_KILLS = 300
"""Few enough for a relay that is gone for half of each second to be in time for all of them."""
WHOLE_BUDGET_S = 300.0
"""Of a crash run that has all 10,000 transactions; a shorter one has its part, five windows at least."""
WHOLE = Terms(
    count=1000,
    period_s=10.0,
    transactions=10_000,
    latest_reply_s=0.2,
    max_transaction_s=2.0,
    seed=0,
    is_killed=False,
)
SMALL = Terms(
    count=50,
    period_s=1.0,
    transactions=250,
    latest_reply_s=0.05,
    # Beyond this a copy is repeated: long enough for a machine that is busy with something else.
    max_transaction_s=1.5,
    seed=9,
    is_killed=True,
)


def test_late_and_lost_replies_kills_and_edits_never_exceed(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    found = undergo(tmp_path, SMALL)
    tell(str(found))

    # With a kill a second some windows are not full, but most are nearly.
    assert SMALL.count * 3 // 4 < found.most_in_any_window <= SMALL.count
    assert found.refused == 0
    assert min(found.kills, found.edits, found.cuts, found.unheard) > 0


FIVE_WINDOWS = replace(WHOLE, count=200, period_s=4.0, transactions=1000)


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param(WHOLE, marks=pytest.mark.crash(least_s=100)),
        pytest.param(FIVE_WINDOWS, marks=pytest.mark.measures),
    ],
)
def test_late_and_lost_replies_and_edits_waste_little(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float, terms: Terms
) -> None:
    found = undergo(tmp_path, _within(crash_budget_s, replace(terms, seed=crash_seed)))
    tell(str(found))

    assert (found.most_in_any_window, found.refused, found.kills) == (found.terms.count, 0, 0)
    assert found.share >= SMALLEST_SHARE, str(found)


@pytest.mark.crash(least_s=100)
def test_a_kill_each_second_wastes_little(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    terms = replace(WHOLE, seed=crash_seed, is_killed=True, count=COUNT_WITH_KILLS)
    found = undergo(tmp_path, _within(crash_budget_s, terms))
    tell(str(found))

    assert (found.most_in_any_window <= found.terms.count, found.refused) == (True, 0)
    smallest = SMALLEST_SHARE_WITH_KILLS - LESS_FOR_EACH_SECOND_OF_A_START * found.down_s / found.kills
    assert found.share >= smallest, f"less than {smallest:.3f}: {found}"


def _within(budget_s: float, terms: Terms) -> Terms:
    part = int(terms.transactions * min(1.0, budget_s / WHOLE_BUDGET_S))
    return replace(terms, transactions=max(5 * terms.count, part))
