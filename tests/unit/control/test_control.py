"""Both ends of the control socket, over a real one."""

import asyncio
import io
import json
import os
import re
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from relay.control.client import IDS_AT_ONCE, ControlClient
from relay.control.operations import ABSENT, BUSY, OK, UNANSWERED, VERBS, Unreachable, Verb
from relay.control.server import ControlServer
from relay.control.wire import SOCKET_NAME, PolicyInForce
from relay.mail.envelope import QueueId
from relay.status.filters import By, Filters, Wanted
from relay.status.snapshot import QueueState
from relay.telemetry.events import Events
from tests.fakes.clock import FakeClock
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import FIRST, REPORT, SECOND, a_message, a_snapshot

IN_FORCE = PolicyInForce(Path("/etc/relay/policy.yaml"), "spool: ./spool\n")


@asynccontextmanager
async def serving(
    spool: Path, operations: FakeOperations, log: io.StringIO | None = None
) -> AsyncIterator[ControlClient]:
    server = ControlServer(
        spool, operations, Events(log or io.StringIO(), "text", FakeClock()), lambda: IN_FORCE
    )
    await server.start()
    client = ControlClient(spool)
    try:
        yield client
    finally:
        await client.close()
        await server.stop()


def many(count: int) -> list[QueueId]:
    return [QueueId(f"{number:016d}") for number in range(count)]


async def test_a_snapshot_arrives_as_it_was_sent(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeOperations()) as client:
        assert await client.snapshot() == a_snapshot()


async def test_a_long_queue_arrives_whole_and_in_order(tmp_path: Path) -> None:
    messages = [a_message(queue_id) for queue_id in many(1_234)]

    async with serving(tmp_path, FakeOperations(messages)) as client:
        assert await client.queue() == messages


async def test_a_message_is_shown_or_it_is_said_why_not(tmp_path: Path) -> None:
    corrupt = a_message(SECOND, state=QueueState.CORRUPT)
    operations = FakeOperations([a_message(FIRST, reverse_path="büro@example.org"), corrupt])

    async with serving(tmp_path, operations) as client:
        assert await client.show(FIRST) == await operations.show(FIRST)
        assert await client.show(SECOND) == "its checksum is wrong"
        assert await client.show(REPORT) == ABSENT


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_reaches_its_method_and_each_id_has_its_result(tmp_path: Path, verb: Verb) -> None:
    state = {"release": QueueState.HELD, "retry": QueueState.DEFERRED}.get(verb, QueueState.WAITING)
    operations = FakeOperations([a_message(FIRST, state=state), a_message(SECOND, state=QueueState.ACTIVE)])

    async with serving(tmp_path, operations) as client:
        results = await client.act(verb, [FIRST, SECOND, REPORT])

    assert results == {FIRST: OK, SECOND: BUSY, REPORT: ABSENT}
    assert operations.asked == [(verb, (FIRST, SECOND, REPORT))]


async def test_a_relay_that_goes_midway_leaves_the_results_of_what_it_did(tmp_path: Path) -> None:
    operations = FakeOperations()
    queue_ids = many(3 * IDS_AT_ONCE)

    async with serving(tmp_path, operations) as client:
        assert list(await client.act("delete", queue_ids)) == queue_ids
        assert [len(asked) for _, asked in operations.asked] == [IDS_AT_ONCE] * 3
        operations.acts_before_fault = 4
        results = await client.act("delete", queue_ids)

    assert list(results) == queue_ids
    assert {results[queue_id] for queue_id in queue_ids[:IDS_AT_ONCE]} == {ABSENT}
    assert {results[queue_id] for queue_id in queue_ids[IDS_AT_ONCE:]} == {UNANSWERED}


async def test_the_socket_is_for_its_owner_and_gone_after_the_stop(tmp_path: Path) -> None:
    old_mask = os.umask(0)
    try:
        async with serving(tmp_path, FakeOperations()):
            status = (tmp_path / SOCKET_NAME).stat()
            assert stat.S_ISSOCK(status.st_mode)
            assert stat.S_IMODE(status.st_mode) == 0o600
    finally:
        os.umask(old_mask)

    assert os.listdir(tmp_path) == []  # noqa: PTH208 - pathlib would be refused in a coroutine


async def test_the_socket_of_a_dead_relay_is_down_and_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / SOCKET_NAME))
    assert not ControlClient(tmp_path).is_up()

    async with serving(tmp_path, FakeOperations()) as client:
        assert client.is_up()


@pytest.mark.parametrize("question", [ControlClient.snapshot, ControlClient.queue])
@pytest.mark.parametrize("answer", [b"Content-Length: 99\r\n\r\n{", b'\r\n{"part":[]}\n'])
async def test_an_answer_without_its_end_is_not_the_whole(
    tmp_path: Path, question: Callable[[ControlClient], Awaitable[object]], answer: bytes
) -> None:
    async def say_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if length := re.search(rb"content-length: ([0-9]+)", head, re.IGNORECASE):
            await reader.readexactly(int(length[1]))
        writer.write(b"HTTP/1.1 200 OK\r\n" + answer)
        writer.close()

    async with await asyncio.start_unix_server(say_half, tmp_path / SOCKET_NAME):
        with pytest.raises(Unreachable, match=r"in the middle|did not answer"):
            await question(ControlClient(tmp_path))


