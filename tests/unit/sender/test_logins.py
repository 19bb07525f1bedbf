"""The password and the client certificate of an account that are replaced while the relay runs."""

import ssl
from pathlib import Path
from typing import NamedTuple

import pytest

from relay.policy.model import Policy
from relay.verdicts.account import EventKind
from tests.fakes.certificates import Authority, server_context
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of


async def test_a_refused_account_logs_in_with_a_new_password_at_once(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.touch(0o600)
    path.write_text("correct horse")
    async with (
        Smarthost(accounts={"u": "battery staple"}) as host,
        Relay(policy_of(tmp_path, host.port, f", auth: {{user: u, password_file: {path}}}")) as relay,
    ):
        relay.accept()
        await relay.until(lambda: relay.account.pausing.state.is_stopped)
        path.write_text("battery staple")
        await relay.until_empty()
        assert sum(command.startswith("AUTH") for command in host.commands) == 2
    assert "error: upstream isp stopped: 535" in relay.logged()
    assert "upstream isp resumed" in relay.logged()


class Certificates(NamedTuple):
    ca: Path
    right: Path
    wrong_name: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    wrong_name = authority.sign("wrong_name", ["elsewhere.example"])
    return Certificates(authority.ca, authority.sign(), wrong_name)


def wants_certificate(made: Certificates) -> Smarthost:
    context = server_context(made.right)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(made.ca)
    return Smarthost(tls=context)


def shows_certificate(folder: Path, made: Certificates, host: Smarthost) -> Policy:
    """Return a policy with the certificate in these files; each connection carries one message."""
    shown = f", tls_certificate: {folder}/own.pem, tls_key: {folder}/own.key"
    return policy_of(folder, host.port, f", tls: starttls, ca_file: {made.ca}, idle: 1ms{shown}")


def put(folder: Path, pem: Path) -> None:
    """Put the certificate of a pair and its key into the files that the policy names."""
    for name, its in (("own.pem", ".crt"), ("own.key", ".key")):
        new = folder / "new"
        new.write_bytes(pem.with_suffix(its).read_bytes())
        new.chmod(0o600)
        new.replace(folder / name)


def der(pem: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.with_suffix(".crt").read_text())


async def test_a_renewed_certificate_counts_from_the_next_connection_on_and_without_one_mail_waits(
    tmp_path: Path, made: Certificates
) -> None:
    async with (
        wants_certificate(made) as host,
        Relay(shows_certificate(tmp_path, made, host)) as relay,
    ):
        queue_id = relay.accept()
        await relay.until(lambda: "own.pem" in relay.account.pausing.state.why)
        assert relay.queued(queue_id) is not None
        put(tmp_path, made.wrong_name)
        relay.account.use_again(EventKind.RESUME)
        await relay.until_empty()
        assert len(host.relayed) == 1
        for pem in (made.wrong_name, made.right):
            await relay.until(lambda: not relay.account.pool.open)
            put(tmp_path, pem)
            relay.accept()
            await relay.until_empty()
            assert host.relayed[-1].session.shown == der(pem)
