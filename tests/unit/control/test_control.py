"""Both ends of the control socket, over a real one."""

import asyncio
import io
import os
import socket
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from relay.control.client import ControlClient
from relay.control.operations import (
    Unreachable,
)
from relay.control.wire import SOCKET_NAME
from relay.mail.envelope import QueueId
from relay.status.filters import By, Filters, Wanted
from relay.status.snapshot import QueueState
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import FIRST, SECOND, a_message, a_plan, a_snapshot
from tests.unit.cli.control import relay_up


def many(count: int) -> list[QueueId]:
    return [QueueId(f"{number:016d}") for number in range(count)]


def test_values_arrive_as_they_were_sent(tmp_path: Path) -> None:
    operations = FakeOperations(
        [a_message(queue_id, reverse_path="büro@x.example") for queue_id in many(1_234)]
    )
    held = Filters(states=(QueueState.HELD,), senders=("@example.org",), older_ns=1)

    with relay_up(tmp_path, operations, "spool: ./spool\n") as client:
        assert client.snapshot() == a_snapshot()
        assert client.queue() == list(operations.messages.values())
        assert client.policy() == operations.in_force
        assert client.plan("a: ü", tmp_path) == a_plan()
        assert client.show(many(1)[0]) == asyncio.run(operations.show(many(1)[0]))
        operations.messages = {FIRST: a_message(FIRST), SECOND: a_message(SECOND, state=QueueState.HELD)}
        assert client.queue(Wanted(held, "size", 3)) == [operations.messages[SECOND]]
        assert client.summary(held, By.DOMAIN, 1) == asyncio.run(operations.summary(held, By.DOMAIN, 1))
        client.act("release", [SECOND], held.states)

    assert operations.planned == [("a: ü", tmp_path)]
    assert operations.among == held.states


def test_the_socket_is_for_its_owner_and_gone_after_the_stop(tmp_path: Path) -> None:
    old_mask = os.umask(0)
    try:
        with relay_up(tmp_path, FakeOperations()):
            status = (tmp_path / SOCKET_NAME).stat()
            assert stat.S_ISSOCK(status.st_mode)
            assert stat.S_IMODE(status.st_mode) == 0o600
    finally:
        os.umask(old_mask)

    assert list(tmp_path.iterdir()) == []


def test_the_socket_of_a_dead_relay_is_down_and_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / SOCKET_NAME))
    assert not ControlClient(tmp_path).is_up()

    with relay_up(tmp_path, FakeOperations()) as client:
        assert client.is_up()


@pytest.mark.parametrize("question", [ControlClient.snapshot, ControlClient.queue])
@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"HTTP/1.0 200 OK\r\n\r\n{", b'HTTP/1.0 200 OK\r\n\r\n{"value":[]}\n{"end"'),
        # No relay of this version says these.
        *(b"\xff\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n[]\n", b"HTTP/1.0 200 OK\r\n\r\n7\n"),
        *(b'HTTP/1.0 200 OK\r\n\r\n{"said":7}\n', b'HTTP/1.0 200 OK\r\n\r\n{"failed":7}\n'),
    ],
)
def test_an_answer_without_its_end_is_not_the_whole(
    tmp_path: Path, question: Callable[[ControlClient], object], answer: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / SOCKET_NAME))
        listening.listen()

        def say_half() -> None:
            asking, _ = listening.accept()
            with asking:
                asking.recv(65536)
                asking.sendall(answer)

        halving = threading.Thread(target=say_half)
        halving.start()
        with pytest.raises(Unreachable):
            question(ControlClient(tmp_path))
        halving.join()


def test_a_fault_of_the_relay_is_told_to_both_sides(tmp_path: Path) -> None:
    operations, log = FakeOperations([a_message(queue_id) for queue_id in many(9)]), io.StringIO()
    operations.rows_before_fault = 5

    with relay_up(tmp_path, operations, log=log) as client:
        with pytest.raises(Unreachable, match=r"this is not all; a fault of the relay"):
            client.queue()
        operations.raises = RuntimeError("odd")
        with pytest.raises(Unreachable, match=r"^a fault of the relay"):
            client.snapshot()

    assert log.getvalue().count("fault in control: RuntimeError: odd") == 2


