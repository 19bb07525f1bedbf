"""Eight relays in eight networks, with clocks wrong by up to a year, one account, one real PostgreSQL.

Relays and the server get SIGKILL, relays are halted for longer than a transaction may take, and networks are
cut or slowed, every few seconds and several at once.  The upstream, which no fault reaches, judges.
"""

import contextlib
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.certificates import Certificates, make_certificates, server_context
from tests.fakes.postgresql import Server
from tests.system import namespaces
from tests.system.demand import demand
from tests.system.feeder import Feeder
from tests.system.kills import ENDED, RELAYED, Kills, judge, told_twice
from tests.system.namespaces import Place, clock_wrong_by
from tests.system.processes import halted
from tests.system.relay import RelayProcess
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_until
from tests.system.warm import Warm
from tests.system.witness import Seen

WRONG_DAYS = (0, 365, -365, 1, -1, 183, -30, 7)
CONNECTIONS = 5
OF_ONE = 1_000_000
"""Each host numbers its letters from a multiple of this."""
LONGEST_S = 8
"""How long a transaction may take."""
BACKLOG_WINDOWS = 1.5
MOST_AT_ONCE = 4
"""How many hosts may have a fault at once."""
DECK = ("kill", "cut", "kill", "slow", "kill", "stop", "kill", "cut", "kill", "kill")
"""The faults of hosts; their order is drawn from the seed."""
WHOLE_BUDGET_S = 1800.0
"""The budget of a crash run that has all transactions, with each kind of queue."""


@dataclass(frozen=True, slots=True)
class Terms:
    count: int
    period_s: int
    transactions: int
    between_acts: int
    """Transactions between two faults, on average; the server is killed a third as often."""
    seed: int
    is_queue_shared: bool = False

    @property
    def limit(self) -> dict[str, Any]:
        return {"messages": self.count, "per": f"{self.period_s}s"}


WHOLE = Terms(600, 40, 10_000, 45, seed=0)
SHORT = Terms(100, 4, 600, 40, seed=31)


@dataclass
class World:
    """What all hosts share."""

    terms: Terms
    server: Server
    upstream: StrictSmarthost
    is_up: threading.Lock = field(default_factory=threading.Lock)
    happened: Counter[str] = field(default_factory=Counter)
    warm: Warm = field(default_factory=lambda: Warm(clock_wrong_by(0)))

    def kill_server(self) -> None:
        with self.is_up:
            self.server.kill()
            self.server.start()
        self.happened["server killed"] += 1


class Host:
    """One relay, its clients on the same host, and the faults that happen to both."""

    def __init__(self, world: World, place: Place, relay: RelayProcess, number: int) -> None:
        self.world, self.place, self.relay = world, place, relay
        self.number = number
        self.clock = clock_wrong_by(WRONG_DAYS[number])
        self.kills = Kills()
        self.dice = random.Random(f"{world.terms.seed} {number}")
        relay.warm, relay.network = world.warm, place.network

    @contextlib.contextmanager
    def fed(self) -> Iterator[None]:
        self.start()
        with self.place.inside():
            self.feeder = Feeder(self.relay.port, ahead=0, first=self.number * OF_ONE)
            # A thread stays in the network in which it started.
            self.feeder.__enter__()
        try:
            yield
        finally:
            self.feeder.__exit__()

    def start(self) -> None:
        """Start it, again if it exits: with 75 without its database, with 74 if it loses that meanwhile."""
        with contextlib.suppress(ChildProcessError):
            self.relay.start(**self.clock)
            return
        assert self.world.terms.is_queue_shared
        assert self.relay.wait() in {74, 75}
        self.start()

    def feed(self, seen: int) -> None:
        """Let the clients hand over until this host has `BACKLOG_WINDOWS` more than arrived."""
        ahead = int(BACKLOG_WINDOWS * self.world.terms.count / len(WRONG_DAYS))
        self.feeder.allow_up_to(seen + ahead)

    def undergo(self, kind: str) -> None:
        # Fails if the relay ended by itself.
        self.relay.live(0)
        with self.kills.one():
            getattr(self, kind)()
        if kind == "kill":
            self.start()
        self.world.happened[kind] += 1

    def kill(self) -> None:
        self.relay.kill_all()
        self.world.upstream.catch_up()

    def stop(self) -> None:
        """Halt it for longer than a transaction may take, and until its lease on a shared queue is over."""
        with halted(self.relay.pid):
            self.relay.live(LONGEST_S + self.dice.uniform(0.5, 1.5))
            if self.world.terms.is_queue_shared:
                identity = (self.relay.folder / "spool" / "owner").read_text().strip()
                with self.world.is_up:
                    self.world.server.execute(
                        f"UPDATE relay.owner SET until = clock_timestamp() WHERE identity = '{identity}'",
                        database="mail",
                    )
                self.relay.live(1)

    def cut(self) -> None:
        """Cut its network; packets still on their way arrive before the deadline of their transaction."""
        cut_s = self.dice.uniform(0.2, LONGEST_S / 3)
        with self.place.cut_off():
            self.relay.live(cut_s)
        self.relay.live(cut_s)

    def slow(self) -> None:
        with self.place.slowed():
            self.relay.live(self.dice.uniform(1, 3))


