"""Kills of every program at random while mail flows: no mail is lost, and each second copy has a reason.

Real clients (smtplib) hand over to a relay, which sends to a strict smarthost with its own
record.  The relay's processes get SIGKILL at random instants: all at once, the sender
alone, one listener, or all during a recovery or a policy edit.  The upstream crashes too,
and connections are cut, also between the final dot and its reply.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.system.feeder import Feeder, asked_or_refused
from tests.system.kills import Kills, judge, told_relayed_twice
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_until
from tests.system.warm import WarmRelay

CONNECTIONS = 4
ENGINES = ("maildir", "log")
LATEST_REPLY_S = 0.02
"""The upstream replies up to so late: a message is in flight most of the time."""
LONGEST_START_S = 0.08
LONGEST_TAKE_OVER_S = 0.25
"""The longest time between SIGHUP and a kill; a relay takes an edit that is unchanged for 0.1 s."""
LOWERED = (1.0, 0.9, 0.8)
"""The limits of edits, as shares of what the upstream allows."""
Limit = dict[str, Any]
NEVER_REACHED: Limit = {"messages": 1_000_000, "per": "1s"}
LIMITS: tuple[Limit, ...] = (
    {"messages": 250, "per": "2s"}, NEVER_REACHED, {"recipients": 350, "per": "2s"},
)  # fmt: skip
TIGHT: Limit = {"messages": 60, "per": "2s"}
"""A limit that is always reached.  Each kill wastes up to a slot a connection, so it suits few kills."""
ALONE = ("everything", "recovery", "edit", "everything", "recovery", "upstream", "line")
"""The faults, in each seven, of a relay whose listener is part of the sender."""
WITH_LISTENERS = ("sender", "listener", "everything", "sender", "listener", "recovery", "edit", "line")


@dataclass
class Ordeal:
    """One relay's life among kills, from an empty spool to an empty queue."""

    host: StrictSmarthost
    relay: WarmRelay
    feeder: Feeder
    dice: random.Random
    allows: Limit
    """The limit of the upstream."""
    kills: Kills = field(default_factory=Kills)

    def everything(self) -> None:
        self._kill_all()
        self.relay.start()

    def sender(self) -> None:
        """Kill the sender; its listeners notice, end by themselves, and release the address."""
        with self.kills.one():
            self.relay.kill()
            self.host.catch_up()
        self.relay.start()

    def recovery(self) -> None:
        """Kill everything, and once more somewhere in the start that follows."""
        self._kill_all()
        with self.kills.one():
            self.relay.spawn()
            self.relay.live(self.dice.uniform(0, LONGEST_START_S))
            self.relay.kill_all()
            self.host.catch_up()
        self.relay.start()

    def edit(self) -> None:
        """Kill everything while an edited policy takes effect, or just after; start on the edited one."""
        isp = self.relay.policy["upstreams"]["isp"]
        isp["connections"] = self.dice.randint(2, CONNECTIONS)
        # Never above what the upstream allows.
        (unit, count), *others = self.allows.items()
        isp["limits"] = [{unit: int(count * self.dice.choice(LOWERED)), **dict(others)}]
        self.relay.write_policy()
        self.relay.reload()
        is_half = self.dice.random() < 0.25
        if is_half:
            self.relay.policy_path.write_text("half an edi")
        self.relay.live(self.dice.uniform(0, LONGEST_TAKE_OVER_S))
        self._kill_all()
        if is_half:
            # No relay starts on half an edit.
            self.relay.write_policy()
        self.relay.start()

    def listener(self) -> None:
        """Kill a listener process; that explains no second copy, because the sender goes on."""
        wait_until(self.relay.listeners)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.dice.choice(self.relay.listeners()), signal.SIGKILL)

    def upstream(self) -> None:
        """Crash the upstream: it loses each message that it did not reply to."""
        with self.kills.one():
            self.host.crash()

    def line(self) -> None:
        with self.kills.one():
            self.host.cut_off()

    def _kill_all(self) -> None:
        with self.kills.one():
            self.relay.kill_all()
            self.host.catch_up()

    def go_through(self, deck: Sequence[str], messages: int) -> None:
        allowed = 0
        for number, kind in enumerate(deck):
            share = messages * (number + 1) // len(deck) - allowed
            self.feeder.allow(share)
            # Each allowed message is relayed at least once, so this count will be reached.
            enough = allowed + self.dice.randint(0, share)
            allowed += share
            self.host.wait_until(lambda ledger, enough=enough: ledger.relayed >= enough)  # type: ignore[misc]  # bound now
            getattr(self, kind)()
        wait_until(lambda: len(self.feeder.acknowledged) >= messages)


