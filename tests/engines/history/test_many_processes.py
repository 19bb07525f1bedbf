"""Real processes on one history, killed at random: no limit is exceeded and no sender blocks another."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.engines.history.oracle import Seen, worst_window

ROOT = Path(__file__).parents[3]
COUNT = 6
PERIOD_NS = 60_000_000
TRANSACTION_NS = 200_000_000
SENDERS = 3
KILLED = 9
FLIGHT_NS = TRANSACTION_NS // 4


def _start(history: object, grants: int, seed: int) -> subprocess.Popen[str]:
    numbers = (COUNT, PERIOD_NS, TRANSACTION_NS, FLIGHT_NS, grants, seed)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engines.history.worker", str(history), *map(str, numbers)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def _told(lines: list[str]) -> list[Seen]:
    """Parse one sender's output. A transaction without a reported end may last until its deadline."""
    flights: dict[str, Seen] = {}
    for line in lines:
        match line.split():
            case ["granted", reservation_id, start_ns, deadline_ns] if line.endswith("\n"):
                flights[reservation_id] = Seen(int(start_ns), int(deadline_ns), 1, 1)
            case ["ended", reservation_id, end_ns] if line.endswith("\n"):
                flights[reservation_id].ended_at_ns = int(end_ns)
            case ["late", reservation_id, _] if line.endswith("\n"):
                del flights[reservation_id]
    return list(flights.values())


def _live_and_die(history: object, *, senders: int, killed: int, random: Random) -> list[Seen]:
    """Run `senders` processes, kill `killed` one by one; a last sender proves that none is stuck."""
    seen: list[Seen] = []
    alive = [_start(history, 10**9, seed) for seed in range(senders)]
    for number in range(killed):
        victim = alive.pop(0)
        assert victim.stdout is not None
        lines = [victim.stdout.readline() for _ in range(random.randint(1, 12))]
        victim.kill()
        lines += victim.communicate()[0].splitlines(keepends=True)
        seen += _told(lines)
        if number < killed - senders:
            alive.append(_start(history, 10**9, senders + number))

    survivor = _start(history, 3 * COUNT, seed=1000)
    told, _ = survivor.communicate(timeout=60)
    assert survivor.returncode == 0
    return seen + _told(told.splitlines(keepends=True))


@pytest.mark.full
@pytest.mark.parametrize("store", ["a file", "PostgreSQL"])
def test_killed_senders_never_exceed_a_limit_and_block_no_other_sender(
    tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    history = tmp_path / "isp" if store == "a file" else request.getfixturevalue("server").url
    seen = _live_and_die(history, senders=SENDERS, killed=KILLED, random=Random(20))

    assert len(seen) > COUNT
    assert worst_window(seen, "messages", PERIOD_NS) <= COUNT


@pytest.mark.crash(least_s=45)
def test_eight_senders_under_long_kills_never_exceed_a_limit(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    random, until, rounds = Random(crash_seed), time.monotonic() + crash_budget_s / 3, 0
    while time.monotonic() < until or not rounds:
        seen = _live_and_die(tmp_path / f"isp{rounds}", senders=8, killed=24, random=random)
        assert worst_window(seen, "messages", PERIOD_NS) <= COUNT
        rounds += 1
    tell(f"seed {crash_seed}: eight senders, {24 * rounds} SIGKILLs: at most {COUNT} in any T")
