"""An event loop whose time passes only when nothing else can happen.

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner:
        runner.run(...)

Where every task waits for a timer, the clock is moved to the first one: an hour takes no
time, and what happens at an instant happens at exactly that one.  Nothing is under way
elsewhere then: connections to servers of this loop are pairs of sockets in one host, whose
octets arrive as they are sent, and no call is in another thread.
"""

import asyncio
import selectors
import socket
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from relay.clock import SECOND_NS
from relay.sender.group_commit import CallThread
from tests.fakes.clock import FakeClock

GRAIN_NS = 1_000
FLOAT_NS = 10
"""By how much less an instant may be off."""


class _Selector(selectors.DefaultSelector):
    """Lets time pass instead of waiting."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.calls = 0
        """How many are in other threads."""
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.calls or timeout is None:
            return super().select(None)
        self._clock.advance(self._until_ns(timeout) - self._clock.boottime_ns())
        return []

    def _until_ns(self, timeout: float) -> int:
        """Return when it is that much later, to the microsecond: the loop counts in floating point."""
        now_ns = self._clock.boottime_ns()
        return max(now_ns + 1, -((FLOAT_NS - now_ns - int(timeout * SECOND_NS)) // GRAIN_NS) * GRAIN_NS)


async def pass_time(seconds: float) -> None:
    """Let all else happen until so much later."""
    loop = asyncio.get_running_loop()
    is_over = loop.create_future()
    loop.call_later(seconds, is_over.set_result, None)
    await is_over


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop by a clock that a test may read and nobody moves."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._waits = _Selector(clock)
        self._servers: dict[int, Callable[[], asyncio.BaseProtocol]] = {}
        self._ports: dict[int, int] = {}
        """Of sockets that are said to be connected."""
        super().__init__(self._waits)

    def time(self) -> float:
        return self._clock.boottime_ns() / SECOND_NS

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]  # more than the base class says
        self._waits.calls += 1
        call = super().run_in_executor(executor, func, *args)
        call.add_done_callback(self._called)
        return call

    def run_forever(self) -> None:
        """Know of calls that a thread of the sender's makes, too."""
        call = CallThread.call

        def counted(thread: CallThread, function: Callable[[], Any]) -> "asyncio.Future[Any]":
            self._waits.calls += 1
            returned = call(thread, function)
            returned.add_done_callback(self._called)
            return returned

        with patch.object(CallThread, "call", counted):
            super().run_forever()

    def _called(self, _call: Any) -> None:
        self._waits.calls -= 1

    async def create_server(self, protocol_factory: Any, *args: Any, **others: Any) -> Any:
        server = await super().create_server(protocol_factory, *args, **others)
        self._servers[server.sockets[0].getsockname()[1]] = protocol_factory
        return server

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        self._ports[sock.fileno()] = address[1]

    async def create_connection(self, protocol_factory: Any, *, sock: socket.socket, **_: Any) -> Any:  # type: ignore[override]  # less than the base class takes
        port = self._ports.pop(sock.fileno())
        sock.close()
        ours, theirs = socket.socketpair()
        await self.connect_accepted_socket(self._servers[port], theirs)
        return await super().create_connection(protocol_factory, sock=ours)
