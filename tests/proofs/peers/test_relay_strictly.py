"""The strict practice: 10,000 transactions under everything at once, none too many, and the share used."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope
from relay.practice.witness import Sighting, Witnessed
from tests.proofs.peers.practice import Seen
from tests.proofs.peers.strict import Rule, Terms, over_the_rules, undergo
from tests.proofs.peers.warm import Warm

SMALLEST_SHARE = 0.95
"""Of N / (T + guard + mean transaction), fair.  0.98 is wanted, and told; a machine that is busy with
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
"""Of a crash run that has all 10,000 transactions; a shorter one has its part, four windows at least."""
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
    transactions=300,
    latest_reply_s=0.05,
    max_transaction_s=0.3,
    seed=9,
    is_killed=True,
    tightens=True,
)


def _seen(*spans_s: tuple[float, float]) -> list[Seen]:
    """Return transactions that began, and were counted, at these instants."""
    envelope = Envelope("a@here.example", ("b@there.example",), 0, "", "", "ESMTP")
    return [
        Seen(began_ns, counted_ns, Sighting(counted_ns, envelope, 0, "", "", Witnessed.RELAYED))
        for began_ns, counted_ns in ((round(s * SECOND_NS), round(e * SECOND_NS)) for s, e in spans_s)
    ]


@pytest.mark.parametrize(
    ("seen", "over"),
    [
        # Under 3 in 1 s until 10 s, under 2 in 2 s from then on.
        (_seen((8.0, 8.0), (8.1, 8.1), (8.2, 8.2), (9.0, 9.0)), []),
        (_seen((8.0, 8.1), (8.1, 8.1), (8.2, 8.2), (8.9, 9.0)), ["4 of 3 in 1 s"]),
        # All too many by the new rule, and begun before it.
        (_seen((9.7, 9.7), (9.8, 9.8), (9.9, 9.9)), []),
        (_seen((9.7, 9.7), (9.9, 10.5), (11.7, 11.7), (12.5, 12.5)), []),
        (_seen((9.7, 9.7), (9.9, 10.5), (11.6, 11.6), (12.4, 12.4)), ["3 of 2 in 2 s", "3 of 2 in 2 s"]),
        # Counted later than one that began later.
        (_seen((10.0, 12.9), (11.0, 11.0), (12.0, 12.0)), ["3 of 2 in 2 s"]),
    ],
)
def test_what_was_begun_is_judged_by_the_rule_of_that_moment(seen: list[Seen], over: list[str]) -> None:
    rules = [Rule(3, 1.0, 0, 10 * SECOND_NS), Rule(2, 2.0, 10 * SECOND_NS)]

    assert over_the_rules(rules, seen) == over


@pytest.mark.slow
def test_late_and_lost_replies_kills_and_edits_never_exceed(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    with Warm() as warm:
        found = undergo(tmp_path, warm, SMALL)
    tell(str(found))

    assert (found.most_in_any_window <= found.terms.count, found.refused) == (True, 0)
    assert found.over_the_rule == []
    assert min(found.kills, found.edits, found.cuts, found.unheard, found.judged_by_stricter) > 0


@pytest.mark.crash
def test_late_and_lost_replies_and_edits_waste_little(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    with Warm() as warm:
        found = undergo(tmp_path, warm, _within(crash_budget_s, replace(WHOLE, seed=crash_seed)))
    tell(str(found))

    assert (found.most_in_any_window, found.refused, found.kills) == (found.terms.count, 0, 0)
    assert found.fair_share >= SMALLEST_SHARE, str(found)


@pytest.mark.crash
def test_a_kill_each_second_wastes_little(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    terms = replace(WHOLE, seed=crash_seed, is_killed=True, count=COUNT_WITH_KILLS)
    with Warm() as warm:
        found = undergo(tmp_path, warm, _within(crash_budget_s, terms))
    tell(str(found))

    assert (found.most_in_any_window <= found.terms.count, found.refused) == (True, 0)
    smallest = SMALLEST_SHARE_WITH_KILLS - LESS_FOR_EACH_SECOND_OF_A_START * found.down_s / found.kills
    assert found.fair_share >= smallest, f"less than {smallest:.3f}: {found}"


def _within(budget_s: float, terms: Terms) -> Terms:
    part = int(terms.transactions * min(1.0, budget_s / WHOLE_BUDGET_S))
    return replace(terms, transactions=max(4 * terms.count, part))
