"""Users and certificates that are replaced under a running relay, as an operator and certbot do it."""

import contextlib
import json
import os
import signal
import smtplib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from tests.system import certificate
from tests.system.certificate import make_certificate
from tests.system.demand import demand
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

PASSWORD = "correct horse"
REFUSED, CLOSING = 535, 421
PROCESSES = 2


class House:
    """A relay whose listener processes let only users relay, under TLS."""

    def __init__(self, folder: Path) -> None:
        self.made = make_certificate(folder)
        self.users = folder / "users"
        self.name_users("mjd", "zed")
        self.relay = WarmRelay(folder, {"isp": {"host": "127.0.0.1", "port": 9, "tls": "none"}})
        (listen,) = self.relay.policy["listen"]
        keys = {"certificate": str(self.made.certificate), "key": str(self.made.key)}
        listen |= {"clients": [], "processes": PROCESSES, "users_file": str(self.users)} | keys
        self.relay.write_policy()
        self._loads = 1

    def name_users(self, *names: str) -> None:
        hashed = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash(PASSWORD)
        self.put(self.users, "".join(f"{name}:{hashed}\n" for name in names))

    def put(self, path: Path, content: str) -> None:
        written = path.with_suffix(".new")
        written.write_text(content)
        written.chmod(0o600)
        written.replace(path)

    def connect(self) -> smtplib.SMTP:
        client = smtplib.SMTP("127.0.0.1", self.relay.port)
        context = ssl.create_default_context(cafile=str(self.made.certificate))
        context.check_hostname = False
        client.starttls(context=context)
        client.ehlo()
        return client

    def log_in(self, name: str) -> int:
        """Return the code of the reply to AUTH."""
        with self.connect() as client:
            try:
                return client.login(name, PASSWORD)[0]
            except smtplib.SMTPAuthenticationError as refused:
                return refused.smtp_code

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for line in self.relay.log() if (event := json.loads(line))["event"] == name]

    def until_refused(self) -> None:
        self.relay.wait_for_log(lambda line: "listener_files_refused" in line)

    def until_loaded(self, **fields: Any) -> None:
        """Wait until each process that listens has loaded files once more, these at last."""
        self._loads += PROCESSES
        self.relay.wait_for_log(lambda _: len(self.events("listener_files_loaded")) == self._loads)
        last = self.events("listener_files_loaded")[-1]
        assert fields.items() <= last.items(), last


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    demand(certificate.why_missing())
    house = House(tmp_path)
    house.relay.start(RELAY_LOG="json")
    yield house
    house.relay.stop()


def test_a_user_that_was_removed_is_let_in_no_more(house: House) -> None:
    with contextlib.closing(house.connect()) as open_session:
        assert open_session.login("mjd", PASSWORD)[0] == 235
        assert open_session.mail("a@x.example")[0] == 250

        house.name_users("zed")
        house.until_loaded(users=1)

        assert house.log_in("mjd") == REFUSED
        assert house.log_in("zed") == 235
        # What it began it may finish, and that is all.
        assert open_session.rset()[0] == 250
        assert open_session.mail("a@x.example")[0] == CLOSING


def test_what_cannot_be_used_changes_nothing_and_is_told(house: House) -> None:
    relay = house.relay
    house.put(house.users, "mjd:$argon2id$v=19$half")
    house.until_refused()

    assert relay.metrics()["relay_policy_last_reload_successful"] == 0
    assert "the last good file stays in use" in relay.command("status").stdout
    assert house.log_in("mjd") == 235
    (told,) = house.events("listener_files_refused")
    assert "line 1" in told["error"]
    assert "half" not in told["error"]

    # A process that starts later goes by the last good file too.
    for pid in relay.listeners():
        os.kill(pid, signal.SIGKILL)
    relay.wait_for_log(lambda _: len(house.events("listener_restarted")) == PROCESSES)
    assert house.log_in("mjd") == 235


def test_a_renewed_certificate_is_shown_once_its_key_fits(house: House, tmp_path: Path) -> None:
    (tmp_path / "renewed").mkdir()
    renewed = make_certificate(tmp_path / "renewed")
    house.put(house.made.certificate, renewed.certificate.read_text())
    house.until_refused()
    house.put(house.made.key, renewed.key.read_text())
    house.until_loaded(users=2)

    # It trusts the renewed one alone.
    assert house.log_in("mjd") == 235
    fingerprint = house.events("listener_files_loaded")[-1]["certificate"]
    assert fingerprint == certificate.fingerprint(renewed)
