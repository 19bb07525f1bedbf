"""The pool: never too many, nobody forgotten, nothing dead handed out.

Most tests open connections to nowhere, when they say so, and move the clock themselves.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SystemClock
from relay.smtp.reply import Phase
from relay.upstream.connection import Connection, UpstreamUnavailable, open_connection
from relay.upstream.pool import Caps, Pool
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import PATIENCE_S, Smarthost
from tests.unit.upstream.sessions import account, transaction

HOUR_NS = 3600 * 10**9


def caps(
    *, connections: int = 2, max_messages: int = 100, max_age_ns: int = HOUR_NS, idle_ns: int = HOUR_NS
) -> Caps:
    """Return caps that are out of the way but for those given."""
    return Caps(connections, max_messages, max_age_ns, idle_ns)


@dataclass(eq=False)
class Line:
    """A connection to nowhere."""

    opened_at_ns: int
    of: str = ""
    transactions: int = 0
    is_alive: bool = True
    is_aborted: bool = False
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    answers_quit: asyncio.Event | None = None
    """When the other side does, where a test has a say in it."""

    @property
    def is_usable(self) -> bool:
        return self.is_alive and not self.closing.is_set()

    @property
    def is_gone(self) -> bool:
        return self.is_aborted or self.closed.is_set() or not self.is_alive

    async def close(self) -> None:
        self.closing.set()
        await asyncio.sleep(0)
        if self.answers_quit is not None:
            await self.answers_quit.wait()
        self.closed.set()

    def abort(self) -> None:
        self.is_aborted = True
        self.is_alive = False
        self.closed.set()


class Exchange:
    """Opens lines when the test says so."""

    def __init__(self, clock: FakeClock, name: str = "") -> None:
        self.clock = clock
        self.name = name
        self.asked: list[asyncio.Future[None]] = []
        self.lines: list[Line] = []

    async def open(self) -> Line:
        permission = asyncio.get_running_loop().create_future()
        self.asked.append(permission)
        await permission
        line = Line(self.clock.boottime_ns(), self.name)
        self.lines.append(line)
        return line

    def grant(self) -> None:
        next(each for each in self.asked if not each.done()).set_result(None)

    def refuse(self, text: str = "no") -> None:
        next(each for each in self.asked if not each.done()).set_exception(unavailable(text))

    @property
    def pending(self) -> int:
        return sum(not each.done() for each in self.asked)


def unavailable(text: str) -> UpstreamUnavailable:
    return UpstreamUnavailable(Answer(Verdict.PAUSE, Phase.CONNECT, None, text))


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def opened(pool: Pool[Line], exchange: Exchange) -> Line:
    """Return a connection that is opened for it."""
    assert pool.take(1) == []
    await settle()
    exchange.grant()
    await settle()
    (line,) = pool.take(1)
    return line


def make(wanted: Caps, rest_ns: int = 0) -> tuple[Pool[Line], Exchange, FakeClock]:
    """Return a pool, what opens its connections, and its clock; a failure has it rest for so long."""
    clock = FakeClock()
    exchange = Exchange(clock)
    pool = Pool(exchange.open, wanted, clock, on_change=lambda: None, on_failed=lambda _: rest_ns)
    return pool, exchange, clock


async def test_an_idle_connection_is_used_again_the_last_one_first() -> None:
    pool, exchange, _ = make(caps())
    first, second = await opened(pool, exchange), await opened(pool, exchange)
    assert (pool.open, pool.idle) == (2, 0)
    pool.release(first)
    pool.release(second)
    assert (pool.open, pool.idle) == (2, 2)

    assert pool.take(2) == [second, first]
    assert len(exchange.lines) == 2
    await pool.close()


def dies(line: Line, _clock: FakeClock) -> None:
    line.is_alive = False


def is_used_up(line: Line, _clock: FakeClock) -> None:
    line.transactions = 3


def is_old(_line: Line, clock: FakeClock) -> None:
    clock.advance(50)


@pytest.mark.parametrize("what", [dies, is_used_up, is_old])
@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_connection_that_may_not_be_used_again_is_not(
    what: Callable[[Line, FakeClock], None], is_idle: bool
) -> None:
    pool, exchange, clock = make(caps(max_messages=3, max_age_ns=50))
    line = await opened(pool, exchange)
    if is_idle:
        pool.release(line)
        assert pool.idle == 1
        what(line, clock)
    else:
        what(line, clock)
        pool.release(line)

    assert pool.take(1) == []
    await settle()
    assert line.is_gone
    assert pool.open == 0
    await pool.close()


async def test_a_connection_that_says_quit_still_counts() -> None:
    pool, exchange, _ = make(caps(connections=1, max_messages=1))
    line = await opened(pool, exchange)
    line.transactions, line.answers_quit = 1, asyncio.Event()
    pool.release(line)
    await settle()
    assert line.closing.is_set()
    assert pool.take(1) == []
    assert exchange.pending == 0
    line.answers_quit.set()
    await settle()

    await opened(pool, exchange)
    await pool.close()


async def test_the_first_logs_in_before_others_try() -> None:
    pool, exchange, _ = make(caps(connections=3))
    for _ in range(2):
        assert pool.take(3) == []
        await settle()
        assert exchange.pending == 1
    exchange.grant()
    await settle()

    assert len(pool.take(3)) == 1
    await settle()
    assert exchange.pending == 2
    await pool.close()


async def test_no_more_are_opened_than_may_be() -> None:
    pool, exchange, _ = make(caps(connections=3))
    await opened(pool, exchange)
    assert pool.take(5) == []
    await settle()

    assert exchange.pending == 2
    await pool.close()


async def test_after_a_failure_it_rests_and_goes_on() -> None:
    pool, exchange, clock = make(caps(), rest_ns=100)
    pool.take(1)
    await settle()
    exchange.refuse()
    await settle()
    assert pool.take(1) == []
    assert exchange.pending == 0
    clock.advance(100)

    await opened(pool, exchange)
    await pool.close()


async def test_a_failure_that_is_not_the_upstreams_is_for_the_next_who_asks() -> None:
    def fail(_error: Exception) -> int:
        raise KeyError("history")

    _, exchange, clock = make(caps())
    pool = Pool(exchange.open, caps(), clock, on_change=lambda: None, on_failed=fail)
    pool.take(1)
    await settle()
    exchange.refuse()
    await settle()

    with pytest.raises(KeyError):
        pool.take(1)
    await opened(pool, exchange)
    await pool.close()


async def test_one_that_was_not_used_is_as_long_idle_as_before() -> None:
    pool, exchange, clock = make(caps(idle_ns=100))
    pool.release(await opened(pool, exchange))
    taken: list[Line] = []
    for _ in range(2):
        clock.advance(60)
        taken = pool.take(1)
        for line in taken:
            pool.release(line, was_used=False)

    assert taken == []
    await pool.close()


async def test_an_idle_connection_is_let_go_after_its_time() -> None:
    pool, exchange, clock = make(caps(idle_ns=1_000_000))
    line = await opened(pool, exchange)
    pool.release(line)
    clock.advance(1_000_000)
    async with asyncio.timeout(PATIENCE_S):
        await line.closed.wait()

    assert pool.open == 0
    assert not line.is_aborted  # it said QUIT
    await pool.close()


async def test_a_new_opener_ends_the_connections_of_the_old_one() -> None:
    pool, exchange, clock = make(caps(connections=3))
    busy, idle = await opened(pool, exchange), await opened(pool, exchange)
    pool.release(idle)
    pool.take(2)  # the idle one, and another that is being opened
    pool.release(idle)
    await settle()
    later = Exchange(clock, "new")
    pool.configure(caps(connections=3), opener=later.open)
    exchange.grant()
    await settle()
    assert idle.is_gone
    assert exchange.lines[-1].is_gone
    pool.release(busy)
    await settle()

    assert busy.is_gone
    assert not busy.is_aborted
    assert (await opened(pool, later)).of == "new"
    await pool.close()


async def test_a_lower_cap_closes_what_is_too_many() -> None:
    pool, exchange, _ = make(caps(connections=3))
    lines = [await opened(pool, exchange) for _ in range(3)]
    pool.release(lines[0])
    pool.configure(caps(connections=1))
    await settle()
    assert lines[0].is_gone
    pool.release(lines[1])
    await settle()
    assert lines[1].is_gone
    pool.release(lines[2])

    assert pool.take(1) == [lines[2]]
    await pool.close()


OPERATIONS = st.sampled_from(
    ["take", "take", "grant", "grant", "refuse", "release", "release", "discard", "die",
     "use up", "age", "fewer", "more", "renew", "turn"]
)  # fmt: skip


class Play:
    """A pool under any sequence of operations, and the laws that it must keep."""

    def __init__(self) -> None:
        self.pool, self.exchange, self.clock = make(caps(max_messages=5, max_age_ns=1000, idle_ns=500))
        self.exchanges = [self.exchange]
        self.cap = self.highest_cap = 2
        self.held: list[Line] = []

    async def do(self, operation: str, pick: int) -> None:
        pending = [each for each in self.exchanges if each.pending]
        match operation:
            case "take":
                self.held += self.pool.take(pick)
                await asyncio.sleep(0)
            case "grant" if pending:
                pending[pick % len(pending)].grant()
            case "refuse" if pending:
                pending[pick % len(pending)].refuse()
            case "release" if self.held:
                line = self.held.pop(pick % len(self.held))
                line.transactions += 1
                self.pool.release(line)
            case "discard" if self.held:
                self.pool.discard(self.held.pop(pick % len(self.held)))
            case "turn":
                await asyncio.sleep(0)
            case _:
                self._change(operation, pick)
        self._check()

    def _change(self, operation: str, pick: int) -> None:
        lines = [line for exchange in self.exchanges for line in exchange.lines]
        match operation:
            case "die" if lines:
                lines[pick % len(lines)].is_alive = False
            case "use up" if lines:
                lines[pick % len(lines)].transactions = 5
            case "age":
                self.clock.advance(400)
            case "fewer" | "more":
                self.cap = 1 if operation == "fewer" else 3
                self.highest_cap = max(self.cap, self.highest_cap)
                self.pool.configure(self._caps())
            case "renew":
                self.exchanges.append(Exchange(self.clock, f"{len(self.exchanges)}"))
                self.pool.configure(self._caps(), opener=self.exchanges[-1].open)

    def _caps(self) -> Caps:
        return caps(connections=self.cap, max_messages=5, max_age_ns=1000, idle_ns=500)

    def _check(self) -> None:
        assert len(set(map(id, self.held))) == len(self.held), "one connection has two holders"
        lines = [line for exchange in self.exchanges for line in exchange.lines]
        seen = sum(not line.is_gone for line in lines) + sum(each.pending for each in self.exchanges)
        assert seen <= self.highest_cap, "the upstream sees too many"

    async def end(self) -> None:
        """Once all were given back, there is one to be had."""
        for line in self.held:
            self.pool.release(line)
        for _ in range(20):
            if self.pool.take(1):
                break
            await settle()
            for exchange in self.exchanges:
                while exchange.pending:
                    exchange.grant()
            await settle()
        else:
            raise AssertionError("there is none to be had")
        await self.pool.close()
        await settle()
        lines = [line for exchange in self.exchanges for line in exchange.lines]
        assert sum(not line.is_gone for line in lines) == self.pool.open == 1


@given(st.lists(st.tuples(OPERATIONS, st.integers(0, 5)), max_size=40))
def test_any_use_keeps_the_cap_and_forgets_nobody(operations: list[tuple[str, int]]) -> None:
    async def play() -> None:
        played = Play()
        for operation, pick in operations:
            await played.do(operation, pick)
        await played.end()

    asyncio.run(play())


@asynccontextmanager
async def real_pool(host: Smarthost) -> AsyncIterator[tuple[Pool[Connection], asyncio.Event]]:
    clock, changed = SystemClock(), asyncio.Event()
    pool = Pool(
        lambda: open_connection(account(host), clock),
        caps(),
        clock,
        on_change=changed.set,
        on_failed=lambda _: 0,
    )
    try:
        yield pool, changed
    finally:
        await pool.close()


async def one_of(pool: Pool[Connection], changed: asyncio.Event) -> Connection:
    while not (taken := pool.take(1)):
        changed.clear()
        await changed.wait()
    return taken[0]


@pytest.mark.parametrize("octets", [b"421 4.4.2 idle too long\r\n", b"2", None])
async def test_an_idle_connection_that_speaks_or_goes_costs_nothing(octets: bytes | None) -> None:
    async with Smarthost() as host, real_pool(host) as (pool, changed):
        first = await one_of(pool, changed)
        await first.transact(transaction())
        pool.release(first)
        assert pool.idle == 1
        if octets is None:
            host.hang_up()
        else:
            host.say(octets)
        async with asyncio.timeout(PATIENCE_S):
            while pool.idle:  # noqa: ASYNC110 - what is waited for is what the loop reads
                await asyncio.sleep(0)
        second = await one_of(pool, changed)
        outcome = await second.transact(transaction())
        pool.release(second)

        assert second is not first
        assert {answer.verdict for answer in outcome.answers} == {Verdict.RELAYED}
        assert sum(command.startswith("MAIL") for command in host.commands) == 2
