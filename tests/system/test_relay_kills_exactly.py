"""A SIGKILL ahead of each system call that changes something, from the first start to the last stop.

The relay is held ahead of its n-th such call and killed there, for n = 1, 2, … until a run
is through untouched.  The start after it is killed too, ahead of a call of chance: in its
recovery, or when it relays what it found.  The third start has to bring all mail home.

Of three messages one has a recipient that is refused for good, so that there are a note, a
report and a removal; one stays until an operator has held, released and deleted it.
"""

import contextlib
import http.client
import itertools
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system import syscalls
from tests.system.demand import demand
from tests.system.feeder import Feeder, of_every_end
from tests.system.kills import Kills, judge, told_relayed_twice
from tests.system.operator import Operator
from tests.system.processes import leader_of
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.syscalls import Call
from tests.system.waiting import wait_until
from tests.system.warm import WarmRelay

CONNECTIONS = 2
LETTERS = 3
NUMBERS = 100
"""How far the numbers of two runs are apart; the second letter of each is a long one (see `of_every_end`)."""
MOST = 10_000
LIMIT = {"messages": MOST, "per": "1s"}
PLACES = {
    "maildir": {"notes": r"/notes/", "hold": r"/hold\b", "reports": r"/[0-9a-z]{16}r[0-9]*\b"},
    "log": {
        "accepted": r"/log/[0-9a-z]{16}\.0",
        "settled": r"/log/sender\.0",
        "checkpoint": r"/log/checkpoint",
    },
}
"""By the engine, what a call is about that has to do with each of these."""
SECOND_KILL_WITHIN = 60
"""Calls of the second start ahead of which it is killed; a whole run has about a hundred."""


class Gallows:
    """One upstream and one spool for many runs, and the account of them all."""

    def __init__(self, folder: Path, host: StrictSmarthost, seed: int, engine: str) -> None:
        # So a letter with three recipients takes two transactions.
        # Whoever is refused here is refused on purpose, each time.
        isp = host.upstream(connections=CONNECTIONS, max_recipients=2, limits=[LIMIT], shield=None)
        spool = {"path": "./spool", "engine": engine}
        self.relay = WarmRelay(folder, {"isp": isp}, spool=spool, reports={"per_hour": None})
        self.places = PLACES[engine]
        self.operator = Operator()
        self.runs = 0
        self.ahead_of: Counter[str] = Counter()
        """How many kills were ahead of each call, and about each of `places`."""
        self._host = host
        self._dice = random.Random(seed)
        self._kills = Kills()
        self._acknowledged: set[int] = set()
        self._attempted: set[int] = set()

    def hang(self, nth: int, about: str = "") -> bool:
        """Kill a relay ahead of its n-th call (about something), and the next ahead of a later one.

        Then bring the mail home.  Return whether the first was killed at all.
        """
        with self._feeder(clients=2) as feeder:
            is_killed = self._run(feeder, nth, about=about)
            if is_killed:
                self._run(feeder, self._dice.randint(1, SECOND_KILL_WITHIN))
            self.relay.start()
            wait_until(lambda: len(feeder.acknowledged) >= LETTERS)
        wait_until(self._is_over)
        self.relay.kill_all()
        return is_killed

    def hang_listener(self, nth: int) -> bool:
        """Kill a listener process ahead of its n-th call, let the next bring the mail home.

        Return whether one was killed.
        """
        with self._feeder(clients=1) as feeder:
            return self._run(feeder, nth, only_listeners=True)

    def judged(self) -> str:
        """Judge all runs; return the figures."""
        wait_until(lambda: self._host.unanswered == 0)
        assert self.relay.command("fsck").returncode == os.EX_OK
        seen, tried = self._host.seen(), self._host.tried
        verdict = judge(seen, tried, self._kills, self._acknowledged, self._attempted, letter=of_every_end)
        verdict.assert_good(connections=CONNECTIONS)
        staying = [each for number in self._acknowledged for each in of_every_end(number).staying]
        self.operator.judge(tried, staying)
        assert told_relayed_twice(self.relay.log()) == []
        assert self._host.ledger.most_in_any_window() <= MOST
        ahead_of = ", ".join(f"{count} {name}" for name, count in self.ahead_of.most_common())
        return (
            f"SIGKILLs ahead of {ahead_of}; {len(self._acknowledged)} messages acknowledged, 0 lost, "
            f"{verdict.reports} reports, {len(staying)} deleted, {verdict.duplicates} recipients twice"
        )

    @contextlib.contextmanager
    def _feeder(self, clients: int) -> Iterator[Feeder]:
        self.runs += 1
        first = self.runs * NUMBERS + 6
        with Feeder(
            self.relay.port, clients=clients, ahead=LETTERS, first=first, letter=of_every_end
        ) as feeder:
            yield feeder
        self._acknowledged |= feeder.acknowledged
        self._attempted |= feeder.attempted

    def _is_over(self) -> bool:
        return not self.operator.work(self.relay.folder / "spool") and self.relay.is_empty()

    def _run(self, feeder: Feeder, nth: int, *, only_listeners: bool = False, about: str = "") -> bool:
        """Run the relay until it is killed, or has nothing left to do and is stopped."""
        calls: list[Call] = []
        has_killed = False

        def before(call: Call) -> bool:
            nonlocal has_killed
            victim = leader_of(call.pid) if only_listeners else None
            if has_killed or (only_listeners and victim in (None, self.relay.pid)):
                return True
            if not re.search(about, call.about):
                return True
            calls.append(call)
            if len(calls) < nth:
                return True
            has_killed = True
            if victim is not None:
                os.kill(victim, signal.SIGKILL)
            else:
                with self._kills.one():
                    os.killpg(self.relay.pid, signal.SIGKILL)
            return False

        def is_over() -> bool:
            # A relay whose listener is killed goes on, and starts another.
            if has_killed and not only_listeners:
                return True
            with contextlib.suppress(OSError, http.client.HTTPException):
                # First: what is acknowledged while the queue is looked at may be in it.
                is_all_sent = len(feeder.acknowledged) >= LETTERS
                return self._is_over() and is_all_sent
            return False

        with self.relay.begin_watched(before):
            wait_until(is_over)
            self.relay.stop()
        if has_killed:
            self.ahead_of[calls[-1].name] += 1
            self.ahead_of.update(
                place for place, its in self.places.items() if re.search(its, calls[-1].about)
            )
        return has_killed


