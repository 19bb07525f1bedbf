"""The connections to one upstream: opened when needed, kept, handed out, let go.

Guarantees: never more connections than the cap, those being opened and those saying QUIT included (upstreams
count them too); each has one holder at a time; a connection that died, spoke or was closed while idle is
dropped, so it costs no slot and no attempt.  The first logs in before others try: some upstreams lock an
account after a few wrong passwords.
Does not: send anything, or wait for a connection: `on_change` tells when to ask again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from relay.clock import SECOND_NS, Clock


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
Open = Callable[[], Coroutine[Any, Any, C]]


class Pool(Generic[C]):
    """All of it belongs to one event loop."""

    def __init__(
        self,
        opener: Open[C],
        clock: Clock,
        *,
        on_change: Callable[[], None],
        on_failed: Callable[[Exception], int],
    ) -> None:
        """`on_change` is called when there is one more, or none to be had.

        `on_failed` is told why one could not be opened; it returns for how many nanoseconds no other is
        tried, or raises what the next `take` is to raise.
        """
        self._opener, self._clock = opener, clock
        self._on_change, self._on_failed = on_change, on_failed
        self._connections = self._max_messages = 1
        self._max_age_ns = self._idle_ns = 0
        self._expected = (1, 0)  # how many messages a session takes, and until when that is known
        self._generation = 0  # of the opener
        self._idle: list[tuple[C, int]] = []  # with when it became idle; oldest first
        self._busy: dict[C, tuple[int, int]] = {}  # with its generation, and since when it had been idle
        self._opening: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._rests_until_ns = 0
        self._failure: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    @property
    def open(self) -> int:
        return len(self._busy) + self.idle

    @property
    def idle(self) -> int:
        return sum(connection.is_usable for connection, _ in self._idle)

    def take(self, most: int) -> list[C]:
        """Return up to `most` connections, those used last first, and have more opened if there are fewer.

        Give each back by release or discard.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        taken: list[C] = []
        while len(taken) < most and (connection := self._next()) is not None:
            taken.append(connection)
        for _ in range(self._lacking(most - len(taken))):
            opening = asyncio.get_running_loop().create_task(self._open(self._generation))
            self._opening.add(opening)
            # One that is cancelled before its first step does not come to its end.
            opening.add_done_callback(self._opening.discard)
        return taken

    def release(self, connection: C, *, was_used: bool = True) -> None:
        """Keep the connection if it may be used again; one that was not used is as long idle as before."""
        generation, since_ns = self._busy.pop(connection)
        self._keep(connection, generation, self._clock.boottime_ns() if was_used else since_ns)

    def discard(self, connection: C) -> None:
        del self._busy[connection]
        connection.abort()

    def expect_most(self, messages: int) -> None:
        """Have connections end after so many messages, as the upstream does, for as long as one may last."""
        self._expected = (messages, self._clock.boottime_ns() + self._max_age_ns)

    def expect_any(self) -> None:
        """Undo `expect_most`."""
        self._expected = (self._max_messages, 0)

    def configure(
        self,
        *,
        connections: int,
        max_messages: int,
        max_age_ns: int,
        idle_ns: int,
        opener: Open[C] | None = None,
    ) -> None:
        """Change the caps at once, and how connections are opened where an opener is given.

        With a new opener the connections of the old one end: idle ones now, those in
        use after their transaction, those being opened as soon as they are.
        """
        self._connections, self._max_messages = connections, max_messages
        self._max_age_ns, self._idle_ns = max_age_ns, idle_ns
        # What kept it from opening others may be mended.
        self._rests_until_ns = 0
        if opener is not None:
            self._opener = opener
            self._generation += 1
            self.expect_any()
        while self._idle and (opener is not None or self._count() > connections):
            self._retire(self._idle.pop(0)[0])
        self._set_timer()

    def stop(self) -> None:
        """Open none any more; those in use are closed when released."""
        self._is_stopped = True
        for opening in self._opening:
            opening.cancel()

    async def close(self) -> None:
        """Stop, and close idle connections."""
        self.stop()
        while self._idle:
            self._retire(self._idle.pop()[0])
        self._set_timer()
        while self._opening or self._closing:
            await asyncio.wait([*self._opening, *self._closing])

    def _next(self) -> C | None:
        while self._idle:
            connection, since_ns = self._idle.pop()
            now_ns = self._clock.boottime_ns()
            if self._may_stay(connection, now_ns) and now_ns - since_ns < self._idle_ns:
                self._busy[connection] = self._generation, since_ns
                return connection
            self._retire(connection)
        return None

    def _lacking(self, wanted: int) -> int:
        """Return how many connections to open now."""
        if self._is_stopped or self._clock.boottime_ns() < self._rests_until_ns:
            return 0
        room = self._connections - self._count()
        # By the pool's own count: one that is on its way from a transaction to who waits for it is open.
        most = wanted - len(self._opening) if self.open else min(wanted, 1 - len(self._opening))
        return max(0, min(most, room))

    async def _open(self, generation: int) -> None:
        try:
            connection = await self._opener()
        except Exception as error:  # noqa: BLE001 - whatever it is, `on_failed` judges it
            if not self._is_stopped and generation == self._generation:
                self._fail(error)
        else:
            self._keep(connection, generation, self._clock.boottime_ns())
        finally:
            if (task := asyncio.current_task()) is not None:
                self._opening.discard(task)
        # Told last: who looks again must not count on this one still coming.
        self._on_change()

    def _fail(self, error: Exception) -> None:
        try:
            rest_ns = self._on_failed(error)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the next `take` raises it
            self._failure = failure
            return
        if rest_ns:
            until_ns = max(self._rests_until_ns, self._clock.boottime_ns() + rest_ns)
            self._rests_until_ns = until_ns
            asyncio.get_running_loop().call_later(rest_ns / SECOND_NS, self._rested, until_ns)

    def _rested(self, until_ns: int) -> None:
        # By the timer alone: by the clock it may be a little early, and then nobody would look again.
        if self._rests_until_ns == until_ns:
            self._rests_until_ns = 0
        self._on_change()

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

    def _keep(self, connection: C, generation: int, since_ns: int) -> None:
        """Take a connection of a generation in, idle since then, if it may be used again."""
        is_one_more = len(self._idle) + len(self._busy) + len(self._closing) < self._connections
        is_current = generation == self._generation and not self._is_stopped
        if not (is_current and is_one_more and self._may_stay(connection, self._clock.boottime_ns())):
            self._retire(connection)
            return
        self._idle.append((connection, since_ns))
        self._idle.sort(key=lambda each: each[1])
        if self._timer is None or self._idle[0][0] is connection:
            self._set_timer()

    def _retire(self, connection: C) -> None:
        """Close a connection that nobody holds; it counts until it is gone."""
        closing = asyncio.get_running_loop().create_task(_closed(connection))
        self._closing.add(closing)
        closing.add_done_callback(self._retired)

    def _retired(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(closing)
        self._on_change()

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


async def _closed(connection: Poolable) -> None:
    await connection.close()
