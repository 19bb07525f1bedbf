"""Connections to our HTTP servers: few, short, and the first to go.

Guarantees: at most `most` connections at once; one more closes the one that was idle longest.
A connection is closed unless its request is complete within `request_seconds` and its answer is
read within `answer_seconds` (of a stream: each part); an idle one after KEEP_ALIVE_SECONDS.  A
silent connection costs no object of aiohttp's.  Does not: know any route.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from aiohttp import web

from relay.listener.accepting import Door
from relay.mail.formats import described
from relay.telemetry.events import Events

KEEP_ALIVE_SECONDS = 10.0
BACKLOG = 128
STOP_SECONDS = 1.0
"""How long an answer may still take when the server stops."""


@dataclass(frozen=True, slots=True)
class VisitorBounds:
    most: int = 64
    """Connections at once: a handful of scrapers and browsers; each costs a descriptor."""
    request_seconds: float = 5.0
    answer_seconds: float = 30.0
    """For making an answer and for the client to read it."""
    part_seconds: float = 2.0
    """Between two parts of a stream."""


BOUNDS = VisitorBounds()


class Visitors:
    """For one event loop."""

    def __init__(self, events: Events, where: str, bounds: VisitorBounds) -> None:
        """`where` is what an event calls the server."""
        self._events = events
        self._where = where
        self._bounds = bounds
        self._runner: web.AppRunner | None = None
        self._visits: dict[_Visit, None] = {}
        """Least recently active first."""
        self._answering: dict[object, _Visit] = {}
        """Connections that sent something, by aiohttp's handler."""
        self._door: Door | None = None

    async def receive(
        self, app: web.Application, bind: Callable[[], socket.socket], *, breaks_off: bool = False
    ) -> socket.socket:
        """Answer on the socket that `bind` makes, and return it.  Raises OSError, and then holds nothing.

        `breaks_off`: stop an answer once its client hangs up.
        """
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=STOP_SECONDS,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            handler_cancellation=breaks_off,
        )
        await runner.setup()
        server = runner.server
        if server is None:
            raise AssertionError("a runner that is not set up")
        try:
            bound = bind()
        except OSError:
            await runner.cleanup()
            raise
        bound.listen(BACKLOG)
        self._runner = runner

        async def begin(accepted: socket.socket, _peer: object) -> None:
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: _Visit(self, server), accepted
                )
            except OSError:
                accepted.close()  # gone before it began

        self._door = Door(
            bound, begin, lambda error: self._events.shortage(where=self._where, error=described(error))
        )
        return bound

    async def close(self) -> bool:
        """Wait a moment for answers under way; return whether anything was open."""
        if self._door is not None:
            await self._door.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        return runner is not None

    @contextlib.contextmanager
    def asking(self, request: web.BaseRequest) -> Iterator[None]:
        visit = self._answering.get(request.protocol)
        if visit is not None:
            self._touch(visit)
            visit.is_asking = True
            visit.expire_in(self._bounds.answer_seconds)
        try:
            yield
        finally:
            if visit is not None:
                visit.is_asking = False

    def renew(self, request: web.BaseRequest) -> None:
        """Begin the time of an answer anew: its client has read what there was of it."""
        visit = self._answering.get(request.protocol)
        if visit is not None:
            visit.expire_in(self._bounds.answer_seconds)

    def enter(self, visit: "_Visit") -> None:
        """Close another connection if there are too many."""
        if len(self._visits) >= self._bounds.most:
            idle = (each for each in self._visits if not each.is_asking)
            next(idle, next(iter(self._visits))).abort()
        self._visits[visit] = None
        visit.expire_in(self._bounds.request_seconds)

    def heard(self, visit: "_Visit", handler: object) -> None:
        self._answering[handler] = visit

    def leave(self, visit: "_Visit", handler: object) -> None:
        """Ignored if the connection is out already."""
        self._visits.pop(visit, None)
        self._answering.pop(handler, None)

    def _touch(self, visit: "_Visit") -> None:
        if visit in self._visits:
            del self._visits[visit]
            self._visits[visit] = None


class _Visit(asyncio.Protocol):
    """One connection: aiohttp's from its first octet on."""

    def __init__(self, visitors: Visitors, server: web.Server) -> None:
        self.is_asking = False
        """The server is making its answer."""
        self._visitors = visitors
        self._server = server
        self._handler: asyncio.Protocol | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._visitors.enter(self)

    def data_received(self, data: bytes) -> None:
        if self._handler is None:
            self._handler = self._server()
            self._visitors.heard(self, self._handler)
            self._handler.connection_made(self._transport)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on the end of input; a silent connection is closed."""
        return None if self._handler is None else self._handler.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._visitors.leave(self, self._handler)
        if self._handler is not None:
            self._handler.connection_lost(error)

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    def expire_in(self, seconds: float) -> None:
        """Close after so many seconds; another call begins anew."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)

    def abort(self) -> None:
        """Close at once; the connection counts no more from here on."""
        self._visitors.leave(self, self._handler)
        self._transport.abort()
