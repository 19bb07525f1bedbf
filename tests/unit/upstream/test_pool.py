"""The pool, with fake connections: it keeps its cap, forgets no connection, and hands out no unfit one."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st

from relay.policy.model import Upstream
from relay.upstream.pool import Pool
from tests.fakes.clock import FakeClock

HOUR_NS = 3600 * 10**9
WIDE = Upstream.model_construct(
    host="h", limits=(), connections=3, max_messages=100, max_age_ns=HOUR_NS, idle_ns=HOUR_NS
)
"""Caps of which only `connections` can matter in a test."""


class Line:
    def __init__(self, opened_at_ns: int, of: "Opener") -> None:
        self.opened_at_ns = self.idle_since_ns = opened_at_ns
        self.of, self.transactions = of, 0
        self.is_alive, self.is_closing, self.is_aborted = True, False, False
        self.closed = asyncio.Event()

    @property
    def is_usable(self) -> bool:
        return self.is_alive and not self.is_closing

    @property
    def fault_before_use(self) -> OSError | None:
        return None if self.is_alive or self.transactions else OSError("no")

    @property
    def is_gone(self) -> bool:
        return self.closed.is_set() or not self.is_alive

    async def close(self) -> None:
        self.is_closing = True
        for _ in range(3):  # the upstream takes a while to answer QUIT
            await asyncio.sleep(0)
        self.closed.set()

    def abort(self) -> None:
        self.is_aborted, self.is_alive = True, False
        self.closed.set()


class Opener:
    """Opens fake connections when the test says so."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.asked: list[asyncio.Future[None]] = []
        self.lines: list[Line] = []

    async def open(self) -> Line:
        permission = asyncio.get_running_loop().create_future()
        self.asked.append(permission)
        await permission
        self.lines.append(Line(self.clock.boottime_ns(), self))
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
    def __init__(self, caps: Upstream = WIDE, on_failed: Callable[[Exception], int] = lambda _: 0) -> None:
        self.clock = FakeClock()
        self.opener = Opener(self.clock)
        opener = cast("Any", self.opener.open)  # a Line has all that the pool uses of a connection
        self.pool: Any = Pool(opener, caps, self.clock, on_change=lambda: None, on_failed=on_failed)

    async def opened(self) -> Line:
        """Open a connection, and take it from the pool."""
        assert await self.none()
        self.opener.grant()
        await settle()
        line: Line
        (line,) = self.pool.take(1)
        return line

    async def none(self) -> bool:
        """Take a connection; return whether there was none."""
        taken = self.pool.take(1)
        await settle()
        return not taken


async def test_the_pool_rests_after_a_failure_and_then_opens_again() -> None:
    world = World(on_failed=lambda _: HOUR_NS)
    await world.none()
    world.opener.refuse()
    await settle()
    assert await world.none()
    assert not world.opener.waiting
    world.clock.advance(HOUR_NS)

    await world.opened()
    # Behind the first login all the others begin at once.
    world.pool.take(5)
    await settle()
    assert len(world.opener.waiting) == WIDE.connections - 1


OPERATIONS = st.sampled_from(
    ["take", "take", "grant", "grant", "refuse", "release", "release", "give back", "end", "die",
     "use up", "age", "fewer", "more", "renew", "turn"]
)  # fmt: skip
TIGHT = WIDE.model_copy(update={"connections": 2, "max_messages": 5, "max_age_ns": 1000, "idle_ns": 500})


