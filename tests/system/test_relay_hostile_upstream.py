"""A hostile upstream, with kills: nothing is lost, over, bounced because of us, or twice without cause."""

import itertools
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.feeder import Feeder, partly_refused
from tests.system.hostile import HostileLine
from tests.system.kills import Kills, judge
from tests.system.strict_smarthost import PASSWORD, StrictSmarthost
from tests.system.waiting import wait_until
from tests.system.warm import WarmRelay

CONNECTIONS = 3
COUNT = 20
LIMIT = {"messages": COUNT, "per": "1s"}


def _live(folder: Path, seed: int, *, letters: int, kills: int) -> Counter[str]:
    """Relay letters over a hostile line, be killed, and bring all mail home over an honest one."""
    folder.mkdir()
    dice, reasons = random.Random(seed), Kills()
    with (
        StrictSmarthost(folder, LIMIT, seed=seed, latest_reply_s=0.02) as host,
        HostileLine(host.port, seed, reasons) as line,
    ):
        isp = host.upstream(port=line.port, connections=CONNECTIONS, limits=[LIMIT], shield=None)
        isp["max_transaction"] = "2s"
        relay = WarmRelay(folder, {"isp": isp}, reports={"per_hour": None})
        relay.start()
        with Feeder(relay.port, ahead=0, letter=partly_refused) as feeder:
            for number in range(letters):
                feeder.allow(1)
                wait_until(lambda number=number: len(feeder.acknowledged) > number)  # type: ignore[misc]  # bound now
                if number % 5 == 4:
                    # The operator does not wait for the end of a pause.
                    assert relay.command("resume", "isp").returncode in (os.EX_OK, 1)
                if kills and number % (letters // kills) == dice.randrange(letters // kills):
                    with reasons.one():
                        relay.kill_all()
                    relay.start()
        line.become_honest()

        def is_home() -> bool:
            relay.command("resume", "isp")
            return relay.is_empty()

        wait_until(is_home)
        wait_until(lambda: host.unanswered == 0)
        assert relay.stop() == 0
        verdict = judge(
            host.seen(), host.tried, reasons, feeder.acknowledged, feeder.attempted, letter=partly_refused
        )
    faults = (verdict.lost, verdict.foreign, verdict.corrupt, verdict.unexplained)
    assert faults == (set(), set(), [], []), "lost, foreign, corrupt, unexplained"
    assert host.ledger.most_in_any_window() <= COUNT
    assert not any(PASSWORD in line for line in relay.log())
    return Counter(line.happened) + Counter(
        letters=letters, twice=verdict.duplicates, reports=verdict.reports
    )


def test_a_hostile_upstream_makes_the_relay_break_no_promise(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    happened = _live(tmp_path / "relay", 3, letters=80, kills=3)
    tell(f"hostile: {dict(happened)}")
    # What was not tried is not shown; by chance one manner may be missing.
    assert sum(happened[manner] for manner in ("us", "lost", "unasked", "garbage", "split")) >= 10


@pytest.mark.crash
def test_a_hostile_upstream_for_hours_makes_the_relay_break_no_promise(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    happened: Counter[str] = Counter()
    seeds, until_s = random.Random(crash_seed), time.monotonic() + crash_budget_s / 4
    for number in itertools.count():
        seed = seeds.getrandbits(32)
        try:
            happened += _live(tmp_path / str(number), seed, letters=60, kills=4)
        except BaseException as broken:
            raise AssertionError(f"run {number}, seed {seed} of its own") from broken
        shutil.rmtree(tmp_path / str(number))
        if time.monotonic() > until_s:
            break
    tell(f"seed {crash_seed}: {dict(happened)}")
