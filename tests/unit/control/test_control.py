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
from relay.control.connection import SOCKET_NAME
from relay.control.operations import ABSENT, BUSY, OK, VERBS, Unreachable, Verb
from relay.control.server import ControlServer
from relay.control.wire import PolicyInForce
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


async def test_any_number_of_ids_goes_in_requests_of_bounded_size(tmp_path: Path) -> None:
    operations = FakeOperations()
    queue_ids = many(2 * IDS_AT_ONCE + 1)

    async with serving(tmp_path, operations) as client:
        results = await client.act("delete", queue_ids)

    assert list(results) == queue_ids
    assert [len(asked) for _, asked in operations.asked] == [IDS_AT_ONCE, IDS_AT_ONCE, 1]


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
async def test_an_answer_that_is_shorter_than_it_says_is_told(
    tmp_path: Path, question: Callable[[ControlClient], Awaitable[object]]
) -> None:
    async def say_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if length := re.search(rb"content-length: ([0-9]+)", head, re.IGNORECASE):
            await reader.readexactly(int(length[1]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
        writer.close()

    async with await asyncio.start_unix_server(say_half, tmp_path / SOCKET_NAME):
        with pytest.raises(Unreachable, match="in the middle"):
            await question(ControlClient(tmp_path))


async def test_a_fault_of_the_relay_is_told_to_both_sides(tmp_path: Path) -> None:
    operations, log = FakeOperations(), io.StringIO()
    operations.raises = RuntimeError("odd")

    async with serving(tmp_path, operations, log) as client:
        with pytest.raises(Unreachable, match="500"):
            await client.snapshot()

    assert "fault in control: RuntimeError: odd" in log.getvalue()


async def test_a_listing_that_ends_too_early_is_not_the_whole(tmp_path: Path) -> None:
    operations, log = FakeOperations([a_message(queue_id) for queue_id in many(9)]), io.StringIO()
    operations.rows_before_fault = 5

    async with serving(tmp_path, operations, log) as client:
        with pytest.raises(Unreachable, match="in the middle"):
            await client.queue()

    assert "fault in control: RuntimeError: odd" in log.getvalue()


async def test_another_versions_answer_is_unreachable_not_a_crash(tmp_path: Path) -> None:
    operations = FakeOperations()
    operations.shown = replace(a_snapshot(), at_ns="noon")  # type: ignore[arg-type]  # what the test is about

    async with serving(tmp_path, operations) as client:
        with pytest.raises(Unreachable, match="another version"):
            await client.snapshot()


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/queue/..%2f..%2fetc", None, 400),
        ("GET", "/queue/0000", None, 400),
        ("POST", "/queue/hold", b'["../../etc/passwd"]', 400),
        ("POST", "/queue/hold", b'["0000000000000001\\n"]', 400),
        ("POST", "/queue/hold", b'{"ids": 7}', 400),
        ("POST", "/queue/hold", b"not json", 400),
        ("POST", "/queue/close", b'["0000000000000001"]', 404),
        ("POST", "/queue/snapshot", b"[]", 404),
        ("DELETE", "/queue/hold", None, 405),
        ("POST", "/queue/hold", b"[" + b" " * (1 << 17) + b"]", 413),
    ],
)
async def test_what_is_no_question_reaches_nothing(
    tmp_path: Path, method: str, path: str, content: bytes | None, status: int
) -> None:
    operations = FakeOperations([a_message()])

    async with (
        serving(tmp_path, operations),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / SOCKET_NAME))) as session,
        session.request(method, f"http://relay{path}", data=content) as response,
    ):
        assert response.status == status

    assert operations.asked == []


async def test_a_line_of_the_queue_has_what_a_reader_cannot_know(tmp_path: Path) -> None:
    connector = aiohttp.UnixConnector(str(tmp_path / SOCKET_NAME))
    async with (
        serving(tmp_path, FakeOperations([a_message()])),
        aiohttp.ClientSession(connector=connector) as session,
        session.post("http://relay/listing", json={}) as response,
    ):
        line = json.loads(await response.read())

    assert line == {
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


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("listing", {"filters": {"senders": ["@x.example"], "colour": "blue"}}),
        ("listing", {"colour": "blue"}),
        ("summary", {"filters": {"colour": "blue"}, "by": "sender"}),
        ("summary", {"filters": {}, "by": "colour"}),
        ("queue/delete?state=blue", [FIRST]),
    ],
)
async def test_a_filter_of_another_version_is_refused(tmp_path: Path, path: str, asked: object) -> None:
    """It would find messages that were not meant."""
    operations = FakeOperations([a_message()])
    connector = aiohttp.UnixConnector(str(tmp_path / SOCKET_NAME))
    async with (
        serving(tmp_path, operations),
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"http://relay/{path}", json=asked) as response,
    ):
        assert response.status == 400
    assert operations.asked == []


async def test_filters_and_states_arrive_as_they_were_asked(tmp_path: Path) -> None:
    operations = FakeOperations([a_message(FIRST), a_message(SECOND, state=QueueState.HELD)])
    held = Filters(states=(QueueState.HELD,), senders=("@example.org",), older_ns=1)
    async with serving(tmp_path, operations) as client:
        assert await client.queue(Wanted(held, "size", 3)) == [operations.messages[SECOND]]
        assert await client.summary(held, By.DOMAIN, 1) == await operations.summary(held, By.DOMAIN, 1)
        await client.act("release", [SECOND], held.states)
    assert operations.among == held.states
