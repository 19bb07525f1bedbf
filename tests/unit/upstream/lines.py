"""Connections to nowhere, opened when a test says so, and a clock that it moves; for tests of the pool."""

import asyncio
from dataclasses import dataclass, field
from typing import TypedDict

from relay.smtp.reply import Phase
from relay.upstream.connection import UpstreamUnavailable
from relay.upstream.pool import Pool
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

HOUR_NS = 3600 * 10**9


class Caps(TypedDict):
    """The arguments of a pool's `configure`."""

    connections: int
    max_messages: int
    max_age_ns: int
    idle_ns: int


def caps(
    *, connections: int = 2, max_messages: int = 100, max_age_ns: int = HOUR_NS, idle_ns: int = HOUR_NS
) -> Caps:
    """Return caps that are out of the way but for those given."""
    return Caps(connections=connections, max_messages=max_messages, max_age_ns=max_age_ns, idle_ns=idle_ns)


@dataclass
class HandClock:
    """A clock that the test moves."""

    now_ns: int = 10**18

    def wall_ns(self) -> int:
        return self.now_ns

    def boottime_ns(self) -> int:
        return self.now_ns

    def boot_id(self) -> str:
        return "boot"


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

    def __init__(self, clock: HandClock, name: str = "") -> None:
        self.clock = clock
        self.name = name
        self.asked: list[asyncio.Future[None]] = []
        self.lines: list[Line] = []

    async def open(self) -> Line:
        permission = asyncio.get_running_loop().create_future()
        self.asked.append(permission)
        await permission
        line = Line(self.clock.now_ns, self.name)
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


def make(wanted: Caps, rest_ns: int = 0) -> tuple[Pool[Line], Exchange, HandClock]:
    """Return a pool, what opens its connections, and its clock; a failure has it rest for so long."""
    clock = HandClock()
    exchange = Exchange(clock)
    pool = Pool(exchange.open, clock, on_change=lambda: None, on_failed=lambda _: rest_ns)
    pool.configure(**wanted)
    return pool, exchange, clock
