"""The relay's end of the control socket: HTTP over `control.sock`, as `relay.control.wire` tells it."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from relay.control.connection import short_path
from relay.control.operations import ABSENT, OK, TABLE, Found, Operations, Verb
from relay.control.wire import PolicyInForce, SummaryWanted, decode, encode
from relay.mail.envelope import QUEUE_ID_PATTERN, QueueId
from relay.policy.document import MAX_BYTES
from relay.policy.faults import PolicyError
from relay.status.connection_limit import ConnectionLimit
from relay.status.filters import Wanted
from relay.status.snapshot import MessageView, QueueState
from relay.telemetry.events import Events
from relay.verdicts.operator_pause import PauseAsked

LONGEST_QUESTION_BYTES = 64 * 1024
LINES_AT_ONCE = 200
"""Messages of a listing between two turns of the loop: a long queue does not hold up mail."""
LONGEST_ANSWER_SECONDS = 600.0
"""Enough for a thousand messages on a slow disk; a stuck reader holds a listing in memory for so long."""
MOST_AT_ONCE = 16
"""Connections."""

Question = TypeVar("Question")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
        self, spool: Path, operations: Operations, events: Events, policy: Callable[[], PolicyInForce]
    ) -> None:
        self._spool = spool
        self._policy = policy
        self._operations = operations
        self._events = events
        self._connections = ConnectionLimit(
            events, "the control socket", most=MOST_AT_ONCE, seconds=LONGEST_ANSWER_SECONDS
        )

    async def start(self) -> None:
        app = web.Application(middlewares=[self._guard], client_max_size=LONGEST_QUESTION_BYTES)
        app.add_routes(
            [
                web.get("/snapshot", self._snapshot),
                web.get("/policy", self._policy_in_force),
                web.get("/queue/{id}", self._show),
                web.get("/queue/{id}/content", self._content),
                web.post("/listing", self._listing),
                web.post("/summary", self._summary),
                web.post("/plan", self._plan),
                web.post("/queue/{verb}", self._act),
                web.post("/upstreams/{name}/{verb}", self._upstream),
            ]
        )
        await self._connections.receive(app, lambda: _bind(self._spool))

    async def stop(self) -> None:
        if await self._connections.close():
            _remove(self._spool)

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 - told to the client and in the log
            self._events.fault(where="control", error=error)
            return web.Response(status=500, text="A fault of the relay; see its log.")

    async def _snapshot(self, _request: web.Request) -> web.Response:
        return _json(await self._operations.snapshot())

    async def _policy_in_force(self, _request: web.Request) -> web.Response:
        return _json(self._policy())

    async def _listing(self, request: web.Request) -> web.StreamResponse:
        wanted = _asked(Wanted, await request.read())
        return await self._stream(request, self._operations.rows(wanted))

    async def _summary(self, request: web.Request) -> web.Response:
        of_what = _asked(SummaryWanted, await request.read())
        rows = await self._operations.summary(of_what.filters, of_what.by, of_what.limit)
        return _json(rows)

    async def _plan(self, request: web.Request) -> web.Response:
        path = Path(request.query.get("path", ""))
        text = await request.clone(client_max_size=MAX_BYTES + 1).read()
        try:
            planned = await self._operations.plan(text, path)
        except PolicyError as error:
            # The command line read it before, so this relay is of another version.
            raise web.HTTPBadRequest(text=f"this relay cannot read that policy: {error}") from None
        if isinstance(planned, str):
            return web.Response(status=409, text=planned)
        return _json(planned)

    async def _stream(self, request: web.Request, rows: Found) -> web.StreamResponse:
        """Write a line a message as it is found; a reader that is slow stops the listing meanwhile."""
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        async with contextlib.aclosing(rows):
            # A fault before the first row has an answer of its own.
            some = await anext(rows, None)
            await response.prepare(request)
            try:
                while some is not None:
                    await self._write_lines(response, some)
                    some = await anext(rows, None)
            except ConnectionError:
                raise
            except Exception as error:
                # The client must not take the beginning for the whole: the connection ends before the answer.
                self._events.fault(where="control", error=error)
                raise ConnectionResetError(str(error)) from error
        await response.write_eof()
        return response

    @staticmethod
    async def _write_lines(response: web.StreamResponse, messages: Sequence[MessageView]) -> None:
        for start in range(0, len(messages), LINES_AT_ONCE):
            some = messages[start : start + LINES_AT_ONCE]
            lines = [encode(message) + b"\n" for message in some]
            await response.write(b"".join(lines))
            await asyncio.sleep(0)

    async def _show(self, request: web.Request) -> web.Response:
        (queue_id,) = _checked([request.match_info["id"]])
        shown = await self._operations.show(queue_id)
        if isinstance(shown, str):
            return web.Response(status=404 if shown == ABSENT else 409, text=shown)
        return _json(shown)

    async def _content(self, request: web.Request) -> web.StreamResponse:
        (queue_id,) = _checked([request.match_info["id"]])
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})

        async def write(chunk: bytes) -> None:
            if not response.prepared:
                await response.prepare(request)
            await response.write(chunk)

        result = await self._operations.content(queue_id, write)
        if result != OK and response.prepared:
            # The client must not take the beginning for the whole: the connection ends before the answer.
            raise ConnectionResetError(result)
        if result != OK:
            return web.Response(status=404 if result == ABSENT else 409, text=result)
        await write(b"")
        await response.write_eof()
        return response

    async def _act(self, request: web.Request) -> web.Response:
        verb = _verb(request, needs_upstream=False)
        try:
            queue_ids = _checked(decode(list[str], await request.read()))
            states = [QueueState(state) for state in request.query.getall("state", [])]
        except ValueError:
            raise web.HTTPBadRequest(text="expected a list of queue ids, and states") from None
        return _json(await self._operations.act(verb, queue_ids, states))

    async def _upstream(self, request: web.Request) -> web.Response:
        verb, name = _verb(request, needs_upstream=True), request.match_info["name"]
        if verb == "pause":
            try:
                asked = decode(PauseAsked, await request.read())
            except ValueError:
                raise web.HTTPBadRequest(text="expected how long, and by whom") from None
            return web.Response(text=await self._operations.pause(name, asked))
        return web.Response(text=await self._operations.resume(name, believes=verb == "believe"))


def _verb(request: web.Request, *, needs_upstream: bool) -> Verb:
    for verb, row in TABLE.items():
        if verb == request.match_info["verb"] and row.needs_upstream is needs_upstream:
            return verb
    raise web.HTTPNotFound(text="no such verb")


def _asked(kind: type[Question], content: bytes) -> Question:
    """Return what was asked.  Raises HTTPBadRequest, also for a filter that this version does not know."""
    try:
        return decode(kind, content, is_exact=True)
    except ValueError:
        raise web.HTTPBadRequest(text="this relay does not know a filter that was asked for") from None


def _checked(queue_ids: Sequence[str]) -> list[QueueId]:
    """Check ids.  Raises HTTPBadRequest: an id becomes part of a path."""
    if not all(QUEUE_ID_PATTERN.match(queue_id) for queue_id in queue_ids):
        raise web.HTTPBadRequest(text="not a queue id")
    return [QueueId(queue_id) for queue_id in queue_ids]


def _json(value: object) -> web.Response:
    return web.Response(body=encode(value), content_type="application/json")
