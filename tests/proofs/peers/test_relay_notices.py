"""A real relay with two hooks, a program and a URL on loopback: what they are told, also over a kill."""

import json
import smtplib
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.peers import smtp_tools
from tests.proofs.peers.demand import demand
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.smtp_tools import smtp_sink
from tests.proofs.peers.waiting import free_port, wait_until

pytestmark = pytest.mark.slow


class Receiver(ThreadingHTTPServer):
    """Keeps each notice that is posted to it."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Taking)
        self.told: list[dict[str, Any]] = []


class _Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Receiver)
        self.server.told.append(json.loads(content))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def receiving(port: int) -> Iterator[Receiver]:
    with Receiver(port) as receiver:
        serving = threading.Thread(target=receiver.serve_forever)
        serving.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            serving.join()


def program_in(folder: Path) -> Path:
    """Return a program that adds each notice to the file `told`, a line each."""
    program = folder / "tell"
    program.write_text(f"#!/bin/sh\n(cat; echo) >>{folder}/told\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def told_by_program(folder: Path) -> list[dict[str, Any]]:
    path = folder / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def hand_over(relay: RelayProcess, recipient: str) -> None:
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
        session.sendmail("list@front.test", [recipient], "Subject: x\r\n\r\nx\r\n")


def ordered(told: list[dict[str, Any]]) -> list[str]:
    return [each["event"] for each in sorted(told, key=lambda each: str(each["at"]))]


def test_what_a_relay_does_is_told_once_and_survives_a_kill(tmp_path: Path) -> None:
    demand(smtp_tools.why_missing())
    port = free_port()
    with smtp_sink() as sink:
        relay = RelayProcess(
            tmp_path,
            {"isp": {"host": "127.0.0.1", "port": sink.port, "tls": "none"}},
            notify=[
                {"command": [str(program_in(tmp_path))]},
                {"url": f"http://127.0.0.1:{port}/T0PSECRET"},
            ],
        )
        with relay:
            with receiving(port) as receiver:
                assert relay.command("pause", "isp").returncode == 0
                hand_over(relay, "gone@list.test")
                (queue_id,) = [
                    json.loads(line)["queue_id"]
                    for line in relay.command("queue", "--json").stdout.splitlines()
                ]
                assert relay.command("queue", "bounce", queue_id).returncode == 0
                assert relay.command("resume", "isp").returncode == 0
                wait_until(lambda: len(receiver.told) == 3)
                wait_until(lambda: len(told_by_program(tmp_path)) == 3)

            for told in (receiver.told, told_by_program(tmp_path)):
                assert ordered(told) == ["paused", "bounced", "resumed"]
                paused, bounced, _ = sorted(told, key=lambda each: str(each["at"]))
                assert paused["reason"].startswith("relay pause, by ")
                assert (bounced["queue_id"], bounced["sender"]) == (queue_id, "list@front.test")
                assert [each["recipient"] for each in bounced["recipients"]] == ["gone@list.test"]

            # Nobody listens at the URL any more: what is told now has to outlive the relay.
            assert relay.command("pause", "isp").returncode == 0
            relay.wait_for_log(lambda line: f"notices to http://127.0.0.1:{port} fail" in line)
            wait_until(lambda: len(told_by_program(tmp_path)) == 4)
            relay.kill()
            with receiving(port) as later:
                relay.start()
                # The pause goes on, which is told again; with the notice of before the kill.
                wait_until(lambda: len({each["id"] for each in later.told}) == 2)
                wait_until(lambda: len(told_by_program(tmp_path)) >= 5)
                wait_until(lambda: relay.metrics()["relay_notices_waiting"] == 0)

            assert [each["event"] for each in later.told] == ["paused", "paused"]
            assert told_by_program(tmp_path)[3]["id"] in {each["id"] for each in later.told}
            assert not any("T0PSECRET" in line for line in relay.log())
