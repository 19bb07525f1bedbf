"""The pause of an account in its row of a real database, as two hosts with other clocks come to it."""

import itertools
from collections.abc import Callable

import pytest

from relay.clock import SECOND_NS
from relay.sender.account_row import AccountRow
from relay.spool.database.account import SharedAccount
from relay.spool.database.connection import Database
from relay.throttle.postgresql_history import HighWaterMark, PostgresqlHistory
from relay.verdicts.account import AccountState, Event, Happening, Health, PauseAsked, step
from tests.fakes.clock import FakeClock
from tests.fakes.cut_line import CutLine
from tests.fakes.postgresql import Server

YEAR_NS = 365 * 86_400 * SECOND_NS
NUMBERS = itertools.count()
Mark = Callable[[], HighWaterMark]


class Host:
    """One relay's part: its clock, the state that it goes by, and the row."""

    def __init__(self, account: SharedAccount, wrong_by_ns: int, up_ns: int) -> None:
        self.clock = FakeClock(up_ns, FakeClock().wall_ns() + wrong_by_ns)
        for _ in range(up_ns % 7):
            self.clock.reboot(boottime_ns=up_ns)
        self.told: list[str] = []
        self.row = AccountRow(account, self.clock, self.told.append)
        self.state = AccountState()

    async def meet(self, happening: Happening, minutes: int = 0) -> str:
        now_ns = self.clock.boottime_ns()
        pause = PauseAsked("ann", minutes * 60 * SECOND_NS).begun(now_ns, 0) if minutes else None
        event = Event(happening, now_ns, "450 4.7.1 slow down", pause=pause)
        self.state = step(self.state, event)
        self.row.keep(event)
        return await self.row.written()

    def learn(self) -> AccountState:
        assert self.row.look() == ""
        self.state = self.row.news() or self.state
        return self.state


@pytest.fixture
def account(server: Server) -> SharedAccount:
    return SharedAccount(Database(server.url), f"paused {next(NUMBERS)}")


@pytest.fixture
def hosts(account: SharedAccount) -> tuple[Host, Host]:
    return Host(account, YEAR_NS, 1001 * SECOND_NS), Host(account, -YEAR_NS, 5_000_002 * SECOND_NS)


async def test_a_pause_ends_on_all_hosts_at_one_instant(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    assert await one.meet(Happening.KEEP, minutes=60) == ""
    pause = other.learn().operator
    assert pause is not None
    # The clock of the database goes on meanwhile.
    assert 50 * 60 < (pause.until_ns - other.clock.boottime_ns()) / SECOND_NS <= 60 * 60


@pytest.mark.parametrize("first", [0, 1])
async def test_what_two_hosts_meet_at_a_time_comes_together(hosts: tuple[Host, Host], first: int) -> None:
    """One is refused, the other's transaction was in flight and goes well: the account rests."""
    met = [Happening.PAUSE, Happening.PROOF]
    for host, happening in list(zip(hosts, met, strict=True))[:: 1 - 2 * first]:
        await host.meet(happening)
    assert [host.learn().health for host in hosts] == [Health.PAUSED, Health.PAUSED]
    assert await hosts[1].meet(Happening.RESUME) == ""
    assert [host.learn().health for host in hosts] == [Health.PROVING, Health.PROVING]


async def test_a_start_has_all_hosts_look_again_at_an_account_that_was_refused(
    hosts: tuple[Host, Host],
) -> None:
    """Whoever starts one may have mended the password."""
    one, other = hosts
    await one.meet(Happening.REFUSE)
    assert other.learn().health is Health.REFUSED
    await other.meet(Happening.RESTART)
    assert one.learn().health is Health.PROVING


async def test_a_fault_of_one_history_is_that_hosts_alone(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    await one.meet(Happening.FAULT)
    await one.meet(Happening.KEEP, minutes=1)
    assert other.learn().fault == ""
    assert one.learn().operator is not None
    # It proves itself once it is sound again, and the other host need not.
    await one.meet(Happening.SOUND)
    await one.meet(Happening.KEEP, minutes=2)
    assert (one.state.health, other.learn().health) == (Health.PROVING, Health.USED)


async def test_what_comes_to_pass_while_it_is_away_is_written_later(
    server: Server, hosts: tuple[Host, Host]
) -> None:
    one, other = hosts
    server.stop()
    try:
        assert "in the database: cannot connect" in await one.meet(Happening.PAUSE)
    finally:
        server.start()
    assert one.told
    # News of the other host do not undo it.
    await other.meet(Happening.KEEP, minutes=60)
    assert one.learn().health is Health.PAUSED
    assert one.state.operator is not None
    one.row.write()
    assert await one.row.written() == ""
    assert other.learn().health is Health.PAUSED
    assert other.state.operator is not None


async def test_a_commit_whose_reply_is_lost_counts_once(server: Server, account: SharedAccount) -> None:
    with CutLine(server.port) as line:
        by_line = Database(server.url.replace(f":{server.port}/", f":{line.port}/"))
        one = Host(SharedAccount(by_line, account.name), 0, 1001 * SECOND_NS)
        other = Host(account, 0, 1002 * SECOND_NS)
        # Behind that of the check of the connection.
        line.cut(b"COMMIT", after=1)
        assert "in the database: " in await one.meet(Happening.PAUSE)
        assert other.learn().health is Health.PAUSED
        one.row.write()
        assert await one.row.written() == ""
        assert line.cuts == 1
    assert (other.learn().health, other.state.in_a_row) == (Health.PAUSED, 1)
    assert one.learn() == one.state


async def test_behind_the_lock_of_a_reservation_a_host_knows_of_the_pause_of_another(
    account: SharedAccount, hosts: tuple[Host, Host], mark: Mark
) -> None:
    one, other = hosts
    history = PostgresqlHistory(account, mark(), other.clock, on_state=other.row.hear)
    await one.meet(Happening.PAUSE)
    with history.transaction():
        shared = other.row.news()
    history.close()
    assert shared is not None
    assert shared.health is Health.PAUSED