@pytest.fixture
def gallows(tmp_path: Path, crash_seed: int, engine: str) -> Iterator[Gallows]:
    demand(syscalls.why_missing())
    with StrictSmarthost(tmp_path, LIMIT, seed=1) as host:
        yield Gallows(tmp_path, host, crash_seed, engine)


@pytest.mark.parametrize("engine", ["maildir", pytest.param("log", marks=pytest.mark.full)])
def test_kills_ahead_of_changes_lose_nothing(
    gallows: Gallows, tell: Callable[[str], None], engine: str
) -> None:
    """Ahead of some changes of each kind, and every 97th of a life that ends with a stop."""
    assert gallows.hang(3)  # the folders of the spool are made
    for about in gallows.places.values():
        assert gallows.hang(2, about)
    for nth in itertools.count(1, 97):
        if not gallows.hang(nth):
            break
    tell(f"{engine}: {gallows.judged()}")
    assert nth > 200, "so many changes there are at least"
    assert set(gallows.ahead_of) > set(gallows.places)


@pytest.mark.crash
@pytest.mark.parametrize("engine", PLACES)
def test_a_kill_ahead_of_any_change_loses_nothing(
    gallows: Gallows, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float, engine: str
) -> None:
    """Ahead of all of them, in an order of chance, and so again and again until the budget is used up."""
    dice = random.Random(crash_seed)
    until_s = time.monotonic() + crash_budget_s / 16
    gallows.hang(1)
    ahead: list[int] = []
    last = 600
    while time.monotonic() < until_s:
        ahead = ahead or dice.sample(range(1, last), last - 1)
        nth = ahead.pop()
        if not gallows.hang(nth):
            # Runs differ a little in how many changes they make.
            last = min(last, nth + 20)
            ahead = [each for each in ahead if each < last]
    tell(f"seed {crash_seed}, {engine}: {gallows.judged()}")


@pytest.mark.crash
@pytest.mark.parametrize("engine", PLACES)
def test_a_kill_of_a_listener_ahead_of_any_change_loses_nothing(
    gallows: Gallows, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float, engine: str
) -> None:
    gallows.relay.policy["listen"][0]["processes"] = 1
    gallows.relay.write_policy()
    dice = random.Random(crash_seed)
    until_s = time.monotonic() + crash_budget_s / 16
    last = 100
    while time.monotonic() < until_s:
        nth = dice.randint(1, last)
        if not gallows.hang_listener(nth):
            last = max(nth - 1, 1)  # so many changes there are not
    tell(f"seed {crash_seed}, {engine}: {gallows.judged()}")
