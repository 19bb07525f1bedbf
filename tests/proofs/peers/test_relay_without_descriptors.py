"""Few descriptors and many who take them: mail goes on, nothing ends, and the status port goes first."""

import contextlib
import os
import resource
import smtplib
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.peers.practice import Practice
from tests.proofs.peers.processes import children_of
from tests.proofs.peers.scarce import ScarceRelay, silent_clients
from tests.proofs.peers.waiting import free_port, wait_until

pytestmark = pytest.mark.slow

FROM_TO = ("mjd@front.test", ["r@list.test"])
CONTENT = "Subject: x\r\n\r\nx\r\n"
PATIENCE_S = 60
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
RATIO = 5
"""How much slower an honest client may be in a flood than in peace."""
NOISE_S = 0.02
"""On two cores that others use a median may be off by so much."""


@contextlib.contextmanager
def scarce(
    tmp_path: Path,
    *limits: str,
    loop: str = "uvloop",
    messages: int = 1000,
    per: str = "1s",
    **listen: object,
) -> Iterator[tuple[ScarceRelay, Practice]]:
    port = free_port()
    spec = {"address": f"127.0.0.1:{port}", "clients": ["127.0.0.0/8"]} | listen
    with Practice(tmp_path, {"messages": messages, "per": per}, seed=1) as host:
        isp = host.upstream(connections=2, limits=[{"messages": messages, "per": per}])
        relay = ScarceRelay(tmp_path, {"isp": isp}, limits=limits, listen=[spec])
        relay.port = port
        relay.start(**without_uvloop(tmp_path) if loop == "asyncio" else {})
        try:
            yield relay, host
            assert relay.stop(within_s=PATIENCE_S) == 0
            assert not [line for line in relay.log() if "Traceback" in line or "error: fault" in line]
        finally:
            relay.kill()


def without_uvloop(folder: Path) -> dict[str, str]:
    """Return an environment in which uvloop is not installed, as on a machine that has no wheel of it."""
    (folder / "absent").mkdir()
    (folder / "absent" / "uvloop.py").write_text("raise ImportError\n")
    return {"PYTHONPATH": str(folder / "absent")}


def send(port: int) -> None:
    """Hand a message over as often as the relay asks to try again."""
    for _ in range(1000):
        try:
            with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE_S) as session:
                session.sendmail(*FROM_TO, CONTENT)
        except (smtplib.SMTPException, OSError):
            continue
        return
    raise AssertionError("never taken")


