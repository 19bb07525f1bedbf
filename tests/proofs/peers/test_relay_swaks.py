"""What a client of another make meets at our door: TLS, AUTH, refusals, old and new SMTP."""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.peers import certificate, smtp_tools
from tests.proofs.peers.certificate import make_certificate
from tests.proofs.peers.demand import demand
from tests.proofs.peers.relay import PROJECT, RelayProcess
from tests.proofs.peers.smtp_tools import SmtpSink, smtp_sink, swaks
from tests.proofs.peers.waiting import free_port

pytestmark = pytest.mark.slow

USER, PASSWORD = "mjd", "correct horse"
LOG_IN = ("--auth-user", USER, "--auth-password", PASSWORD)
FROM_TO = ("--from", "mjd@front.test", "--to", "r@list.test")
FOREIGN = ["192.0.2.0/24"]
"""RFC 5737: nobody of this host is in there."""

# swaks(1), EXIT CODES.
REFUSED_SENDER, REFUSED_CONTENT, NOT_AUTHENTICATED = 23, 26, 28


class House:
    """A relay with three doors: for those who log in, for nobody, and for this host."""

    def __init__(self, folder: Path, sink: SmtpSink) -> None:
        made = make_certificate(folder)
        users = folder / "users"
        users.write_text(_hash_password(USER, PASSWORD))
        users.chmod(0o600)
        self.certificate = made.certificate
        self.relay = RelayProcess(folder, {"isp": {"host": "127.0.0.1", "port": sink.port, "tls": "none"}})
        self.users_port, self.nobodys_port, self.port = free_port(), free_port(), self.relay.port
        self.relay.policy["listen"] = [
            {
                "address": f"127.0.0.1:{self.users_port}",
                "clients": FOREIGN,
                "users_file": str(users),
                "certificate": str(made.certificate),
                "key": str(made.key),
            },
            {"address": f"127.0.0.1:{self.nobodys_port}", "clients": FOREIGN},
            {"address": f"127.0.0.1:{self.port}", "clients": ["127.0.0.0/8"], "max_size": "4KB"},
        ]
        self.relay.write_policy()

    def event(self, name: str, **fields: Any) -> dict[str, Any]:
        """Return the first event of that name with these fields, now or later."""
        wanted = {"event": name} | fields
        line = self.relay.wait_for_log(lambda line: wanted.items() <= json.loads(line).items())
        event: dict[str, Any] = json.loads(line)
        return event


def _hash_password(user: str, password: str) -> str:
    command = [sys.executable, "-m", "relay", "hash-password", user]
    made = subprocess.run(
        command, cwd=PROJECT, input=password + "\n", capture_output=True, text=True, check=True
    )
    return made.stdout


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    demand(smtp_tools.why_missing(), smtp_tools.why_swaks_missing(), certificate.why_missing())
    with smtp_sink() as sink:
        relay = House(tmp_path_factory.mktemp("relay"), sink)
        relay.relay.start(RELAY_LOG="json")
        try:
            yield relay
        finally:
            relay.relay.stop()


def _relayed(relay: House, port: int, *options: str) -> tuple[str, dict[str, Any]]:
    """Return the transcript of a message that swaks could hand over, and the event of its acceptance."""
    ran = swaks(port, *FROM_TO, *options)
    assert ran.returncode == 0, ran.stdout
    queued = re.search(r"250 2\.0\.0 Ok: queued as (\w+)", ran.stdout)
    assert queued is not None, ran.stdout
    relay.event("removed", queue_id=queued[1])
    return ran.stdout, relay.event("accepted", queue_id=queued[1])


@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN"])
def test_a_user_logs_in_under_tls_that_swaks_verifies(relay: House, mechanism: str) -> None:
    trust = ("--tls", "--tls-verify", "--tls-ca-path", str(relay.certificate))
    transcript, accepted = _relayed(relay, relay.users_port, *trust, "--auth", mechanism, *LOG_IN)

    assert "TLS started with cipher TLSv1.3" in transcript
    assert "TLS peer DN=" in transcript
    assert re.search(r"235 2\.7\.0 ", transcript)
    assert (accepted["protocol"], accepted["user"]) == ("ESMTPSA", USER)


