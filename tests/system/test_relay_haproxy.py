"""HAProxy in front of a real relay: the client that HAProxy names is the one that counts."""

import re
import smtplib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.demand import demand, find, missing_program
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import free_port, wait_for_port
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full


@contextmanager
def haproxy(folder: Path, backend_port: int) -> Iterator[int]:
    """Run HAProxy in front of a port, with health checks; yield its own port."""
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


def test_the_client_named_by_haproxy_decides_who_may_relay(tmp_path: Path, upstream: StrictSmarthost) -> None:
    demand(missing_program("haproxy"))
    listen = {"clients": ["127.0.0.2"], "proxies": ["127.0.0.1"]}
    with (
        WarmRelay(tmp_path, {"isp": upstream.upstream()}, listen=listen) as relay,
        haproxy(tmp_path, relay.port) as port,
    ):
        for source, code in (("127.0.0.2", 250), ("127.0.0.3", 550)):
            with smtplib.SMTP("127.0.0.1", port, timeout=60, source_address=(source, 0)) as client:
                client.ehlo()
                client.mail("a@front.test")
                assert client.rcpt("r@list.test")[0] == code
                if code == 250:
                    assert client.data("Subject: x\r\n\r\nx\r\n")[0] == 250
            relay.wait_for_log(re.compile(rf"unknown\[{source}\]").search)
        upstream.wait_until(lambda ledger: ledger.relayed == 1)
        # HAProxy's health checks are not logged as refusals.
        assert not [line for line in relay.log() if "load balancer" in line]
