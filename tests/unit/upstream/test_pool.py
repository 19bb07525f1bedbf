"""The pool: never too many, nobody forgotten, nothing dead handed out."""

import asyncio
from collections.abc import Callable

import pytest

from relay.upstream.pool import Pool
from tests.fakes.smarthost import PATIENCE_S
from tests.unit.upstream.lines import Exchange, HandClock, Line, caps, make, opened, settle


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
    clock.now_ns += 100

    await opened(pool, exchange)
    await pool.close()


async def test_a_failure_that_is_not_the_upstreams_is_for_the_next_who_asks() -> None:
    def fail(_error: Exception) -> int:
        raise KeyError("history")

    _, exchange, clock = make(caps())
    pool = Pool(exchange.open, clock, on_change=lambda: None, on_failed=fail)
    pool.configure(**caps())
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
        clock.now_ns += 60
        taken = pool.take(1)
        for line in taken:
            pool.release(line, was_used=False)

    assert taken == []
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
    pool.take(2)  # the idle one, and another that is being opened
    pool.release(idle)
    await settle()
    later = Exchange(clock, "new")
    pool.configure(**caps(connections=3), opener=later.open)
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
    pool.configure(**caps(connections=1))
    await settle()
    assert lines[0].is_gone
    pool.release(lines[1])
    await settle()
    assert lines[1].is_gone
    pool.release(lines[2])

    assert pool.take(1) == [lines[2]]
    await pool.close()