class Play(World):
    """A pool under any sequence of operations, and the laws that it must keep."""

    def __init__(self) -> None:
        super().__init__(TIGHT)
        self.openers = [self.opener]
        self.cap = self.highest_cap = 2
        self.held: list[Line] = []

    @property
    def lines(self) -> list[Line]:
        return [line for opener in self.openers for line in opener.lines]

    @property
    def open(self) -> list[Line]:
        return [line for line in self.lines if not line.is_gone]

    @property
    def waiting(self) -> int:
        return sum(len(opener.waiting) for opener in self.openers)

    async def do(self, operation: str, pick: int) -> None:
        is_first, before = not self.pool.open, self.waiting
        self._use(operation, pick)
        self._befall(operation, pick)
        if operation in ("take", "turn"):
            await asyncio.sleep(0)
        assert len(set(map(id, self.held))) == len(self.held), "one connection has two holders"
        # The upstream also counts connections that are being opened or closed.
        assert len(self.open) + self.waiting <= self.highest_cap, "the upstream sees too many"
        if is_first and operation == "take":
            assert self.waiting <= max(before, 1), "the first one logs in before others"

    def _use(self, operation: str, pick: int) -> None:
        """Do what the pool's owner does."""
        match operation:
            case "take":
                for line in self.pool.take(pick):
                    self._check_fit(line)
                    self.held.append(line)
            case "release" if self.held:
                line = self.held.pop(pick % len(self.held))
                line.transactions, line.idle_since_ns = line.transactions + 1, self.clock.boottime_ns()
                self.pool.release(line)
            case "give back" if self.held:
                self.pool.release(self.held.pop(pick % len(self.held)), was_used=False)
            case "end" if self.held:
                line = self.held.pop(pick % len(self.held))
                line.transactions, line.is_alive = line.transactions + 1, False
                self.pool.release(line)
            case "fewer" | "more" | "renew":
                self._configure(operation)

    def _befall(self, operation: str, pick: int) -> None:
        """Do what upstreams and time do."""
        pending = [each for each in self.openers if each.waiting]
        match operation:
            case "grant" if pending:
                pending[pick % len(pending)].grant()
            case "refuse" if pending:
                pending[pick % len(pending)].refuse()
            case "die" if self.lines:
                self.lines[pick % len(self.lines)].is_alive = False
            case "use up" if self.lines:
                self.lines[pick % len(self.lines)].transactions = 5
            case "age":
                self.clock.advance(400)

    def _check_fit(self, line: Line) -> None:
        now_ns = self.clock.boottime_ns()
        assert line.is_usable
        assert line.of is self.openers[-1]
        assert line.transactions < TIGHT.max_messages
        assert now_ns - line.opened_at_ns < TIGHT.max_age_ns
        assert now_ns - line.idle_since_ns < TIGHT.idle_ns

    def _configure(self, operation: str) -> None:
        if operation == "renew":
            self.openers.append(Opener(self.clock))
        else:
            self.cap = 1 if operation == "fewer" else 3
        self.highest_cap = max(self.cap, self.highest_cap)
        opener = self.openers[-1].open if operation == "renew" else None
        self.pool.configure(TIGHT.model_copy(update={"connections": self.cap}), opener=opener)

    async def end(self) -> None:
        """Give all back: the pool keeps no more than its cap, and hands out a connection."""
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
        assert len(self.open) <= self.cap
        assert {line.of for line in self.open} == {self.openers[-1]}
        assert [line for line in self.lines if line.is_aborted] == []
        await self.pool.close()
        await settle()
        assert len(self.open) == self.pool.open == 1


TAKEN = [("take", 1), ("grant", 0), ("turn", 0), ("turn", 0), ("take", 1)]
IDLE = [*TAKEN, ("release", 0)]
AGE, TAKE = ("age", 0), ("take", 1)


@given(st.lists(st.tuples(OPERATIONS, st.integers(0, 5)), max_size=40))
@example([("take", 2), ("take", 2)])
@example([*IDLE, ("die", 0), TAKE])
@example([*IDLE, ("use up", 0), TAKE])
@example([*IDLE, ("expect", 0), TAKE, ("release", 0), TAKE])
@example([*IDLE, AGE, AGE, TAKE])
@example([*TAKEN, AGE, ("give back", 0), AGE, TAKE])
@example([*TAKEN, AGE, AGE, AGE, ("release", 0), TAKE])
@example([*TAKEN, *TAKEN, ("use up", 0), ("release", 0), TAKE])
@example([*TAKEN, *TAKEN, ("fewer", 0)])
def test_the_pool_keeps_its_cap_and_forgets_nothing_under_any_use(operations: list[tuple[str, int]]) -> None:
    async def play() -> None:
        played = Play()
        for operation, pick in operations:
            await played.do(operation, pick)
        await played.end()

    asyncio.run(play())
