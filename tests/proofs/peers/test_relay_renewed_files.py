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

from tests.proofs.peers import certificate
from tests.proofs.peers.certificate import make_certificate
from tests.proofs.peers.demand import demand
from tests.proofs.peers.processes import children_of
from tests.proofs.peers.relay import RelayProcess

pytestmark = pytest.mark.slow

PASSWORD = "correct horse"
REFUSED, CLOSING = 535, 421
GOOD = "relay_policy_last_reload_successful"


class House:
    """A relay with a listener where only users may relay, under TLS."""

    def __init__(self, folder: Path, processes: int) -> None:
        self.made = make_certificate(folder)
        self.users, self._folder = folder / "users", folder
        self.name_users("mjd", "zed")
        self.processes = processes
        self.relay = RelayProcess(folder, {"isp": {"host": "127.0.0.1", "port": 9, "tls": "none"}})
        (listen,) = self.relay.policy["listen"]
        listen |= {
            "clients": [],
            "processes": processes,
            "users_file": str(self.users),
            "certificate": str(self.made.certificate),
            "key": str(self.made.key),
        }
        self.relay.write_policy()
        self._loaded = 0

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

    def until_loaded(self, **fields: Any) -> None:
        """Wait until each process that listens has loaded files once more, these at last."""
        self._loaded += max(1, self.processes)
        # At the start it was told once.
        self.relay.wait_for_log(lambda _: len(self.events("listener_files_loaded")) == 1 + self._loaded)
        last = self.events("listener_files_loaded")[-1]
        assert fields.items() <= last.items(), last


@pytest.fixture(params=[0, 2], ids=["in the relay's process", "in two processes"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    demand(certificate.why_missing())
    house = House(tmp_path, request.param)
    try:
        house.relay.start(RELAY_LOG="json")
        yield house
    finally:
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
    relay.wait_for_log(lambda line: "listener_files_refused" in line)

    assert relay.metrics()[GOOD] == 0
    assert "the last good file stays in use" in relay.command("status").stdout
    assert house.log_in("mjd") == 235
    (told,) = house.events("listener_files_refused")
    assert "line 1" in told["error"]
    assert "half" not in told["error"]

    house.name_users("mjd")
    house.until_loaded(users=1)
    assert relay.metrics()[GOOD] == 1
    assert house.log_in("zed") == REFUSED


@pytest.mark.parametrize("house", [2], indirect=True)
def test_a_process_that_starts_later_goes_by_the_last_good_files(house: House) -> None:
    house.put(house.users, "half a file")
    house.relay.wait_for_log(lambda line: "listener_files_refused" in line)
    for pid in children_of(house.relay.pid):
        os.kill(pid, signal.SIGKILL)
    house.relay.wait_for_log(lambda _: len(house.events("listener_restarted")) == house.processes)

    assert house.log_in("mjd") == 235


def test_a_renewed_certificate_is_shown_once_its_key_fits(house: House, tmp_path: Path) -> None:
    (tmp_path / "renewed").mkdir()
    renewed = make_certificate(tmp_path / "renewed")
    house.put(house.made.certificate, renewed.certificate.read_text())
    house.relay.wait_for_log(lambda line: "listener_files_refused" in line)
    house.put(house.made.key, renewed.key.read_text())
    house.until_loaded(users=2)

    # It trusts the renewed one alone.
    assert house.log_in("mjd") == 235
    fingerprint = house.events("listener_files_loaded")[-1]["certificate"]
    assert fingerprint == certificate.fingerprint(renewed)


def test_a_request_loads_at_once_and_says_what(house: House) -> None:
    house.name_users("mjd", "zed", "zoe")
    house.relay.reload()
    house.until_loaded(users=3)

    assert house.log_in("zoe") == 235
