"""The pool of connections to one upstream: it opens them when needed, keeps them and hands them out.

Guarantees: connections never exceed the cap.  Those being opened and those saying QUIT count, since upstreams
count them too.  Each connection has one holder at a time.  The pool drops an idle connection that ended or
received octets, which costs no slot and no attempt.  Before its first use that counts as a failed opening:
otherwise the relay would reconnect without end to an upstream that hangs up after the login.  The first
connection logs in before others try: some upstreams lock an account after a few wrong passwords.
Does not: send messages, or wait for a connection: `on_change` tells when to ask again.
Assumes: one event loop.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from relay.clock import SECOND_NS, Clock
from relay.policy.model import Upstream
from relay.upstream.connection import Connection

Open = Callable[[], Coroutine[Any, Any, Connection]]


class _Opened(NamedTuple):
    opener: Open
    idle_since_ns: int
    is_busy: bool = False


class Pool:
    def __init__(
        self,
        opener: Open,
        caps: Upstream,
        clock: Clock,
        *,
        on_change: Callable[[], None],
        on_failed: Callable[[Exception], int],
    ) -> None:
        """`caps` limits the connections, and how long and how often each is used.

        `on_change` is called after each opening and closing, and when openings may be tried again.
        `on_failed` gets the error of a failed opening; it returns for how many ns no other is tried.
        """
        self._opener, self._caps, self._clock = opener, caps, clock
        self._on_change, self._on_failed = on_change, on_failed
        self._places: dict[Connection, _Opened] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._rests_until_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    @property
    def open(self) -> int:
        return sum(place.is_busy for place in self._places.values()) + self.idle

    @property
    def idle(self) -> int:
        return sum(each.is_usable for each, place in self._places.items() if not place.is_busy)

    def take(self, most: int) -> list[Connection]:
        """Return up to `most` idle connections, the last used first; begin to open more if there are fewer.

        The caller gives each back by `release`.
        """
        has_failed = self._drop_unfit(list(self._places))
        taken = [each for each, place in reversed(self._places.items()) if not place.is_busy][:most]
        for connection in taken:
            self._places[connection] = self._places[connection]._replace(is_busy=True)
        if not (has_failed or self._is_stopped) and self._clock.boottime_ns() >= self._rests_until_ns:
            # If none is open, open only one.  One that goes from a transaction to its next holder is open.
            wanted = most - len(taken) if self.open else min(1, most)
            room = self._caps.connections - self._count()
            for _ in range(min(wanted - len(self._opening), room)):
                self._start(self._open(self._opener), self._opening)
        return taken

    def release(self, connection: Connection, *, was_used: bool = True) -> None:
        """Keep the connection if it may be used again, or close it; if not `was_used`, it stayed idle."""
        place = self._places.pop(connection)
        self._keep(connection, place.opener, self._clock.boottime_ns() if was_used else place.idle_since_ns)

    def configure(self, caps: Upstream, opener: Open | None = None) -> None:
        """Change the caps at once, and the opener if one is given.

        With a new opener the connections of the old one end: idle ones now, those in
        use after their transaction, those being opened as soon as they are open.
        """
        self._caps = caps
        # The edit may have repaired what made openings fail.
        self._rests_until_ns = 0
        if opener is not None:
            self._opener = opener
        self._look()

    def stop(self) -> None:
        """Open no more connections; those in use are closed when released."""
        self._is_stopped = True
        for opening in self._opening:
            opening.cancel()

    async def close(self) -> None:
        self.stop()
        self._look()
        while self._opening or self._closing:
            await asyncio.wait([*self._opening, *self._closing])

    def _start(self, work: Coroutine[Any, Any, None], under_way: set[asyncio.Task[None]]) -> None:
        """Run a task, and call `on_change` once it no longer counts, also if it is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        under_way.add(task)

        def end(_: object) -> None:
            under_way.discard(task)
            self._on_change()

        task.add_done_callback(end)

    async def _open(self, opener: Open) -> None:
        try:
            connection = await opener()
        except Exception as error:  # noqa: BLE001 - whatever it is, `on_failed` judges it
            self._fail(error, opener)
        else:
            self._opening -= {asyncio.current_task()}
            self._keep(connection, opener, self._clock.boottime_ns())

    def _keep(self, connection: Connection, opener: Open, since_ns: int) -> None:
        self._places[connection] = _Opened(opener, since_ns)
        self._drop_unfit([connection])
        if self._timer is None:
            self._look()

    def _fail(self, error: Exception, opener: Open) -> None:
        if self._is_stopped or opener is not self._opener:
            return
        if (rest_ns := self._on_failed(error)) > 0:
            until_ns = max(self._rests_until_ns, self._clock.boottime_ns() + rest_ns)
            self._rests_until_ns = until_ns
            asyncio.get_running_loop().call_later(rest_ns / SECOND_NS, self._rested, until_ns)

    def _rested(self, until_ns: int) -> None:
        # The timer decides, not the clock: by the clock it may be early, and nobody would look again.
        if self._rests_until_ns == until_ns:
            self._rests_until_ns = 0
        self._on_change()

    def _count(self) -> int:
        return len(self._places) + len(self._opening) + len(self._closing)

    def _may_stay(self, connection: Connection, place: _Opened) -> bool:
        now_ns, caps = self._clock.boottime_ns(), self._caps
        return (
            not self._is_stopped
            and place.opener is self._opener
            and connection.is_usable
            and connection.transactions < caps.max_messages
            and now_ns - connection.opened_at_ns < caps.max_age_ns
            and now_ns - place.idle_since_ns < caps.idle_ns
            and len(self._places) + len(self._opening) <= caps.connections
        )

    def _drop_unfit(self, connections: Sequence[Connection]) -> bool:
        """Close those of `connections` that are idle and may not stay; they count until closed.

        Return whether one of them ended before its first use, which counts as a failed opening.
        """
        has_failed = False
        for connection in connections:
            place = self._places[connection]
            if not place.is_busy and not self._may_stay(connection, place):
                del self._places[connection]
                self._start(connection.close(), self._closing)
                if (error := connection.fault_before_use) is not None:
                    has_failed = True
                    self._fail(error, place.opener)
        return has_failed

    def _look(self) -> None:
        """Close idle connections that may not stay: now, and when the first reaches `idle_ns`."""
        self._drop_unfit(list(self._places))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        since_ns = [place.idle_since_ns for place in self._places.values() if not place.is_busy]
        if since_ns:
            left_ns = min(since_ns) + self._caps.idle_ns - self._clock.boottime_ns()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0, left_ns) / SECOND_NS, self._look)
