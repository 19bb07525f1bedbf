"""One relay with three accounts, at two real Postfixes and the strict upstream, under all faults at once.

The first Postfix asks for a password, the second for tokens that live for 5 s (Dovecot checks both), and each
takes only the senders of its login.  The third account takes any sender.  Postfix counts in a `Ledger`, the
strict upstream by itself.  Mail waits for all three; each third of it prefers another one, and some goes in
parts.

*Wild*: about once a second one of these happens: an edit, which may lower a limit or raise it again, a pause
of an account or its end, a stop and a start, SIGKILL, or the revocation of all tokens.
*Calm*: the policy is edited (routes, connections, limits that are never reached), and tokens expire.  Then
the used share of the budgets, N / (T + guard + mean transaction), is judged.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.token_server import USER, TokenServer
from tests.system import accounts, dovecot, postfix
from tests.system.demand import demand
from tests.system.feeder import Feeder, Letter
from tests.system.feeder import letter as plain_letter
from tests.system.kills import Kills, judge, told_relayed_twice
from tests.system.ledger import Ledger
from tests.system.postfix import Postfix
from tests.system.relay import SENDER
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_for_change, wait_until
from tests.system.warm import WarmRelay
from tests.system.witness import Seen, Witness, share_of

NAMES = ("password", "token", "practice")
STRANGER = "news@lists.test"
"""A sender that neither Postfix takes."""
CONNECTIONS = 6
WAITING_WINDOWS = 1.5
"""How many windows of mail wait for each account."""
TRANSACTIONS_A_LETTER = 1.2
"""On average: one letter in ten goes in three parts."""
BEFORE_A_STOP = 60
"""How many messages the clients still have to hand over at a stop."""
DEEDS = ("edit", "edit", "pause", "pause", "resume", "stop", "kill", "kill", "revoke")
LONGEST_PAUSE_DEEDS = 3
REVOKED_APART_S = 6.0
LOWERED = (0.6, 0.8, 1.0, 1.0)
"""The limits of edits, as shares of what the account allows."""
SMALLEST_SHARE = 0.95
"""The used share of all budgets in a calm run.  The aim is 0.98: see test_relay_strictly."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What each account allows, and what happens to the relay."""

    count: int
    period_s: int
    deeds: int = 20
    each_s: float = 1.0
    is_calm: bool = False
    seed: int = 0

    def limit(self, share: float = 1.0) -> dict[str, Any]:
        return {"messages": int(self.count * share), "per": f"{self.period_s}s"}


CALM = Terms(60, 5, is_calm=True)
WILD = Terms(40, 2)
SMALL = Terms(20, 2, deeds=8, each_s=0.7, seed=4)


def letter(number: int) -> Letter:
    """Return the letter of this number, always the same; a third of the letters prefers each account."""
    plain = plain_letter(number)
    homes = NAMES if number % 10 == 0 else (NAMES[number % 3],)
    recipients = tuple(
        f"r{number}.{place}@{homes[place % len(homes)]}.list.test"
        for place in range(max(len(homes), len(plain.recipients)))
    )
    is_strange = homes == ("practice",) and number % 2 == 1
    return Letter(number, recipients, plain.content, STRANGER if is_strange else SENDER)


