"""swaks hands mail over with TLS, AUTH and plain old SMTP, and HAProxy names clients.

For refusals see tests/unit/listener.
"""

import base64
import json
import re
import smtplib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from tests.fakes.certificates import make_certificates
from tests.system import smtp_tools
from tests.system.demand import demand, find, missing_program
from tests.system.relay import RelayProcess
from tests.system.smtp_tools import swaks
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import ended, free_port, wait_for_port

CHEAP = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
USER, PASSWORD = "user@testserver", "secretpassword"
LOG_IN = ("--auth-user", USER, "--auth-password", PASSWORD)
FROM_TO = ("--from", "mjd@front.test", "--to", "r@list.test")
PLAIN, STARTTLS = "plain", "starttls"


@dataclass(frozen=True, slots=True)
class House:
    """A relay with two listeners: one for this host, one for users."""

    relay: RelayProcess
    ports: dict[str, int]
    authority: Path

    def event(self, name: str, **fields: Any) -> dict[str, Any]:
        wanted = {"event": name} | fields
        line = self.relay.wait_for_log(lambda line: wanted.items() <= json.loads(line).items())
        event: dict[str, Any] = json.loads(line)
        return event


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    demand(smtp_tools.why_swaks_missing())
    folder = tmp_path_factory.mktemp("relay")
    made, users, port = make_certificates(folder), folder / "users", free_port()
    users.write_text(f"{USER}:{CHEAP.hash(PASSWORD)}\n")
    users.chmod(0o600)
    with StrictSmarthost(folder, {"messages": 1000, "per": "1s"}, seed=0) as upstream:
        relay = RelayProcess(folder, {"isp": upstream.upstream()}, listen={"max_size": 1024 * 1024})
        files = {"users_file": users, "certificate": made.cert, "key": made.key}
        door = {"address": f"127.0.0.1:{port}", "clients": [], "processes": 0}
        relay.policy["listen"].append(door | {name: str(path) for name, path in files.items()})
        relay.write_policy()
        relay.start(RELAY_LOG="json")
        yield House(relay, {PLAIN: relay.port, STARTTLS: port}, made.ca)
        relay.stop()
        log = "\n".join(relay.log())
    assert PASSWORD not in log
    assert base64.b64encode(f"\0{USER}\0{PASSWORD}".encode()).decode() not in log


@pytest.mark.parametrize(
    ("door", "options", "protocol", "said"),
    [
        (STARTTLS, ("--tls-verify", "--auth", "PLAIN", *LOG_IN), "ESMTPSA", r"TLS peer DN=[^$]*235 2\.7\.0 "),
        (STARTTLS, ("--tls-verify", "--auth", "LOGIN", *LOG_IN), "ESMTPSA", r"235 2\.7\.0 "),
        (STARTTLS, ("--auth", "PLAIN", *LOG_IN), "ESMTPA", r"235 2\.7\.0 "),  # loopback needs no TLS
        (PLAIN, ("--protocol", "SMTP"), "SMTP", r" -> HELO "),
        (PLAIN, ("--pipeline",), "ESMTP", r"250-SIZE 1048576[^$]* -> MAIL.*\n -> RCPT.*\n -> DATA\n"),
    ],
)
def test_swaks_hands_a_message_over(
    house: House, door: str, options: tuple[str, ...], protocol: str, said: str
) -> None:
    trust = ("--tls", "--tls-ca-path", str(house.authority)) if "--tls-verify" in options else ()
    ran = swaks(house.ports[door], *FROM_TO, *trust, *options)

    assert ran.returncode == 0, ran.stdout
    queued = re.search(r"250 2\.0\.0 Ok: queued as (\w+)", ran.stdout)
    assert queued is not None, ran.stdout
    accepted = house.event("accepted", queue_id=queued[1])
    assert (accepted["protocol"], accepted["user"]) == (protocol, USER if LOG_IN[0] in options else None)
    assert re.search(said, ran.stdout), ran.stdout
    house.event("removed", queue_id=queued[1])


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
    command = [str(find("haproxy")), "-f", str(settings), "-db"]
    with ended(subprocess.Popen(command, stderr=subprocess.DEVNULL)) as balancer:
        wait_for_port(port, balancer)
        yield port


@pytest.mark.full
def test_the_client_named_by_haproxy_decides_who_may_relay(tmp_path: Path, upstream: StrictSmarthost) -> None:
    demand(missing_program("haproxy"))
    listen = {"clients": ["127.0.0.2"], "proxies": ["127.0.0.1"]}
    with (
        RelayProcess(tmp_path, {"isp": upstream.upstream()}, listen=listen) as relay,
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