@pytest.mark.parametrize("descriptors", [64, 96, 1024])
def test_silent_connections_to_the_status_port_end_no_mail(tmp_path: Path, descriptors: int) -> None:
    with scarce(tmp_path, f"-n {descriptors}") as (relay, host), silent_clients(relay.http_port, 1500):
        for _ in range(10):
            send(relay.port)
        wait_until(lambda: host.ledger.relayed == 10)

        # A few at a time, and an honest scraper is one of them.
        assert relay.metrics()["process_open_fds"] < 200
        assert not [line for line in relay.log() if "out of descriptors" in line]
        assert not [line for line in relay.log() if "Too many open files" in line]


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_silent_clients_leave_descriptors_for_the_spool(tmp_path: Path, loop: str, processes: int) -> None:
    # More sessions than descriptors, by the policy.
    many: dict[str, Any] = {
        "max_connections": 5000,
        "max_connections_per_client": 5000,
        "processes": processes,
    }
    with scarce(tmp_path, "-n 256", loop=loop, **many) as (relay, host):
        with (
            smtplib.SMTP("127.0.0.1", relay.port, timeout=PATIENCE_S) as session,
            silent_clients(relay.http_port, 400),
            silent_clients(relay.port, 400),
        ):
            for _ in range(20):
                session.sendmail(*FROM_TO, CONTENT)
            wait_until(lambda: host.ledger.relayed == 20)

            assert relay.metrics()["process_max_fds"] == 256
        send(relay.port)
        wait_until(lambda: host.ledger.relayed == 21)

        assert any("descriptors" in line for line in relay.log())


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_running_out_altogether_is_survived(tmp_path: Path, loop: str, processes: int) -> None:
    with scarce(tmp_path, processes=processes, loop=loop) as (relay, host):
        session = smtplib.SMTP("127.0.0.1", relay.port, timeout=PATIENCE_S)
        with session:
            session.sendmail(*FROM_TO, CONTENT)
            wait_until(lambda: host.ledger.relayed == 1)
            pids = [relay.pid, *children_of(relay.pid)]
            for pid in pids:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, HARD))
            with silent_clients(relay.port, 50), silent_clients(relay.http_port, 50):
                code = refusal(session)
                relay.wait_for_log(lambda line: "the spool waits, out of descriptors" in line)
                assert refusal(session) == 451
            for pid in pids:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (HARD, HARD))
            send(relay.port)
            wait_until(lambda: host.ledger.relayed == 2)

        assert code == 451
        assert len(relay.log()) < 60
        assert not [line for line in relay.log() if "paused" in line or "stopped:" in line]


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_mail_that_waits_while_descriptors_run_out_goes_out_later(tmp_path: Path, is_cut_off: bool) -> None:
    """Out of them for the message and the history, or first of all for the password and a connection."""
    with scarce(tmp_path, messages=1, per="2s") as (relay, host):
        with smtplib.SMTP("127.0.0.1", relay.port, timeout=PATIENCE_S) as session:
            for _ in range(3):
                session.sendmail(*FROM_TO, CONTENT)
            wait_until(lambda: host.ledger.relayed == 1)
            resource.prlimit(relay.pid, resource.RLIMIT_NOFILE, (3, HARD))
            if is_cut_off:
                host.cut_off()
            relay.wait_for_log(lambda line: "waits, out of descriptors" in line and "upstream isp" in line)
            resource.prlimit(relay.pid, resource.RLIMIT_NOFILE, (HARD, HARD))
            wait_until(lambda: host.ledger.relayed == 3)

        assert not host.ledger.refused
        assert not [line for line in relay.log() if "paused" in line or "stopped:" in line]


def refusal(session: smtplib.SMTP) -> int:
    """Hand over a message that the relay cannot store, and return the code of its reply."""
    try:
        session.sendmail(*FROM_TO, CONTENT)
    except smtplib.SMTPResponseException as refused:
        return refused.smtp_code
    raise AssertionError("stored without a descriptor")


def test_the_soft_limit_is_raised_in_all_processes(tmp_path: Path) -> None:
    with scarce(tmp_path, "-S -n 300", "-H -n 2000", processes=1) as (relay, _):
        assert relay.metrics()["process_max_fds"] == 2000
        (child,) = children_of(relay.pid)
        limits = Path(f"/proc/{child}/limits").read_text().splitlines()

        (files,) = [line.split() for line in limits if line.startswith("Max open files")]
        assert files[3:5] == ["2000", "2000"]


def test_a_flood_of_the_status_port_hardly_delays_mail(tmp_path: Path) -> None:
    with scarce(tmp_path) as (relay, _):
        relay.get("/status.json")
        peace = median_seconds(relay.port)
        with flooded(relay.http_port):
            war = median_seconds(relay.port)

    assert war <= RATIO * max(peace, NOISE_S), (peace, war)


def median_seconds(port: int) -> float:
    """Return how long it takes to be greeted and to hand over a message."""
    took = []
    for _ in range(30):
        began = time.monotonic()
        send(port)
        took.append(time.monotonic() - began)
    return statistics.median(took)


@contextlib.contextmanager
def flooded(port: int) -> Iterator[None]:
    """Have processes that connect, ask and hang up without end."""
    pids = []
    for _ in range(2):
        if (pid := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                _flood(port)
            os._exit(0)
        pids.append(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def _flood(port: int) -> None:
    held: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            client = socket.create_connection(("127.0.0.1", port), timeout=5)
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            held.append(client)
        if len(held) > 300:
            held.pop(0).close()
