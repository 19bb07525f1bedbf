"""The relay's end of the control socket.  `relay.control.client` describes the protocol.

Assumes: its process holds the spool's lock.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import ConfigDict, TypeAdapter

from relay.control.client import encode, short_path
from relay.control.operations import CALLS, NotDone
from relay.control.operator import Operator, values
from relay.policy.document import MAX_BYTES
from relay.status.http import ConnectionLimit
from relay.telemetry.events import Events


class ControlServer:
    def __init__(self, spool: Path, operator: Operator, events: Events) -> None:
        self._spool, self._events = spool, events
        # Each adapter checks the arguments of a call, as JSON, against the types of the method.
        exact = ConfigDict(extra="forbid")
        self._calls = {name: TypeAdapter(getattr(operator, name), config=exact) for name in CALLS}
        self._connections = ConnectionLimit(events, "the control socket")

    async def start(self) -> None:
        # The longest question has the longest policy as a JSON text.
        app = web.Application(client_max_size=2 * MAX_BYTES)
        app.add_routes([web.post("/call/{method}", self._answer)])
        await self._connections.receive(app, self._bind())

    async def stop(self) -> None:
        await self._connections.close()
        self._remove()

    def _bind(self) -> socket.socket:
        # We hold the spool's lock, so a socket of this name belongs to a dead relay.
        self._remove()
        listening = socket.socket(socket.AF_UNIX)
        with short_path(self._spool) as path:
            listening.bind(path)
            # Nobody can connect yet: the socket does not listen.
            Path(path).chmod(0o600)
        return listening

    def _remove(self) -> None:
        with short_path(self._spool) as path:
            Path(path).unlink(missing_ok=True)

    async def _answer(self, request: web.Request) -> web.Response:
        if (call := self._calls.get(request.match_info["method"])) is None:
            raise web.HTTPNotFound(text="no such call; after an upgrade restart the relay")
        try:
            answer = call.validate_json(await request.read())
        except ValueError:
            raise web.HTTPBadRequest(text="invalid arguments; after an upgrade restart the relay") from None
        # A client that goes away ends its answer; aiohttp knows that this is no fault.
        return web.Response(body=self._lines(answer), content_type="application/x-ndjson")

    async def _lines(self, answer: Any) -> AsyncGenerator[bytes, None]:
        try:
            async with contextlib.aclosing(values(answer)) as each:
                async for value in each:
                    # A slow reader holds up its listing here.
                    yield encode({"value": value}) + b"\n"
                    await asyncio.sleep(0)
            yield encode({"end": ""}) + b"\n"
        except NotDone as why:
            yield encode({"refused": str(why)}) + b"\n"
        except Exception as error:  # noqa: BLE001 - the answer without an end tells the client
            self._events.fault(where="control", error=error)
