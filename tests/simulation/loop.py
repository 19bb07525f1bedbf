"""An event loop in virtual time. It can kill and freeze a process of the simulation.

Time passes only when nothing else can happen, and then jumps to the next timer. Work of other threads takes
a drawn time and happens in one piece, in this thread. A *life* is one process. `end` kills it, as SIGKILL
does: all that runs in its context stops at once, and all else goes on. Between `freeze` and `thaw` it makes
no step, as with SIGSTOP: timers and octets that are due meanwhile reach it after `thaw`. With `has_fibers`,
a thread may `pass_time` in the middle of its work: then others run, and its process may end there.

Nothing may wait for a real descriptor: `add_reader` serves the simulation's own numbers (`wake`).
"""

import _thread
import asyncio
import contextvars
import itertools
import random
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from relay.clock import SECOND_NS
from tests.fakes.clock import FakeClock
from tests.simulation.network import Network

Returned = TypeVar("Returned")
GRAIN_NS = 1_000
"""Timers fire at whole microseconds, because the loop counts in floating point."""
THREAD_DELAYS_S = (0.0, 0.0, 0.0001, 0.003, 0.02)
FIRST_READER = 1 << 20
"""Greater than every descriptor of the kernel."""


class Stuck(Exception):  # noqa: N818 - a state, not an error of the loop
    """Nothing will ever happen again."""


class SimulatedClock(FakeClock):
    """Also has the loop's time, which stands still during a suspend, and the true time."""

    def __init__(self) -> None:
        super().__init__()
        self.monotonic_ns = self._boottime_ns
        self.true_ns = 0
        """The upstreams' time, which never steps."""

        self.others: list[FakeClock] = []
        """The clocks of other hosts, which advance with this one."""

    def advance(self, by_ns: int) -> None:
        self.suspend(by_ns)
        self.monotonic_ns += by_ns

    def suspend(self, by_ns: int) -> None:
        """Pass time that CLOCK_MONOTONIC does not count."""
        super().advance(by_ns)
        for each in self.others:
            each.advance(by_ns)
        self.true_ns += by_ns

    def reboot(self, down_ns: int = 0, *, boottime_ns: int = 5 * SECOND_NS) -> None:
        super().reboot(down_ns, boottime_ns=boottime_ns)
        self.monotonic_ns += down_ns + boottime_ns
        self.true_ns += down_ns + boottime_ns


