"""The command line's end of the control socket: `Operations` of a relay that runs.

http.client in a thread, a connection for each question: aiohttp takes longer to load than most answers.
A question that is cancelled breaks off its connection, so that its thread ends too.
"""

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from relay.control.connection import Connection, short_path
from relay.control.operations import OK, Found, Results, Rows, Unreachable, Verb, Write
from relay.control.wire import PolicyInForce, SummaryWanted, decode, encode
from relay.mail.envelope import QueueId
from relay.status.filters import WHOLE_QUEUE, By, Filters, Group, Wanted
from relay.status.snapshot import MessageView, QueueState, Snapshot

if TYPE_CHECKING:
    from relay.status.plan import Plan
    from relay.verdicts.operator_pause import PauseAsked

IDS_AT_ONCE = 1000
"""In one request."""
_CHUNK_BYTES = 256 * 1024

Answer = TypeVar("Answer")


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
        self._open: set[Connection] = set()

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
        return await self._ask(partial(decode, Snapshot), "GET", "/snapshot")

    async def policy(self) -> PolicyInForce:
        return await self._ask(partial(decode, PolicyInForce), "GET", "/policy")

    async def rows(self, wanted: Wanted = WHOLE_QUEUE) -> Found:
        if wanted.sort and wanted.limit is None:
            # The order of all of them is made here: the relay need not keep them for it.
            views = [view async for some in self.rows(replace(wanted, sort="")) for view in some]
            yield wanted.arranged(views)
            return
        async with self._request("POST", "/listing", encode(wanted)) as response:
            begun = b""
            async for chunk in response.chunks():
                *lines, begun = (begun + chunk).split(b"\n")
                if lines:
                    yield [decode(MessageView, line) for line in lines]

    async def summary(self, filters: Filters, by: By, limit: int | None = None) -> list[Group]:
        asked = encode(SummaryWanted(filters, by, limit))
        return await self._ask(partial(decode, list[Group]), "POST", "/summary", asked)

    async def plan(self, text: bytes, path: Path) -> "Plan | str":
        asked = f"/plan?path={quote(str(path), safe='')}"
        async with self._request("POST", asked, text) as response:
            if response.status == 409:
                return await response.text()
            # With a plan comes the whole sender, and every other verb does without.
            from relay.status.plan import Plan  # noqa: PLC0415 - see above

            return decode(Plan, await response.content())

    async def show(self, queue_id: QueueId) -> MessageView | str:
        async with self._request("GET", f"/queue/{queue_id}") as response:
            if response.status in (404, 409):
                return await response.text()
            return decode(MessageView, await response.content())

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
            results |= await self._ask(
                partial(decode, dict[QueueId, str]), "POST", f"/queue/{verb}{among}", asked
            )
        return results

    async def pause(self, upstream: str, asked: "PauseAsked") -> str:
        path = f"/upstreams/{quote(upstream, safe='')}/pause"
        return await self._ask(bytes.decode, "POST", path, encode(asked))

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
        connection = Connection(self.spool)
        self._open.add(connection)
        try:
            yield _Reply(await asyncio.to_thread(connection.ask, method, path, content))
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the relay did not answer: {str(error) or type(error).__name__}") from error
        except ValueError as error:
            raise Unreachable(
                "the relay is of another version and its answer cannot be read; restart it"
            ) from error
        finally:
            self._open.discard(connection)
            connection.break_off()