@dataclass(frozen=True, slots=True)
class Outside:
    """What the hosts reach only by their networks."""

    address: str
    places: list[Place]
    server: Server
    database: dict[str, str]
    """The keys of the database in a policy."""
    certificates: Certificates

    def upstream(self, folder: Path, terms: Terms) -> StrictSmarthost:
        context = server_context(self.certificates.cert.with_suffix(".pem"))
        return StrictSmarthost(
            folder, terms.limit, seed=terms.seed, latest_reply_s=0.1, address=self.address, context=context
        )

    def relay(self, folder: Path, terms: Terms, upstream: StrictSmarthost) -> RelayProcess:
        folder.mkdir()
        isp = upstream.upstream(
            connections=CONNECTIONS,
            limits=[terms.limit],
            max_transaction=f"{LONGEST_S}s",
            ca_file=str(self.certificates.ca),
            history=self.database,
        )
        policy: dict[str, Any] = {"retry": {"min": "1s", "max": "2s", "lifetime": "366d"}}
        if terms.is_queue_shared:
            policy["spool"] = {"path": "./spool", **self.database}
        return RelayProcess(folder, {"isp": isp}, **policy)


@pytest.fixture(scope="module")
def outside(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    demand(namespaces.why_missing())
    folder = tmp_path_factory.mktemp("outside")
    with namespaces.places(len(WRONG_DAYS)) as (address, places):
        # The certificate is valid by the clocks of all hosts.
        made = make_certificates(folder, address, days=500)
        server.execute("CREATE ROLE relay LOGIN PASSWORD 'hunter2'")
        server.make_database("mail")
        server.ask_for_passwords_over_tls(made)
        server.addresses += f",{address}"
        server.stop()
        server.start()
        (folder / "password").write_text("hunter2\n")
        (folder / "password").chmod(0o600)
        url = f"postgresql://relay@{address}:{server.port}/mail"
        files = {"password_file": str(folder / "password"), "ca_file": str(made.ca)}
        yield Outside(address, places, server, {"postgresql": url, **files}, made)


def undergo(folder: Path, terms: Terms, outside: Outside, tell: Callable[[str], None]) -> Counter[str]:
    """Run eight relays through the faults, which it returns; fail if mail is lost or the limit exceeded."""
    outside.server.make_database("mail")
    with outside.upstream(folder, terms) as upstream, ExitStack() as closing:
        world = World(terms, outside.server, upstream)
        closing.callback(world.warm.close)
        hosts = [
            Host(world, place, outside.relay(folder / f"host{number}", terms, upstream), number)
            for number, place in enumerate(outside.places)
        ]
        superuser = f"postgresql://postgres@/mail?host={outside.server.folder}&port={outside.server.port}"
        made = hosts[0].relay.command("database", "init", "--as", superuser)
        assert made.returncode == 0, made.stderr
        with ExitStack() as fed:
            for each in hosts:
                fed.enter_context(each.fed())
            live(world, hosts)
        for each in hosts:
            with each.place.inside():
                each.relay.wait_until_empty()
        wait_until(lambda: upstream.unanswered == 0)
        audit = hosts[0].relay.command("audit")
        for each in hosts:
            assert each.relay.stop() == 0
        logs = [each.relay.log() for each in hosts]
    if terms.is_queue_shared:
        # A host that lost its claim during a transaction logs what the upstream took, but no end.
        assert told_twice(itertools.chain(*logs), ENDED) == []
    else:
        assert [told_twice(each, RELAYED) for each in logs] == [[]] * len(hosts)
    assert (audit.returncode, audit.stderr) == (0, "")
    seen, most = upstream.seen(), upstream.ledger.most_in_any_window()
    duplicates = judged(world, hosts, seen)
    assert upstream.ledger.refused == 0
    assert terms.count * 0.9 < most <= terms.count
    tell(
        f"seed {terms.seed}, {'one queue' if terms.is_queue_shared else 'a queue each'}: {len(seen)} "
        f"transactions of eight hosts, {dict(world.happened)}: at most {most} of {terms.count} in any "
        f"{terms.period_s} s, 0 refused, {duplicates} recipients twice"
    )
    return world.happened


def live(world: World, hosts: Sequence[Host]) -> None:
    """Make faults until the upstream saw `terms.transactions`."""
    dice, mean = random.Random(world.terms.seed), world.terms.between_acts
    deck = itertools.cycle(dice.sample(DECK, len(DECK)))
    of_hosts: Counter[int] = Counter()
    counted, next_act, next_kill = 0, mean, 2 * mean
    under_way: dict[Host | None, Future[None]] = {}
    with ThreadPoolExecutor(MOST_AT_ONCE + 1) as pool:
        while counted < world.terms.transactions:
            new = world.upstream.ledger.seen[counted:]
            counted += len(new)
            of_hosts.update(map(host_of, new))
            for each in hosts:
                each.feed(of_hosts[each.number])
            for one in [one for one, act in under_way.items() if act.done()]:
                under_way.pop(one).result()
            idle = [each for each in hosts if each not in under_way]
            if counted >= next_act and len(idle) > len(hosts) - MOST_AT_ONCE:
                host = dice.choice(idle)
                under_way[host] = pool.submit(host.undergo, next(deck))
                next_act = counted + dice.randint(0, 2 * mean)
            if counted >= next_kill and None not in under_way:
                under_way[None] = pool.submit(world.kill_server)
                next_kill = counted + dice.randint(0, 6 * mean)
            wait_until(
                lambda: (
                    len(world.upstream.ledger.seen) > counted  # noqa: B023 - asked now
                    or any(act.done() for act in under_way.values())
                )
            )
        for act in under_way.values():
            act.result()


def judged(world: World, hosts: Sequence[Host], seen: Sequence[Seen]) -> int:
    """Fail unless each host's letters arrived; return how many arrived twice.

    A second copy needs a fault of the host that has the letter, or of any host if the queue is shared.
    """
    groups = [hosts] if world.terms.is_queue_shared else [[each] for each in hosts]
    duplicates = 0
    for group in groups:
        numbers = [own.number for own in group]
        verdict = judge(
            [each for each in seen if host_of(each) in numbers],
            [],
            Kills(sorted(span for each in group for span in each.kills.spans_ns)),
            set[int]().union(*(each.feeder.acknowledged for each in group)),
            set[int]().union(*(each.feeder.attempted for each in group)),
        )
        verdict.assert_good(connections=CONNECTIONS * len(group))
        duplicates += verdict.duplicates
    return duplicates


def host_of(seen: Seen) -> int:
    """Return the number of the host that has the letter; -1 if the transaction has no recipient yet."""
    return int(seen.recipients[0][1:].partition(".")[0]) // OF_ONE if seen.recipients else -1


@pytest.mark.full
@pytest.mark.parametrize("is_queue_shared", [False, True])
def test_eight_hosts_exceed_no_limit_and_lose_no_mail(
    tmp_path: Path, outside: Outside, tell: Callable[[str], None], is_queue_shared: bool
) -> None:
    happened = undergo(tmp_path, replace(SHORT, is_queue_shared=is_queue_shared), outside, tell)
    assert happened.keys() >= {*DECK, "server killed"}


@pytest.fixture
def drawn(crash_seed: int, crash_budget_s: float) -> Terms:
    part = int(WHOLE.transactions * min(1.0, crash_budget_s / WHOLE_BUDGET_S))
    return replace(WHOLE, seed=crash_seed, transactions=part)


@pytest.mark.crash(least_s=300)
@pytest.mark.parametrize("is_queue_shared", [False, True])
def test_eight_hosts_exceed_no_limit_and_lose_no_mail_in_a_long_run(
    tmp_path: Path, outside: Outside, tell: Callable[[str], None], drawn: Terms, is_queue_shared: bool
) -> None:
    undergo(tmp_path, replace(drawn, is_queue_shared=is_queue_shared), outside, tell)
