"""The connections to one upstream: opened when needed, kept, handed out, let go.

Guarantees: never more connections than the cap, those being opened and those saying QUIT
included (upstreams count them too); each has one holder at a time; a connection that died,
spoke or was closed while idle is dropped, so it costs no slot and no attempt.  Waiters are
served in order, by a connection released or one opened, whichever comes first.
Does not: send anything, or wait after a failure: the next `acquire` opens again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from relay.clock import SECOND_NS, Clock
from relay.smtp.reply import Phase
from relay.upstream.connection import UpstreamUnavailable
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict


class Poolable(Protocol):
    opened_at_ns: int
    transactions: int

    @property
    def is_usable(self) -> bool:
        """Whether another transaction may be begun on it."""
        ...

    async def close(self) -> None:
        """Be short, and never raise."""
        ...

    def abort(self) -> None: ...


C = TypeVar("C", bound=Poolable)


class Pool(Generic[C]):
    """All of it belongs to one event loop."""

    def __init__(
        self,
        opener: Callable[[], Awaitable[C]],
        *,
        connections: int,
        max_messages: int,
        max_age_ns: int,
        idle_ns: int,
        clock: Clock,
    ) -> None:
        self._opener = opener
        self._connections = connections
        self._max_messages = max_messages
        self._max_age_ns = max_age_ns
        self._idle_ns = idle_ns
        self._clock = clock
        self._expected = (max_messages, 0)  # how many messages a session takes, and until when that is known
        self._generation = 0  # of the opener
        self._idle: list[tuple[C, int]] = []  # with when it became idle; oldest first
        self._busy: dict[C, int] = {}  # with the generation it was opened in
        self._unused: dict[C, int] = {}  # of these, since when those were idle that were idle before
        self._opening: dict[asyncio.Task[C], int] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._waiters: deque[asyncio.Future[C]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def open(self) -> int:
        return len(self._busy) + self.idle

    @property
    def idle(self) -> int:
        return sum(connection.is_usable for connection, _ in self._idle)

    def try_acquire(self) -> C | None:
        """Return the idle connection used last, or None.  Give it back by release or discard."""
        while self._idle:
            connection, since_ns = self._idle.pop()
            now_ns = self._clock.boottime_ns()
            if self._may_stay(connection, now_ns) and now_ns - since_ns < self._idle_ns:
                self._busy[connection] = self._generation
                self._unused[connection] = since_ns
                return connection
            self._retire(connection)
        return None

    async def acquire(self) -> C:
        """Return an idle connection at once, else the first that becomes free or is opened.

        Raises UpstreamUnavailable when opening failed and no other is being opened.
        """
        connection = self.try_acquire()
        if connection is not None:
            return connection
        if self._is_closed:
            raise _closed()
        waiter: asyncio.Future[C] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._serve()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result())  # it was given a connection in that moment
            raise

    def release(self, connection: C, *, was_used: bool = True) -> None:
        """Keep the connection if it may be used again; one that was not used is idle since it was before."""
        generation = self._busy.pop(connection)
        now_ns = self._clock.boottime_ns()
        since_ns = self._unused.pop(connection, now_ns)
        is_current = generation == self._generation and not self._is_closed
        if is_current and self._count() < self._connections and self._may_stay(connection, now_ns):
            self._keep(connection, now_ns if was_used else since_ns)
        else:
            self._retire(connection)
        self._serve()

    def discard(self, connection: C) -> None:
        del self._busy[connection]
        self._unused.pop(connection, None)
        connection.abort()
        self._serve()

    def expect_most(self, messages: int) -> None:
        """Have connections end after so many messages, as the upstream does, for as long as one may last."""
        self._expected = (messages, self._clock.boottime_ns() + self._max_age_ns)

    def expect_any(self) -> None:
        """Undo `expect_most`."""
        self._expected = (self._max_messages, 0)

    def reconfigure(
        self,
        *,
        connections: int,
        max_messages: int,
        max_age_ns: int,
        idle_ns: int,
        opener: Callable[[], Awaitable[C]] | None = None,
    ) -> None:
        """Change the caps at once, and how connections are opened where an opener is given.

        With a new opener the connections of the old one end: idle ones now, those in
        use after their transaction, those being opened as soon as they are.
        """
        self._connections, self._max_messages = connections, max_messages
        self._max_age_ns, self._idle_ns = max_age_ns, idle_ns
        if opener is not None:
            self._opener = opener
            self._generation += 1
            self.expect_any()
        while self._idle and (opener is not None or self._count() > connections):
            self._retire(self._idle.pop(0)[0])
        self._set_timer()
        self._serve()

    async def close(self) -> None:
        """Close idle connections and open none; those in use are closed when released."""
        self._is_closed = True
        for task in self._opening:
            task.cancel()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(_closed())
        while self._idle:
            self._retire(self._idle.pop()[0])
        self._set_timer()
        while self._opening or self._closing:
            await asyncio.wait([*self._opening, *self._closing])

    def _count(self) -> int:
        """Count every connection that the upstream may see."""
        return len(self._idle) + len(self._busy) + len(self._opening) + len(self._closing)

    def _may_stay(self, connection: C, now_ns: int) -> bool:
        expected, until_ns = self._expected
        most = self._max_messages if now_ns >= until_ns else min(self._max_messages, expected)
        return (
            connection.is_usable
            and connection.transactions < most
            and now_ns - connection.opened_at_ns < self._max_age_ns
        )

    def _serve(self) -> None:
        while self._waiters:
            if self._waiters[0].done():
                self._waiters.popleft()  # cancelled
                continue
            connection = self.try_acquire()
            if connection is None:
                break
            self._waiters.popleft().set_result(connection)
        if not self._waiters:
            return  # as after nearly every transaction
        wanted = sum(not waiter.done() for waiter in self._waiters)
        while len(self._opening) < wanted and self._count() < self._connections and not self._is_closed:
            task = asyncio.ensure_future(self._opener())
            self._opening[task] = self._generation
            task.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[C]) -> None:
        generation = self._opening.pop(task)
        is_current = generation == self._generation and not self._is_closed
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            pass
        elif error is None:
            connection = task.result()
            if is_current and self._count() < self._connections:
                self._keep(connection, self._clock.boottime_ns())
            else:
                self._retire(connection)
        elif is_current and not self._opening:
            # Also while other connections are in use: a waiter that does not learn of the failure
            # would open again, and be refused again, each time that one of them is free.
            while self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_exception(error)
        elif is_current:
            return  # another one is coming; to open again now would be a hot loop
        self._serve()

    def _keep(self, connection: C, since_ns: int) -> None:
        self._idle.append((connection, since_ns))
        self._idle.sort(key=lambda each: each[1])
        if self._timer is None or self._idle[0][0] is connection:
            self._set_timer()

    def _retire(self, connection: C) -> None:
        """Close a connection that nobody holds; it counts until it is gone."""
        task = asyncio.ensure_future(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._retired)

    def _retired(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        self._serve()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._idle:
            left_ns = self._idle[0][1] + self._idle_ns - self._clock.boottime_ns()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0, left_ns) / SECOND_NS, self._let_go)

    def _let_go(self) -> None:
        self._timer = None
        now_ns = self._clock.boottime_ns()
        kept = []
        for connection, since_ns in self._idle:
            if connection.is_usable and now_ns - since_ns < self._idle_ns:
                kept.append((connection, since_ns))
            else:
                self._retire(connection)
        self._idle = kept
        self._set_timer()


def _closed() -> UpstreamUnavailable:
    text = "the connections to this upstream are being closed"
    return UpstreamUnavailable(Answer(Verdict.PAUSE, Phase.CONNECT, None, text))
