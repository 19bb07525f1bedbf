"""The relay's end of the control socket: HTTP over `control.sock`, as `relay.control.wire` tells it."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from relay.control.operations import CALLS, FAULT, Session
from relay.control.wire import PolicyInForce, decode_arguments, encode, short_path
from relay.policy.document import MAX_BYTES
from relay.policy.faults import PolicyError
from relay.status.connection_limit import ConnectionLimit
from relay.telemetry.events import Events

LONGEST_QUESTION_BYTES = 2 * MAX_BYTES
"""A policy as base64, and some more."""
LINES_AT_ONCE = 200
"""Messages of a listing between two turns of the loop: a long queue does not hold up mail."""
MOST_AT_ONCE = 16
"""Connections."""

Write = Callable[[object], Awaitable[None]]


def _bind(spool: Path) -> socket.socket:
    # We hold the spool's lock, so a socket of this name is that of a dead relay.
    _remove(spool)
    listening = socket.socket(socket.AF_UNIX)
    try:
        # Before bind, so that the name never exists with a wider mode (unix(7)).
        os.fchmod(listening.fileno(), 0o600)
        with short_path(spool) as path:
            listening.bind(path)
    except OSError:
        listening.close()
        raise
    return listening


def _remove(spool: Path) -> None:
    with short_path(spool) as path:
        Path(path).unlink(missing_ok=True)


class ControlServer:
    """The relay's end.  Its process holds the spool's lock."""

    def __init__(
        self, spool: Path, session: Session, events: Events, policy: Callable[[], PolicyInForce]
    ) -> None:
        self._spool, self._session, self._events, self._policy = spool, session, events, policy
        self._connections = ConnectionLimit(events, "the control socket", most=MOST_AT_ONCE)

    async def start(self) -> None:
        app = web.Application(client_max_size=LONGEST_QUESTION_BYTES)
        app.add_routes([web.post("/call/{method}", self._answer)])
        await self._connections.receive(app, lambda: _bind(self._spool))

    async def stop(self) -> None:
        if await self._connections.close():
            _remove(self._spool)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["method"]
        if name not in CALLS:
            raise web.HTTPNotFound(text="no such call")
        method = self._policy if name == "policy" else getattr(self._session, name)
        try:
            arguments = decode_arguments(method, await request.read())
        except ValueError:
            raise web.HTTPBadRequest(text="this relay does not know what was asked for") from None
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)

        async def write(part: object) -> None:
            await response.write(encode({"part": part}) + b"\n")

        last: dict[str, object]
        try:
            last = {"result": await self._result(name, method, arguments, write)}
        except ConnectionError:
            raise
        except PolicyError as error:
            # The command line read it before, so this relay is of another version.
            last = {"failed": f"this relay cannot read that policy: {error}"}
        except Exception as error:  # noqa: BLE001 - told to the client and in the log
            self._events.fault(where="control", error=error)
            last = {"failed": FAULT}
        await response.write(encode(last) + b"\n")
        await response.write_eof()
        return response

    @staticmethod
    async def _result(name: str, method: Callable[..., Any], arguments: list[object], write: Write) -> object:
        """Carry out a call; a reader that is slow stops a listing meanwhile."""
        match name:
            case "policy":
                return method()
            case "content":
                return await method(*arguments, write)
            case "rows":
                async with contextlib.aclosing(method(*arguments)) as rows:
                    async for some in rows:
                        for start in range(0, len(some), LINES_AT_ONCE):
                            await write(some[start : start + LINES_AT_ONCE])
                            await asyncio.sleep(0)
                return None
            case "resume":
                upstream, believes = arguments
                return await method(upstream, believes=believes)
        return await method(*arguments)
