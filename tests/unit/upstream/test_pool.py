"""The pool: never too many, nobody forgotten, nothing dead handed out."""

import asyncio
from collections.abc import Callable

import pytest

from tests.fakes.smarthost import PATIENCE_S
from tests.unit.upstream.lines import Exchange, HandClock, Line, caps, make, opened, settle


async def test_an_idle_connection_is_used_again_the_last_one_first() -> None:
    pool, exchange, _ = make(caps())
    first, second = await opened(pool, exchange), await opened(pool, exchange)
    assert (pool.open, pool.idle) == (2, 0)
    pool.release(first)
    pool.release(second)
    assert (pool.open, pool.idle) == (2, 2)

    assert await pool.acquire() is second
    assert pool.try_acquire() is first
    assert pool.try_acquire() is None
    assert len(exchange.lines) == 2
    await pool.close()


def dies(line: Line, _clock: HandClock) -> None:
    line.is_alive = False


def is_used_up(line: Line, _clock: HandClock) -> None:
    line.transactions = 3


def is_old(_line: Line, clock: HandClock) -> None:
    clock.now_ns += 50


@pytest.mark.parametrize("what", [dies, is_used_up, is_old])
@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_connection_that_may_not_be_used_again_is_not(
    what: Callable[[Line, HandClock], None], is_idle: bool
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

    assert pool.try_acquire() is None
    await settle()
    assert line.is_gone
    assert pool.open == 0
    await pool.close()


async def test_a_connection_that_says_quit_still_counts() -> None:
    pool, exchange, _ = make(caps(connections=1, max_messages=1))
    line = await opened(pool, exchange)
    line.transactions, line.answers_quit = 1, asyncio.Event()
    waiting = asyncio.create_task(pool.acquire())
    await settle()
    pool.release(line)
    await settle()
    assert line.closing.is_set()
    assert exchange.pending == 0
    line.answers_quit.set()
    await settle()

    assert exchange.pending == 1
    exchange.grant()
    await waiting
    await pool.close()


async def test_an_idle_connection_is_let_go_after_its_time() -> None:
    pool, exchange, clock = make(caps(idle_ns=1_000_000))
    line = await opened(pool, exchange)
    pool.release(line)
    clock.now_ns += 1_000_000
    async with asyncio.timeout(PATIENCE_S):
        await line.closed.wait()

    assert pool.open == 0
    assert not line.is_aborted  # it said QUIT
    await pool.close()


async def test_a_new_opener_ends_the_connections_of_the_old_one() -> None:
    pool, exchange, clock = make(caps(connections=3))
    busy, idle = await opened(pool, exchange), await opened(pool, exchange)
    pool.release(idle)
    waiting_for_old = [asyncio.create_task(pool.acquire()) for _ in range(2)]
    await settle()
    assert waiting_for_old[0].result() is idle  # in use from now on
    later = Exchange(clock, "new")
    pool.reconfigure(**caps(connections=3), opener=later.open)
    exchange.grant()  # the one under way comes, and is not given to anybody
    await settle()

    assert exchange.lines[-1].is_gone
    assert pool.open == 2  # those in use
    later.grant()
    await settle()
    assert waiting_for_old[1].result().of == "new"
    pool.release(busy)
    await settle()
    assert busy.is_gone
    assert not busy.is_aborted
    for line in (idle, waiting_for_old[1].result()):
        pool.release(line)
    await settle()
    assert pool.idle == 1
    await pool.close()


async def test_a_lower_cap_closes_what_is_too_many() -> None:
    pool, exchange, _ = make(caps(connections=3))
    lines = [await opened(pool, exchange) for _ in range(3)]
    pool.release(lines[0])
    pool.reconfigure(**caps(connections=1))
    await settle()
    assert lines[0].is_gone
    pool.release(lines[1])
    await settle()
    assert lines[1].is_gone
    pool.release(lines[2])

    assert pool.try_acquire() is lines[2]
    await pool.close()
