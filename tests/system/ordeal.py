"""One relay between real clients (smtplib) and strict upstreams, and what happens to all three meanwhile.

`undergo` counts the transactions that the upstreams saw, makes one thing happen after every few of them, and
judges at the end: no mail is lost, each second copy has a reason, and no upstream saw more than its limit.
"""

import contextlib
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.system.feeder import Feeder, Letter, letter
from tests.system.kills import RELAYED, Kills, judge, told_twice
from tests.system.relay import RelayProcess
from tests.system.strict_smarthost import StrictSmarthost, boottime_ns
from tests.system.waiting import wait_until
from tests.system.witness import share_of

LONGEST_START_S = 0.08
LONGEST_TAKE_OVER_S = 0.25
"""The longest time between SIGHUP and a kill; a relay takes an edit that is unchanged for 0.1 s."""
BEFORE_A_STOP = 60
"""How many messages the clients still have to hand over at a stop."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the upstreams allow, which mail goes, and what happens."""

    count: int
    period_s: int
    acts: Sequence[str]
    """The names of methods of `Ordeal`; the order is drawn anew whenever all were done."""
    times: int
    """How many acts there are."""
    between: int
    """Transactions between two acts, on average."""
    backlog: int
    """How many messages always wait."""
    unit: str = "messages"
    names: Sequence[Sequence[str]] = (("isp", "provider"),)
    """For each account, the names that edits give to its upstream.

    Another name means another pool of connections, on the same history.
    """
    connections: int = 4
    latest_reply_s: float = 0.02
    """An upstream replies up to so late: a message is in flight most of the time."""
    longest_rest_s: float = 0.0
    """The longest time from a transaction to an act."""
    shares: Sequence[float] = (1.0,)
    """The limits of edits, as shares of what an account allows."""
    upstream: Mapping[str, Any] = field(default_factory=dict)
    """More keys of each upstream."""
    letter: Callable[[int], Letter] = letter
    per_letter: float = 1.0
    """Transactions for each letter, on average."""
    engine: str = "maildir"
    listeners: int = 0
    seed: int = 0

    def limit(self, share: float = 1.0) -> dict[str, Any]:
        return {self.unit: int(self.count * share), "per": f"{self.period_s}s"}


