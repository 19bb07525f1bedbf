"""Nobody reads the log: mail and signals wait for nobody, and what is missing is counted."""

import os
import signal
import smtplib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.peers.practice import Practice
from tests.proofs.peers.processes import children_of
from tests.proofs.peers.scarce import Reader, ScarceRelay, reader
from tests.proofs.peers.waiting import free_port, wait_until

pytestmark = pytest.mark.slow

FROM_TO = ("mjd@front.test", ["r@list.test"])
CONTENT = "Subject: x\r\n\r\nx\r\n"
LIMIT = {"messages": 1000, "per": "1s"}
PATIENCE_S = 30
"""For a relay that hangs; nothing is decided by how long anything takes."""


@contextmanager
def with_a_pipe(tmp_path: Path, **policy: Any) -> Iterator[tuple[ScarceRelay, Reader, Practice]]:
    with Practice(tmp_path, LIMIT, seed=1) as host, reader() as pipe:
        relay = ScarceRelay(tmp_path, {"isp": host.upstream(connections=2)}, **policy)
        relay.log_fd = pipe.writing
        relay.start()
        try:
            yield relay, pipe, host
        finally:
            relay.kill()


def send(port: int, count: int = 1) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE_S) as session:
        for _ in range(count):
            session.sendmail(*FROM_TO, CONTENT)


def test_mail_goes_on_and_sigterm_is_heard_with_a_stuck_reader(tmp_path: Path) -> None:
    with with_a_pipe(tmp_path) as (relay, pipe, host):
        pipe.fill()
        send(relay.port, 30)
        wait_until(lambda: host.ledger.relayed == 30)
        relay.reload()
        send(relay.port)

        assert relay.stop(within_s=PATIENCE_S) == 0


def test_a_listener_process_greets_with_a_stuck_reader(tmp_path: Path) -> None:
    listen = {"clients": ["127.0.0.0/8"], "processes": 1}
    port = free_port()
    with with_a_pipe(tmp_path, listen=[{"address": f"127.0.0.1:{port}"} | listen]) as (relay, pipe, host):
        pipe.fill()
        send(port, 30)
        wait_until(lambda: host.ledger.relayed == 30)
        children = children_of(relay.pid)

        assert relay.stop(within_s=PATIENCE_S) == 0
        assert children
        wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def test_what_was_dropped_is_counted_and_told_in_its_place(tmp_path: Path) -> None:
    with with_a_pipe(tmp_path) as (relay, pipe, _):
        pipe.fill()
        while (lost := relay.metrics()["relay_log_lost_lines_total"]) == 0:
            send(relay.port, 500)
        os.kill(relay.pid, signal.SIGTERM)
        lines = pipe.read_to_the_end()

        assert relay.wait() == 0
        told = [line for line in lines if "log lines were dropped: " in line]
        assert sum(int(line.split("dropped: ")[1].split()[0]) for line in told) >= lost
        assert lines[-2].partition(": ")[2].startswith("stopped")
        assert all(line.startswith("20") for line in lines if line)


def test_fatal_words_keep_their_exit_code_with_a_stuck_reader(tmp_path: Path) -> None:
    with Practice(tmp_path, LIMIT, seed=1) as host, reader() as pipe:
        relay = ScarceRelay(tmp_path, {"isp": host.upstream(connections=2)})
        relay.policy["spool"] = "/proc/nowhere"
        relay.write_policy()
        relay.log_fd = pipe.writing
        pipe.fill()
        relay.spawn()

        assert relay.wait(within_s=PATIENCE_S) == os.EX_IOERR


def test_a_reader_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    with with_a_pipe(tmp_path) as (relay, pipe, host):
        pipe.close()
        send(relay.port, 3)
        wait_until(lambda: host.ledger.relayed == 3)

        assert relay.metrics()["relay_log_lost_lines_total"] > 0
        assert relay.stop(within_s=PATIENCE_S) == 0
