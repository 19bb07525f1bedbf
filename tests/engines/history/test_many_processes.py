"""Several real processes on one real history, killed at random: never over, never stuck, no waste."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from relay.clock import SECOND_NS
from tests.engines.history.oracle import Seen, worst_window

ROOT = Path(__file__).parents[3]
COUNT = 6
PERIOD_NS = 60_000_000
TRANSACTION_NS = 200_000_000
SENDERS = 3
KILLED = 9
SMALLEST_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Terms:
    """The limit of the account, and how long a transaction may take and takes at most."""

    count: int
    period_ns: int
    transaction_ns: int
    flight_ns: int


QUICK = Terms(COUNT, PERIOD_NS, TRANSACTION_NS, TRANSACTION_NS // 4)
STEADY = Terms(100, SECOND_NS, SECOND_NS // 4, SECOND_NS // 500)
"""One sender alone uses all of it: it could send several times as much."""


def _start(history: Path, terms: Terms, grants: int, seed: int) -> subprocess.Popen[str]:
    numbers = (terms.count, terms.period_ns, terms.transaction_ns, terms.flight_ns, grants, seed)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engines.history.worker", str(history), *map(str, numbers)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def _told(lines: list[str]) -> list[Seen]:
    """Return what one sender said that it sent; what it did not live to end may fly until its deadline."""
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


def _live_and_die(history: Path, *, senders: int, killed: int, random: Random) -> list[Seen]:
    """Have so many senders at work, kill so many one by one, and have a last one prove that none is stuck."""
    seen: list[Seen] = []
    alive = [_start(history, QUICK, 10**9, seed) for seed in range(senders)]
    for number in range(killed):
        victim = alive.pop(0)
        assert victim.stdout is not None
        lines = [victim.stdout.readline() for _ in range(random.randint(1, 12))]
        victim.kill()
        lines += victim.communicate()[0].splitlines(keepends=True)
        seen += _told(lines)
        if number < killed - senders:
            alive.append(_start(history, QUICK, 10**9, senders + number))

    survivor = _start(history, QUICK, 3 * COUNT, seed=1000)
    told, _ = survivor.communicate(timeout=60)
    assert survivor.returncode == 0
    return seen + _told(told.splitlines(keepends=True))


class Crowd:
    """So many senders at work, each with a file that it writes what it says to."""

    def __init__(self, folder: Path, senders: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._said: list[Path] = []
        self._alive = [self._new() for _ in range(senders)]

    def _new(self) -> subprocess.Popen[bytes]:
        said = self._folder / f"said{len(self._said)}"
        numbers = (STEADY.count, STEADY.period_ns, STEADY.transaction_ns, STEADY.flight_ns)
        arguments = [str(self._folder / "isp"), *map(str, (*numbers, 10**9, len(self._said)))]
        self._said.append(said)
        with said.open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.engines.history.worker", *arguments], cwd=ROOT, stdout=out
            )

    def wait_until_at_work(self) -> None:
        """Return once every one of them was granted something."""
        deadline_s = time.monotonic() + 60
        while not all(said.stat().st_size for said in self._said):
            assert time.monotonic() < deadline_s, "a sender was never granted anything"
            self.live(0.05)

    def live(self, seconds: float) -> None:
        """Let them work for a while."""
        with pytest.raises(subprocess.TimeoutExpired):
            self._alive[0].wait(seconds)

    def kill_one(self, random: Random) -> None:
        """Kill one of them, and start another."""
        victim = self._alive.pop(random.randrange(len(self._alive)))
        victim.kill()
        victim.wait()
        self._alive.append(self._new())

    def end(self) -> list[Seen]:
        """Kill them all; return everything that they sent, by its start."""
        for each in self._alive:
            each.kill()
        for each in self._alive:
            each.wait()
        seen = [each for said in self._said for each in _told(said.read_text().splitlines(keepends=True))]
        return sorted(seen, key=lambda each: each.started_at_ns)


def _rate(
    folder: Path, *, senders: int, seconds: float, random: Random | None = None
) -> tuple[float, int, int]:
    """Return how many a second they sent, the most in any window, and how often one was killed, if any was.

    The rounds are timed slot by slot (the last N starts less the first N, on the average), so
    that it does not matter where in a round the clock is stopped.
    """
    crowd, kills = Crowd(folder, senders), 0
    crowd.wait_until_at_work()
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        crowd.live(min(left_s, random.uniform(0, 2) if random else left_s))
        if random is not None:
            crowd.kill_one(random)
            kills += 1
    seen = crowd.end()
    starts_ns, count = [each.started_at_ns for each in seen], STEADY.count
    assert len(starts_ns) > 2 * count
    took_ns = (sum(starts_ns[-count:]) - sum(starts_ns[:count])) / count
    rate = (len(starts_ns) - count) * SECOND_NS / took_ns
    return rate, worst_window(seen, "messages", STEADY.period_ns), kills


def _compare(folder: Path, *, seconds: float, random: Random) -> str:
    """Have eight senders work and die for so long, and one in peace; return what came of it."""
    alone, most_alone, _ = _rate(folder / "alone", senders=1, seconds=seconds / 3)
    rate, most, kills = _rate(folder / "eight", senders=8, seconds=seconds, random=random)
    figures = (
        f"eight senders, {kills} SIGKILLs in {seconds:.0f} s: at most {most} of {STEADY.count} in any T, "
        f"{rate:.1f} a second; one in peace {alone:.1f}; {rate / alone:.3f} of it"
    )
    assert max(most, most_alone) <= STEADY.count, figures
    assert rate >= SMALLEST_SHARE * alone, figures
    return figures


@pytest.mark.full
def test_killed_senders_never_exceed_and_block_nobody(tmp_path: Path) -> None:
    seen = _live_and_die(tmp_path / "isp", senders=SENDERS, killed=KILLED, random=Random(20))

    assert len(seen) > COUNT
    assert worst_window(seen, "messages", PERIOD_NS) <= COUNT


@pytest.mark.measures
def test_eight_senders_under_kills_send_as_much_as_one(tmp_path: Path, tell: Callable[[str], None]) -> None:
    tell(_compare(tmp_path, seconds=9, random=Random(8)))


@pytest.mark.crash(least_s=45)
def test_eight_senders_under_long_kills_never_exceed(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    random = Random(crash_seed)
    figures = _compare(tmp_path, seconds=min(60.0, max(9.0, crash_budget_s / 5)), random=random)
    tell(f"seed {crash_seed}: {figures}")
    until, rounds = time.monotonic() + crash_budget_s / 8, 0
    while time.monotonic() < until or not rounds:
        seen = _live_and_die(tmp_path / f"isp{rounds}", senders=8, killed=24, random=random)
        assert worst_window(seen, "messages", PERIOD_NS) <= COUNT
        rounds += 1
