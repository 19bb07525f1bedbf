"""An event loop whose time passes only when nothing else can happen.

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner:
        runner.run(...)

When every task waits for a timer, the clock jumps to the first timer: an hour takes no time, and a timer
fires at exactly its instant. Nothing is in progress elsewhere then: connections to servers of this loop are
socket pairs, whose octets arrive at once, and calls in other threads have returned, unless a test holds one.
"""

import asyncio
import selectors
import socket
from collections.abc import Callable
from typing import Any

from relay.clock import SECOND_NS
from tests.fakes.clock import FakeClock

GRAIN_NS = 1_000
FLOAT_NS = 10
"""The bound of an instant's error, from floating point."""
CALL_S = 0.2
"""The real time that a call in another thread gets before virtual time passes anyway."""
HUNG_S = 20.0
MOST_TURNS = 1_000_000
"""More turns of the loop than this at one instant are endless work."""


class _Selector(selectors.DefaultSelector):
    """Passes time instead of waiting."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.calls = 0
        """The number of calls in other threads."""
        self.waiting: list[asyncio.Future[None]] = []
        """Futures to set when nothing more happens at this instant."""
        self.least_ns = 1
        """The least step of time."""
        self._waited_for = 0
        """The number of calls that did not return within CALL_S."""
        self._has_told = False
        self._turns = 0
        """The number of turns at this instant."""
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0) or self._returned(timeout)
        if ready or timeout == 0:
            self._turns += 1
            if self._turns > MOST_TURNS:
                raise RuntimeError("there is always something to do")
            return ready
        if self.waiting and not self._has_told:
            self._has_told = True
            self._tell()
        elif timeout is not None:
            self._has_told, self._turns = False, 0
            self._clock.advance(self._until_ns(timeout) - self._clock.boottime_ns())
        elif not (ready := super().select(HUNG_S)):
            raise RuntimeError("nothing will ever happen")
        return ready

    def _returned(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Give calls in other threads real time to return."""
        self._waited_for = min(self._waited_for, self.calls)
        if timeout == 0 or not self.calls:
            return []
        ready = super().select(CALL_S if self.calls > self._waited_for else 0.001)
        if not ready:
            self._waited_for = self.calls
        return ready

    def _tell(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _until_ns(self, timeout: float) -> int:
        """Return the instant after `timeout` seconds, in microseconds: the loop counts in floating point."""
        now_ns = self._clock.boottime_ns()
        return max(
            now_ns + self.least_ns, -((FLOAT_NS - now_ns - int(timeout * SECOND_NS)) // GRAIN_NS) * GRAIN_NS
        )


class InTurn:
    """A worker that makes its calls in the loop's own thread, each in a loop iteration of its own."""

    def __init__(self, name: str = "") -> None:
        del name
        self._is_closed = False

    def call(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        if self._is_closed:
            raise RuntimeError("the worker is closed")
        loop = asyncio.get_running_loop()
        returned = loop.create_future()
        loop.call_soon(_make, function, returned)
        return returned

    def close(self) -> None:
        self._is_closed = True


def _make(function: Callable[[], Any], returned: "asyncio.Future[Any]") -> None:
    if returned.cancelled():
        return
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001 - the caller handles it
        returned.set_exception(error)
    else:
        returned.set_result(value)


async def pass_time(seconds: float) -> None:
    """Let all else happen for this many virtual seconds."""
    loop = asyncio.get_running_loop()
    is_over = loop.create_future()
    loop.call_later(seconds, is_over.set_result, None)
    await is_over


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop with a clock that a test may read and advance, as a suspend does."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self._waits = _Selector(self.clock)
        self._servers: dict[int, tuple[Callable[[], asyncio.BaseProtocol], Any]] = {}
        """For each port: the protocol factory and the TLS context."""
        self._ports: dict[int, int] = {}
        """For each connected socket: its port."""
        super().__init__(self._waits)

    def time(self) -> float:
        return self.clock.boottime_ns() / SECOND_NS

    def hurry(self, seconds: int) -> None:
        """Let time pass in steps of at least this: timers fire late, and days pass in an instant."""
        self._waits.least_ns = seconds * SECOND_NS

    async def quiet(self) -> None:
        """Let everything happen that can happen now. A second call at an instant waits for the next one."""
        quiet: asyncio.Future[None] = self.create_future()
        self._waits.waiting.append(quiet)
        await quiet

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]  # the base class says less
        call = super().run_in_executor(executor, func, *args)
        self.wait_for(call)
        return call

    def wait_for(self, call: "asyncio.Future[Any]") -> None:
        """Give a call in another thread real time to return before virtual time passes."""
        self._waits.calls += 1
        call.add_done_callback(self._called)

    def _called(self, _call: Any) -> None:
        self._waits.calls -= 1

    async def getaddrinfo(self, host: Any, port: Any, **_more: Any) -> Any:
        """Return the address at once: a thread that resolves names takes real time."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def create_server(self, protocol_factory: Any, *args: Any, **others: Any) -> Any:
        server = await super().create_server(protocol_factory, *args, **others)
        self._servers[server.sockets[0].getsockname()[1]] = protocol_factory, others.get("ssl")
        return server

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        if address[1] not in self._servers:
            raise ConnectionRefusedError(111, "Connection refused")
        self._ports[sock.fileno()] = address[1]

    async def create_connection(
        self, protocol_factory: Any, *args: Any, sock: Any = None, **more: Any
    ) -> Any:
        if sock is None or sock.fileno() not in self._ports:
            return await super().create_connection(protocol_factory, *args, sock=sock, **more)
        serve, tls = self._servers[self._ports.pop(sock.fileno())]
        sock.close()
        ours, theirs = socket.socketpair()
        serving = asyncio.ensure_future(self.connect_accepted_socket(serve, theirs, ssl=tls))
        serving.add_done_callback(lambda done: theirs.close() if done.cancelled() else None)
        try:
            if tls is None:
                await serving
            return await super().create_connection(protocol_factory, *args, sock=ours, **more)
        except BaseException:
            ours.close()
            raise