async def test_a_fault_of_the_relay_is_told_to_both_sides(tmp_path: Path) -> None:
    operations, log = FakeOperations([a_message(queue_id) for queue_id in many(9)]), io.StringIO()
    operations.rows_before_fault = 5

    async with serving(tmp_path, operations, log) as client:
        with pytest.raises(Unreachable, match="a fault of the relay"):
            await client.queue()
        operations.raises = RuntimeError("odd")
        with pytest.raises(Unreachable, match="a fault of the relay"):
            await client.snapshot()

    assert log.getvalue().count("fault in control: RuntimeError: odd") == 2


async def test_content_arrives_as_it_is_and_says_how_it_ended(tmp_path: Path) -> None:
    operations = FakeOperations([a_message(FIRST)])
    operations.chunks, operations.content_ends = [b"Subject: \xff\0\r\n", b"\n"], "it cannot be read whole"
    came: list[bytes] = []

    async def write(chunk: bytes) -> None:
        came.append(chunk)

    async with serving(tmp_path, operations) as client:
        assert await client.content(FIRST, write) == "it cannot be read whole"
        assert await client.content(SECOND, write) == ABSENT

    assert came == operations.chunks


async def test_another_versions_answer_is_unreachable_not_a_crash(tmp_path: Path) -> None:
    operations = FakeOperations()
    operations.shown = replace(a_snapshot(), at_ns="noon")  # type: ignore[arg-type]  # what the test is about

    async with serving(tmp_path, operations) as client:
        with pytest.raises(Unreachable, match="another version"):
            await client.snapshot()


async def answer_to(spool: Path, method: str, path: str, content: bytes) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(spool / SOCKET_NAME))) as session,
        session.request(method, f"http://relay{path}", data=io.BytesIO(content)) as response,
    ):
        return response.status, await response.read()


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/call/show", b'["../../etc/passwd"]', 400),
        ("POST", "/call/show", b'["0000000000000001\\n"]', 400),
        ("POST", "/call/act", b'["hold", {"ids": 7}]', 400),
        ("POST", "/call/act", b'["close", ["0000000000000001"]]', 400),
        ("POST", "/call/act", b"not json", 400),
        ("POST", "/call/act", b'["hold", [], [], []]', 400),
        ("POST", "/call/close", b"[]", 404),
        ("POST", "/call/__init__", b"[]", 404),
        ("GET", "/call/snapshot", b"", 405),
        ("POST", "/call/act", b"[" + b" " * (1 << 22) + b"]", 413),
        # A filter of another version: it would find messages that were not meant.
        ("POST", "/call/rows", b'[{"filters": {"senders": ["@x.example"], "colour": "blue"}}]', 400),
        ("POST", "/call/rows", b'[{"colour": "blue"}]', 400),
        ("POST", "/call/summary", b'[{"colour": "blue"}, "sender"]', 400),
        ("POST", "/call/summary", b'[{}, "colour"]', 400),
        ("POST", "/call/act", b'["delete", ["0000000000000001"], ["blue"]]', 400),
    ],
)
async def test_what_is_no_question_reaches_nothing(
    tmp_path: Path, method: str, path: str, content: bytes, status: int
) -> None:
    operations = FakeOperations([a_message()])

    async with serving(tmp_path, operations):
        assert (await answer_to(tmp_path, method, path, content))[0] == status

    assert operations.asked == []


async def test_a_line_of_the_queue_has_what_a_reader_cannot_know(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeOperations([a_message()])):
        _, answer = await answer_to(tmp_path, "POST", "/call/rows", b"[{}]")

    part, result = map(json.loads, answer.splitlines())
    assert result == {"result": None}
    assert part == {
        "part": [
            {
                "queue_id": "0000000000000001",
                "state": "waiting",
                "size_bytes": 1500,
                "arrival_at_ns": 1759999910000000000,
                "reverse_path": "list@example.org",
                "recipients_left": 2,
                "recipients": ["ann@example.net", "bob@example.com"],
                "reason": "no room in 8 messages per 60s",
                "eta_at_ns": 1760000020000000000,
                "upstream": "isp",
                "held_by": "limit 8 messages per 60s",
            }
        ]
    }


async def test_filters_and_states_arrive_as_they_were_asked(tmp_path: Path) -> None:
    operations = FakeOperations([a_message(FIRST), a_message(SECOND, state=QueueState.HELD)])
    held = Filters(states=(QueueState.HELD,), senders=("@example.org",), older_ns=1)
    async with serving(tmp_path, operations) as client:
        assert await client.queue(Wanted(held, "size", 3)) == [operations.messages[SECOND]]
        assert await client.summary(held, By.DOMAIN, 1) == await operations.summary(held, By.DOMAIN, 1)
        await client.act("release", [SECOND], held.states)
    assert operations.among == held.states