class Ordeal:
    """One relay under these terms; `terms.acts` names methods of it."""

    def __init__(self, folder: Path, terms: Terms, hosts: Sequence[StrictSmarthost]) -> None:
        self.terms = terms
        self.hosts = hosts
        self.dice = random.Random(terms.seed)
        self.kills = Kills()
        """Kills of the relay, and cuts of connections: both are a reason to send again."""
        self.happened: Counter[str] = Counter()
        self._paused: str | None = None
        self.relay = RelayProcess(
            folder,
            {},
            listen={"processes": terms.listeners},
            spool={"path": "./spool", "engine": terms.engine},
            reports={"per_hour": None},
        )
        self.edit()
        self.relay.start()
        self.feeder = Feeder(self.relay.port, ahead=0, letter=terms.letter)

    @property
    def seen(self) -> int:
        return sum(len(host.ledger.seen) for host in self.hosts)

    def run(self) -> None:
        """Make everything happen while mail flows; then let all mail go."""
        due = 0
        with self.feeder:
            for act in itertools.islice(self._deck(), self.terms.times):
                due += self.dice.randint(0, 2 * self.terms.between)
                wait_until(lambda due=due: self._is_fed_and_saw(due))  # type: ignore[misc]  # bound now
                self.relay.live(self.dice.uniform(0, self.terms.longest_rest_s))
                getattr(self, act)()
                self.happened[act] += 1
            wait_until(lambda: self._is_fed_and_saw(self.terms.times * self.terms.between))
            self.ended_ns = boottime_ns()
            wait_until(lambda: len(self.feeder.acknowledged) >= self.feeder.granted)
        self.relay.write_policy()
        if self._paused is not None:
            self.pause()
        self.relay.wait_until_empty(within_s=10 * self.terms.period_s + 60)
        # An upstream may still decide messages whose connection was cut.
        wait_until(lambda: not any(host.unanswered for host in self.hosts))
        assert self.relay.stop() == 0
        assert self.relay.command("fsck").returncode == os.EX_OK

    def assert_kept(self) -> None:
        """Fail if mail was lost or a limit exceeded."""
        seen = [each for host in self.hosts for each in host.seen()]
        tried = [each for host in self.hosts for each in host.tried]
        fed, terms = self.feeder, self.terms
        self.verdict = judge(seen, tried, self.kills, fed.acknowledged, fed.attempted, letter=terms.letter)
        self.verdict.assert_good(connections=terms.connections * len(self.hosts))
        assert told_twice(self.relay.log(), RELAYED) == []
        assert [line for line in self.relay.log() if " stopped: " in line] == []
        assert [host.ledger.refused + host.ledger.cut_offs for host in self.hosts] == [0] * len(self.hosts)
        self.most = max(host.ledger.most_in_any_window() for host in self.hosts)
        assert self.most <= terms.count

    @property
    def share(self) -> float:
        """Return the used share of the limit until the backlog ended, the mean of all accounts."""
        terms, until_ns = self.terms, self.ended_ns
        seen = [[each for each in host.seen() if each.mail_at_ns < until_ns] for host in self.hosts]
        return sum(share_of(terms.count, terms.period_s, each) for each in seen) / len(seen)

    @property
    def words(self) -> str:
        terms, verdict = self.terms, self.verdict
        return (
            f"seed {terms.seed}, {terms.engine}: {self.seen} transactions, "
            f"{dict(self.happened)}: at most {self.most} of {terms.count} in any {terms.period_s} s, "
            f"0 refused, {verdict.reports} reports, {verdict.duplicates} recipients twice"
        )

    def _deck(self) -> Iterator[str]:
        while True:
            yield from self.dice.sample(self.terms.acts, len(self.terms.acts))

    def _is_fed_and_saw(self, count: int) -> bool:
        self.feeder.allow_up_to(int(self.seen / self.terms.per_letter) + self.terms.backlog)
        return self.seen >= count

    # Acts.

    def everything(self) -> None:
        self._kill_all()
        self.relay.start()

    def sender(self) -> None:
        """Kill the sender; its listeners notice, end by themselves, and release the address."""
        with self._killed():
            self.relay.kill()
        self.relay.start()

    def recovery(self) -> None:
        """Kill everything, and once more somewhere in the start that follows."""
        self._kill_all()
        with self._killed():
            self.relay.spawn()
            self.relay.live(self.dice.uniform(0, LONGEST_START_S))
            self.relay.kill_all()
        self.relay.start()

    def killed_edit(self) -> None:
        """Kill everything while an edited policy takes effect, or just after; start on the edited one."""
        self.edit()
        self.relay.reload()
        if self.dice.random() < 0.25:
            self.half_edit()
        self.relay.live(self.dice.uniform(0, LONGEST_TAKE_OVER_S))
        self.everything()

    def listener(self) -> None:
        """Kill a listener process; that explains no second copy, because the sender goes on."""
        wait_until(self.relay.listeners)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.dice.choice(self.relay.listeners()), signal.SIGKILL)

    def upstream(self) -> None:
        """Crash an upstream: it loses each message that it did not reply to."""
        with self.kills.one():
            self.dice.choice(self.hosts).crash()

    def line(self) -> None:
        """Cut all connections of an upstream; what has come to its final dot is decided all the same."""
        with self.kills.one():
            self.dice.choice(self.hosts).cut_off()

    def cut(self) -> None:
        """Cut one connection between the dot and its reply, if one is there."""
        with self.kills.one():
            self.dice.choice(self.hosts).cut_one(self.dice)

    def stop(self) -> None:
        # A client that waits for the feeder reads no 421, and the relay would wait for it.
        self.feeder.allow(BEFORE_A_STOP)
        self.relay.write_policy()
        assert self.relay.stop() == 0
        self.relay.start()

    def pause(self) -> None:
        """Pause a drawn account, or end the pause."""
        self.relay.write_policy()
        verb = "pause" if self._paused is None else "resume"
        name = self._paused or self.dice.choice(list(self.relay.policy["upstreams"]))
        ran = self.relay.command(verb, name)
        assert ran.returncode == 0, ran
        self._paused = name if verb == "pause" else None

    def edit(self) -> None:
        """Save another policy, within the limits of the upstreams."""
        self.relay.policy |= self._sections()
        self.relay.write_policy()

    def half_edit(self) -> None:
        """Save what is no policy.  No relay starts on that, so the other acts save the last policy again."""
        self.relay.policy_path.write_text("half an edi")

    def _kill_all(self) -> None:
        with self._killed():
            self.relay.kill_all()

    @contextlib.contextmanager
    def _killed(self) -> Iterator[None]:
        with self.kills.one():
            yield
            for host in self.hosts:
                host.catch_up()
        self.relay.write_policy()

    def _sections(self) -> dict[str, Any]:
        """Return drawn sections of a policy: the upstreams, and routes by which each one comes first."""
        terms, dice = self.terms, self.dice
        upstreams = {}
        for number, (host, names) in enumerate(zip(self.hosts, terms.names, strict=True)):
            never = dice.choice([[], [{"recipients": 1_000_000, "per": "1h"}]])
            limits = [terms.limit(dice.choice(terms.shares)), *never]
            # A shield would pause an upstream that refuses recipients of many messages.
            section = {"shield": None, "history": f"./{number}.history", **terms.upstream}
            upstreams[dice.choice(names)] = host.upstream(
                connections=dice.randint(terms.connections * 3 // 4, terms.connections),
                limits=dice.sample(limits, len(limits)),
                **section,
            )
        if len(upstreams) == 1:
            return {"upstreams": upstreams}
        routes: list[dict[str, Any]] = []
        for name in upstreams:
            others = [other for other in upstreams if other != name]
            by = [name, *dice.sample(others, len(others))]
            route = {"recipient_domain": f"{name}.list.test", "upstreams": by, "failover_after": "1s"}
            routes.append(route)
        # The last route has to match all; no mail gets there.
        return {"upstreams": upstreams, "routes": [*routes, {"upstreams": list(upstreams)[:1]}]}


def undergo(folder: Path, terms: Terms) -> Ordeal:
    """Run one relay under these terms; fail if mail is lost or a limit exceeded."""
    with ExitStack() as ends:
        hosts = [
            ends.enter_context(
                StrictSmarthost(
                    folder, terms.limit(), seed=terms.seed + number, latest_reply_s=terms.latest_reply_s
                )
            )
            for number in range(len(terms.names))
        ]
        ordeal = Ordeal(folder, terms, hosts)
        ordeal.run()
    ordeal.assert_kept()
    return ordeal
