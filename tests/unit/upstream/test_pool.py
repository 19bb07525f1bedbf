"""The pool: never too many, nobody forgotten, nothing dead handed out; with connections to nowhere."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.upstream.pool import Caps, Pool
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import PATIENCE_S

HOUR_NS = 3600 * 10**9
WIDE = Caps(connections=3, max_messages=100, max_age_ns=HOUR_NS, idle_ns=HOUR_NS)
"""Caps that are out of the way."""


class Line:
    """A connection to nowhere."""

    def __init__(self, opened_at_ns: int, of: str) -> None:
        self.opened_at_ns, self.of, self.transactions = opened_at_ns, of, 0
        self.is_alive, self.is_closing, self.is_aborted = True, False, False
        self.closed = asyncio.Event()

    @property
    def is_usable(self) -> bool:
        return self.is_alive and not self.is_closing

    @property
    def why_never_used(self) -> OSError | None:
        return None if self.is_alive or self.transactions else OSError("no")

    @property
    def is_gone(self) -> bool:
        return self.closed.is_set() or not self.is_alive

    async def close(self) -> None:
        self.is_closing = True
        for _ in range(3):  # the other side answers QUIT in its own time
            await asyncio.sleep(0)
        self.closed.set()

    def abort(self) -> None:
        self.is_aborted, self.is_alive = True, False
        self.closed.set()


class Opener:
    """Opens lines when the test says so."""

    def __init__(self, clock: FakeClock, name: str = "") -> None:
        self.clock, self.name = clock, name
        self.asked: list[asyncio.Future[None]] = []
        self.lines: list[Line] = []

    async def open(self) -> Line:
        permission = asyncio.get_running_loop().create_future()
        self.asked.append(permission)
        await permission
        self.lines.append(Line(self.clock.boottime_ns(), self.name))
        return self.lines[-1]

    @property
    def waiting(self) -> list[asyncio.Future[None]]:
        return [each for each in self.asked if not each.done()]

    def grant(self) -> None:
        self.waiting[0].set_result(None)

    def refuse(self) -> None:
        self.waiting[0].set_exception(OSError("no"))


async def settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


class World:
    """A pool, what opens its connections, and its clock."""

    def __init__(self, caps: Caps = WIDE, on_failed: Callable[[Exception], int] = lambda _: 0) -> None:
        self.clock = FakeClock()
        self.opener = Opener(self.clock)
        self.pool = Pool(self.opener.open, caps, self.clock, on_change=lambda: None, on_failed=on_failed)

    async def opened(self) -> Line:
        """Return a connection that is opened for it."""
        assert await self.none()
        self.opener.grant()
        await settle()
        (line,) = self.pool.take(1)
        return line

    async def none(self, most: int = 1) -> bool:
        """Ask for connections in vain."""
        taken = self.pool.take(most)
        await settle()
        return not taken


async def test_an_idle_connection_is_used_again_the_last_one_first() -> None:
    world = World()
    first, second = await world.opened(), await world.opened()
    assert (world.pool.open, world.pool.idle) == (2, 0)
    world.pool.release(first)
    world.pool.release(second)
    assert (world.pool.open, world.pool.idle) == (2, 2)

    assert world.pool.take(2) == [second, first]
    assert len(world.opener.lines) == 2


@pytest.mark.parametrize("what", ["dies", "is used up", "is as used up as is known", "is old"])
@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_connection_that_may_not_be_used_again_is_not(what: str, is_idle: bool) -> None:
    world = World(WIDE._replace(max_messages=3, max_age_ns=50))
    line = await world.opened()
    if is_idle:
        world.pool.release(line)
    match what:
        case "dies":
            line.is_alive = False
        case "is used up":
            line.transactions = 3
        case "is as used up as is known":
            line.transactions = 2
            world.pool.expect_most(2)
        case _:
            world.clock.advance(50)
    if not is_idle:
        world.pool.release(line)

    assert await world.none()
    assert line.is_gone
    assert world.pool.open == 0


async def test_a_connection_that_says_quit_still_counts() -> None:
    world = World(WIDE._replace(connections=1, max_messages=1))
    line = await world.opened()
    line.transactions = 1
    world.pool.release(line)
    assert world.pool.take(1) == []
    await asyncio.sleep(0)
    assert (line.is_closing, line.is_gone, world.opener.waiting) == (True, False, [])
    await settle()

    await world.opened()


async def test_the_first_logs_in_before_others_try() -> None:
    world = World()
    for _ in range(2):
        assert await world.none(3)
        assert len(world.opener.waiting) == 1
    world.opener.grant()
    await settle()

    assert len(world.pool.take(5)) == 1
    await settle()
    assert len(world.opener.waiting) == 2


async def test_after_a_failure_it_rests_and_goes_on() -> None:
    world = World(on_failed=lambda _: HOUR_NS)
    await world.none()
    world.opener.refuse()
    await settle()
    assert await world.none()
    assert not world.opener.waiting
    world.clock.advance(HOUR_NS)

    await world.opened()


async def test_one_that_was_not_used_is_as_long_idle_as_before() -> None:
    world = World(WIDE._replace(idle_ns=100))
    world.pool.release(await world.opened())
    taken: list[Line] = []
    for _ in range(2):
        world.clock.advance(60)
        taken = world.pool.take(1)
        for line in taken:
            world.pool.release(line, was_used=False)

    assert taken == []


async def test_an_idle_connection_is_let_go_after_its_time() -> None:
    world = World(WIDE._replace(idle_ns=1_000_000))
    line = await world.opened()
    world.pool.release(line)
    world.clock.advance(1_000_000)
    async with asyncio.timeout(PATIENCE_S):
        await line.closed.wait()

    assert world.pool.open == 0
    assert not line.is_aborted  # it said QUIT


async def test_a_new_opener_ends_the_connections_of_the_old_one() -> None:
    world = World()
    busy, idle = await world.opened(), await world.opened()
    world.pool.release(idle)
    world.pool.take(2)  # the idle one, and another that is being opened
    world.pool.release(idle)
    await settle()
    old, world.opener = world.opener, Opener(world.clock, "new")
    world.pool.configure(WIDE, opener=world.opener.open)
    old.grant()
    await settle()
    assert idle.is_gone
    assert old.lines[-1].is_gone
    world.pool.release(busy)
    await settle()

    assert busy.is_gone
    assert not busy.is_aborted
    assert (await world.opened()).of == "new"


async def test_a_lower_cap_closes_what_is_too_many() -> None:
    world = World()
    lines = [await world.opened() for _ in range(3)]
    world.pool.release(lines[0])
    world.pool.configure(WIDE._replace(connections=1))
    for line in lines[1:]:
        world.pool.release(line)
        await settle()

    assert [line.is_gone for line in lines] == [True, True, False]


OPERATIONS = st.sampled_from(
    ["take", "take", "grant", "grant", "refuse", "release", "release", "discard", "die",
     "use up", "age", "fewer", "more", "renew", "turn"]
)  # fmt: skip
TIGHT = Caps(connections=2, max_messages=5, max_age_ns=1000, idle_ns=500)


class Play(World):
    """A pool under any sequence of operations, and the laws that it must keep."""

    def __init__(self) -> None:
        super().__init__(TIGHT)
        self.openers = [self.opener]
        self.cap = self.highest_cap = 2
        self.held: list[Line] = []

    @property
    def seen(self) -> int:
        """Return how many connections the upstream sees, those being opened included."""
        open_ = sum(not line.is_gone for opener in self.openers for line in opener.lines)
        return open_ + sum(len(opener.waiting) for opener in self.openers)

    async def do(self, operation: str, pick: int) -> None:
        pending = [each for each in self.openers if each.waiting]
        lines = [line for opener in self.openers for line in opener.lines]
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
            case "die" | "use up" if lines:
                line = lines[pick % len(lines)]
                line.is_alive, line.transactions = line.is_alive and operation != "die", 5
            case "age":
                self.clock.advance(400)
            case "fewer" | "more" | "renew":
                self._configure(operation)
        assert len(set(map(id, self.held))) == len(self.held), "one connection has two holders"
        assert self.seen <= self.highest_cap, "the upstream sees too many"

    def _configure(self, operation: str) -> None:
        if operation == "renew":
            self.openers.append(Opener(self.clock, f"{len(self.openers)}"))
        else:
            self.cap = 1 if operation == "fewer" else 3
        self.highest_cap = max(self.cap, self.highest_cap)
        opener = self.openers[-1].open if operation == "renew" else None
        self.pool.configure(TIGHT._replace(connections=self.cap), opener=opener)

    async def end(self) -> None:
        """Once all were given back, there is one to be had."""
        for line in self.held:
            self.pool.release(line)
        for _ in range(20):
            if not await self.none():
                break
            for opener in self.openers:
                while opener.waiting:
                    opener.grant()
            await settle()
        else:
            raise AssertionError("there is none to be had")
        await self.pool.close()
        await settle()
        assert self.seen == self.pool.open == 1


@given(st.lists(st.tuples(OPERATIONS, st.integers(0, 5)), max_size=40))
def test_any_use_keeps_the_cap_and_forgets_nobody(operations: list[tuple[str, int]]) -> None:
    async def play() -> None:
        played = Play()
        for operation, pick in operations:
            await played.do(operation, pick)
        await played.end()

    asyncio.run(play())
