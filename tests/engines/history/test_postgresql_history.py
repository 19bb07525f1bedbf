"""History and pause in a real PostgreSQL: cut connections, clock steps and lost commits."""

import contextlib
import io
import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from unittest.mock import patch

import psycopg
import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.sender.account_row import AccountRow
from relay.sender.pausing import Pausing
from relay.smtp.reply import Phase, Reply
from relay.spool.database.account import SharedAccount
from relay.spool.database.connection import Database
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics, Telemetry
from relay.throttle.book import Book
from relay.throttle.history import Ended, HistoryError
from relay.throttle.postgresql_history import HighWaterMark, PostgresqlHistory
from relay.throttle.throttle import Throttle, View
from relay.verdicts.account import AccountState, Event, EventKind, Health, PauseAsked
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.verdict import Verdict
from tests.engines.history.limits import TRANSACTION_NS, granted, messages, settle
from tests.fakes.clock import FakeClock
from tests.fakes.cut_line import CutLine
from tests.fakes.interleaving import Pair, interleaved
from tests.fakes.model_database import ModelDatabase
from tests.fakes.postgresql import Server
from tests.system.hosts import through
from tests.system.waiting import wait_until

HOUR_NS = 3600 * SECOND_NS
YEAR_NS = 365 * 24 * HOUR_NS
COUNT = 3
NUMBERS = itertools.count()
Mark = Callable[[], HighWaterMark]


@pytest.fixture
def account(server: Server) -> SharedAccount:
    return SharedAccount(Database(server.url), f"isp {next(NUMBERS)}")


def hourly(history: PostgresqlHistory, clock: FakeClock, count: int = COUNT) -> Throttle:
    return Throttle(history, [messages(count, seconds=3600)], clock, transaction_ns=TRANSACTION_NS)