def _suffer(
    folder: Path,
    seed: int,
    engine: str,
    *,
    times: int,
    messages: int,
    limit: Limit,
    listeners: int = 0,
) -> Counter[str]:
    dice = random.Random(seed)
    folder.mkdir()
    with StrictSmarthost(folder, limit, seed=seed, latest_reply_s=LATEST_REPLY_S) as host:
        # Every third message has a refused recipient, so a shield would pause the upstream.
        isp = host.upstream(connections=CONNECTIONS, limits=[limit], shield=None)
        spool = {"path": "./spool", "engine": engine}
        relay = WarmRelay(folder, {"isp": isp}, spool=spool, reports={"per_hour": None})
        relay.policy["listen"][0]["processes"] = listeners
        relay.write_policy()
        relay.start()
        with Feeder(relay.port, ahead=0, letter=asked_or_refused) as feeder:
            ordeal = Ordeal(host, relay, feeder, dice, limit)
            deck = list(itertools.islice(itertools.cycle(WITH_LISTENERS if listeners else ALONE), times))
            dice.shuffle(deck)
            ordeal.go_through(deck, messages)
        relay.wait_until_empty()
        # The upstream may still decide messages whose connection was cut.
        wait_until(lambda: host.unanswered == 0)
        assert relay.stop() == 0
        assert relay.command("fsck").returncode == os.EX_OK
        verdict = judge(
            host.seen(),
            host.tried,
            ordeal.kills,
            feeder.acknowledged,
            feeder.attempted,
            letter=asked_or_refused,
        )
    verdict.assert_good(connections=CONNECTIONS)
    assert told_relayed_twice(relay.log()) == []
    assert host.ledger.most_in_any_window() <= limit[next(iter(limit))]
    assert host.ledger.refused == 0
    figures = Counter(acknowledged=len(feeder.acknowledged), turned_away=feeder.turned_away)
    figures.update(reports=verdict.reports, duplicates=verdict.duplicates)
    figures.update(SIGKILLs=sum(kind not in ("upstream", "line") for kind in deck) + deck.count("recovery"))
    return figures


@pytest.mark.parametrize(
    ("engine", "limit", "messages"),
    [
        ("maildir", TIGHT, 120),
        pytest.param("log", NEVER_REACHED, 160, marks=pytest.mark.full),
        pytest.param("maildir", NEVER_REACHED, 160, marks=pytest.mark.full),
        pytest.param("log", TIGHT, 120, marks=pytest.mark.full),
    ],
)
def test_kills_lose_nothing_and_repeat_only_what_was_in_flight(
    tmp_path: Path, tell: Callable[[str], None], engine: str, limit: Limit, messages: int
) -> None:
    figures = _suffer(tmp_path / "relay", 1, engine, times=7, messages=messages, limit=limit)
    tell(f"{engine}: {dict(figures)}")
    assert figures["SIGKILLs"] >= 7
    assert figures["turned_away"] > 0
    assert figures["reports"] > 50
    assert figures["duplicates"] > 0, "no kill hit a transaction behind its dot"


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_kills_of_listener_processes_lose_nothing(tmp_path: Path, engine: str) -> None:
    _suffer(tmp_path / "relay", 8, engine, times=8, messages=200, limit=LIMITS[2], listeners=1)


@pytest.mark.crash
@pytest.mark.parametrize("engine", ENGINES)
def test_long_runs_of_kills_lose_nothing_and_repeat_only_what_was_in_flight(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float, engine: str
) -> None:
    figures: Counter[str] = Counter()
    seeds, until = random.Random(crash_seed), time.monotonic() + crash_budget_s / 8
    for number in itertools.count():
        where, seed = tmp_path / str(number), seeds.getrandbits(32)
        is_tight = number % 10 == 5
        times, messages = (7, 240) if is_tight or crash_budget_s < 100 else (28, 1400)
        limit = TIGHT if is_tight else LIMITS[number % len(LIMITS)]
        # A listener process takes a second to start, so few runs have any.
        listeners = 2 if number % 10 == 9 else 0
        figures += _suffer(
            where, seed, engine, times=times, messages=messages, limit=limit, listeners=listeners
        )
        shutil.rmtree(where)
        if time.monotonic() > until:
            break
    tell(f"seed {crash_seed}, {engine}: {dict(figures)}")
