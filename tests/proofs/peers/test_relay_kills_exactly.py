"""A SIGKILL ahead of each system call that changes something, from the first start to the last stop.

The relay is held ahead of its n-th such call and killed there, for n = 1, 2, … until a run
is through untouched.  The start after it is killed too, ahead of a call of chance: in its
recovery, or when it relays what it found.  The third start has to bring all mail home.

Of three messages one has a recipient that is refused for good, so that there are a note, a
report and a removal; one stays until an operator has held, released and deleted it.
"""

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.control.operations import Unreachable
from tests.proofs.peers import syscalls
from tests.proofs.peers.demand import demand
from tests.proofs.peers.feeder import Feeder, of_every_end
from tests.proofs.peers.kills import Kills, judge, told_relayed_twice
from tests.proofs.peers.operator import Operator
from tests.proofs.peers.practice import Practice
from tests.proofs.peers.processes import leader_of
from tests.proofs.peers.syscalls import Call
from tests.proofs.peers.waiting import wait_until
from tests.proofs.peers.warm import Warm, WarmRelay

CONNECTIONS = 2
LETTERS = 3
NUMBERS = 100
"""How far the numbers of two runs are apart; the second letter of each is a long one (see `of_every_end`)."""
MOST = 10_000
LIMIT = {"messages": MOST, "per": "1s"}
PLACES = {"notes": r"/bounce/", "hold": r"/hold\b", "reports": r"/[0-9a-z]{16}r[0-9]*\b"}
"""What a call is about that has to do with a note, with a hold or its release, and with a report."""
SECOND_KILL_WITHIN = 60
"""Calls of the second start ahead of which it is killed; a whole run has about a hundred."""


class Hangman:
    """Kills a relay, or one listener of it, ahead of the n-th call that counts."""

    def __init__(
        self, relay: WarmRelay, kills: Kills, nth: int, *, only_listeners: bool = False, about: str = ""
    ) -> None:
        self.calls: list[Call] = []
        self.has_killed = False
        self._relay = relay
        self._kills = kills
        self._nth = nth
        self._about = re.compile(about)
        self.only_listeners = only_listeners

    def before(self, call: Call) -> bool:
        """Count a call, and kill ahead of the n-th."""
        if self.has_killed:
            return True
        victim = leader_of(call.pid)
        if self.only_listeners and (victim is None or victim == self._relay.pid):
            return True
        if not self._about.search(call.about):
            return True
        self.calls.append(call)
        if len(self.calls) < self._nth:
            return True
        self.has_killed = True
        if self.only_listeners:
            os.kill(victim or 0, signal.SIGKILL)
        else:
            with self._kills.one():
                os.killpg(self._relay.pid, signal.SIGKILL)
        return False


def _run_watched(relay: WarmRelay, feeder: Feeder, hangman: Hangman, operator: Operator) -> None:
    """Run the relay until it is killed, or has nothing left to do and is stopped."""

    def is_over() -> bool:
        with contextlib.suppress(Unreachable, OSError):
            # A relay whose listener is killed goes on, and starts another.
            is_dead = hangman.has_killed and not hangman.only_listeners
            if is_dead:
                return True
            operator.work(relay.folder / "spool")
            return len(feeder.acknowledged) >= LETTERS and relay.is_empty()
        return False

    with relay.begin_watched(hangman.before):
        wait_until(is_over)
        relay.stop()


