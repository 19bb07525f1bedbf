"""The command line's end of the control socket: the `Session` of a relay that runs.

http.client in a thread, a connection for each question: aiohttp takes longer to load than most answers.
A question that is cancelled breaks off its connection, so that its thread ends too.
"""

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay.control.operations import UNANSWERED, Found, Results, Session, Unreachable, Verb, Write
from relay.control.wire import PolicyInForce, decode, encode, short_path
from relay.mail.envelope import QueueId
from relay.status.filters import WHOLE_QUEUE, By, Filters, GroupRow, Wanted
from relay.status.snapshot import MessageView, QueueState, Snapshot

if TYPE_CHECKING:
    from relay.status.plan import Plan
    from relay.verdicts.operator_pause import PauseAsked

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 120.0
"""How long the command line waits for the next byte."""
IDS_AT_ONCE = 256
"""In one request: what becomes of them is known only at its end."""
_CHUNK_BYTES = 256 * 1024
_NOT_ALL = "the relay ended its answer in the middle: this is not all; "


class _Connection(http.client.HTTPConnection):
    """To the relay on a spool.  All but `break_off` wait, and raise OSError and HTTPException."""

    def __init__(self, spool: Path) -> None:
        super().__init__("relay")
        self._spool, self._socket = spool, socket.socket(socket.AF_UNIX)

    def connect(self) -> None:
        self._socket.settimeout(CONNECT_SECONDS)
        with short_path(self._spool) as path:
            self._socket.connect(path)
        self._socket.settimeout(ANSWER_SECONDS)
        self.sock = self._socket

    def ask(self, path: str, content: bytes) -> http.client.HTTPResponse:
        self.request("POST", path, content, {"Connection": "close"})
        return self.getresponse()

    def break_off(self) -> None:
        """Have whoever waits for the relay wait no more."""
        # Of a socket that is not connected, or not any more.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.close()


class ControlClient(Session):
    """All methods raise Unreachable."""

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

    async def policy(self) -> PolicyInForce:
        in_force: PolicyInForce = await self._call(PolicyInForce, "policy")
        return in_force

    async def snapshot(self) -> Snapshot:
        snapshot: Snapshot = await self._call(Snapshot, "snapshot")
        return snapshot

    async def rows(self, wanted: Wanted = WHOLE_QUEUE) -> Found:
        if wanted.sort and wanted.limit is None:
            # The order of all of them is made here: the relay need not keep them for it.
            views = [view async for some in self.rows(replace(wanted, sort="")) for view in some]
            yield wanted.arranged(views)
            return
        async with contextlib.aclosing(self._lines("rows", wanted)) as lines:
            async for line in lines:
                if "part" in line:
                    yield _decoded(list[MessageView], line["part"])

    async def summary(self, filters: Filters, by: By, limit: int | None = None) -> list[GroupRow]:
        groups: list[GroupRow] = await self._call(list[GroupRow], "summary", filters, by, limit)
        return groups

    async def plan(self, text: bytes, path: Path) -> "Plan | str":
        # With a plan comes the whole sender, and every other verb does without.
        from relay.status.plan import Plan  # noqa: PLC0415 - see above

        planned: Plan | str = await self._call(Plan | str, "plan", text, path)
        return planned

    async def show(self, queue_id: QueueId) -> MessageView | str:
        shown: MessageView | str = await self._call(MessageView | str, "show", queue_id)
        return shown

    async def content(self, queue_id: QueueId, write: Write) -> str:
        async with contextlib.aclosing(self._lines("content", queue_id)) as lines:
            async for line in lines:
                if "part" in line:
                    await write(_decoded(bytes, line["part"]))
        result: str = _decoded(str, line["result"])
        return result

    async def act(
        self, verb: Verb, queue_ids: Sequence[QueueId], states: Collection[QueueState] = ()
    ) -> Results:
        """Where the relay is gone midway, return what it did, and UNANSWERED for the others."""
        results: dict[QueueId, str] = {}
        for start in range(0, len(queue_ids), IDS_AT_ONCE):
            some = queue_ids[start : start + IDS_AT_ONCE]
            try:
                results |= await self._call(dict[QueueId, str], "act", verb, some, tuple(states))
            except Unreachable:
                if not results:
                    raise
                return results | dict.fromkeys(queue_ids[start:], UNANSWERED)
        return results

    async def pause(self, upstream: str, asked: "PauseAsked") -> str:
        result: str = await self._call(str, "pause", upstream, asked)
        return result

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        result: str = await self._call(str, "resume", upstream, believes)
        return result

    async def _call(self, kind: Any, method: str, *arguments: object) -> Any:
        async with contextlib.aclosing(self._lines(method, *arguments)) as lines:
            async for line in lines:
                if "result" in line:
                    return _decoded(kind, line["result"])
        raise AssertionError("an answer without a result")

    async def _lines(self, method: str, *arguments: object) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the lines of an answer, the last one with its result."""
        connection = _Connection(self.spool)
        self._open.add(connection)
        begun, line = b"", dict[str, Any]()
        try:
            with await asyncio.to_thread(connection.ask, f"/call/{method}", encode(arguments)) as response:
                if response.status != 200:
                    text = (await asyncio.to_thread(response.read)).decode(errors="replace")
                    raise Unreachable(f"the relay says: {response.status} {text}")
                while chunk := await asyncio.to_thread(response.read1, _CHUNK_BYTES):
                    *lines, begun = (begun + chunk).split(b"\n")
                    for each in lines:
                        is_begun, line = bool(line), json.loads(each)
                        if "failed" in line:
                            raise Unreachable((_NOT_ALL if is_begun else "") + line["failed"])
                        yield line
        except http.client.IncompleteRead as error:
            raise Unreachable(f"{_NOT_ALL}see its log") from error
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the relay did not answer: {str(error) or type(error).__name__}") from error
        finally:
            self._open.discard(connection)
            connection.break_off()
        if "result" not in line:
            raise Unreachable(f"{_NOT_ALL}see its log")


def _decoded(kind: Any, value: object) -> Any:
    try:
        return decode(kind, value)
    except ValueError as error:
        raise Unreachable(
            "the relay is of another version and its answer cannot be read; restart it"
        ) from error
