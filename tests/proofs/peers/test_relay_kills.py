"""All that can be killed, killed at random while mail flows: nothing is lost, and repeats have a reason.

Real clients (smtplib) in front, a practice smarthost with its own record behind; between
them a relay whose processes get SIGKILL at instants that chance chooses: all at once, the
sender alone, one listener, one in the middle of its recovery or of a policy edit.  The
upstream dies too, and connections are cut between the final dot and its reply.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from relay.policy.model import SpoolEngine
from tests.proofs.peers.feeder import Feeder, asked_or_refused
from tests.proofs.peers.kills import Kills, Verdict, judge, told_relayed_twice
from tests.proofs.peers.practice import Practice
from tests.proofs.peers.processes import is_alive
from tests.proofs.peers.waiting import wait_until
from tests.proofs.peers.warm import Warm, WarmRelay

CONNECTIONS = 4
LATEST_REPLY_S = 0.02
"""The upstream replies as late as this: a message is in flight most of the time."""
LONGEST_START_S = 0.08
LONGEST_TAKE_OVER_S = 0.25
"""How long after SIGHUP at most; an edit has to stay as it is for 0.1 s."""
LOWERED = (1.0, 0.9, 0.8)
"""What an edit makes of a limit, as a share of what the upstream allows."""
Limit = dict[str, Any]
LIMITS: tuple[Limit | None, ...] = ({"messages": 250, "per": "2s"}, None, {"recipients": 350, "per": "2s"})
TIGHT: Limit = {"messages": 60, "per": "2s"}
"""One that is always reached; each kill wastes up to a slot a connection, so not for many kills."""
NEVER_REACHED: Limit = {"messages": 1_000_000, "per": "1s"}


@dataclass
class Ordeal:
    """One relay's life among kills, from an empty spool to an empty queue."""

    host: Practice
    relay: WarmRelay
    feeder: Feeder
    dice: random.Random
    allows: Limit
    """What the upstream does."""
    kills: Kills = field(default_factory=Kills)
    counts: Counter[str] = field(default_factory=Counter)
    """How often each thing happened."""
    taken_over: int = 0
    """Edits that were in force, and told of, before the kill."""

    def everything(self) -> None:
        """Kill the sender and its listeners at one instant."""
        with self.kills.one():
            self.relay.kill_all()
        self.relay.start()

    def sender(self) -> None:
        """Kill the sender; its listeners see it go, finish by themselves, and let go of the address."""
        with self.kills.one():
            self.relay.kill()
        self.relay.start()

    def recovery(self) -> None:
        """Kill everything, and once more somewhere in the start that follows."""
        with self.kills.one():
            self.relay.kill_all()
        with self.kills.one():
            self.relay.spawn()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.relay.wait(within_s=self.dice.uniform(0, LONGEST_START_S))
                raise AssertionError("it ended by itself")
            self.relay.kill_all()
        self.relay.start()

    def edit(self) -> None:
        """Kill everything while it takes an edited policy over, or just after; start on the edited one."""
        isp = self.relay.policy["upstreams"]["isp"]
        isp["connections"] = self.dice.randint(2, CONNECTIONS)
        isp["guard"] = self.dice.choice(["10ms", "20ms"])
        isp["limits"] = [self._edited_limit()]
        before = self._taken_over()
        self.relay.write_policy()
        self.relay.reload()
        is_half = self.dice.random() < 0.25
        if is_half:
            self.relay.policy_path.write_text("half an edi")
        with contextlib.suppress(TimeoutError):
            wait_until(
                lambda: self._taken_over() > before, within_s=self.dice.uniform(0, LONGEST_TAKE_OVER_S)
            )
        with self.kills.one():
            self.relay.kill_all()
        self.taken_over += self._taken_over() > before
        if is_half:
            # By half an edit none starts.
            self.relay.write_policy()
        self.relay.start()

    def _edited_limit(self) -> Limit:
        """Return another limit, never above what the upstream allows."""
        (unit, count), *others = self.allows.items()
        return {unit: int(count * self.dice.choice(LOWERED)), **dict(others)}

    def _taken_over(self) -> int:
        return sum(line.endswith(" event=policy_loaded") for line in self.relay.log())

    def listener(self) -> None:
        """Kill a listener process; no message that the sender has is in danger."""
        wait_until(self.relay.listeners)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.dice.choice(self.relay.listeners()), signal.SIGKILL)

    def upstream(self) -> None:
        """Let the upstream die with all that it did not reply to."""
        with self.kills.one():
            self.host.crash()

    def line(self) -> None:
        """Cut the line to an upstream that takes what came to its dot."""
        with self.kills.one():
            self.host.cut_off()

    @property
    def sigkills(self) -> int:
        """Return how often the relay or a part of it got SIGKILL."""
        twice = self.counts["recovery"]
        return sum(self.counts.values()) + twice - self.counts["upstream"] - self.counts["line"]


