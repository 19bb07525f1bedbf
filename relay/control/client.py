"""The command line's end of the control socket: `Operations` of a relay that runs.

http.client in a thread, a connection for each question: aiohttp takes 0.15 s to load, and so longer than
most answers.  A question that is cancelled breaks off its connection, so that its thread ends too.
"""

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from relay.control.operations import OK, Found, Results, Rows, Unreachable, Verb, Write
from relay.control.wire import (
    BREAKDOWN,
    GROUPS,
    PAUSE,
    POLICY,
    RESULTS,
    SNAPSHOT,
    SUMMARY_OF,
    VIEW,
    WANTED,
    PolicyInForce,
    SummaryWanted,
    from_wire,
    plans,
    short_path,
)
from relay.mail.envelope import QueueId
from relay.status.breakdown import Breakdown
from relay.status.filters import WHOLE_QUEUE, By, Filters, Group, Wanted
from relay.status.snapshot import MessageView, QueueState, Snapshot
from relay.verdicts.operator_pause import PauseAsked

if TYPE_CHECKING:
    from relay.status.estimate.plan import Plan

IDS_AT_ONCE = 1000
"""In one request."""
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 120.0
"""How long the command line waits for the next byte."""
_CHUNK_BYTES = 256 * 1024

Answer = TypeVar("Answer")
Question = TypeVar("Question")


class _Connection(http.client.HTTPConnection):
    """To the relay on a spool.  All but `break_off` wait, and raise OSError and HTTPException."""

    def __init__(self, spool: Path) -> None:
        super().__init__("relay")
        self._spool = spool
        self._socket = socket.socket(socket.AF_UNIX)

    def connect(self) -> None:
        self._socket.settimeout(CONNECT_SECONDS)
        with short_path(self._spool) as path:
            self._socket.connect(path)
        self._socket.settimeout(ANSWER_SECONDS)
        self.sock = self._socket

    def ask(self, method: str, path: str, content: bytes | None) -> http.client.HTTPResponse:
        self.request(method, path, content, {"Connection": "close"})
        return self.getresponse()

    def break_off(self) -> None:
        """Have whoever waits for the relay wait no more."""
        # Of a socket that is not connected, or not any more.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.close()