class Gallows:
    """One upstream and one spool for many runs, and the account of them all."""

    def __init__(self, folder: Path, host: Practice, warm: Warm, seed: int) -> None:
        # So a letter with three recipients takes two transactions.
        # Whoever is refused here is refused on purpose, each time.
        isp = host.upstream(connections=CONNECTIONS, max_recipients=2, limits=[LIMIT], shield=None)
        self.relay = WarmRelay(warm, folder, {"isp": isp}, reports={"per_hour": None})
        self.operator = Operator()
        self.runs = 0
        self.places: Counter[str] = Counter()
        """How many kills had to do with each of PLACES."""
        self._host = host
        self._dice = random.Random(seed)
        self._kills = Kills()
        self._ahead_of: Counter[str] = Counter()
        self._acknowledged: set[int] = set()
        self._attempted: set[int] = set()
        self._began_s = time.monotonic()

    def hang(self, nth: int, about: str = "") -> bool:
        """Kill a relay ahead of its n-th call (about something), and the next ahead of a later one.

        Then bring the mail home.  Return whether the first was killed at all.
        """
        self.runs += 1
        with self._feeder(clients=2) as feeder:
            is_killed = self._run(feeder, nth, about=about)
            if is_killed:
                self._run(feeder, self._dice.randint(1, SECOND_KILL_WITHIN))
            self.relay.start()
            wait_until(lambda: len(feeder.acknowledged) >= LETTERS)
        wait_until(self._is_over)
        self.relay.kill_all()
        self._acknowledged |= feeder.acknowledged
        self._attempted |= feeder.attempted
        return is_killed

    def hang_listener(self, nth: int) -> bool:
        """Kill a listener process ahead of its n-th call, let the next bring the mail home.

        Return whether one was killed.
        """
        self.runs += 1
        with self._feeder(clients=1) as feeder:
            is_killed = self._run(feeder, nth, only_listeners=True)
        self._acknowledged |= feeder.acknowledged
        self._attempted |= feeder.attempted
        return is_killed

    def judged(self) -> str:
        """Judge all runs; return the figures."""
        wait_until(lambda: self._host.unanswered == 0)
        verdict = judge(self._host, self._kills, self._acknowledged, self._attempted, letter=of_every_end)
        verdict.assert_good(connections=CONNECTIONS)
        staying = [each for number in self._acknowledged for each in of_every_end(number).staying]
        self.operator.judge(self._host.tried, staying)
        assert told_relayed_twice(self.relay.log()) == []
        assert self._host.ledger.most_in_any_window() <= MOST
        ahead_of = ", ".join(f"{count} {name}" for name, count in self._ahead_of.most_common())
        places = "".join(f", {count} about {place}" for place, count in self.places.most_common())
        return (
            f"{self._ahead_of.total()} SIGKILLs ahead of {ahead_of}{places}; "
            f"{len(self._acknowledged)} messages acknowledged: 0 lost, 0 corrupt, "
            f"{verdict.reports} reports, {len(staying)} deleted, {verdict.duplicates} recipients twice, "
            f"at most {verdict.most_repeated} transactions a kill; "
            f"{time.monotonic() - self._began_s:.0f} s"
        )

    def _feeder(self, clients: int) -> Feeder:
        first = self.runs * NUMBERS + 6
        return Feeder(self.relay.port, clients=clients, ahead=LETTERS, first=first, letter=of_every_end)

    def _is_over(self) -> bool:
        self.operator.work(self.relay.folder / "spool")
        return self.relay.is_empty()

    def _run(self, feeder: Feeder, nth: int, *, only_listeners: bool = False, about: str = "") -> bool:
        hangman = Hangman(self.relay, self._kills, nth, only_listeners=only_listeners, about=about)
        _run_watched(self.relay, feeder, hangman, self.operator)
        if hangman.has_killed:
            last = hangman.calls[-1]
            self._ahead_of[last.name] += 1
            self.places.update(place for place, about in PLACES.items() if re.search(about, last.about))
        return hangman.has_killed


@pytest.fixture
def gallows(tmp_path: Path, crash_seed: int) -> Iterator[Gallows]:
    demand(syscalls.why_missing())
    with Practice(tmp_path, LIMIT, seed=1, keep=tmp_path / "kept") as host, Warm() as warm:
        yield Gallows(tmp_path, host, warm, seed=crash_seed)


@pytest.mark.slow
def test_kills_ahead_of_changes_lose_nothing(gallows: Gallows, tell: Callable[[str], None]) -> None:
    """Ahead of some changes of each kind, and every 67th of a life that ends with a stop."""
    for nth in (3, 147):  # the folders of the spool are made
        shutil.rmtree(gallows.relay.folder / "spool", ignore_errors=True)
        assert gallows.hang(nth)
    for about in PLACES.values():
        for nth in (1, 3):
            assert gallows.hang(nth, about)
    for nth in itertools.count(1, 67):
        if not gallows.hang(nth):
            break
    tell(f"{gallows.judged()}")
    assert nth > 200, "so many changes there are at least"
    assert set(gallows.places) == set(PLACES)


@pytest.mark.crash
def test_a_kill_ahead_of_any_change_loses_nothing(
    gallows: Gallows, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    """Ahead of all of them, in an order of chance, and so again and again until the budget is used up."""
    dice = random.Random(crash_seed)
    until_s = time.monotonic() + crash_budget_s / 8
    gallows.hang(1)
    ahead: list[int] = []
    rounds = -1
    last = 600
    while True:
        if not ahead:
            rounds += 1
            ahead = dice.sample(range(1, last), last - 1)
        nth = ahead.pop()
        if not gallows.hang(nth):
            # Runs differ a little in how many changes they make.
            last = min(last, nth + 20)
            ahead = [each for each in ahead if each < last]
        if time.monotonic() > until_s:
            break
    tell(f"seed {crash_seed}: {gallows.judged()}; {rounds} times ahead of each of {last}")


@pytest.mark.crash
def test_a_kill_of_a_listener_ahead_of_any_change_loses_nothing(
    gallows: Gallows, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    gallows.relay.policy["listen"][0]["processes"] = 1
    gallows.relay.write_policy()
    dice = random.Random(crash_seed)
    until_s = time.monotonic() + crash_budget_s / 8
    last = 100
    while True:
        nth = dice.randint(1, last)
        if not gallows.hang_listener(nth):
            last = max(nth - 1, 1)  # so many changes there are not
        if time.monotonic() > until_s:
            break
    tell(f"seed {crash_seed}: {gallows.judged()}")
