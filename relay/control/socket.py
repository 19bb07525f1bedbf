"""The socket in the spool folder over which a running relay is asked: `control.sock`, mode 0600.

HTTP over a unix socket: `GET /snapshot`, `GET /breakdown`, `GET /policy`, `GET /queue` (a line of JSON per
message), `GET /queue/ID`, `GET /queue/ID/content`, `POST /queue/VERB` with ids, `POST /listing` and `POST
/summary` with what is wanted, `POST /plan?path=PATH` with the text of a policy, `POST /upstreams/NAME/VERB`.
Values go over the wire as they are in `relay.status`, in nanoseconds; fields may be added with a default, so
that a command line and a relay of different versions understand each other; but a filter that a relay does
not know is an error.

A path to a unix socket has at most 107 bytes (unix(7)), a spool's may be longer: both
ends go through `/proc/self/fd/N/`, where N is the opened folder.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import quote

import aiohttp
from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from relay.control.operations import (
    ABSENT,
    OK,
    TABLE,
    Found,
    Operations,
    Results,
    Rows,
    Unreachable,
    Verb,
    Write,
)
from relay.mail.envelope import QUEUE_ID_PATTERN, QueueId
from relay.policy.document import MAX_BYTES
from relay.policy.faults import PolicyError
from relay.spool.disk.durable import RealDisk
from relay.spool.root.quarantine import set_aside
from relay.status.breakdown import Breakdown
from relay.status.filters import WHOLE_QUEUE, By, Filters, Group, Wanted
from relay.status.snapshot import READ_ONLY, MessageView, QueueState, Snapshot
from relay.status.visitors import Visitors
from relay.telemetry.events import Events
from relay.verdicts.operator_pause import PauseAsked

if TYPE_CHECKING:
    from relay.status.plan import Plan

SOCKET_NAME = "control.sock"
IDS_AT_ONCE = 1000
"""In one request."""
LONGEST_QUESTION_BYTES = 64 * 1024
LINES_AT_ONCE = 200
"""Messages of a listing between two turns of the loop: a long queue does not hold up mail."""
LONGEST_ANSWER_SECONDS = 600.0
"""Enough for a thousand messages on a slow disk; a stuck reader holds a listing in memory for so long."""
MOST_AT_ONCE = 16
"""Connections."""
ANSWER_SECONDS = 120.0
"""How long the command line waits for the next byte."""

_SNAPSHOT = TypeAdapter(Snapshot)
_BREAKDOWN = TypeAdapter(Breakdown)
_VIEW = TypeAdapter(MessageView)
_WIRE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
_ON_THE_WIRE = {"recipient_statuses": "recipients"}
"""A message that was read goes as {"message": what a listing has, …: its other fields}, by these names."""
_RESULTS: TypeAdapter[dict[QueueId, str]] = TypeAdapter(dict[QueueId, str])
_IDS = TypeAdapter(list[str])
_PAUSE = TypeAdapter(PauseAsked)
_STATES = TypeAdapter(list[QueueState])
_WANTED = TypeAdapter(Wanted)
_GROUPS = TypeAdapter(list[Group])

Answer = TypeVar("Answer")
Question = TypeVar("Question")


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    path: Path
    """Of the file that it is of, absolute; by now the file may hold something else."""
    text: str
    """As a policy file would say it, with absolute paths."""


@dataclass(frozen=True, slots=True)
class SummaryWanted:
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    filters: Filters
    by: By
    limit: int | None = None


@cache
def _plans() -> "TypeAdapter[Plan]":
    # Imported only here: with a plan comes the whole sender, and every other verb does without.
    from relay.status.plan import Plan  # noqa: PLC0415 - see above

    return TypeAdapter(Plan)


_POLICY = TypeAdapter(PolicyInForce)
_SUMMARY_OF = TypeAdapter(SummaryWanted)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.contextmanager
def _short_path(spool: Path) -> Iterator[str]:
    """Give a path of bounded length while the context lasts.  Raises OSError."""
    folder = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_NAME}"
    finally:
        os.close(folder)


def _bind(spool: Path) -> socket.socket:
    # We hold the spool's lock, so a socket of this name is that of a dead relay.
    _remove(spool)
    listening = socket.socket(socket.AF_UNIX)
    try:
        # Before bind, so that the name never exists with a wider mode (unix(7)).
        os.fchmod(listening.fileno(), 0o600)
        with _short_path(spool) as path:
            listening.bind(path)
    except OSError:
        listening.close()
        raise
    return listening


def _remove(spool: Path) -> None:
    """Move a file of that name that is no socket to corrupt/.  Raises OSError."""
    with _short_path(spool) as path, contextlib.suppress(FileNotFoundError):
        if Path(path).is_socket() and not Path(path).is_symlink():
            Path(path).unlink()
        else:
            set_aside(RealDisk(), str(spool), str(spool / SOCKET_NAME))


class ControlServer:
    """The relay's end.  Its process holds the spool's lock."""

    def __init__(
        self, spool: Path, operations: Operations, events: Events, policy: Callable[[], PolicyInForce]
    ) -> None:
        self._spool = spool
        self._policy = policy
        self._operations = operations
        self._events = events
        self._visitors = Visitors(
            events, "the control socket", answer_seconds=LONGEST_ANSWER_SECONDS, most=MOST_AT_ONCE
        )

    async def start(self) -> None:
        app = web.Application(middlewares=[self._guard], client_max_size=LONGEST_QUESTION_BYTES)
        app.add_routes(
            [
                web.get("/snapshot", self._snapshot),
                web.get("/breakdown", self._breakdown),
                web.get("/policy", self._policy_in_force),
                web.get("/queue", self._queue),
                web.get("/queue/{id}", self._show),
                web.get("/queue/{id}/content", self._content),
                web.post("/listing", self._listing),
                web.post("/summary", self._summary),
                web.post("/plan", self._plan),
                web.post("/queue/{verb}", self._act),
                web.post("/upstreams/{name}/{verb}", self._upstream),
            ]
        )
        await self._visitors.receive(app, lambda: _bind(self._spool))

    async def stop(self) -> None:
        if await self._visitors.close():
            _remove(self._spool)

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            with self._visitors.asking(request):
                return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 - told to the client and in the log
            self._events.fault(where="control", error=error)
            return web.Response(status=500, text="A fault of the relay; see its log.")

    async def _snapshot(self, _request: web.Request) -> web.Response:
        return _json(_SNAPSHOT.dump_json(await self._operations.snapshot()))

    async def _breakdown(self, _request: web.Request) -> web.Response:
        return _json(_BREAKDOWN.dump_json(await self._operations.breakdown()))

    async def _policy_in_force(self, _request: web.Request) -> web.Response:
        return _json(_POLICY.dump_json(self._policy()))

    async def _queue(self, request: web.Request) -> web.StreamResponse:
        return await self._stream(request, self._operations.rows())

    async def _listing(self, request: web.Request) -> web.StreamResponse:
        wanted = _asked(_WANTED, await request.read())
        return await self._stream(request, self._operations.rows(wanted))

    async def _summary(self, request: web.Request) -> web.Response:
        of_what = _asked(_SUMMARY_OF, await request.read())
        rows = await self._operations.summary(of_what.filters, of_what.by, of_what.limit)
        return _json(_GROUPS.dump_json(list(rows)))

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
        return _json(_plans().dump_json(planned))

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
                    self._visitors.renew(request)
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
            lines = [_VIEW.dump_json(message, exclude_defaults=True) + b"\n" for message in some]
            await response.write(b"".join(lines))
            await asyncio.sleep(0)

    async def _show(self, request: web.Request) -> web.Response:
        (queue_id,) = _checked([request.match_info["id"]])
        shown = await self._operations.show(queue_id)
        if isinstance(shown, str):
            return web.Response(status=404 if shown == ABSENT else 409, text=shown)
        return _json(_to_wire(shown))

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
            queue_ids = _checked(_IDS.validate_json(await request.read()))
            states = _STATES.validate_python(request.query.getall("state", []))
        except ValidationError:
            raise web.HTTPBadRequest(text="expected a list of queue ids, and states") from None
        return _json(_RESULTS.dump_json(dict(await self._operations.act(verb, queue_ids, states))))

    async def _upstream(self, request: web.Request) -> web.Response:
        verb, name = _verb(request, needs_upstream=True), request.match_info["name"]
        if verb == "pause":
            try:
                asked = _PAUSE.validate_json(await request.read())
            except ValidationError:
                raise web.HTTPBadRequest(text="expected how long, and by whom") from None
            return web.Response(text=await self._operations.pause(name, asked))
        return web.Response(text=await self._operations.resume(name, believes=verb == "believe"))


class ControlClient(Rows):
    """The command line's end: `Operations` of a relay that runs.  All methods raise Unreachable."""

    def __init__(self, spool: Path) -> None:
        self.spool = spool
        self._resources = contextlib.AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    def is_up(self) -> bool:
        """Whether a relay listens.  Raises PermissionError where we may not ask."""
        try:
            with _short_path(self.spool) as path, socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    async def close(self) -> None:
        await self._resources.aclose()

    async def snapshot(self) -> Snapshot:
        return await self._ask(_SNAPSHOT.validate_json, "GET", "/snapshot")

    async def breakdown(self) -> Breakdown:
        return await self._ask(_BREAKDOWN.validate_json, "GET", "/breakdown")

    async def policy(self) -> PolicyInForce:
        return await self._ask(_POLICY.validate_json, "GET", "/policy")

    async def rows(self, wanted: Wanted = WHOLE_QUEUE) -> Found:
        if wanted.sort and wanted.limit is None:
            # The order of all of them is made here: the relay need not keep them for it.
            views = [view async for some in self.rows(replace(wanted, sort="")) for view in some]
            yield wanted.arranged(views)
            return
        # A relay of an older version has no `/listing`: it would not know what to leave out.
        asked: tuple[str, str, bytes | None] = ("GET", "/queue", None)
        if wanted != WHOLE_QUEUE:
            asked = ("POST", "/listing", _asking(_WANTED, wanted))
        async with self._request(*asked) as response:
            if response.status != 200:
                raise Unreachable(f"the relay says: {response.status} {await response.text()}")
            begun = b""
            async for chunk in response.content.iter_any():
                *lines, begun = (begun + chunk).split(b"\n")
                if lines:
                    yield [_VIEW.validate_json(line) for line in lines]

    async def summary(self, filters: Filters, by: By, limit: int | None = None) -> list[Group]:
        asked = _asking(_SUMMARY_OF, SummaryWanted(filters, by, limit))
        return await self._ask(_GROUPS.validate_json, "POST", "/summary", asked)

    async def plan(self, text: bytes, path: Path) -> "Plan | str":
        asked = f"/plan?path={quote(str(path), safe='')}"
        async with self._request("POST", asked, text) as response:
            if response.status == 409:
                return await response.text()
            return _plans().validate_json(await _content(response))

    async def show(self, queue_id: QueueId) -> MessageView | str:
        async with self._request("GET", f"/queue/{queue_id}") as response:
            if response.status in (404, 409):
                return await response.text()
            return _from_wire(await _content(response))

    async def content(self, queue_id: QueueId, write: Write) -> str:
        async with self._request("GET", f"/queue/{queue_id}/content") as response:
            if response.status in (404, 409):
                return await response.text()
            if response.status != 200:
                raise Unreachable(f"the relay says: {response.status} {await response.text()}")
            async for chunk in response.content.iter_any():
                await write(chunk)
        return OK

    async def act(
        self, verb: Verb, queue_ids: Sequence[QueueId], states: Collection[QueueState] = ()
    ) -> Results:
        among = "?" + "&".join(f"state={state.value}" for state in states) if states else ""
        results: dict[QueueId, str] = {}
        for start in range(0, len(queue_ids), IDS_AT_ONCE):
            asked = json.dumps(queue_ids[start : start + IDS_AT_ONCE]).encode("ascii")
            results |= await self._ask(_RESULTS.validate_json, "POST", f"/queue/{verb}{among}", asked)
        return results

    async def pause(self, upstream: str, asked: PauseAsked) -> str:
        path = f"/upstreams/{quote(upstream, safe='')}/pause"
        return await self._ask(bytes.decode, "POST", path, _PAUSE.dump_json(asked))

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        verb = "believe" if believes else "resume"
        return await self._ask(bytes.decode, "POST", f"/upstreams/{quote(upstream, safe='')}/{verb}")

    async def _ask(
        self, read: Callable[[bytes], Answer], method: str, path: str, content: bytes | None = None
    ) -> Answer:
        async with self._request(method, path, content) as response:
            return read(await _content(response))

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, path: str, content: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            session = await self._connected()
            async with session.request(method, f"http://relay{path}", data=content) as response:
                yield response
        except aiohttp.ClientPayloadError as error:
            raise Unreachable(
                "the relay ended its answer in the middle: this is not all; see its log"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"the relay did not answer: {str(error) or type(error).__name__}") from error
        except ValidationError as error:
            raise Unreachable(
                "the relay is of another version and its answer cannot be read; restart it"
            ) from error

    async def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            path = self._resources.enter_context(_short_path(self.spool))
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=ANSWER_SECONDS)
            session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path), timeout=timeout)
            self._session = await self._resources.enter_async_context(session)
        return self._session