class _Reply:
    """What the relay answers.

    All that read it raise TimeoutError, and Unreachable where it ends too early.
    """

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status = response.status

    async def text(self) -> str:
        return (await self._read(self._response.read)).decode(errors="replace")

    async def content(self) -> bytes:
        """Raise Unreachable where it is no answer to the question."""
        await self._check()
        return await self._read(self._response.read)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield it as it comes.  Raises Unreachable as `content` does."""
        await self._check()
        while chunk := await self._read(lambda: self._response.read1(_CHUNK_BYTES)):
            yield chunk
        if self._response.length:
            # Of an answer that says its length, `read1` does not tell that it is cut.
            raise _cut_short()

    async def _check(self) -> None:
        if self.status != 200:
            raise Unreachable(f"the relay says: {self.status} {await self.text()}")

    @staticmethod
    async def _read(read: Callable[[], bytes]) -> bytes:
        try:
            return await asyncio.to_thread(read)
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise _cut_short() from error


def _cut_short() -> Unreachable:
    return Unreachable("the relay ended its answer in the middle: this is not all; see its log")


class ControlClient(Rows):
    """The command line's end: `Operations` of a relay that runs.  All methods raise Unreachable."""

    def __init__(self, spool: Path) -> None:
        self.spool = spool
        self._open: set[_Connection] = set()

    def is_up(self) -> bool:
        """Whether a relay listens.  Raises PermissionError where we may not ask."""
        try:
            with short_path(self.spool) as path, socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    async def close(self) -> None:
        """Break off what is being asked."""
        for connection in self._open:
            connection.break_off()

    async def snapshot(self) -> Snapshot:
        return await self._ask(SNAPSHOT.validate_json, "GET", "/snapshot")

    async def breakdown(self) -> Breakdown:
        return await self._ask(BREAKDOWN.validate_json, "GET", "/breakdown")

    async def policy(self) -> PolicyInForce:
        return await self._ask(POLICY.validate_json, "GET", "/policy")

    async def rows(self, wanted: Wanted = WHOLE_QUEUE) -> Found:
        if wanted.sort and wanted.limit is None:
            # The order of all of them is made here: the relay need not keep them for it.
            views = [view async for some in self.rows(replace(wanted, sort="")) for view in some]
            yield wanted.arranged(views)
            return
        # A relay of an older version has no `/listing`: it would not know what to leave out.
        asked: tuple[str, str, bytes | None] = ("GET", "/queue", None)
        if wanted != WHOLE_QUEUE:
            asked = ("POST", "/listing", _asking(WANTED, wanted))
        async with self._request(*asked) as response:
            begun = b""
            async for chunk in response.chunks():
                *lines, begun = (begun + chunk).split(b"\n")
                if lines:
                    yield [VIEW.validate_json(line) for line in lines]

    async def summary(self, filters: Filters, by: By, limit: int | None = None) -> list[Group]:
        asked = _asking(SUMMARY_OF, SummaryWanted(filters, by, limit))
        return await self._ask(GROUPS.validate_json, "POST", "/summary", asked)

    async def plan(self, text: bytes, path: Path) -> "Plan | str":
        asked = f"/plan?path={quote(str(path), safe='')}"
        async with self._request("POST", asked, text) as response:
            if response.status == 409:
                return await response.text()
            return plans().validate_json(await response.content())

    async def show(self, queue_id: QueueId) -> MessageView | str:
        async with self._request("GET", f"/queue/{queue_id}") as response:
            if response.status in (404, 409):
                return await response.text()
            return from_wire(await response.content())

    async def content(self, queue_id: QueueId, write: Write) -> str:
        async with self._request("GET", f"/queue/{queue_id}/content") as response:
            if response.status in (404, 409):
                return await response.text()
            async for chunk in response.chunks():
                await write(chunk)
        return OK

    async def act(
        self, verb: Verb, queue_ids: Sequence[QueueId], states: Collection[QueueState] = ()
    ) -> Results:
        among = "?" + "&".join(f"state={state.value}" for state in states) if states else ""
        results: dict[QueueId, str] = {}
        for start in range(0, len(queue_ids), IDS_AT_ONCE):
            asked = json.dumps(queue_ids[start : start + IDS_AT_ONCE]).encode("ascii")
            results |= await self._ask(RESULTS.validate_json, "POST", f"/queue/{verb}{among}", asked)
        return results

    async def pause(self, upstream: str, asked: PauseAsked) -> str:
        path = f"/upstreams/{quote(upstream, safe='')}/pause"
        return await self._ask(bytes.decode, "POST", path, PAUSE.dump_json(asked))

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        verb = "believe" if believes else "resume"
        return await self._ask(bytes.decode, "POST", f"/upstreams/{quote(upstream, safe='')}/{verb}")

    async def _ask(
        self, read: Callable[[bytes], Answer], method: str, path: str, content: bytes | None = None
    ) -> Answer:
        async with self._request(method, path, content) as response:
            return read(await response.content())

    @contextlib.asynccontextmanager
    async def _request(self, method: str, path: str, content: bytes | None = None) -> AsyncIterator[_Reply]:
        connection = _Connection(self.spool)
        self._open.add(connection)
        try:
            yield _Reply(await asyncio.to_thread(connection.ask, method, path, content))
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the relay did not answer: {str(error) or type(error).__name__}") from error
        except ValidationError as error:
            raise Unreachable(
                "the relay is of another version and its answer cannot be read; restart it"
            ) from error
        finally:
            self._open.discard(connection)
            connection.break_off()


def _asking(kind: TypeAdapter[Question], question: Question) -> bytes:
    """Leave out what asks for nothing: a relay of an older version refuses only a filter that is used."""
    return kind.dump_json(question, exclude_defaults=True)
