"""The pool under any sequence of operations, and with real connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SystemClock
from relay.upstream.connection import Connection, open_connection
from relay.upstream.pool import Pool
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import PATIENCE_S, Smarthost
from tests.unit.upstream.lines import Caps, Exchange, Line, caps, make, settle
from tests.unit.upstream.sessions import account, transaction

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
                self.clock.now_ns += 400
            case "fewer" | "more":
                self.cap = 1 if operation == "fewer" else 3
                self.highest_cap = max(self.cap, self.highest_cap)
                self.pool.configure(**self._caps())
            case "renew":
                self.exchanges.append(Exchange(self.clock, f"{len(self.exchanges)}"))
                self.pool.configure(**self._caps(), opener=self.exchanges[-1].open)

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
        lambda: open_connection(account(host), clock), clock, on_change=changed.set, on_failed=lambda _: 0
    )
    pool.configure(**caps())
    try:
        yield pool, changed
    finally:
        await pool.close()


async def one_of(pool: Pool[Connection], changed: asyncio.Event) -> Connection:
    while not (taken := pool.take(1)):
        changed.clear()
        await changed.wait()
    return taken[0]


async def test_real_connections_are_kept_and_closed_politely() -> None:
    async with Smarthost() as host:
        async with real_pool(host) as (pool, changed):
            for _ in range(3):
                connection = await one_of(pool, changed)
                await connection.transact(transaction())
                pool.release(connection)
        await host.until(lambda: not host.sessions[0].is_open)

        assert len(host.sessions) == 1
        assert len(host.relayed) == 3
        assert host.commands[-1] == "QUIT"


@pytest.mark.parametrize("octets", [b"421 4.4.2 idle too long\r\n", b"250 surprise\r\n", None])
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
