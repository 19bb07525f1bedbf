"""Calls that a disk refuses each time until some later start: nothing is lost, and nothing comes again."""

import itertools
import time
from collections.abc import Callable

import pytest

from relay.spool.log import recovery as log_recovery
from relay.spool.log import segments, summary
from relay.spool.maildir import recovery
from tests.proofs.figures import FIGURES
from tests.unit.spool.campaign import few_folders
from tests.unit.spool.engine import OnModel
from tests.unit.spool.standing import StandingFaults
from tests.unit.spool.world import Violation


def walk(seed: str, engine: OnModel, monkeypatch: pytest.MonkeyPatch) -> StandingFaults:
    """Walk through the starts of a seed.  Raises Violation, which tells the story."""
    few_folders(monkeypatch)
    monkeypatch.setattr(recovery, "BATCH", 2)
    monkeypatch.setattr(log_recovery, "RECOVERED_AT_ONCE", 2)
    # Drawn by `OnModel.vary`, and as before again for other tests.
    monkeypatch.setattr(segments, "SEGMENT_BYTES", segments.SEGMENT_BYTES)
    monkeypatch.setattr(summary, "LET_BE", summary.LET_BE)
    faults = StandingFaults(seed, engine)
    try:
        faults.run()
    except Exception as error:
        raise Violation(f"seed {seed}: {'; '.join(faults.story)}: {error!r}") from error
    FIGURES["senders whose disk refused some calls each time"] += faults.refused
    return faults


@pytest.mark.parametrize("number", range(20))
def test_what_is_refused_each_time_loses_nothing(
    number: int, engine: OnModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert walk(f"0/{number}", engine, monkeypatch).lives > 0


@pytest.mark.crash
def test_standing_faults_drawn_from_a_seed_lose_nothing(
    crash_seed: int,
    crash_budget_s: float,
    engine: OnModel,
    monkeypatch: pytest.MonkeyPatch,
    tell: Callable[[str], None],
) -> None:
    until, lives = time.monotonic() + crash_budget_s / 10, 0
    for number in itertools.count(1):
        lives += walk(f"{crash_seed}/{number}", engine, monkeypatch).lives
        if time.monotonic() > until:
            break
    tell(f"{number} spools, {lives} senders under standing faults, seed {crash_seed}: nothing lost")
