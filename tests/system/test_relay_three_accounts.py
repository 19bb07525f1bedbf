"""Two Postfixes with Dovecot and a strict upstream behind one relay: nothing lost, nothing over."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.token_server import USER
from tests.system import accounts, dovecot, postfix
from tests.system.demand import demand
from tests.system.feeder import SENDER
from tests.system.three_accounts import CONNECTIONS, NAMES, STRANGER, Found, Terms, undergo

SMALLEST_SHARE = 0.95
"""Of N / (T + guard + mean transaction), the mean of all three, where none is paused or stopped."""
CALM = Terms(count=60, period_s=5.0, deeds=20, seed=0, is_wild=False)
WILD = Terms(count=40, period_s=2.0, deeds=30, seed=0, is_wild=True)
SMALL = replace(WILD, count=20, deeds=8, seed=4, happens_each_s=0.7)


def assert_all_went_well(found: Found) -> None:
    found.verdict.assert_good(connections=CONNECTIONS * len(NAMES))
    assert found.verdict.reports == 0, "nobody was refused"
    assert found.told_twice == []
    assert found.unexpected == []
    assert found.refused == 0
    assert max(found.most.values()) <= found.terms.count, found.most
    assert (found.senders["password"], found.senders["token"]) == ({SENDER}, {SENDER})
    assert STRANGER in found.senders["practice"]
    assert found.logins["password"] == {("PLAIN", accounts.NAME)}
    assert found.logins["token"] == {("OAUTHBEARER", USER)}


@pytest.mark.full
def test_three_accounts_under_all_of_it_lose_and_exceed_nothing(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    demand(postfix.why_missing(), dovecot.why_missing())
    found = undergo(tmp_path, SMALL)
    tell(str(found))
    assert_all_went_well(found)


@pytest.mark.crash(least_s=60)
def test_three_accounts_are_used_to_the_full_while_all_have_mail(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    demand(postfix.why_missing(), dovecot.why_missing())
    deeds = max(20, int(crash_budget_s / 3))
    found = undergo(tmp_path, replace(CALM, seed=crash_seed, deeds=deeds))
    tell(str(found))
    assert_all_went_well(found)
    assert found.verdict.duplicates == 0
    assert found.share >= SMALLEST_SHARE, str(found)


@pytest.mark.crash(least_s=60)
def test_three_accounts_at_length_lose_and_exceed_nothing(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    demand(postfix.why_missing(), dovecot.why_missing())
    deeds = max(20, int(crash_budget_s / 2))
    found = undergo(tmp_path, replace(WILD, seed=crash_seed, deeds=deeds))
    tell(str(found))
    assert_all_went_well(found)
