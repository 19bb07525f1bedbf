"""A relay that is stopped (SIGSTOP) and continued while an upstream answers: what the socket holds counts."""

import contextlib
import smtplib
import socket
import time
from pathlib import Path

import pytest

from tests.system.processes import halted
from tests.system.waiting import wait_until
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

ROUNDS = 4
LONGEST_S = 3.0


def test_a_250_that_came_while_the_relay_was_stopped_is_read_before_its_deadline_counts(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        upstream = {"host": "127.0.0.1", "port": server.getsockname()[1], "tls": "none", "connections": 1}
        upstream["max_transaction"] = f"{LONGEST_S:g}s"
        server.settimeout(1.0)
        with WarmRelay(tmp_path, {"isp": upstream}) as relay:
            with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
                for number in range(ROUNDS):
                    session.sendmail("mjd@front.test", [f"r{number}@list.test"], "Subject: x\r\n\r\nx\r\n")
            taken: list[bytes] = []
            while len(taken) <= ROUNDS and not relay.is_empty():
                with contextlib.suppress(ConnectionError, TimeoutError):
                    _serve(server, taken, relay.pid)

    assert len(taken) == ROUNDS


def _serve(server: socket.socket, taken: list[bytes], pid: int) -> None:
    connected, _ = server.accept()
    connected.settimeout(10 * LONGEST_S)
    with connected, connected.makefile("rb") as lines:
        connected.sendall(b"220 stopping.example\r\n")
        recipient = b""
        while line := lines.readline():
            if line.startswith(b"RCPT"):
                recipient = line
            if line.startswith(b"DATA"):
                connected.sendall(b"354 go\r\n")
                while (line := lines.readline()) not in {b".\r\n", b""}:
                    pass
                if not line:
                    return
                taken.append(recipient)
                with halted(pid):
                    connected.sendall(b"250 2.0.0 taken\r\n")
                    _wait(LONGEST_S)
                if len(set(taken)) == ROUNDS:
                    return
            else:
                connected.sendall(b"250 2.0.0 ok\r\n")


def _wait(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until)