class Life:
    """One process. All that starts within `life.run` is part of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_over = False
        self.is_frozen = False
        self.held: list[asyncio.Handle] = []
        """Steps that were due while it was frozen, in order."""

    def run(self, function: Callable[..., Returned], *args: object) -> Returned:
        context = contextvars.copy_context()
        context.run(LIFE.set, self)
        return context.run(function, *args)


LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("LIFE", default=None)


class Ended(BaseException):
    """The process of this thread has ended."""


class Fiber:
    """A call in a real thread. The loop waits while it runs, until it passes time or returns."""

    def __init__(
        self, loop: "SimulatedLoop", function: Callable[[], object], ended: Callable[[], None]
    ) -> None:
        self.life = LIFE.get()
        self.is_ended = False
        self._loop, self._ended = loop, ended
        self._function = function
        self._context = contextvars.copy_context()
        self._may_run, self._may_others = threading.Lock(), threading.Lock()
        self._may_run.acquire()
        self._may_others.acquire()
        self._passes_s: float | None = None
        loop.fibers.append(self)
        # `threading` would wait here for the new thread to start.
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        self._may_run.acquire()
        try:
            if not self.is_ended:
                self._context.run(self._function)
        except Ended:
            pass
        finally:
            self._passes_s = None
            self._may_others.release()

    def go_on(self) -> None:
        before, self._loop.running = self._loop.running, self
        self._may_run.release()
        self._may_others.acquire()
        self._loop.running = before
        if self._passes_s is None:
            self._loop.fibers.remove(self)
            self._ended()
        else:
            self._loop.call_later(self._passes_s, self.go_on)

    def pass_time(self, seconds: float) -> None:
        if not self.is_ended:
            self._passes_s = seconds
            self._may_others.release()
            self._may_run.acquire()
        if self.is_ended:
            raise Ended

    def end(self) -> None:
        """End the call; it only leaves its `with` blocks. A running fiber ends when it next passes time."""
        self.is_ended = True
        if self is not self._loop.running:
            self.go_on()


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: SimulatedClock, rng: random.Random) -> None:
        self.clock = clock
        self.rng = rng
        self.network = Network(self)
        self._readers: dict[int, tuple[Callable[..., object], tuple[object, ...], contextvars.Context]] = {}
        self._numbers = itertools.count(FIRST_READER)
        super().__init__(_Selector(clock))
        self._clock_resolution = 1e-6
        self.has_fibers = False
        self.fibers: list[Fiber] = []
        self.running: Fiber | None = None

    def time(self) -> float:
        return self.clock.monotonic_ns / SECOND_NS

    # Lives.

    def end(self, life: Life) -> None:
        """Let this process make no further step."""
        life.is_over = True
        for handle in [*self._ready, *self._scheduled]:  # type: ignore[attr-defined]  # asyncio's own queues
            if handle._context.get(LIFE) is life:
                handle.cancel()
        life.held.clear()
        for fiber in [each for each in self.fibers if each.life is life]:
            fiber.end()
        self.network.lose(life)

    def thaw(self, life: Life) -> None:
        """Let a frozen process go on, with all steps that were due meanwhile."""
        life.is_frozen = False
        self._ready.extend(life.held)  # type: ignore[attr-defined]  # asyncio's own queue
        life.held.clear()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]  # types are not ours to check
        step = _Step(callback)
        handle = super().call_soon(step, *args, context=context)
        step.belongs_to(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]  # as above
        step = _Step(callback)
        handle = super().call_at(when, step, *args, context=context)
        step.belongs_to(handle)
        return handle

    # Threads.

    def pass_time(self, seconds: float) -> None:
        """Let others run for this time in the middle of a thread's call."""
        assert self.running is not None
        self.running.pass_time(seconds)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]  # the base class says less
        del executor
        return SimulatedThread().call(lambda: func(*args))

    # Descriptors, which the kernel does not know.

    def new_reader(self) -> int:
        return next(self._numbers)

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]  # as above
        if isinstance(fd, int) and fd >= FIRST_READER:
            self._readers[fd] = callback, args, contextvars.copy_context()
        else:
            super().add_reader(fd, callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        if isinstance(fd, int) and fd >= FIRST_READER:
            return self._readers.pop(fd, None) is not None
        return super().remove_reader(fd)

    def wake(self, fd: int) -> None:
        """Call the reader of this number, if there is one."""
        if (reader := self._readers.get(fd)) is not None:
            callback, args, context = reader
            self.call_soon(callback, *args, context=context)

    # The network.

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        await self.network.reach(sock.fileno(), address[1])

    async def create_connection(
        self, protocol_factory: Any, *args: Any, sock: Any = None, **more: Any
    ) -> Any:
        assert not args
        assert more.get("ssl") is None
        port = self.network.reached(sock.fileno())
        sock.close()
        protocol = protocol_factory()
        transport = self.network.connect(port, protocol)
        if transport is None:
            raise ConnectionResetError(104, "the server went away")
        return transport, protocol


class SimulatedThread:
    """`relay.sender.host.CallThread`: makes its calls in order, each after a drawn time and in one piece."""

    def __init__(self, name: str = "") -> None:
        del name
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        self._free_at = 0.0
        self._is_closed = self._is_busy = False

    def call(self, function: Callable[[], Returned]) -> "asyncio.Future[Returned]":
        if self._is_closed:
            raise RuntimeError("the thread is closed")
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        done: asyncio.Future[Returned] = loop.create_future()
        self._waiting.append((done, function))
        self._free_at = max(loop.time(), self._free_at) + loop.rng.choice(THREAD_DELAYS_S)
        loop.call_at(self._free_at, self._next)
        return done

    def close(self) -> None:
        self._is_closed = True
        while self._waiting and not self._is_busy:
            self._next()

    def _next(self) -> None:
        if not self._waiting or self._is_busy:
            return
        done, function = self._waiting.popleft()
        if done.cancelled():
            return
        loop = done.get_loop()
        assert isinstance(loop, SimulatedLoop)
        value: Any = None
        error: Exception | None = None

        def call() -> None:
            nonlocal value, error
            try:
                value = function()
            except Exception as raised:  # noqa: BLE001 - the caller handles it
                error = raised

        def ended() -> None:
            self._is_busy = False
            if self._waiting and loop.has_fibers:
                loop.call_soon(self._next)
            if done.done():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

        self._is_busy = True
        if loop.has_fibers:
            Fiber(loop, call, ended).go_on()
        else:
            call()
            ended()


class _Selector(selectors.DefaultSelector):
    """Passes time instead of waiting."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck
        if timeout > 0:
            now_ns = self._clock.monotonic_ns
            until_ns = -(-(now_ns + round(timeout * SECOND_NS)) // GRAIN_NS) * GRAIN_NS
            self._clock.advance(max(GRAIN_NS, until_ns - now_ns))
        return []


class _Step:
    """A callback of the loop. It is dropped if its process is over, and delayed if the process is frozen."""

    __slots__ = ("_callback", "_handle", "_life")

    def __init__(self, callback: Callable[..., object]) -> None:
        self._callback = callback
        self._life: Life | None = None
        self._handle: asyncio.Handle | None = None

    def belongs_to(self, handle: Any) -> None:
        self._life = life = handle._context.get(LIFE)
        if life is not None:
            self._handle = handle
            if life.is_over:
                handle.cancel()

    def __call__(self, *args: object) -> None:
        if self._life is not None and self._life.is_frozen:
            assert self._handle is not None
            self._life.held.append(self._handle)
        else:
            self._callback(*args)


async def sleep_until(true_ns: int) -> None:
    """Let all else happen until this true time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    while (left_ns := true_ns - loop.clock.true_ns) > 0:
        is_over = loop.create_future()
        loop.call_later(left_ns / SECOND_NS, is_over.set_result, None)
        await is_over