@dataclass
class House:
    """The upstreams of the three accounts, and the token server."""

    ledgers: dict[str, Ledger]
    postfixes: dict[str, Postfix]
    practice: StrictSmarthost
    server: TokenServer

    def witnesses(self) -> list[Witness]:
        return [*(each.witness for each in self.ledgers.values()), self.practice.ledger]

    def taken(self) -> int:
        return sum(len(witness.seen) for witness in self.witnesses())

    def seen(self) -> dict[str, list[Seen]]:
        """Return the transactions of each account, once all mail is in the mailboxes."""
        for upstream in self.postfixes.values():
            wait_for_change(lambda upstream=upstream: upstream.queue() == [] or None, upstream.home)  # type: ignore[misc]  # bound now
        found = {name: each.seen(self.postfixes[name].mailbox) for name, each in self.ledgers.items()}
        return found | {"practice": self.practice.seen()}

    def sections(self, terms: Terms, folder: Path) -> dict[str, Any]:
        """Return the section `upstreams` of a policy."""
        by_token = accounts.by_token(self.postfixes["token"], self.server, folder)
        if not terms.is_calm:
            # A kill may lose a refresh token that rotates (docs/policy.md); other tests are about that.
            oauth2 = by_token["auth"]["oauth2"] | {"grant": "client_credentials"}
            del oauth2["refresh_token_file"]
            by_token["auth"]["oauth2"] = oauth2
        made = {
            "password": accounts.by_password(self.postfixes["password"], folder),
            "token": by_token,
            "practice": self.practice.upstream(),
        }
        # Connections end so often that tokens expire between two logins.
        more = {"connections": CONNECTIONS, "max_transaction": "10s", "max_age": "3s"}
        more |= {"limits": [terms.limit()]}
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
        postfixes = {}
        for (name, ledger), checker, login in zip(
            ledgers.items(), checkers, (accounts.NAME, USER), strict=True
        ):
            settings = accounts.owned(login, "front.test") | ledger.settings | checker.settings
            postfixes[name] = ends.enter_context(postfix.smarthost(**settings))
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
    counts: Counter[str] = field(default_factory=Counter)
    paused: dict[str, int] = field(default_factory=dict)
    """The paused accounts, each with the number of the deed that paused it."""
    revoked_at_s: float = 0.0
    granted: int = 0

    def run(self) -> None:
        for name in NAMES:
            self.ask("pause", name)
        self.feed()
        wait_until(lambda: len(self.feeder.acknowledged) >= self.granted)
        for name in NAMES:
            self.ask("resume", name)
        for _ in range(self.terms.deeds):
            self.live(self.dice.uniform(0, 2 * self.terms.each_s))
            deed = "edit" if self.terms.is_calm else self.dice.choice(DEEDS)
            getattr(self, deed)()
            self.counts[deed] += 1
            for name, number in list(self.paused.items()):
                if self.counts.total() - number > LONGEST_PAUSE_DEEDS:
                    self.resume(name)
        self.live(self.terms.each_s)

    def end_pauses(self) -> None:
        for name in list(self.paused):
            self.resume(name)

    def feed(self) -> None:
        waiting = int(WAITING_WINDOWS * self.terms.count * len(NAMES))
        wanted = int(self.house.taken() / TRANSACTIONS_A_LETTER) + waiting
        self.feeder.allow(max(0, wanted - self.granted))
        self.granted = max(self.granted, wanted)

    def live(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.feed()
            self.relay.live(min(left_s, 0.1))

    def ask(self, *words: str) -> None:
        ran = self.relay.command(*words)
        assert ran.returncode == 0, ran

    def edit(self) -> None:
        for section in self.relay.policy["upstreams"].values():
            section["connections"] = self.dice.randint(CONNECTIONS - 1, CONNECTIONS)
            share = 1.0 if self.terms.is_calm else self.dice.choice(LOWERED)
            never = self.dice.choice([[], [{"recipients": 1_000_000, "per": "1h"}]])
            section["limits"] = [self.terms.limit(share), *never]
        self.relay.policy["routes"] = routes(self.dice)
        self.relay.write_policy()
        self.relay.reload()

    def pause(self) -> None:
        name = self.dice.choice(NAMES)
        self.ask("pause", name)
        self.paused.setdefault(name, self.counts.total())

    def resume(self, name: str = "") -> None:
        """End the pause of this account, or of the account that is paused for longest."""
        for each in [name] if name else list(self.paused)[:1]:
            self.ask("resume", each)
            del self.paused[each]

    def revoke(self) -> None:
        """Revoke all tokens, at most every 6 s: a new token that is refused at once stops its account."""
        now_s = time.monotonic()
        if now_s - self.revoked_at_s > REVOKED_APART_S:
            self.revoked_at_s = now_s
            self.house.server.revoke_access()

    def stop(self) -> None:
        # A client that waits for the feeder reads no 421, and the relay would wait for it.
        self.feeder.allow(BEFORE_A_STOP)
        self.granted += BEFORE_A_STOP
        assert self.relay.stop() == 0
        self.relay.start()

    def kill(self) -> None:
        with self.kills.one():
            self.relay.kill_all()
        self.relay.start()


def routes(dice: random.Random) -> list[dict[str, Any]]:
    """Return routes by which each account comes first for some mail; the order of the others is drawn."""
    found: list[dict[str, Any]] = [{"sender": STRANGER, "upstreams": ["practice"]}]
    for name in NAMES:
        others = [other for other in NAMES if other != name]
        dice.shuffle(others)
        found.append({"recipient_domain": f"{name}.list.test", "upstreams": [name, *others]})
    # The last route has to match all; no mail gets there.
    return [route | {"failover_after": "1s"} for route in found] + [{"upstreams": [dice.choice(NAMES)]}]


@dataclass(frozen=True, slots=True)
class Found:
    """The figures of a run that passed."""

    duplicates: int
    tokens: int
    """How many tokens were issued, each for 5 s."""
    share: float
    """The used share of the limit, the mean of all accounts, whatever happened to the relay."""
    words: str


def undergo(folder: Path, terms: Terms) -> Found:
    """Run a relay under these terms; fail if mail is lost, a limit exceeded or a login wrong."""
    demand(postfix.why_missing(), dovecot.why_missing())
    dice = random.Random(terms.seed)
    with house(terms, folder) as three:
        relay = WarmRelay(folder, three.sections(terms, folder), routes=routes(dice))
        relay.start()
        with Feeder(relay.port, ahead=0, letter=letter) as feeder:
            ordeal = Ordeal(terms, three, relay, feeder, dice)
            ordeal.run()
            ended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        ordeal.end_pauses()
        relay.wait_until_empty()
        wait_until(lambda: three.practice.unanswered == 0)
        assert relay.stop() == 0
        seen = three.seen()
    every = [each for its in seen.values() for each in its]
    verdict = judge(
        every, three.practice.tried, ordeal.kills, feeder.acknowledged, feeder.attempted, letter=letter
    )
    verdict.assert_good(connections=CONNECTIONS * len(NAMES))
    assert verdict.reports == 0, "nobody was refused"
    assert told_relayed_twice(relay.log()) == []
    assert [line for line in relay.log() if " stopped: " in line] == []
    assert [each.refused + each.cut_offs for each in three.witnesses()] == [0, 0, 0]
    most = max(each.most_in_any_window() for each in three.witnesses())
    assert most <= terms.count
    senders = {name: {each.reverse_path for each in its} for name, its in seen.items()}
    assert (senders["password"], senders["token"]) == ({SENDER}, {SENDER})
    assert STRANGER in senders["practice"]
    logins = [ledger.logins for ledger in three.ledgers.values()]
    assert logins == [{("PLAIN", accounts.NAME)}, {("OAUTHBEARER", USER)}]
    taken = {name: len(its) for name, its in seen.items()}
    shares = [
        share_of(terms.count, terms.period_s, [each for each in its if each.mail_at_ns < ended_ns])
        for its in seen.values()
    ]
    share = sum(shares) / len(shares)
    words = (
        f"seed {terms.seed}: {dict(ordeal.counts)}; taken: {taken}, at most {most} of {terms.count} in any "
        f"{terms.period_s} s, 0 refused; {verdict.duplicates} recipients twice; {share:.3f} of all budgets"
    )
    tokens = sum("access_token" in each.fields for each in three.server.granted)
    return Found(verdict.duplicates, tokens, share, words)


@pytest.mark.full
def test_three_accounts_under_all_faults_at_once_lose_and_exceed_nothing(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    tell(undergo(tmp_path, SMALL).words)


@pytest.mark.crash(least_s=60)
def test_three_accounts_are_used_to_the_full_while_all_have_mail(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    deeds = max(20, int(crash_budget_s / 3))
    found = undergo(tmp_path, replace(CALM, seed=crash_seed, deeds=deeds))
    tell(found.words)
    assert found.duplicates == 0
    assert found.tokens > deeds / (2 * accounts.LIFE_SECONDS), "they end while all have mail"
    assert found.share >= SMALLEST_SHARE, found.words


@pytest.mark.crash(least_s=60)
def test_three_accounts_in_a_long_run_lose_and_exceed_nothing(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    deeds = max(20, int(crash_budget_s / 2))
    tell(undergo(tmp_path, replace(WILD, seed=crash_seed, deeds=deeds)).words)
