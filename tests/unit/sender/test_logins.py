"""What a connection logs in with and shows: a password and a certificate that are replaced while it runs."""

import asyncio
import io
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.policy.model import Auth, Policy, Upstream
from relay.policy.shipped import standard_judge
from relay.sender.logins import AT_REST_SECONDS, Logins
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics, Telemetry
from tests.fakes.smarthost import Smarthost
from tests.fakes.virtual_time import pass_time
from tests.unit.sender.in_process_relay import Relay, policy_of
from tests.unit.upstream.certificates import Certificates, make_certificates, server_context

OLD, PIECES = "correct horse", ["bat", "battery ", "battery staple"]


class Written:
    """The password of an account, and a program that writes another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch(0o600)
        path.write_text(OLD)
        upstream = Upstream(host="127.0.0.1", limits=(), auth=Auth(user="u", password_file=path))
        clock = SystemClock()
        telemetry = Telemetry(Events(io.StringIO(), "text", clock), Metrics(clock), clock)
        self.logins = Logins("isp", upstream, "relay.test", disk=RealDisk(), telemetry=telemetry)

    async def password(self) -> str | None:
        return (await self.logins.account(standard_judge())).password


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "password")


async def test_a_password_that_is_being_written_is_used_once_it_rests(written: Written) -> None:
    await written.password()
    written.path.write_text(PIECES[0])
    using = asyncio.create_task(written.password())
    for piece in PIECES[1:]:
        await pass_time(0.9 * AT_REST_SECONDS)
        written.path.write_text(piece)
    assert await using == PIECES[-1]


async def test_a_refused_account_logs_in_with_no_half_of_a_password(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.touch(0o600)
    path.write_text(OLD)
    async with (
        Smarthost(accounts={"u": PIECES[-1]}) as host,
        Relay(policy_of(tmp_path, host.port, f", auth: {{user: u, password_file: {path}}}")) as relay,
    ):
        relay.accept()
        await relay.until(lambda: relay.account.pausing.state.is_refused)
        for piece in PIECES:
            await pass_time(0.9 * AT_REST_SECONDS)
            path.write_text(piece)
        await relay.until_empty()
        assert sum(command.startswith("AUTH") for command in host.commands) == 2


class World:
    """A relay towards a smarthost that wants a certificate, and what it was shown."""

    relay: Relay

    def __init__(self, folder: Path, made: Certificates, host: Smarthost) -> None:
        self.folder, self.made, self.host = folder, made, host

    def policy(self, **keys: str) -> Policy:
        return with_certificate(self.folder, self.made, self.host, **keys)

    def put(self, pem: Path) -> None:
        """Put another pair in the place of the one that the policy names."""
        for name, path in (("own.pem", crt(pem)), ("own.key", key(pem))):
            written = self.folder / "new"
            written.write_bytes(path.read_bytes())
            written.chmod(0o600)
            written.replace(self.folder / name)

    async def send(self) -> bytes | None:
        """Send a message by a new connection, and return the certificate that it showed."""
        await self.relay.until(lambda: not self.relay.account.pool.open)
        before = len(self.host.relayed)
        self.relay.accept()
        await self.relay.until(lambda: len(self.host.relayed) > before)
        return self.host.relayed[-1].session.shown

    def told(self, words: str) -> int:
        self.relay.events.flush()
        return self.relay.log.getvalue().count(words)


def with_certificate(folder: Path, made: Certificates, host: Smarthost, **keys: str) -> Policy:
    own = {"tls_certificate": str(folder / "own.pem"), "tls_key": str(folder / "own.key")} | keys
    written = "".join(f", {key}: {value}" for key, value in own.items())
    return policy_of(folder, host.port, f", tls: starttls, ca_file: {made.ca}, idle: 1ms{written}")


@pytest.fixture
async def world(tmp_path: Path, made: Certificates) -> AsyncIterator[World]:
    context = server_context(made.right)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(made.ca)
    async with Smarthost(tls=context) as host:
        world = World(tmp_path, made, host)
        world.put(made.wrong_name)
        async with Relay(world.policy()) as world.relay:
            yield world


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def crt(pem: Path) -> Path:
    return pem.with_suffix(".crt")


def key(pem: Path) -> Path:
    pem.with_suffix(".key").chmod(0o600)
    return pem.with_suffix(".key")


def der(pem: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(crt(pem).read_text())


async def test_a_renewed_certificate_is_shown_without_a_restart(world: World, made: Certificates) -> None:
    assert await world.send() == der(made.wrong_name)
    world.put(made.right)

    assert await world.send() == der(made.right)
    assert world.told("shows it the certificate") == 2


async def test_half_of_a_renewal_changes_nothing(world: World, made: Certificates) -> None:
    await world.send()
    written = world.folder / "own.pem"
    written.write_bytes(crt(made.right).read_bytes())

    assert await world.send() == der(made.wrong_name)
    assert world.told("it holds no private key of the certificate") == 1
    world.put(made.right)
    assert await world.send() == der(made.right)


async def test_a_pair_that_cannot_be_read_pauses_and_bounces_nothing(
    world: World, made: Certificates
) -> None:
    gone = world.policy(tls_certificate=str(world.folder / "gone.pem"))
    await world.relay.sender.apply(gone)
    world.relay.watch.policy = gone
    queue_id = world.relay.accept()
    await world.relay.until(lambda: world.relay.account.pausing.state.why)

    assert "gone.pem" in world.relay.account.pausing.state.why
    assert world.relay.queued(queue_id) is not None
    (world.folder / "gone.pem").write_bytes(crt(made.wrong_name).read_bytes())
    world.relay.sender.upstreams.resume("isp")
    await world.relay.until(lambda: world.host.relayed)