async def _content(response: aiohttp.ClientResponse) -> bytes:
    if response.status != 200:
        raise Unreachable(f"the relay says: {response.status} {await response.text()}")
    return await response.read()


def _to_wire(view: MessageView) -> bytes:
    listed = _VIEW.dump_python(view, mode="json")
    read = {_ON_THE_WIRE.get(field, field): listed.pop(field) for field in READ_ONLY}
    return _WIRE.dump_json({"message": listed, **read})


def _from_wire(content: bytes) -> MessageView:
    """Return a message that was read.  Raises ValidationError."""
    wire = _WIRE.validate_json(content)
    names = {field: _ON_THE_WIRE.get(field, field) for field in READ_ONLY}
    read = {field: wire[name] for field, name in names.items() if name in wire}
    return _VIEW.validate_python({**_WIRE.validate_python(wire.get("message")), **read})


def _verb(request: web.Request, *, needs_upstream: bool) -> Verb:
    for verb, row in TABLE.items():
        if verb == request.match_info["verb"] and row.needs_upstream is needs_upstream:
            return verb
    raise web.HTTPNotFound(text="no such verb")


def _asking(kind: TypeAdapter[Question], question: Question) -> bytes:
    """Leave out what asks for nothing: a relay of an older version refuses only a filter that is used."""
    return kind.dump_json(question, exclude_defaults=True)


def _asked(kind: TypeAdapter[Question], content: bytes) -> Question:
    """Return what was asked.  Raises HTTPBadRequest, also for a filter that this version does not know."""
    try:
        return kind.validate_json(content)
    except ValidationError:
        raise web.HTTPBadRequest(text="this relay does not know a filter that was asked for") from None


def _checked(queue_ids: Sequence[str]) -> list[QueueId]:
    """Check ids.  Raises HTTPBadRequest: an id becomes part of a path."""
    if not all(QUEUE_ID_PATTERN.match(queue_id) for queue_id in queue_ids):
        raise web.HTTPBadRequest(text="not a queue id")
    return [QueueId(queue_id) for queue_id in queue_ids]


def _json(dumped: bytes) -> web.Response:
    return web.Response(body=dumped, content_type="application/json")