HAPPENINGS: dict[str, Callable[[Ordeal], None]] = {
    "everything": Ordeal.everything,
    "sender": Ordeal.sender,
    "recovery": Ordeal.recovery,
    "edit": Ordeal.edit,
    "listener": Ordeal.listener,
    "upstream": Ordeal.upstream,
    "line": Ordeal.line,
}
ALONE = ["everything", "recovery", "edit", "everything", "recovery", "upstream", "line"]
"""What happens to a relay whose listener is part of the sender, as often in each seven."""
WITH_LISTENERS = ["sender", "listener", "everything", "sender", "listener", "recovery", "edit", "line"]


@dataclass
class Figures:
    """What several ordeals came to."""

    kills: Counter[str] = field(default_factory=Counter)
    sigkills: int = 0
    acknowledged: int = 0
    turned_away: int = 0
    duplicates: int = 0
    most_repeated: int = 0
    reports: int = 0
    taken_over: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def add(self, ordeal: Ordeal, verdict: Verdict) -> None:
        """Count one more."""
        self.kills += ordeal.counts
        self.sigkills += ordeal.sigkills
        self.acknowledged += len(ordeal.feeder.acknowledged)
        self.turned_away += ordeal.feeder.turned_away
        self.duplicates += verdict.duplicates
        self.reports += verdict.reports
        self.taken_over += ordeal.taken_over
        self.most_repeated = max(self.most_repeated, verdict.most_repeated)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"{self.sigkills} SIGKILLs ({kinds}), {self.acknowledged} messages acknowledged: "
            f"0 lost, 0 corrupt, {self.reports} reports, {self.duplicates} recipients twice, "
            f"at most {self.most_repeated} transactions a kill; "
            f"{self.taken_over} edits in force before their kill; "
            f"{self.turned_away} sessions cut off; {time.monotonic() - self.began_s:.0f} s"
        )


def _suffer(
    folder: Path,
    warm: Warm,
    *,
    seed: int,
    times: int,
    messages: int,
    listeners: int,
    limit: Limit | None,
    engine: SpoolEngine,
) -> tuple[Ordeal, Verdict]:
    """Put a relay through its ordeal and judge it."""
    dice = random.Random(seed)
    folder.mkdir()
    allows = limit or NEVER_REACHED
    with Practice(folder, allows, seed=seed, latest_reply_s=LATEST_REPLY_S, keep=folder / "kept") as host:
        # Of every third message a recipient is refused, on purpose.
        isp = host.upstream(connections=CONNECTIONS, limits=[limit] if limit else [], shield=None)
        spool = {"path": "./spool", "engine": engine}
        relay = WarmRelay(warm, folder, {"isp": isp}, spool=spool, reports={"per_hour": None})
        relay.policy["listen"][0]["processes"] = listeners
        relay.write_policy()
        relay.start()
        with Feeder(relay.port, ahead=0, letter=asked_or_refused) as feeder:
            ordeal = Ordeal(host, relay, feeder, dice, allows)
            deck = list(itertools.islice(itertools.cycle(WITH_LISTENERS if listeners else ALONE), times))
            dice.shuffle(deck)
            for kind in _instants(ordeal, deck, messages):
                HAPPENINGS[kind](ordeal)
                ordeal.counts[kind] += 1
            wait_until(lambda: len(feeder.acknowledged) >= messages)
        relay.wait_until_empty()
        # What was cut off may still be decided.
        wait_until(lambda: host.unanswered == 0)
        assert relay.stop() == 0
        verdict = judge(host, ordeal.kills, feeder.acknowledged, feeder.attempted, letter=asked_or_refused)
    verdict.assert_good(connections=CONNECTIONS)
    assert told_relayed_twice(relay.log()) == []
    assert host.ledger.most_in_any_window() <= allows[next(iter(allows))]
    assert host.ledger.refused == 0
    return ordeal, verdict


