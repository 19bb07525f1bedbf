"""An HTTP server with few connections, for the status port and the control socket.

Guarantees: at most `most` connections at once; one more ends the oldest, whatever that does or waits for.
A connection serves one request.
Does not: know any route.
"""

import asyncio
import socket
from collections.abc import Callable

from aiohttp import web

from relay.listener.accepting import Door
from relay.mail.formats import described
from relay.telemetry.events import Events

BACKLOG = 128
STOP_SECONDS = 1.0
"""How long an answer may still take when the server stops."""


class ConnectionLimit:
    """For one event loop."""

    def __init__(self, events: Events, where: str, *, most: int) -> None:
        """`where` is what an event calls the server."""
        self._events, self._where, self._most = events, where, most
        self._runner: web.AppRunner | None = None
        self._door: Door | None = None
        self._open: list[asyncio.Transport] = []
        """The oldest first."""

    async def receive(
        self, app: web.Application, bind: Callable[[], socket.socket], *, breaks_off: bool = False
    ) -> socket.socket:
        """Answer on the socket that `bind` makes, and return it.  Raises OSError, and then holds nothing.

        `breaks_off`: stop an answer once its client hangs up.
        """
        app.on_response_prepare.append(_close_after)
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=STOP_SECONDS,
            handler_cancellation=breaks_off,
        )
        await runner.setup()
        if (server := runner.server) is None:
            raise AssertionError("a runner that is not set up")
        try:
            bound = bind()
        except OSError:
            await runner.cleanup()
            raise
        bound.listen(BACKLOG)
        self._runner = runner

        async def begin(accepted: socket.socket, _peer: object) -> None:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(server, accepted)
            self._open = [each for each in self._open if not each.is_closing()]
            if len(self._open) >= self._most:
                self._open.pop(0).abort()
            self._open.append(transport)

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


async def _close_after(_request: web.Request, response: web.StreamResponse) -> None:
    # By now the headers are made, so that `force_close` alone would not tell the client.
    response.headers["Connection"] = "close"
    response.force_close()