def test_a_user_of_this_host_may_log_in_without_tls(relay: House) -> None:
    _, accepted = _relayed(relay, relay.users_port, "--auth", "PLAIN", *LOG_IN)

    assert (accepted["protocol"], accepted["user"]) == ("ESMTPA", USER)


def test_a_wrong_password_is_refused_and_told_apart_from_nothing(relay: House) -> None:
    wrong = swaks(relay.users_port, *FROM_TO, "--tls", "--auth", "PLAIN", "-au", USER, "-ap", "wrong horse")
    unknown = swaks(relay.users_port, *FROM_TO, "--tls", "--auth", "PLAIN", "-au", "nobody", "-ap", PASSWORD)

    assert (wrong.returncode, unknown.returncode) == (NOT_AUTHENTICATED, NOT_AUTHENTICATED)
    refusals = [re.findall(r"^<~\* +(535.*)$", ran.stdout, re.MULTILINE) for ran in (wrong, unknown)]
    assert refusals[0] == refusals[1] == ["535 5.7.8 User or password is wrong"]
    for user in (USER, "nobody"):
        told = relay.event("refused", phase="auth", user=user)
        assert (told["reply"], told["client"]) == (refusals[0][0], "unknown[127.0.0.1]")


def test_nobody_relays_without_logging_in_where_users_are_known(relay: House) -> None:
    in_the_clear = swaks(relay.users_port, *FROM_TO)
    under_tls = swaks(relay.users_port, *FROM_TO, "--tls")

    for ran in (in_the_clear, under_tls):
        assert ran.returncode == REFUSED_SENDER
        assert re.search(r"^<[~*-]\*+ +530 5\.7\.0 ", ran.stdout, re.MULTILINE), ran.stdout


def test_a_foreign_client_relays_nothing_without_users(relay: House) -> None:
    ran = swaks(relay.nobodys_port, *FROM_TO)

    assert ran.returncode == REFUSED_SENDER
    assert "550 5.7.1 Relaying denied" in ran.stdout
    assert "AUTH" not in ran.stdout
    refused = relay.event("refused", listener=f"127.0.0.1:{relay.nobodys_port}")
    assert (refused["phase"], refused["client"]) == ("mail", "unknown[127.0.0.1]")


def test_size_is_announced_and_held_to(relay: House) -> None:
    fitting, _ = _relayed(relay, relay.port, "--body", "x" * 72 + "\n")
    over = swaks(relay.port, *FROM_TO, "--body", ("x" * 72 + "\n") * 60)

    assert "250-SIZE 4096" in fitting
    assert over.returncode == REFUSED_CONTENT
    assert "552 5.3.4 The message exceeds the size limit" in over.stdout


def test_a_client_of_1982_is_served(relay: House) -> None:
    transcript, accepted = _relayed(relay, relay.port, "--protocol", "SMTP")

    assert " -> HELO " in transcript
    assert "EHLO" not in transcript
    assert accepted["protocol"] == "SMTP"


def test_a_client_that_pipelines_is_served(relay: House) -> None:
    transcript, accepted = _relayed(relay, relay.port, "--pipeline", "--to", "r@list.test,s@list.test")

    assert re.search(r" -> MAIL FROM.*\n -> RCPT TO.*\n -> RCPT TO.*\n -> DATA\n", transcript)
    assert accepted["nrcpt"] == 2


def test_no_password_is_in_the_log(relay: House) -> None:
    swaks(relay.users_port, *FROM_TO, "--tls", "--auth", "PLAIN", *LOG_IN)

    log = "\n".join(relay.relay.log())
    assert PASSWORD not in log
    assert base64.b64encode(f"\0{USER}\0{PASSWORD}".encode()).decode() not in log
