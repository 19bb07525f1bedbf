"""One relay with three accounts under everything at once: two real Postfixes, and the strict upstream.

The first Postfix asks for a password, the second for tokens that live for 5 s (Dovecot checks both), and
each takes only the senders of its login; the third account takes any.  Each counts by its own clock: Postfix
in a `Ledger`, the strict upstream as ever.  Mail waits for all three, each third of it prefers another one,
and some goes in parts.

*Calm*: each second the policy is edited (routes, connections, limits that are never reached), and nothing
else.  Then the share of the budgets that was used is judged (of N / (T + guard + mean transaction)).
*Wild*: each second one of these is drawn: an edit, which may tighten a limit or loosen it again, a pause of
an account or its end, a stop and a start, SIGKILL, or the end of all tokens given so far.  There the
share is told, of all that the accounts allow, and not judged.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.token_server import CLIENT, USER, TokenServer
from tests.system import accounts, dovecot, postfix
from tests.system.demand import demand
from tests.system.feeder import SENDER, Feeder, Letter
from tests.system.feeder import letter as plain_letter
from tests.system.kills import Kills, Verdict, judge, told_relayed_twice
from tests.system.ledger import Ledger
from tests.system.postfix import Postfix
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_for_change, wait_until
from tests.system.warm import WarmRelay
from tests.system.witness import Seen, Witness, share_of

NAMES = ("password", "token", "practice")
STRANGER = "news@lists.test"
"""A sender that neither Postfix takes."""
CONNECTIONS = 6
MAX_TRANSACTION_S = 10.0
LONGEST_PAUSE_DEEDS = 3
BACKLOG_WINDOWS = 1.5
TRANSACTIONS_A_LETTER = 1.2
"""One in ten goes in three parts."""
REVOKED_APART_S = 6.0
LOOK_S = 0.1
BEFORE_A_STOP = 60
"""Messages that the clients have in hand then."""
DEEDS = ("edit", "edit", "pause", "pause", "resume", "stop", "kill", "kill", "revoke")
LOWERED = (0.6, 0.8, 1.0, 1.0)


def letter(number: int) -> Letter:
    """Return the letter of this number, always the same; a third of them prefers each account."""
    plain = plain_letter(number)
    homes = NAMES if number % 10 == 0 else (NAMES[number % 3],)
    recipients = tuple(
        f"r{number}.{place}@{homes[place % len(homes)]}.list.test"
        for place in range(max(len(homes), len(plain.recipients)))
    )
    is_strange = homes == ("practice",) and number % 2 == 1
    return Letter(number, recipients, plain.content, STRANGER if is_strange else SENDER)


@dataclass(frozen=True, slots=True)
class Terms:
    """What each account allows, and what happens to the relay."""

    count: int
    period_s: float
    deeds: int
    seed: int
    is_wild: bool
    happens_each_s: float = 1.0

    def limit(self, share: float = 1.0) -> dict[str, Any]:
        return {"messages": int(self.count * share), "per": f"{round(self.period_s * 1000)}ms"}


@dataclass(slots=True)
class Found:
    """What came of it."""

    terms: Terms
    verdict: Verdict
    most: dict[str, int]
    """In any window of each account, by its own ledger."""
    refused: int
    """Messages that were one too many."""
    senders: dict[str, set[str]]
    logins: dict[str, set[tuple[str, str]]]
    told_twice: list[str]
    counts: dict[str, int]
    taken: dict[str, int]
    share: float
    """Of what an account allows, the mean of all, whatever happened to the relay."""
    unexpected: list[str]
    """Upstreams that stopped, as the log tells it."""

    def __str__(self) -> str:
        deeds = ", ".join(f"{count} {deed}" for deed, count in sorted(self.counts.items()))
        return (
            f"seed {self.terms.seed}: {deeds}; taken: {self.taken}; "
            f"at most {max(self.most.values())} of {self.terms.count} in any "
            f"{self.terms.period_s:g} s, {self.refused} refused; {self.verdict.duplicates} recipients twice; "
            f"{self.share:.3f} of all budgets"
        )


@dataclass
class House:
    """The three accounts."""

    ledgers: dict[str, Ledger]
    postfixes: dict[str, Postfix]
    practice: StrictSmarthost
    server: TokenServer

    def taken(self) -> int:
        return sum(len(witness.seen) for witness in self.witnesses().values())

    def witnesses(self) -> dict[str, Witness]:
        return {name: each.witness for name, each in self.ledgers.items()} | {
            "practice": self.practice.ledger
        }

    def seen(self) -> dict[str, list[Seen]]:
        """Return what each saw, once all of it has arrived."""
        for upstream in self.postfixes.values():
            wait_for_change(lambda upstream=upstream: upstream.queue() == [] or None, upstream.home)  # type: ignore[misc]  # bound now
        found = {name: each.seen(self.postfixes[name].mailbox) for name, each in self.ledgers.items()}
        return found | {"practice": self.practice.seen()}

    def sections(self, terms: Terms, folder: Path) -> dict[str, Any]:
        """Return `upstreams` of a policy."""
        by_token = accounts.by_token(self.postfixes["token"], self.server, folder)
        if terms.is_wild:
            # Kills lose refresh tokens that rotate, as docs/policy.md says; those have proofs of their own.
            oauth2 = by_token["auth"]["oauth2"] | {"grant": "client_credentials", "client_id": CLIENT}
            del oauth2["refresh_token_file"]
            by_token["auth"]["oauth2"] = oauth2
        made = {
            "password": accounts.by_password(self.postfixes["password"], folder),
            "token": by_token,
            "practice": self.practice.upstream(),
        }
        more = {
            "connections": CONNECTIONS,
            "limits": [terms.limit()],
            "max_transaction": f"{round(MAX_TRANSACTION_S * 1000)}ms",
            # Often enough for tokens to end between two logins.
            "max_age": "3s",
        }
        return {name: section | more | {"history": f"./{name}.history"} for name, section in made.items()}


@contextmanager
def house(terms: Terms, folder: Path) -> Iterator[House]:
    with ExitStack() as ends:
        server = ends.enter_context(TokenServer(life_seconds=accounts.LIFE_SECONDS))
        ledgers = {name: ends.enter_context(Ledger(terms.limit())) for name in NAMES[:2]}
        checkers = (
            ends.enter_context(dovecot.passwords({accounts.NAME: accounts.PASSWORD})),
            ends.enter_context(dovecot.tokens(server.introspection_url)),
        )
        logins = accounts.NAME, USER
        postfixes = {
            name: ends.enter_context(
                postfix.smarthost(
                    **(accounts.owned(login, "front.test") | ledgers[name].settings), **checker.settings
                )
            )
            for name, checker, login in zip(NAMES, checkers, logins, strict=False)
        }
        (folder / "practice").mkdir()
        practice = StrictSmarthost(folder / "practice", terms.limit(), seed=terms.seed, latest_reply_s=0.02)
        yield House(ledgers, postfixes, ends.enter_context(practice), server)


@dataclass
class Ordeal:
    terms: Terms
    house: House
    relay: WarmRelay
    feeder: Feeder
    dice: random.Random
    kills: Kills = field(default_factory=Kills)
    counts: dict[str, int] = field(default_factory=dict)
    paused: dict[str, int] = field(default_factory=dict)
    """Of each account that is paused, the number of that deed."""
    revoked_at_s: float = 0.0
    _granted: int = 0

    def prepare(self) -> None:
        for name in NAMES:
            self._ask("pause", name)
        self.feed()
        wait_until(lambda: len(self.feeder.acknowledged) >= self._granted)

    def begin(self) -> None:
        for name in NAMES:
            self._ask("resume", name)

    def run(self) -> None:
        acts: dict[str, Callable[[], None]] = {
            "edit": self._edit,
            "pause": self._pause,
            "resume": self._resume,
            "stop": self._stop,
            "kill": self._kill,
            "revoke": self._revoke,
        }
        for _ in range(self.terms.deeds):
            self._live(self.dice.uniform(0, 2 * self.terms.happens_each_s))
            deed = self.dice.choice(DEEDS) if self.terms.is_wild else "edit"
            acts[deed]()
            self.counts[deed] = self.counts.get(deed, 0) + 1
            self._end_long_pauses()
        self._live(self.terms.happens_each_s)

    def end(self) -> None:
        for name in list(self.paused):
            self._resumed(name)

    def feed(self) -> None:
        backlog = int(BACKLOG_WINDOWS * self.terms.count * len(NAMES))
        wanted = int(self.house.taken() / TRANSACTIONS_A_LETTER) + backlog
        self.feeder.allow(max(0, wanted - self._granted))
        self._granted = max(self._granted, wanted)

    def _live(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.feed()
            self.relay.live(min(left_s, LOOK_S))

    def _ask(self, *words: str) -> None:
        ran = self.relay.command(*words)
        assert ran.returncode == 0, ran

    def _edit(self) -> None:
        for section in self.relay.policy["upstreams"].values():
            section["connections"] = self.dice.randint(CONNECTIONS - 1, CONNECTIONS)
            share = self.dice.choice(LOWERED) if self.terms.is_wild else 1.0
            never = self.dice.choice([[], [{"recipients": 1_000_000, "per": "1h"}]])
            section["limits"] = [self.terms.limit(share), *never]
        self.relay.policy["routes"] = routes(self.dice)
        self.relay.write_policy()
        self.relay.reload()

    def _pause(self) -> None:
        name = self.dice.choice(NAMES)
        self._ask("pause", name)
        self.paused.setdefault(name, sum(self.counts.values()))

    def _resume(self) -> None:
        for name in list(self.paused)[:1]:
            self._resumed(name)

    def _end_long_pauses(self) -> None:
        for name, deed in list(self.paused.items()):
            if sum(self.counts.values()) - deed > LONGEST_PAUSE_DEEDS:
                self._resumed(name)

    def _resumed(self, name: str) -> None:
        self._ask("resume", name)
        del self.paused[name]

    def _revoke(self) -> None:
        """End all tokens, but not the one in their place before it is used: that stops an account."""
        now_s = time.monotonic()
        if now_s - self.revoked_at_s > REVOKED_APART_S:
            self.revoked_at_s = now_s
            self.house.server.revoke_access()

    def _stop(self) -> None:
        # A client that waits for us reads no 421, and is waited for.
        self.feeder.allow(BEFORE_A_STOP)
        self._granted += BEFORE_A_STOP
        assert self.relay.stop() == 0
        self.relay.start()

    def _kill(self) -> None:
        with self.kills.one():
            self.relay.kill_all()
        self.relay.start()


def routes(dice: random.Random) -> list[dict[str, Any]]:
    """Return routes by which each account is preferred by some mail; the order of the others is drawn."""
    found: list[dict[str, Any]] = [{"sender": STRANGER, "upstreams": ["practice"]}]
    for name in NAMES:
        others = [other for other in NAMES if other != name]
        dice.shuffle(others)
        found.append({"recipient_domain": f"{name}.list.test", "upstreams": [name, *others]})
    # None gets here; the last one matches all.
    return [route | {"failover_after": "1s"} for route in found] + [{"upstreams": [dice.choice(NAMES)]}]


def undergo(folder: Path, terms: Terms) -> Found:
    dice = random.Random(terms.seed)
    with house(terms, folder) as three:
        relay = WarmRelay(folder, three.sections(terms, folder), routes=routes(dice))
        relay.start()
        with Feeder(relay.port, ahead=0, letter=letter) as feeder:
            ordeal = Ordeal(terms, three, relay, feeder, dice)
            ordeal.prepare()
            ordeal.begin()
            ordeal.run()
            ended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        ordeal.end()
        relay.wait_until_empty()
        wait_until(lambda: three.practice.unanswered == 0)
        assert relay.stop() == 0
        seen = three.seen()
        every = [each for its in seen.values() for each in its]
        verdict = judge(
            every, three.practice.tried, ordeal.kills, feeder.acknowledged, feeder.attempted, letter=letter
        )
    shares = [
        share_of(terms.count, terms.period_s, [each for each in its if each.mail_at_ns < ended_ns])
        for its in seen.values()
    ]
    return Found(
        terms=terms,
        verdict=verdict,
        most={name: each.most_in_any_window() for name, each in three.witnesses().items()},
        refused=sum(each.refused + each.cut_offs for each in three.witnesses().values()),
        senders={name: {s.reverse_path for s in its} for name, its in seen.items()},
        logins={name: ledger.logins for name, ledger in three.ledgers.items()},
        told_twice=told_relayed_twice(relay.log()),
        counts=ordeal.counts,
        taken={name: len(its) for name, its in seen.items()},
        share=sum(shares) / len(shares),
        unexpected=[line for line in relay.log() if " stopped: " in line],
    )


SMALLEST_SHARE = 0.95
"""Of N / (T + guard + mean transaction), the mean of all three, where none is paused or stopped."""
CALM = Terms(count=60, period_s=5.0, deeds=20, seed=0, is_wild=False)
WILD = Terms(count=40, period_s=2.0, deeds=30, seed=0, is_wild=True)
SMALL = replace(WILD, count=20, deeds=8, seed=4, happens_each_s=0.7)


def assert_all_went_well(found: Found) -> None:
    found.verdict.assert_good(connections=CONNECTIONS * len(NAMES))
    assert found.verdict.reports == 0, "nobody was refused"
    assert found.told_twice == []
    assert found.unexpected == []
    assert found.refused == 0
    assert max(found.most.values()) <= found.terms.count, found.most
    assert (found.senders["password"], found.senders["token"]) == ({SENDER}, {SENDER})
    assert STRANGER in found.senders["practice"]
    assert found.logins["password"] == {("PLAIN", accounts.NAME)}
    assert found.logins["token"] == {("OAUTHBEARER", USER)}


@pytest.mark.full
def test_three_accounts_under_all_of_it_lose_and_exceed_nothing(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    demand(postfix.why_missing(), dovecot.why_missing())
    found = undergo(tmp_path, SMALL)
    tell(str(found))
    assert_all_went_well(found)


@pytest.mark.crash(least_s=60)
def test_three_accounts_are_used_to_the_full_while_all_have_mail(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    demand(postfix.why_missing(), dovecot.why_missing())
    deeds = max(20, int(crash_budget_s / 3))
    found = undergo(tmp_path, replace(CALM, seed=crash_seed, deeds=deeds))
    tell(str(found))
    assert_all_went_well(found)
    assert found.verdict.duplicates == 0
    assert found.share >= SMALLEST_SHARE, str(found)


@pytest.mark.crash(least_s=60)
def test_three_accounts_at_length_lose_and_exceed_nothing(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    demand(postfix.why_missing(), dovecot.why_missing())
    deeds = max(20, int(crash_budget_s / 2))
    found = undergo(tmp_path, replace(WILD, seed=crash_seed, deeds=deeds))
    tell(str(found))
    assert_all_went_well(found)
