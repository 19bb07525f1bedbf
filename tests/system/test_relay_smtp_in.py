"""What clients meet at our door: swaks over TLS, AUTH and old SMTP, and addresses as they are in use."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from tests.system import certificate, smtp_tools
from tests.system.certificate import make_certificate
from tests.system.demand import demand
from tests.system.smtp_tools import swaks
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import free_port
from tests.system.warm import WarmRelay

CHEAP = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
USER, PASSWORD = "user@testserver", "secretpassword"
LOG_IN = ("--auth-user", USER, "--auth-password", PASSWORD)
FROM_TO = ("--from", "mjd@front.test", "--to", "r@list.test")
PLAIN, STARTTLS, NOBODYS = "plain", "starttls", "nobody's"
FOREIGN = ["192.0.2.0/24"]
"""RFC 5737: nobody of this host is in there."""
# swaks(1), EXIT CODES.
REFUSED_SENDER, NOT_AUTHENTICATED = 23, 28


class House:
    """A relay with three doors: for this host, for users, and for nobody."""

    def __init__(self, folder: Path, upstream: StrictSmarthost) -> None:
        made = make_certificate(folder)
        (folder / "users").write_text(f"{USER}:{CHEAP.hash(PASSWORD)}\n")
        (folder / "users").chmod(0o600)
        self.certificate = made.certificate
        self.relay = WarmRelay(folder, {"isp": upstream.upstream()})
        self.upstream = upstream
        self.ports = {door: free_port() for door in (PLAIN, STARTTLS, NOBODYS)}
        users = {"users_file": str(folder / "users")}
        keys = {"certificate": str(made.certificate), "key": str(made.key)}
        doors: dict[str, dict[str, Any]] = {
            PLAIN: {"clients": ["127.0.0.0/8"], "max_size": 1024 * 1024},
            STARTTLS: {"clients": FOREIGN} | users | keys,
            NOBODYS: {"clients": FOREIGN},
        }
        self.relay.policy["listen"] = [
            {"address": f"127.0.0.1:{self.ports[door]}"} | spec for door, spec in doors.items()
        ]
        self.relay.write_policy()

    def event(self, name: str, **fields: Any) -> dict[str, Any]:
        wanted = {"event": name} | fields
        line = self.relay.wait_for_log(lambda line: wanted.items() <= json.loads(line).items())
        event: dict[str, Any] = json.loads(line)
        return event


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    demand(certificate.why_missing())
    folder = tmp_path_factory.mktemp("relay")
    with StrictSmarthost(folder, {"messages": 1000, "per": "1s"}, seed=0) as upstream:
        made = House(folder, upstream)
        made.relay.start(RELAY_LOG="json")
        yield made
        made.relay.stop()
        log = "\n".join(made.relay.log())
    assert PASSWORD not in log
    assert base64.b64encode(f"\0{USER}\0{PASSWORD}".encode()).decode() not in log


@pytest.mark.parametrize(
    ("door", "options", "protocol", "said"),
    [
        (STARTTLS, ("--tls-verify", "--auth", "PLAIN", *LOG_IN), "ESMTPSA", r"TLS peer DN=[^$]*235 2\.7\.0 "),
        (STARTTLS, ("--tls-verify", "--auth", "LOGIN", *LOG_IN), "ESMTPSA", r"235 2\.7\.0 "),
        (STARTTLS, ("--auth", "PLAIN", *LOG_IN), "ESMTPA", r"235 2\.7\.0 "),  # of this host
        (PLAIN, ("--protocol", "SMTP"), "SMTP", r" -> HELO "),
        (PLAIN, ("--pipeline",), "ESMTP", r"250-SIZE 1048576[^$]* -> MAIL.*\n -> RCPT.*\n -> DATA\n"),
    ],
)
def test_swaks_hands_a_message_over(
    house: House, door: str, options: tuple[str, ...], protocol: str, said: str
) -> None:
    demand(smtp_tools.why_swaks_missing())
    trust = ("--tls", "--tls-ca-path", str(house.certificate)) if "--tls-verify" in options else ()
    ran = swaks(house.ports[door], *FROM_TO, *trust, *options)

    assert ran.returncode == 0, ran.stdout
    queued = re.search(r"250 2\.0\.0 Ok: queued as (\w+)", ran.stdout)
    assert queued is not None, ran.stdout
    accepted = house.event("accepted", queue_id=queued[1])
    assert (accepted["protocol"], accepted["user"]) == (protocol, USER if LOG_IN[0] in options else None)
    assert re.search(said, ran.stdout), ran.stdout
    house.event("removed", queue_id=queued[1])


@pytest.mark.parametrize(
    ("door", "options", "status", "reply"),
    [
        (STARTTLS, (), REFUSED_SENDER, "530 5.7.0 "),
        (STARTTLS, ("--tls",), REFUSED_SENDER, "530 5.7.0 "),
        (NOBODYS, (), REFUSED_SENDER, "550 5.7.1 Relaying denied"),
        # A wrong password and an unknown user are told alike.
        (STARTTLS, ("--tls", "-a", "PLAIN", "-au", USER, "-ap", "x"), NOT_AUTHENTICATED, "535 5.7.8 User or"),
        (
            STARTTLS,
            ("--tls", "-a", "PLAIN", "-au", "z", "-ap", PASSWORD),
            NOT_AUTHENTICATED,
            "535 5.7.8 User or",
        ),
    ],
)
def test_nobody_relays_who_may_not(
    house: House, door: str, options: tuple[str, ...], status: int, reply: str
) -> None:
    demand(smtp_tools.why_swaks_missing())
    ran = swaks(house.ports[door], *FROM_TO, *options)

    assert ran.returncode == status, ran.stdout
    assert reply in ran.stdout
    phase = "mail" if status == REFUSED_SENDER else "auth"
    told = house.event("refused", phase=phase, listener=f"127.0.0.1:{house.ports[door]}")
    assert told["client"] == "unknown[127.0.0.1]"
