"""Kills of every program at random while mail flows: no mail is lost, and each second copy has a reason.

The relay's processes get SIGKILL at random instants: all at once, the sender alone, one listener, or all
during a recovery or a policy edit.  The upstream crashes too, and connections are cut, also between the final
dot and its reply.
"""

import itertools
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.system.feeder import asked_or_refused
from tests.system.ordeal import Terms, undergo

ENGINES = ("maildir", "log")
ALONE = ("everything", "recovery", "killed_edit", "everything", "recovery", "upstream", "line")
"""What happens to a relay whose listener is part of the sender."""
WITH_LISTENERS = ("sender", "listener", "everything", "sender", "listener", "recovery", "killed_edit", "line")
FREE = Terms(
    1_000_000, 1, ALONE, 7, 34, 30, names=[["isp"]], shares=(1.0, 0.9, 0.8), letter=asked_or_refused,
    per_letter=1.7,
)  # fmt: skip
"""A limit that is never reached."""
TIGHT = replace(FREE, count=60, period_s=2, between=17, backlog=45)
"""A limit that is always reached.  Each kill wastes up to a slot a connection, so it suits few kills."""
LIMITS = (
    replace(FREE, count=250, period_s=2),
    FREE,
    replace(FREE, unit="recipients", count=350, period_s=2),
)


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param(TIGHT, id="maildir, tight"),
        pytest.param(replace(FREE, engine="log"), id="log", marks=pytest.mark.full),
        pytest.param(FREE, id="maildir", marks=pytest.mark.full),
        pytest.param(replace(TIGHT, engine="log"), id="log, tight", marks=pytest.mark.full),
    ],
)
def test_kills_lose_nothing_and_repeat_only_what_was_in_flight(
    tmp_path: Path, tell: Callable[[str], None], terms: Terms
) -> None:
    found = undergo(tmp_path, replace(terms, seed=1))
    tell(found.words)
    assert found.feeder.turned_away > 0
    assert found.verdict.reports > 50
    assert found.verdict.duplicates > 0, "no kill hit a transaction behind its dot"


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_kills_of_listener_processes_lose_nothing(tmp_path: Path, engine: str) -> None:
    undergo(tmp_path, replace(LIMITS[2], acts=WITH_LISTENERS, times=8, listeners=1, seed=8, engine=engine))


@pytest.mark.crash
@pytest.mark.parametrize("engine", ENGINES)
def test_long_runs_of_kills_lose_nothing_and_repeat_only_what_was_in_flight(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float, engine: str
) -> None:
    happened, duplicates = Counter[str](), 0
    seeds, until = random.Random(crash_seed), time.monotonic() + crash_budget_s / 8
    for number in itertools.count():
        is_tight = number % 10 == 5
        terms = replace(TIGHT if is_tight else LIMITS[number % len(LIMITS)], engine=engine)
        if not is_tight and crash_budget_s >= 100:
            terms = replace(terms, times=28, between=85)
        if number % 10 == 9:
            # A listener process takes a second to start, so few runs have any.
            terms = replace(terms, acts=WITH_LISTENERS, listeners=2)
        where = tmp_path / str(number)
        where.mkdir()
        found = undergo(where, replace(terms, seed=seeds.getrandbits(32)))
        happened, duplicates = happened + found.happened, duplicates + found.verdict.duplicates
        shutil.rmtree(where)
        if time.monotonic() > until:
            break
    tell(f"seed {crash_seed}, {engine}: {dict(happened)}, {duplicates} recipients twice")