@pytest.mark.parametrize("is_passed_on", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_line_cut_at_any_statement_forgets_no_slot(
    server: Server, clock: FakeClock, is_passed_on: bool, mark: Mark
) -> None:
    """A granted slot is charged on all hosts. A slot that was not granted may be charged too."""
    with CutLine(server.port) as line:
        by_line = Database(through(line, server.url))
        for number in itertools.count():
            name = f"cut {next(NUMBERS)}"
            one, other = (
                hourly(PostgresqlHistory(account, mark(), clock, replace_above_groups=1), clock)
                for account in (SharedAccount(by_line, name), SharedAccount(Database(server.url), name))
            )
            one.flush()
            cuts, grants = line.cuts, 0
            line.cut(after=number, is_passed_on=is_passed_on)
            for account in (one, one, other, one, other):
                with contextlib.suppress(HistoryError):
                    grants += len(granted(account, 1))
            line.cut(b"nothing")
            other.flush()
            one.flush()
            used = [account.usage()[0].used for account in (one, other)]
            assert used == [COUNT, COUNT]
            # A slot is charged but not granted only if the reply to its COMMIT is lost.
            assert COUNT - is_passed_on <= grants <= COUNT
            for account in (one, other):
                account.close()
            if line.cuts == cuts:
                break
        assert number > 3


@pytest.mark.full
def test_two_decisions_that_meet_at_any_statement_grant_one_slot(
    server: Server, clock: FakeClock, mark: Mark
) -> None:
    grants, met = list[int](), 0
    with CutLine(server.port) as one, CutLine(server.port) as other, contextlib.ExitStack() as closing:

        def pair() -> Pair:
            closing.pop_all().close()
            grants.clear()
            name, throttles = f"met {next(NUMBERS)}", list[Throttle]()
            # Create the row first: otherwise one call waits for the other's INSERT, whichever has the lock.
            first = PostgresqlHistory(SharedAccount(Database(server.url), name), mark(), clock)
            with contextlib.closing(first), first.transaction() as transaction:
                transaction.commit([Ended(1, 0)])
            for line in (one, other):
                account = SharedAccount(Database(through(line, server.url)), name)
                throttle = hourly(PostgresqlHistory(account, mark(), clock), clock, 1)
                closing.callback(throttle.close)
                throttle.flush()
                throttles.append(throttle)
            return tuple(lambda each=each: grants.append(len(granted(each, 1))) for each in throttles)  # type: ignore[return-value]  # two

        for _ in interleaved((one, other), server.url, pair):
            met += 1
            assert sorted(grants) == [0, 1]
    assert met >= 25


@pytest.mark.parametrize("by_ns", [HOUR_NS, -HOUR_NS])
def test_a_step_of_the_servers_clock_frees_and_keeps_nothing(
    server: Server, account: SharedAccount, by_ns: int, mark: Mark
) -> None:
    clocks = [FakeClock(up * HOUR_NS) for up in (1, 9)]
    throttles = [(hourly(PostgresqlHistory(account, mark(), clock), clock), clock) for clock in clocks]
    for each, clock in throttles:
        settle(each, clock, *granted(each, 1))
        each.flush()
    # This equals a step of the server's clock: server and test share the clock of this host.
    server.execute(f"UPDATE relay.account SET offset_ns = offset_ns + {by_ns} WHERE name = '{account.name}'")
    for each, clock in (*throttles, throttles[0]):
        each.close()  # so that it reads all anew
        each.flush()
        (usage,) = each.usage()
        assert usage.used == 2
        assert {(at_ns - clock.boottime_ns()) // (60 * SECOND_NS) for at_ns, _ in usage.openings} <= {59, 60}
        each.close()


class FarServer(ModelDatabase):
    """A server whose clock is read `there_ns` after it was asked for, and told `back_ns` later."""

    there_ns = back_ns = 0

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(Random(0))
        self._clock = clock

    def time_ns(self) -> int:
        self._clock.advance(self.there_ns)
        now_ns = self._clock.wall_ns()
        self._clock.advance(self.back_ns)
        return now_ns


@pytest.mark.parametrize("legs_ms", [((0, 200), (200, 0)), ((200, 0), (0, 200))])
def test_a_slow_server_makes_no_event_earlier(
    legs_ms: Sequence[tuple[int, int]], clock: FakeClock, mark: Mark
) -> None:
    server = FarServer(clock)
    account = SharedAccount(Database("postgresql://"), "isp")
    ended_at_ns = 0
    with patch.object(psycopg, "connect", server.connect):
        for there_ms, back_ms in legs_ms:
            server.there_ns, server.back_ns = there_ms * 10**6, back_ms * 10**6
            history = PostgresqlHistory(account, mark(), clock)
            with contextlib.closing(history), history.transaction() as transaction:
                for event in transaction.news:
                    assert isinstance(event, Ended)
                    assert ended_at_ns <= event.at_ns <= ended_at_ns + SECOND_NS
                ended_at_ns = ended_at_ns or clock.boottime_ns()
                transaction.commit([Ended(1, ended_at_ns)])
    assert ended_at_ns


def test_a_slow_reply_makes_no_host_read_everything_again(clock: FakeClock, mark: Mark) -> None:
    server, whole = FarServer(clock), list[bool]()
    with patch.object(psycopg, "connect", server.connect):
        history = PostgresqlHistory(SharedAccount(Database("postgresql://"), "isp"), mark(), clock)
        for back_s in (0, 1, 0, 1, 1):
            server.back_ns = back_s * SECOND_NS
            with history.transaction() as transaction:
                whole.append(transaction.is_whole)
        history.close()
    assert whole == [True, False, False, False, False]


def test_a_host_whose_clock_runs_fast_frees_slots_by_the_clock_of_the_history(
    clock: FakeClock, mark: Mark
) -> None:
    with patch.object(psycopg, "connect", FarServer(clock).connect):
        history = PostgresqlHistory(SharedAccount(Database("postgresql://"), "isp"), mark(), clock)
        account = hourly(history, clock, 1)
        settle(account, clock, *granted(account, 1))
        opens_at_ns = clock.boottime_ns() + HOUR_NS
        for _ in range(5):
            account.flush()
            clock.advance(600 * SECOND_NS)
            clock.step_wall(-SECOND_NS * 4 // 10)  # of the server; too little to be a step
        for _ in range(2):
            account.flush()
        account.close()

    assert account.usage()[0].opens_at_ns == opens_at_ns + 2 * SECOND_NS


def test_a_restarted_host_recognises_lost_commits_and_another_database(
    server: Server, account: SharedAccount, path: Path
) -> None:
    def commit(number: int) -> None:
        history = PostgresqlHistory(account, HighWaterMark(f"{path}.mark", RealDisk()), FakeClock())
        with contextlib.closing(history), history.transaction() as transaction:
            transaction.commit([Ended(number, 0)])

    for number in (1, 2):
        commit(number)
    where = f"WHERE name = '{account.name}'"
    server.execute(f"UPDATE relay.account SET last_position = 1 {where}")
    with pytest.raises(HistoryError, match="it lost 1 commits; nothing is sent"):
        commit(3)
    server.execute(f"UPDATE relay.account SET last_position = 2, identity = gen_random_uuid() {where}")
    with pytest.raises(HistoryError, match="another history under this account's name; nothing is sent"):
        commit(3)
    # A crash may lose a mark that was not synced.
    path.with_name(f"{path.name}.mark").write_bytes(bytes(64))
    commit(3)


def test_a_commit_that_no_standby_has_grants_nothing(
    server: Server, account: SharedAccount, mark: Mark
) -> None:
    """PostgreSQL reports a cancelled wait for a standby as a success with a warning."""
    history = PostgresqlHistory(account, mark(), FakeClock())
    with history.transaction() as transaction:
        transaction.commit([Ended(1, 0)])
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    waits = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    is_over = threading.Event()

    def cut_short() -> None:
        while not is_over.is_set():
            server.execute(waits)

    def is_waited_for() -> bool:
        warnings: list[object] = []
        with server.connect("postgres") as connection:
            connection.add_notice_handler(warnings.append)
            connection.execute("SELECT pg_logical_emit_message(true, 'written', '')")
        return bool(warnings)

    cutting = threading.Thread(target=cut_short)
    cutting.start()
    try:
        # The server learns of its standby setting a moment later.
        wait_until(is_waited_for)
        with pytest.raises(HistoryError, match="canceling wait for"), history.transaction() as transaction:
            transaction.commit([Ended(2, 0)])
    finally:
        server.execute("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")
        is_over.set()
        cutting.join()
        history.close()
    # The commit is charged nevertheless.
    with history.transaction() as transaction:
        assert [event.id for event in transaction.news] == [1, 2]
    history.close()


class Host:
    """One relay's side: its clock, its state of the account, and the shared row."""

    def __init__(
        self, account: SharedAccount, wrong_by_ns: int, up_ns: int, *, has_database: bool = True
    ) -> None:
        self.clock = clock = FakeClock(up_ns, FakeClock().wall_ns() + wrong_by_ns)
        for _ in range(up_ns % 7):
            clock.reboot(boottime_ns=up_ns)
        self.log, self.row = io.StringIO(), AccountRow(account, clock)
        self.pausing = Pausing(
            "isp",
            Telemetry(Events(self.log, "json", clock), Metrics(), clock),
            self.row,
            view=View(Book(), clock),
            on_change=lambda _availability: None,
        )
        if has_database:
            self.learn()

    @property
    def state(self) -> AccountState:
        return self.pausing.state

    async def meet(self, kind: EventKind, minutes: int = 0) -> str:
        now_ns = self.clock.boottime_ns()
        pause = PauseAsked("ann", minutes * 60 * SECOND_NS).begun(now_ns, 0) if minutes else None
        self.pausing.apply(Event(kind, self.clock.boottime_ns(), "450 4.7.1 slow down", pause=pause))
        return await self.pausing.recorded()

    def learn(self) -> AccountState:
        self.row.look()
        self.pausing.learn()
        return self.state


@pytest.fixture
def hosts(account: SharedAccount) -> tuple[Host, Host]:
    return Host(account, YEAR_NS, 1001 * SECOND_NS), Host(account, -YEAR_NS, 5_000_002 * SECOND_NS)


async def test_a_reservation_learns_the_pause_of_another_host_under_its_lock(
    account: SharedAccount, hosts: tuple[Host, Host], mark: Mark
) -> None:
    one, other = hosts
    history = PostgresqlHistory(account, mark(), other.clock, on_state=other.row.note_row)
    await one.meet(EventKind.PAUSE)
    with history.transaction():
        other.pausing.learn()
    history.close()
    assert other.state.health is Health.PAUSED


async def test_a_pause_ends_on_all_hosts_at_one_instant(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    assert await one.meet(EventKind.KEEP, minutes=60) == ""
    pause = other.learn().operator
    assert pause is not None
    # The clock of the database runs on meanwhile.
    assert 50 * 60 < (pause.until_ns - other.clock.boottime_ns()) / SECOND_NS <= 60 * 60


@pytest.mark.parametrize("first", [0, 1])
async def test_what_two_hosts_meet_at_a_time_comes_together(hosts: tuple[Host, Host], first: int) -> None:
    """One host is refused; the transaction in flight of the other succeeds. The account stays paused."""
    met = [EventKind.PAUSE, EventKind.PROOF]
    for host, kind in list(zip(hosts, met, strict=True))[:: 1 - 2 * first]:
        await host.meet(kind)
    assert [host.learn().health for host in hosts] == [Health.PAUSED, Health.PAUSED]
    assert await hosts[1].meet(EventKind.RESUME) == ""
    assert [host.learn().health for host in hosts] == [Health.PROVING, Health.PROVING]


async def test_a_restart_on_one_host_makes_all_hosts_try_a_refused_account_again(
    hosts: tuple[Host, Host],
) -> None:
    """The operator may have corrected the password before the start."""
    one, other = hosts
    await one.meet(EventKind.STOP)
    assert other.learn().health is Health.STOPPED
    await other.meet(EventKind.RESTART)
    assert one.learn().health is Health.PROVING


async def test_doubts_of_all_hosts_are_over_once_one_resumes(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    unknown = Answer(Verdict.BOUNCE, Phase.RCPT, Reply(550, None, "no"), "550 no")

    def judged(number: int) -> Answer | None:
        """Return the pause for one refusal that no rule knows, as the other host judges it."""
        asked, sender = [(0, f"b{number}@there")], f"a{number}@here"
        shield = other.pausing.shield
        return shield.judge(Outcome((unknown,)), sender, QueueId("0"), asked, (0, 1)).pause

    stop = next(pause for number in range(10) if (pause := judged(number)) is not None)
    other.pausing.rest(stop)
    assert await other.pausing.recorded() == ""
    assert one.learn().health is Health.STOPPED
    one.pausing.end()
    assert await one.pausing.recorded() == ""
    other.learn()
    assert judged(10) is None


async def test_a_restart_continues_a_pause_and_its_spans_out_of_the_row(account: SharedAccount) -> None:
    one = Host(account, YEAR_NS, 1001 * SECOND_NS)
    await one.meet(EventKind.KEEP, minutes=60)
    again = Host(account, -YEAR_NS, 5_000_002 * SECOND_NS)

    assert again.state.operator is not None
    ((since_ns, _),) = again.state.spans
    assert 0 <= again.clock.boottime_ns() - since_ns < 600 * SECOND_NS


async def test_a_fault_of_one_history_is_that_hosts_alone(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    await one.meet(EventKind.FAULT)
    await one.meet(EventKind.KEEP, minutes=1)
    assert other.learn().fault == ""
    assert one.learn().operator is not None
    # The host with the fault proves itself once its history is sound; the other host need not.
    await one.meet(EventKind.SOUND)
    await one.meet(EventKind.KEEP, minutes=2)
    assert (one.state.health, other.learn().health) == (Health.PROVING, Health.USED)


async def test_events_during_a_database_outage_are_written_later(
    server: Server, hosts: tuple[Host, Host]
) -> None:
    one, other = hosts
    server.stop()
    try:
        assert "the database: connection failed" in await one.meet(EventKind.PAUSE)
        await one.meet(EventKind.FAULT)
    finally:
        server.start()
    assert "pause_unrecorded" in one.log.getvalue()
    # News from the other host do not undo it.
    await other.meet(EventKind.KEEP, minutes=60)
    assert one.learn().health is Health.PAUSED
    assert one.state.operator is not None
    assert await one.meet(EventKind.SOUND) == ""
    assert other.learn().health is Health.PAUSED
    assert other.state.operator is not None


async def test_a_start_without_the_database_learns_the_pause_once_it_answers(
    server: Server, account: SharedAccount, hosts: tuple[Host, Host]
) -> None:
    one, _ = hosts
    await one.meet(EventKind.KEEP, minutes=60)
    server.stop()
    try:
        again = Host(account, YEAR_NS, 1003 * SECOND_NS, has_database=False)
        await again.pausing.recall(None)
        assert "pause_unrecorded" in again.log.getvalue()
        await again.meet(EventKind.FAULT)
    finally:
        server.start()
    again.learn()
    assert again.state.operator is not None
    # Its history is read anew before it sends; until then it rests in one span.
    assert again.state.fault
    assert len(again.state.spans) == 1


async def test_a_commit_whose_reply_is_lost_counts_once(server: Server, account: SharedAccount) -> None:
    with CutLine(server.port) as line:
        by_line = Database(through(line, server.url))
        one = Host(SharedAccount(by_line, account.name), 0, 1001 * SECOND_NS)
        other = Host(account, 0, 1002 * SECOND_NS)
        line.cut(b"COMMIT")
        assert "the database: " in await one.meet(EventKind.PAUSE)
        assert other.learn().health is Health.PAUSED
        assert await one.meet(EventKind.FAULT) == ""
        assert line.cuts == 1
    assert (other.learn().health, other.state.in_a_row) == (Health.PAUSED, 1)
    assert (one.learn().health, one.state.in_a_row) == (Health.PAUSED, 1)