def test_a_client_that_hangs_up_in_the_middle_is_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operations, log = FakeOperations([a_message(queue_id) for queue_id in many(5_000)]), io.StringIO()

    with relay_up(tmp_path, operations, log=log) as client:
        for some in client.rows():
            assert some
            break  # as `relay queue | head` does
        assert client.snapshot() == a_snapshot()

    assert (log.getvalue(), caplog.text) == ("", "")


def test_another_versions_answer_is_unreachable_not_a_crash(tmp_path: Path) -> None:
    operations = FakeOperations()
    operations.shown = replace(a_snapshot(), at_ns="noon")  # type: ignore[arg-type]  # what the test is about

    with relay_up(tmp_path, operations) as client, pytest.raises(Unreachable, match="another version"):
        client.snapshot()


def answer_to(spool: Path, head: bytes, content: bytes) -> bytes:
    """Return the status and what follows."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(spool / SOCKET_NAME))
        asking.sendall(b"%s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (head, len(content), content))
        return asking.makefile("rb").read().partition(b" ")[2]


@pytest.mark.parametrize(
    ("head", "content", "status"),
    [
        (b"POST /call/show", b'{"queue_id": "../../etc/passwd"}', b"400"),
        (b"POST /call/show", b'{"queue_id": "0000000000000001\\n"}', b"400"),
        (b"POST /call/act", b'{"verb": "hold", "queue_ids": {"ids": 7}}', b"400"),
        (b"POST /call/act", b'{"verb": "close", "queue_ids": ["0000000000000001"]}', b"400"),
        (b"POST /call/act", b"not json", b"400"),
        (b"POST /call/act", b"[" * 100_000, b"400"),
        (b"POST /call/act", b'{"verb": "hold", "queue_ids": [], "colour": []}', b"400"),
        (b"POST /call/close", b"{}", b"404"),
        (b"POST /call/__init__", b"{}", b"404"),
        (b"GET /call/snapshot", b"", b"405"),
        # A filter of another version: it would find messages that were not meant.
        (
            b"POST /call/rows",
            b'{"wanted": {"filters": {"senders": ["@x.example"], "colour": "blue"}}}',
            b"400",
        ),
        (b"POST /call/rows", b'{"wanted": {"colour": "blue"}}', b"400"),
        (b"POST /call/summary", b'{"filters": {}, "by": "colour"}', b"400"),
        (
            b"POST /call/act",
            b'{"verb": "delete", "queue_ids": ["0000000000000001"], "states": ["blue"]}',
            b"400",
        ),
    ],
)
def test_what_is_no_question_reaches_nothing(
    tmp_path: Path, head: bytes, content: bytes, status: bytes
) -> None:
    operations = FakeOperations([a_message()])

    with relay_up(tmp_path, operations):
        assert answer_to(tmp_path, head, content).startswith(status)

    assert operations.asked == []


def test_a_question_of_any_length_is_read_to_a_bound(tmp_path: Path) -> None:
    with relay_up(tmp_path, FakeOperations([a_message()])):
        assert answer_to(tmp_path, b"POST /call/show", b"[" + b" " * (1 << 22)).startswith(b"413")


def test_a_line_of_the_queue_has_what_a_reader_cannot_know(tmp_path: Path) -> None:
    with relay_up(tmp_path, FakeOperations([a_message()])):
        answer = answer_to(tmp_path, b"POST /call/rows", b"{}")

    assert answer.rpartition(b"\r\n")[2] == (
        b'{"value":[{"queue_id":"0000000000000001","state":"waiting","size_bytes":1500,'
        b'"arrival_at_ns":1759999910000000000,"reverse_path":"list@example.org","recipients_left":2,'
        b'"recipients":["ann@example.net","bob@example.com"],"reason":"limit 8 messages per 60s",'
        b'"eta_at_ns":1760000020000000000,"upstream":"isp","held_by":"limit 8 messages per 60s"}]}\n'
        b'{"end":""}\n'
    )
