"""A relay that lacks file descriptors: mail goes on, and the relay does not end."""

import contextlib
import os
import resource
import signal
import smtplib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.relay import CONTENT, SENDER
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_until
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

PATIENCE_S = 60
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@contextlib.contextmanager
def relaying(
    folder: Path, *, descriptors: tuple[int, int] | None = None, **listen: Any
) -> Iterator[tuple[WarmRelay, StrictSmarthost]]:
    limit = {"messages": 1000, "per": "1s"}
    with StrictSmarthost(folder, limit, seed=1) as host:
        relay = WarmRelay(folder, {"isp": host.upstream(connections=2, limits=[limit])}, listen=listen)
        relay.descriptors = descriptors
        relay.start()
        try:
            yield relay, host
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


def send_at_last(relay: WarmRelay) -> None:
    def is_taken() -> bool:
        with contextlib.suppress(smtplib.SMTPException, OSError):
            relay.send("r@list.test")
            return True
        return False

    wait_until(is_taken)


@pytest.mark.parametrize("processes", [0, 1])
def test_silent_clients_leave_descriptors_for_the_spool(tmp_path: Path, processes: int) -> None:
    # The policy allows more sessions than descriptors; the relay raises its soft limit to the hard one.
    many = {"max_connections": 5000, "max_connections_per_client": 5000, "processes": processes}
    with relaying(tmp_path, descriptors=(128, 256), **many) as (relay, host):
        with (
            smtplib.SMTP("127.0.0.1", relay.port, timeout=PATIENCE_S) as session,
            silent_clients(relay.http_port, 1000),
            silent_clients(relay.port, 400),
        ):
            for _ in range(20):
                session.sendmail(SENDER, ["r@list.test"], CONTENT)
            host.wait_until(lambda ledger: ledger.relayed == 20)

            assert resource.prlimit(relay.pid, resource.RLIMIT_NOFILE) == (256, 256)
        send_at_last(relay)
        host.wait_until(lambda ledger: ledger.relayed == 21)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_relay_out_of_descriptors_replies_451_and_recovers(tmp_path: Path, processes: int) -> None:
    with relaying(tmp_path, processes=processes) as (relay, host):
        session = smtplib.SMTP("127.0.0.1", relay.port, timeout=PATIENCE_S)
        with contextlib.closing(session):
            session.sendmail(SENDER, ["r@list.test"], CONTENT)
            host.wait_until(lambda ledger: ledger.relayed == 1)
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
            host.wait_until(lambda ledger: ledger.relayed == 2)

        assert len(relay.log()) < 60
        assert not [line for line in relay.log() if "paused" in line or "stopped:" in line]