def _instants(ordeal: Ordeal, deck: Sequence[str], messages: int) -> Iterator[str]:
    """Yield the deck card by card at instants of chance, while so many messages flow."""
    allowed = 0
    for number, kind in enumerate(deck):
        share = messages * (number + 1) // len(deck) - allowed
        ordeal.feeder.allow(share)
        # Each allowed message is relayed once at least, so this many will be.
        enough = allowed + ordeal.dice.randint(0, share)
        allowed += share
        ordeal.host.wait_until(lambda ledger, enough=enough: ledger.relayed >= enough)  # type: ignore[misc]  # bound now
        yield kind


@pytest.mark.slow
@pytest.mark.parametrize("engine", SpoolEngine)
def test_kills_lose_nothing_and_repeat_only_what_was_in_flight(
    tmp_path: Path, tell: Callable[[str], None], engine: SpoolEngine
) -> None:
    figures = Figures()
    rounds = [(7, 240, 0, TIGHT), (7, 400, 0, None), (8, 400, 1, LIMITS[2])]
    with Warm() as warm:
        for number, (times, messages, listeners, limit) in enumerate(rounds):
            where = tmp_path / str(number)
            figures.add(
                *_suffer(
                    where,
                    warm,
                    seed=number,
                    times=times,
                    messages=messages,
                    listeners=listeners,
                    limit=limit,
                    engine=engine,
                )
            )
    tell(f"{engine}: {figures}")
    assert figures.sigkills >= 20
    assert figures.acknowledged >= 1000
    assert figures.turned_away > 0
    assert figures.reports > 300
    assert figures.duplicates > 0, "no kill hit a transaction behind its dot"


@pytest.mark.crash
@pytest.mark.parametrize("engine", SpoolEngine)
def test_hours_of_kills_lose_nothing_and_repeat_only_the_in_flight(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float, engine: SpoolEngine
) -> None:
    figures, seeds = Figures(), random.Random(crash_seed)
    until = time.monotonic() + crash_budget_s / 8
    with Warm() as warm:
        for number in itertools.count():
            where, seed = tmp_path / str(number), seeds.getrandbits(32)
            is_tight = number % 10 == 5
            limit = TIGHT if is_tight else LIMITS[number % len(LIMITS)]
            times, messages = (7, 240) if is_tight else (28, 1400)
            # A listener process starts in a second: rarely, for the sake of the figures.
            listeners = 2 if number % 10 == 9 else 0
            figures.add(
                *_suffer(
                    where,
                    warm,
                    seed=seed,
                    times=times,
                    messages=messages,
                    listeners=listeners,
                    limit=limit,
                    engine=engine,
                )
            )
            shutil.rmtree(where)
            if time.monotonic() > until:
                break
    tell(f"seed {crash_seed}, {engine}: {figures}")
    assert figures.acknowledged >= 1400


@pytest.mark.slow
def test_of_two_relays_on_one_spool_one_gives_way(tmp_path: Path) -> None:
    dice, kills = random.Random(6), Kills()
    keep = tmp_path / "kept"
    with Practice(tmp_path, NEVER_REACHED, seed=6, keep=keep) as host, Warm() as one, Warm() as other:
        upstreams = {"isp": host.upstream(connections=CONNECTIONS)}
        pair = [WarmRelay(warm, tmp_path, upstreams) for warm in (one, other)]
        for relay in pair:
            relay.port, relay.http_port, relay.policy = pair[0].port, pair[0].http_port, pair[0].policy
        holder = pair[0]
        holder.write_policy()
        with Feeder(pair[0].port, ahead=0) as feeder:
            for number in range(1, 7):
                dice.shuffle(pair)
                for relay in pair:
                    relay.spawn()
                wait_until(lambda: not all(is_alive(relay.pid) for relay in pair))
                pair.sort(key=lambda relay: is_alive(relay.pid))
                gave_way, holder = pair

                assert gave_way.wait() == os.EX_TEMPFAIL
                said = [line for line in holder.log() if line.startswith("another relay is running: ")]
                assert len(said) == number
                assert said[-1].endswith(f"held by process {holder.pid}")
                feeder.allow(20)
                host.wait_until(lambda ledger, enough=20 * number - 10: ledger.relayed >= enough)  # type: ignore[misc]  # bound now
                with kills.one():
                    holder.kill_all()
            holder.start()
            wait_until(lambda: len(feeder.acknowledged) >= 120)
        holder.wait_until_empty()
        assert holder.stop() == 0
        verdict = judge(host, kills, feeder.acknowledged, feeder.attempted)
    verdict.assert_good(connections=CONNECTIONS)
    assert told_relayed_twice(holder.log()) == []
