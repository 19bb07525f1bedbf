"""HAProxy before a real relay: the client that it passes on is the one that counts."""

import smtplib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.proofs.peers import smtp_tools
from tests.proofs.peers.demand import demand, find, missing_program
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.smtp_tools import smtp_sink
from tests.proofs.peers.waiting import free_port, wait_for_port

pytestmark = pytest.mark.slow


@contextmanager
def haproxy(folder: Path, backend_port: int) -> Iterator[int]:
    """Run HAProxy before a port, with health checks; yield its own port."""
    port = free_port()
    settings = folder / "haproxy.cfg"
    settings.write_text(
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n"
        f"frontend smtp\n bind 127.0.0.1:{port}\n default_backend relays\n"
        f"backend relays\n server relay 127.0.0.1:{backend_port} send-proxy-v2 check inter 200ms\n"
    )
    balancer = subprocess.Popen([str(find("haproxy")), "-f", str(settings), "-db"], stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port, balancer)
        yield port
    finally:
        balancer.terminate()
        balancer.wait()


@pytest.mark.parametrize(("source", "code"), [("127.0.0.2", 250), ("127.0.0.3", 550)])
def test_who_may_relay_is_the_client_behind_the_balancer(tmp_path: Path, source: str, code: int) -> None:
    demand(smtp_tools.why_missing(), missing_program("haproxy"))
    with smtp_sink() as sink:
        relay = RelayProcess(tmp_path, {"isp": {"host": "127.0.0.1", "port": sink.port, "tls": "none"}})
        (listen,) = relay.policy["listen"]
        relay.policy["listen"] = [listen | {"clients": ["127.0.0.2"], "proxies": ["127.0.0.1"]}]
        relay.write_policy()
        with relay, haproxy(tmp_path, relay.port) as port:
            with smtplib.SMTP("127.0.0.1", port, timeout=60, source_address=(source, 0)) as client:
                client.ehlo()
                client.mail("a@front.test")
                assert client.rcpt("r@list.test")[0] == code
                if code == 250:
                    assert client.data("Subject: x\r\n\r\nx\r\n")[0] == 250
                    sink.wait_for(1)
            relay.wait_for_log(lambda line: f"unknown[{source}]" in line)


def test_health_checks_of_a_balancer_are_no_refusals(tmp_path: Path) -> None:
    demand(missing_program("haproxy"))
    relay = RelayProcess(tmp_path, {"isp": {"host": "127.0.0.1", "port": free_port(), "tls": "none"}})
    (listen,) = relay.policy["listen"]
    relay.policy["listen"] = [listen | {"proxies": ["127.0.0.1"]}]
    relay.write_policy()
    with relay, haproxy(tmp_path, relay.port) as port:
        for _ in range(3):
            with smtplib.SMTP("127.0.0.1", port, timeout=60) as client:
                assert client.ehlo()[0] == 250
        assert not [line for line in relay.log() if "load balancer" in line]
