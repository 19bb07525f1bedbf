"""A relay that lacks file descriptors goes on; a flood of large messages takes disk space, not memory."""

import contextlib
import os
import resource
import shutil
import signal
import smtplib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system import smtp_tools
from tests.system.demand import demand
from tests.system.processes import most_resident_bytes
from tests.system.relay import CONTENT, SENDER, ColdRelay, RelayProcess, upstream_at
from tests.system.smtp_tools import smtp_sink, smtp_source
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import free_port, wait_until

pytestmark = pytest.mark.full

PATIENCE_S = 60
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@contextlib.contextmanager
def relaying(
    folder: Path, upstream: StrictSmarthost, *, descriptors: tuple[int, int] | None = None, **listen: Any
) -> Iterator[RelayProcess]:
    relay = RelayProcess(folder, {"isp": upstream.upstream(connections=2)}, listen=listen)
    relay.descriptors = descriptors
    relay.start()
    try:
        yield relay
        assert relay.stop(within_s=PATIENCE_S) == 0
        assert not [line for line in relay.log() if "Traceback" in line or "error: fault" in line]
    finally:
        relay.kill()


@contextlib.contextmanager
def silent_clients(port: int, count: int) -> Iterator[None]:
    """Open so many connections to a port that never send an octet."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        yield


def send_at_last(relay: RelayProcess) -> None:
    def is_taken() -> bool:
        with contextlib.suppress(smtplib.SMTPException, OSError):
            relay.send("r@list.test")
            return True
        return False

    wait_until(is_taken)


@pytest.mark.parametrize("processes", [0, 1])
def test_silent_clients_leave_descriptors_for_the_spool(
    tmp_path: Path, upstream: StrictSmarthost, processes: int
) -> None:
    # The policy allows more sessions than descriptors; the relay raises its soft limit to the hard one.
    many = {"max_connections": 5000, "max_connections_per_client": 5000, "processes": processes}
    with relaying(tmp_path, upstream, descriptors=(128, 256), **many) as relay:
        with (
            smtplib.SMTP("127.0.0.1", relay.port, timeout=PATIENCE_S) as session,
            silent_clients(relay.http_port, 1000),
            silent_clients(relay.port, 400),
        ):
            for _ in range(20):
                session.sendmail(SENDER, ["r@list.test"], CONTENT)
            upstream.wait_until(lambda ledger: ledger.relayed == 20)

            assert resource.prlimit(relay.pid, resource.RLIMIT_NOFILE) == (256, 256)
        send_at_last(relay)
        upstream.wait_until(lambda ledger: ledger.relayed == 21)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_relay_out_of_descriptors_replies_451_and_recovers(
    tmp_path: Path, upstream: StrictSmarthost, processes: int
) -> None:
    with relaying(tmp_path, upstream, processes=processes) as relay:
        session = smtplib.SMTP("127.0.0.1", relay.port, timeout=PATIENCE_S)
        with contextlib.closing(session):
            session.sendmail(SENDER, ["r@list.test"], CONTENT)
            upstream.wait_until(lambda ledger: ledger.relayed == 1)
            pids = [relay.pid, *relay.listeners()]
            for pid in pids:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, HARD))
            with silent_clients(relay.port, 50), silent_clients(relay.http_port, 50):
                for _ in range(2):
                    with pytest.raises(smtplib.SMTPResponseException, match="451"):
                        session.sendmail(SENDER, ["r@list.test"], CONTENT)
            for pid in pids[1:]:
                os.kill(pid, signal.SIGKILL)
                # Without a free descriptor no other listener can start.
                relay.wait_for_log(lambda line: f"listener 127.0.0.1:{relay.port} waits, out of" in line)
            resource.prlimit(relay.pid, resource.RLIMIT_NOFILE, (HARD, HARD))
            send_at_last(relay)
            upstream.wait_until(lambda ledger: ledger.relayed == 2)

        assert len(relay.log()) < 60
        assert not [line for line in relay.log() if "paused" in line or "stopped:" in line]


CLIENTS = 12
CONTENT_BYTES = 16_000_000
RELAYED = 6
"""How many of them go out again: more than there are connections."""
MOST_GROWTH_BYTES = 64 * 1024 * 1024


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that is removed after the test: pytest would keep the mail."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def test_twelve_clients_with_16_megabytes_each_need_little_memory(folder: Path) -> None:
    demand(smtp_tools.why_missing())
    with ColdRelay(folder, {"isp": upstream_at(free_port())}) as relay:
        # As many clients as later, so that only the size of their mail is measured.
        smtp_source(relay.port, messages=CLIENTS, sessions=CLIENTS)
        assert relay.command("queue", "delete", "ALL", "--yes").returncode == 0
        before_bytes = most_resident_bytes(relay.pid)
        smtp_source(relay.port, messages=CLIENTS, sessions=CLIENTS, size_bytes=CONTENT_BYTES)
        assert most_resident_bytes(relay.pid) - before_bytes < MOST_GROWTH_BYTES
    every = [each["queue_id"] for each in relay.queue()]
    assert relay.command("queue", "delete", *every[RELAYED:]).returncode == 0
    with smtp_sink() as sink:
        relay.start()
        before_bytes = most_resident_bytes(relay.pid)
        relay.policy["upstreams"]["isp"]["port"] = sink.port
        relay.write_policy()
        sink.wait_for(RELAYED)
        relay.wait_until_empty()

        assert most_resident_bytes(relay.pid) - before_bytes < MOST_GROWTH_BYTES
        assert relay.stop() == 0
