"""A relay under everything at once, towards a strict upstream that forgives nothing; and the share it used.

The upstream counts each transaction at an instant of its own choosing between MAIL and its
reply, replies late, and sometimes not at all: a line is cut between the dot and its reply, and
the message is taken, and counted, all the same.  Meanwhile the policy is edited, and the
relay gets SIGKILL about once a second.

What share of the limit was used.  The yardstick is N / (T + guard + mean transaction): each slot is
used once in a round of a period, its guard and a transaction.  The rounds are timed slot by slot, the
mean of the last N starts less that of the first N: that the first N cannot start at one
instant, over so many connections only, is no waste.  A transaction is as long as anybody can know on our
side: where the end reached nobody, because the line was cut or the relay died, the upstream may count
until the transaction's deadline for all that a safe scheduler can tell.  And a slot that opens while no
relay runs (from SIGKILL to READY=1), or while the machine does not run even the upstream, waits for the
end of that: on the average for sum(length^2) / 2 / span.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.system.feeder import Feeder
from tests.system.kills import Kills, judge, told_relayed_twice
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import free_port, wait_until
from tests.system.warm import WarmRelay
from tests.system.witness import SECOND_NS, Seen

CONNECTIONS = 40
BACKLOG_WINDOWS = 1.5
"""How many windows' worth of mail always waits."""
RENAMED = 0.1
"""Of the edits, how many give the upstream another name."""
NEXT_TO_CUT_S = 0.003
"""When it is looked again for a line to cut, where none was behind its dot."""
LOOK_S = 0.25
"""How often it is seen to that mail waits."""
NAMES = ("isp", "provider")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What an upstream lets one account send."""

    count: int
    period_s: float

    @property
    def limit(self) -> dict[str, Any]:
        return as_limit(self.count, self.period_s)

    @property
    def guard_ns(self) -> int:
        """Return what a policy adds without a `guard` key."""
        return round(self.period_s * SECOND_NS) // 100


@dataclass(frozen=True, slots=True)
class Terms(Allowance):
    """What the upstream allows and how slow it is, and what is done to the relay."""

    transactions: int
    latest_reply_s: float
    max_transaction_s: float
    seed: int
    is_killed: bool
    happens_each_s: float = 1.0
    """On the average, between two kills, or two edits."""
    cut_each_s: float = 0.5
    """On the average, between two lost replies."""


@dataclass(slots=True)
class Strictness:
    """What came of it."""

    terms: Terms
    most_in_any_window: int
    refused: int
    transactions: int
    unheard: int
    """Transactions whose end nobody on our side was told."""
    duplicates: int
    kills: int
    edits: int
    cuts: int
    took_s: float
    share: float
    down_s: float
    """While no relay ran."""
    stalled_s: float
    """While this machine did not run even the upstream."""

    def __str__(self) -> str:
        terms = self.terms
        return (
            f"seed {terms.seed}: {self.transactions} transactions in {self.took_s:.1f} s, "
            f"{self.kills} SIGKILLs, {self.edits} edits, {self.cuts} lines cut behind a dot: "
            f"at most {self.most_in_any_window} of {terms.count} in any {terms.period_s:g} s, "
            f"{self.refused} refused, {self.duplicates} recipients twice; {self.unheard} ends unheard, "
            f"{self.down_s:.1f} s without a relay, {self.stalled_s:.1f} s of stalls; "
            f"share of N / (T + guard + mean): {self.share:.3f}"
        )


@dataclass(slots=True)
class Ordeal:
    """One relay under these terms."""

    terms: Terms
    host: StrictSmarthost
    relay: WarmRelay
    feeder: Feeder
    dice: random.Random
    kills: Kills = field(default_factory=Kills)
    """Of the relay, and of lines: both are a reason to send again."""
    down_ns: list[int] = field(default_factory=list)
    """How long no relay ran, each time."""
    died_ns: list[tuple[int, int]] = field(default_factory=list)
    """When the relay was killed, by boottime: just before and just after."""
    cut_at_ns: set[int] = field(default_factory=set)
    """When MAIL came of each transaction whose line was cut behind its dot."""
    counts: dict[str, int] = field(default_factory=lambda: {"kill": 0, "edit": 0, "cut": 0})
    _granted: int = 0
    _name: str = NAMES[0]

    def prepare(self, isp: dict[str, Any]) -> None:
        self._feed()
        wait_until(lambda: len(self.feeder.acknowledged) >= self._granted)
        self.relay.policy["upstreams"] = {self._name: isp}
        assert self.relay.stop() == 0
        self.relay.write_policy()
        self.relay.start()

    def run(self) -> None:
        each_s = {"edit": self.terms.happens_each_s, "cut": self.terms.cut_each_s}
        each_s |= {"kill": self.terms.happens_each_s} if self.terms.is_killed else {}
        acts = {"kill": self._kill, "edit": self._edit, "cut": self._cut}
        now_s, cuts = time.monotonic(), 0
        due_s = {kind: now_s + self._apart(mean_s) for kind, mean_s in each_s.items()}
        while self._transactions() < self.terms.transactions:
            kind = min(due_s, key=lambda each: due_s[each])
            self._feed()
            if not self._live_until(due_s[kind]):
                continue
            acts[kind]()
            self.counts[kind] += 1
            due_s[kind] = time.monotonic() + self._apart(each_s[kind])
            if kind == "cut" and len(self.cut_at_ns) == cuts:
                due_s[kind] = time.monotonic() + NEXT_TO_CUT_S
            cuts = len(self.cut_at_ns)

    def _apart(self, mean_s: float) -> float:
        return self.dice.uniform(0, 2 * mean_s)

    def _transactions(self) -> int:
        return len(self.host.ledger.seen)

    def _feed(self) -> None:
        wanted = self._transactions() + int(BACKLOG_WINDOWS * self.terms.count)
        self.feeder.allow(max(0, wanted - self._granted))
        self._granted = max(self._granted, wanted)

    def _live_until(self, at_s: float) -> bool:
        """Let the relay live for a while; return whether it lived until then."""
        left_s = max(0.0, at_s - time.monotonic())
        self.relay.live(min(left_s, LOOK_S))
        return left_s <= LOOK_S

    def is_unheard(self, seen: Seen) -> bool:
        """Return whether its end reached nobody: its line was cut, or the relay died while it lasted."""
        return seen.mail_at_ns in self.cut_at_ns or any(
            seen.mail_at_ns <= after_ns and before_ns <= seen.ended_at_ns
            for before_ns, after_ns in self.died_ns
        )

    def _kill(self) -> None:
        began_ns = time.monotonic_ns()
        with self.kills.one():
            self.relay.kill_all()
        self.died_ns.append(self.kills.spans_ns[-1])
        # It may have died with half an edit on disk, by which none starts.
        self.relay.write_policy()
        self.relay.start()
        self.down_ns.append(time.monotonic_ns() - began_ns)

    def _cut(self) -> None:
        with self.kills.one():
            cut = self.host.cut_one(self.dice)
        self.cut_at_ns |= {cut} if cut is not None else set()

    def _edit(self) -> None:
        """Save another policy that exceeds nothing at the upstream, or one that is none.

        Another name for the upstream means another pool of connections, on the same history.
        """
        if self.dice.random() < 0.2:
            self.relay.policy_path.write_text("half an edi")
            return
        (isp,) = self.relay.policy["upstreams"].values()
        isp["connections"] = self.dice.randint(CONNECTIONS - 10, CONNECTIONS)
        isp["limits"] = [
            as_limit(self.terms.count, self.terms.period_s),
            *self.dice.choice([[], [{"recipients": 1_000_000, "per": "1h"}]]),
        ]
        self.dice.shuffle(isp["limits"])
        if self.dice.random() < RENAMED:
            self._name = next(name for name in NAMES if name != self._name)
        self.relay.policy["upstreams"] = {self._name: isp}
        self.relay.write_policy()


def as_limit(count: int, period_s: float) -> dict[str, Any]:
    return {"messages": count, "per": f"{round(period_s * 1000)}ms"}


def undergo(folder: Path, terms: Terms) -> Strictness:
    dice = random.Random(terms.seed)
    with StrictSmarthost(folder, terms.limit, seed=terms.seed, latest_reply_s=terms.latest_reply_s) as host:
        isp = host.upstream(
            connections=CONNECTIONS,
            limits=[terms.limit],
            max_transaction=f"{round(terms.max_transaction_s * 1000)}ms",
        )
        # Mail waits before the first slot is asked for: at first nobody is where the upstream should be.
        relay = WarmRelay(folder, {NAMES[0]: isp | {"port": free_port()}})
        relay.start()
        with Feeder(relay.port, ahead=0) as feeder:
            ordeal = Ordeal(terms, host, relay, feeder, dice)
            ordeal.prepare(isp)
            ordeal.run()
        stalls_ns = list(host.stalls_ns)
        relay.write_policy()
        relay.wait_until_empty(within_s=10 * terms.period_s + 60)
        wait_until(lambda: host.unanswered == 0)
        assert relay.stop() == 0
        verdict = judge(host.seen(), host.tried, ordeal.kills, feeder.acknowledged, feeder.attempted)
    verdict.assert_good(connections=CONNECTIONS)
    assert told_relayed_twice(relay.log()) == []
    seen = sorted(host.seen(), key=lambda each: each.mail_at_ns)[: terms.transactions]
    unheard = {each.mail_at_ns for each in seen if ordeal.is_unheard(each)}
    span_ns = seen[-1].mail_at_ns - seen[0].mail_at_ns
    longest_ns = int(terms.max_transaction_s * SECOND_NS)
    known_ns = sum(
        longest_ns if each.mail_at_ns in unheard else each.ended_at_ns - each.mail_at_ns for each in seen
    ) / len(seen)
    shortest_ns = terms.period_s * SECOND_NS + terms.guard_ns + known_ns
    shortest_ns += sum(each**2 for each in (*ordeal.down_ns, *stalls_ns)) / 2 / span_ns
    return Strictness(
        terms=terms,
        most_in_any_window=host.ledger.most_in_any_window(),
        refused=host.ledger.refused,
        transactions=len(seen),
        unheard=len(unheard),
        duplicates=verdict.duplicates,
        kills=ordeal.counts["kill"],
        edits=ordeal.counts["edit"],
        cuts=len(ordeal.cut_at_ns),
        took_s=span_ns / SECOND_NS,
        share=share_of(terms.count, shortest_ns, seen),
        down_s=sum(ordeal.down_ns) / SECOND_NS,
        stalled_s=sum(stalls_ns) / SECOND_NS,
    )


def share_of(count: int, shortest_ns: float, seen: Sequence[Seen]) -> float:
    """Return the shortest round that is safe, divided by how long the rounds of the slots really were."""
    starts_ns = [each.mail_at_ns for each in seen]
    took_ns = (sum(starts_ns[-count:]) - sum(starts_ns[:count])) / count
    rounds = (len(seen) - count) / count
    return rounds * shortest_ns / took_ns
