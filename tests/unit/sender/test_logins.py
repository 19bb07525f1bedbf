"""The password and the client certificate of an account that are replaced while the relay runs."""

import ssl
from pathlib import Path
from typing import NamedTuple

import pytest

from relay.policy.model import Policy
from relay.sender.logins import AT_REST_SECONDS
from tests.fakes.certificates import Authority, server_context
from tests.fakes.smarthost import Smarthost
from tests.fakes.virtual_time import pass_time
from tests.unit.sender.in_process_relay import Relay, policy_of


async def test_a_refused_account_logs_in_with_a_new_password_only_once_it_is_whole(tmp_path: Path) -> None:
    path, pieces = tmp_path / "password", ["bat", "battery ", "battery staple"]
    path.touch(0o600)
    path.write_text("correct horse")
    async with (
        Smarthost(accounts={"u": pieces[-1]}) as host,
        Relay(policy_of(tmp_path, host.port, f", auth: {{user: u, password_file: {path}}}")) as relay,
    ):
        relay.accept()
        await relay.until(lambda: relay.account.pausing.state.is_refused)
        for piece in pieces:
            await pass_time(0.9 * AT_REST_SECONDS)
            path.write_text(piece)
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


def shows_certificate(folder: Path, made: Certificates, host: Smarthost, name: str = "own.pem") -> Policy:
    """Return a policy with the certificate in these files; each connection carries one message."""
    shown = f", tls_certificate: {folder / name}, tls_key: {folder / 'own.key'}"
    return policy_of(folder, host.port, f", tls: starttls, ca_file: {made.ca}, idle: 1ms{shown}")


def put(folder: Path, pem: Path, *names: str) -> None:
    """Put the certificate of a pair, its key or both into the files that the policy names."""
    for name in names or ("own.pem", "own.key"):
        new = folder / "new"
        new.write_bytes(pem.with_suffix(".key" if name == "own.key" else ".crt").read_bytes())
        new.chmod(0o600)
        new.replace(folder / name)


def der(pem: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.with_suffix(".crt").read_text())


async def test_a_renewed_certificate_is_shown_once_it_is_whole(tmp_path: Path, made: Certificates) -> None:
    put(tmp_path, made.wrong_name)
    async with (
        wants_certificate(made) as host,
        Relay(shows_certificate(tmp_path, made, host)) as relay,
    ):

        async def shown() -> bytes | None:
            """Send a message by a new connection, and return the certificate that it showed."""
            await relay.until(lambda: not relay.account.pool.open)
            relay.accept()
            await relay.until_empty()
            return host.relayed[-1].session.shown

        assert await shown() == der(made.wrong_name)
        put(tmp_path, made.right, "own.pem")
        assert await shown() == der(made.wrong_name)
        assert relay.logged().count("no private key for the certificate") == 1
        put(tmp_path, made.right, "own.key")
        assert await shown() == der(made.right)
        assert relay.logged().count("client certificate loaded") == 2


async def test_an_unreadable_certificate_pauses_the_upstream_and_bounces_nothing(
    tmp_path: Path, made: Certificates
) -> None:
    put(tmp_path, made.wrong_name)
    async with (
        wants_certificate(made) as host,
        Relay(shows_certificate(tmp_path, made, host, "gone.pem")) as relay,
    ):
        queue_id = relay.accept()
        await relay.until(lambda: "gone.pem" in relay.account.pausing.state.why)
        assert relay.queued(queue_id) is not None
        put(tmp_path, made.wrong_name, "gone.pem")
        relay.sender.upstreams.resume("isp")
        await relay.until_empty()
        assert len(host.relayed) == 1
