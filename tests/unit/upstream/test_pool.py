"""The pool: an upstream never sees more connections than the cap, and the pool hands out no unfit one."""

import asyncio
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.policy.model import Upstream
from relay.upstream.connection import Connection, open_connection
from relay.upstream.pool import Open, Pool
from tests.fakes.smarthost import DEFAULT, GAP, Script, Session, Smarthost, Turn, Until
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.unit.upstream.sessions import account, transaction

CAPS = Upstream.model_construct(
    host="h", limits=(), connections=2, max_messages=2, max_age_ns=SECOND_NS, idle_ns=SECOND_NS // 2
)
REST_NS = SECOND_NS // 5
"""How long no connection is opened after a failure."""


async def settle() -> None:
    """Let everything happen that needs no time to pass."""
    for _ in range(40):
        await asyncio.sleep(0)


class Play:
    """A pool of connections to a smarthost under any operations, and the laws that it must keep."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.clock = loop.clock
        self.host = Smarthost(Script(connect=self._greet, quit=[*[GAP] * 20, DEFAULT]))
        self.greetings: list[tuple[Session, asyncio.Event]] = []
        """Sessions in which the upstream has said nothing yet."""
        self.dead: list[Session] = []
        """Sessions that the upstream ended."""
        self.opened: dict[Connection, str] = {}
        """Each connection, and the name that it gave in EHLO."""
        self.idle_since_ns: dict[Connection, int] = {}
        self.held: list[Connection] = []
        self.begun = self.opening = self.version = 0
        self.cap = self.highest_cap = CAPS.connections
        self.rests_until_ns = 0
        self.pool = Pool(self._opener(), CAPS, self.clock, on_change=lambda: None, on_failed=self._failed)

    @property
    def open(self) -> list[Session]:
        """Return what the upstream counts: any session from its start up to the reply to QUIT."""
        return [each for each in self.host.sessions if each.is_open and each not in self.dead]

    def _greet(self, _: str) -> Turn:
        assert len(self.open) <= self.highest_cap, "the upstream sees too many"
        self.greetings.append((self.host.sessions[-1], asyncio.Event()))
        return [Until(self.greetings[-1][1]), DEFAULT]

    def _opener(self) -> Open:
        self.version += 1
        version = self.version

        async def opener() -> Connection:
            self.begun += 1
            self.opening += 1
            name = f"{self.begun}.v{version}.example"
            try:
                connection = await open_connection(replace(account(self.host), helo_name=name), self.clock)
            finally:
                self.opening -= 1
            self.opened[connection], self.idle_since_ns[connection] = name, self.clock.boottime_ns()
            return connection

        return opener

    def _failed(self, _: Exception) -> int:
        self.rests_until_ns = self.clock.boottime_ns() + REST_NS
        return REST_NS

    async def do(self, operation: str, pick: int) -> None:
        match operation:
            case "take":
                await self._take(pick)
            case "release" if self.held:
                connection = self.held.pop(pick % len(self.held))
                await connection.transact(transaction("r@x.example"))
                self.idle_since_ns[connection] = self.clock.boottime_ns()
                self.pool.release(connection)
            case "give back" if self.held:
                self.pool.release(self.held.pop(pick % len(self.held)), was_used=False)
            case "fewer" | "more" | "renew":
                self._configure(operation)
            case "grant" if self.greetings:
                self.greetings.pop(pick % len(self.greetings))[1].set()
            case "refuse" if self.greetings:
                self._hang_up(self.greetings.pop(pick % len(self.greetings))[0])
            case "die" if greeted := [each for each in self.open if each.commands]:
                self._hang_up(greeted[pick % len(greeted)])
            case "age":
                self.clock.advance(2 * SECOND_NS // 5)
            case "turn":
                await settle()

    async def _take(self, most: int) -> None:
        is_first, opening, begun = not self.pool.open, self.opening, self.begun
        for connection in self.pool.take(most):
            now_ns = self.clock.boottime_ns()
            assert connection not in self.held, "one connection has two holders"
            assert connection.is_usable
            assert self.opened[connection].endswith(f".v{self.version}.example")
            assert connection.transactions < CAPS.max_messages
            assert now_ns - connection.opened_at_ns < CAPS.max_age_ns
            assert now_ns - self.idle_since_ns[connection] < CAPS.idle_ns
            self.held.append(connection)
        rests = self.clock.boottime_ns() < self.rests_until_ns
        await asyncio.sleep(0)
        assert not rests or self.begun == begun, "it rests after a failure"
        assert not is_first or self.opening <= max(opening, 1), "the first one logs in before others"

    def _configure(self, operation: str) -> None:
        self.cap = {"fewer": 1, "more": 3}.get(operation, self.cap)
        self.highest_cap = max(self.cap, self.highest_cap)
        self.rests_until_ns = 0
        caps = CAPS.model_copy(update={"connections": self.cap})
        self.pool.configure(caps, opener=self._opener() if operation == "renew" else None)

    def _hang_up(self, session: Session) -> None:
        self.dead.append(session)
        session.writer.close()

    async def end(self) -> None:
        """Give all back: the pool keeps no more than its cap, hands out a connection, and then opens all."""
        for connection in self.held:
            self.pool.release(connection)
        self.held.clear()
        await settle()
        for _ in range(20):
            await self._take(1)
            if self.held:
                break
            while self.greetings:
                await self.do("grant", 0)
            self.clock.advance(REST_NS)
            await settle()
        assert self.held, "there is none to be had"
        assert len(self.open) <= self.cap
        assert all(f".v{self.version}." in line for each in self.open for line in each.commands[:1])
        for _ in range(3):
            self.clock.advance(REST_NS)
            await settle()
            await self._take(5)
        assert len(self.held) + self.opening == self.cap, "behind the first login all others begin at once"
        await self.pool.close()
        for _, greeting in self.greetings:
            greeting.set()
        await settle()
        assert len(self.open) == self.pool.open == len(self.held)
        ended = [each.commands for each in self.host.sessions if each not in [*self.open, *self.dead]]
        assert {commands[-1] for commands in ended if commands} <= {"QUIT"}


TAKE, AGE, TURN, RELEASE = ("take", 1), ("age", 0), ("turn", 0), ("release", 0)
TAKEN = [TAKE, TURN, ("grant", 0), TURN, TAKE]
IDLE = [*TAKEN, RELEASE]
OPERATIONS = st.sampled_from(
    ["take", "take", "grant", "grant", "refuse", "release", "release", "give back", "die", "age", "fewer",
     "more", "renew", "turn", "turn"]
)  # fmt: skip


@given(st.lists(st.tuples(OPERATIONS, st.integers(0, 5)), max_size=40))
@example([("take", 2), ("take", 2)])
@example([*IDLE, ("die", 0), TURN, TAKE])
@example([*TAKEN, ("die", 0), TURN, RELEASE, TAKE])
@example([*TAKEN, ("give back", 0), ("die", 0), TURN, TAKE, TURN])
@example([*IDLE, TAKE, RELEASE, TAKE])
@example([*IDLE, AGE, AGE, TAKE])
@example([*TAKEN, AGE, ("give back", 0), AGE, TAKE])
@example([*TAKEN, AGE, AGE, AGE, RELEASE, TAKE])
@example([*TAKEN, *TAKEN, RELEASE, TAKE, RELEASE, TAKE])
@example([*TAKEN, *TAKEN, ("fewer", 0)])
@example([*TAKEN, *TAKEN, RELEASE, RELEASE, AGE, AGE, TAKE, TURN])
@example([*TAKEN, TAKE, ("take", 5), TURN])
@example([TAKE, TURN, ("refuse", 0), TURN, TAKE, TURN, AGE, TAKE, TURN])
def test_the_pool_keeps_its_cap_and_forgets_nothing_under_any_use(operations: list[tuple[str, int]]) -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        played = Play(loop)
        async with played.host:
            for operation, pick in operations:
                await played.do(operation, pick)
            await played.end()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play())
