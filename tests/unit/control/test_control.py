"""The client and the server of the control socket, over a real socket."""

import os
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from relay.control.client import SOCKET_NAME, ControlClient
from relay.control.operations import OK, Unreachable
from relay.status.filters import By, Filters
from relay.status.snapshot import QueueState
from relay.verdicts.account import PauseAsked
from tests.unit.cli.control import POLICY, answering, relay_up

SAID = b"HTTP/1.0 200 OK\r\n\r\n"


def test_values_arrive_as_they_were_sent(tmp_path: Path) -> None:
    edited = POLICY.replace("limits: []", "limits: [{messages: 3, per: 1h}]")
    with relay_up(tmp_path) as up:
        client, operator = up.client, up.relay.operator
        first, second = up.accept("ü@x.example", *["b@y.example"] * 5), up.accept(sender="ß@x.example")
        held = Filters(states=(QueueState.HELD,), senders=("@x.example",), older_ns=0)
        assert client.act("hold", [second], (QueueState.WAITING,)) == {second: OK}
        assert client.pause("isp", PauseAsked("anna", 10**9)) == OK
        known = up.do(operator.snapshot())
        # Other processes write to this disk meanwhile.
        assert replace(client.snapshot(), disk=known.disk) == known
        assert client.queue() == up.do(up.relay.listed())
        assert client.queue(limit=1) == client.queue()[:1]
        assert [each.queue_id for each in client.queue(held, "size", 3)] == [second]
        assert client.policy() == up.do(operator.policy())
        assert client.plan(edited, tmp_path) == up.do(operator.plan(edited, tmp_path))
        assert client.show(first) == up.do(operator.show(first))
        assert len(client.show(first).recipient_statuses) == 6
        assert b"".join(client.content(first)).endswith(b"\r\nhello\r\n.dotted\r\n")
        assert client.summary(held, By.DOMAIN, 1) == up.do(operator.summary(held, By.DOMAIN, 1))


def test_the_socket_has_mode_600_replaces_a_stale_one_and_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "spool" / SOCKET_NAME
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert not ControlClient(path.parent).is_up()

    old_mask = os.umask(0)
    try:
        with relay_up(tmp_path) as up:
            assert up.client.is_up()
            up.client.snapshot()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(old_mask)
    assert not path.exists()


NO_VALUE = SAID + b'{"end":""}\n'


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        *((question, answer) for question in (ControlClient.snapshot, ControlClient.queue) for answer in (
            b"", SAID + b"{", SAID + b'{"value":[]}\n{"end"',
            # Only a relay of another version sends these.
            b"\xff\r\n\r\n", SAID + b"[]\n", SAID + b"7\n", SAID + b'{"said":7}\n',
            SAID + b'{"value":{"at_ns":7}}\n', SAID + b"[" * 100_000 + b"\n")),
        (ControlClient.snapshot, NO_VALUE),
    ],
)  # fmt: skip
def test_an_incomplete_or_foreign_answer_raises_unreachable(
    tmp_path: Path, question: Callable[[ControlClient], object], answer: bytes
) -> None:
    with answering(tmp_path, answer), pytest.raises(Unreachable):
        question(ControlClient(tmp_path))


def test_a_fault_of_the_relay_is_reported_to_the_client_and_logged(tmp_path: Path) -> None:
    with relay_up(tmp_path) as up:
        up.relay.status_view.policy = None  # type: ignore[assignment]  # a fault of ours
        with pytest.raises(Unreachable, match="the relay broke off; see its log"):
            up.client.policy()
        up.relay.status_view.policy = up.relay.policy
        assert "fault in control: AttributeError" in up.relay.log.getvalue()


def test_a_client_that_hangs_up_early_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with relay_up(tmp_path) as up:
        for _ in range(500):
            up.relay.accept(*[f"{'long' * 15}@{'long.' * 30}example"] * 3)
        up.do(up.relay.sender.read())
        next(up.client.rows())  # as `relay queue | head` does
        up.client.snapshot()
        assert (up.relay.log.getvalue().count("fault"), caplog.text) == (0, "")


ACT = b'"verb": "hold", "queue_ids": ["0000000000000001"]'
NO_QUESTIONS = (
    (b"POST /call/show", b'{"queue_id": "../../etc/passwd"}', b"400"),
    (b"POST /call/show", b'{"queue_id": "../0000000000000001"}', b"400"),
    (b"POST /call/act", b'{"verb": "hold", "queue_ids": ["0000000000000001\\n"]}', b"400"),
    (b"POST /call/act", ACT.replace(b"hold", b"close").join((b"{", b"}")), b"400"),
    (b"POST /call/act", b"[" * 100_000, b"400"),
    (b"POST /call/act", ACT.join((b"{", b', "states": ["blue"]}')), b"400"),
    # A key of another version: the filter that it means might have spared some messages.
    (b"POST /call/act", ACT.join((b"{", b', "colour": []}')), b"400"),
    (b"POST /call/rows", b'{"filters": {"senders": ["@x.example"], "colour": "blue"}}', b"400"),
    (b"POST /call/close", b"{}", b"404"),
    (b"POST /call/__init__", b"{}", b"404"),
    (b"GET /call/snapshot", b"", b"405"),
    (b"POST /call/show", b"[" + b" " * (1 << 22), b"413"),
)


def test_a_malformed_request_is_refused_with_its_http_status(tmp_path: Path) -> None:
    with relay_up(tmp_path):
        for head, content, status in NO_QUESTIONS:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.connect(str(tmp_path / "spool" / SOCKET_NAME))
                asking.sendall(b"%s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (head, len(content), content))
                assert asking.makefile("rb").read().partition(b" ")[2].startswith(status), (
                    head,
                    content[:80],
                )
