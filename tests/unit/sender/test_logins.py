"""What a connection logs in with and shows, and what of it anybody gets to see; secrets that are replaced."""

import base64
import io
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from relay.cli.probe import probed
from relay.clock import SystemClock
from relay.policy.model import Auth, Policy, Upstream
from relay.policy.shipped import standard_judge
from relay.sender.logins import Logins
from relay.spool.disk.durable import RealDisk
from relay.status import page
from relay.status.snapshot import to_json
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry
from tests.fakes.smarthost import Script, Smarthost, Turn
from tests.unit.sender.in_process_relay import Relay, policy_of
from tests.unit.upstream.certificates import Certificates, make_certificates, server_context

USER = "news@example.com"
PASSWORD = "correct horse battery staple, and 90 characters more: " + "".join(
    chr(ord("a") + (index * index + index // 7) % 26) for index in range(66)
)
PIECE = 6
"""So many characters in a row of a secret are a leak."""


def policy_with(tmp_path: Path, port: int, auth: str) -> Policy:
    return policy_of(tmp_path, port, f", auth: {{user: {USER}, {auth}}}")


def with_password(tmp_path: Path, port: int, mechanism: str = "auto", password: str = PASSWORD) -> Policy:
    path = tmp_path / "password"
    path.touch(0o600)
    path.write_text(password)
    return policy_with(tmp_path, port, f"password_file: password, mechanism: {mechanism}")


def in_lines(code: str, argument: str) -> Turn:
    pieces = [argument[at : at + 20] for at in range(0, len(argument), 20)]
    return "".join(f"{code}-{piece}\r\n" for piece in pieces).encode() + f"{code} what?\r\n".encode()


def without_code(argument: str) -> Turn:
    return f"what is AUTH {argument}?\r\n".encode()


@pytest.mark.parametrize(
    "said",
    [
        lambda line: in_lines("535", line),
        lambda line: in_lines("421", line),
        lambda line: in_lines("334", line),
        without_code,
        lambda line: f"535 5.7.8 no\r\n535 {line}\r\n".encode(),
    ],
    ids=["refusal", "421", "challenge", "no code", "two replies"],
)
@pytest.mark.parametrize("mechanism", ["plain", "login"])
async def test_of_a_reply_to_auth_only_its_codes_are_seen(
    tmp_path: Path, mechanism: str, said: Callable[[str], Turn]
) -> None:
    texts: list[str] = []
    async with Smarthost(Script(auth=said), accounts={USER: PASSWORD}) as host:
        policy = with_password(tmp_path, host.port, mechanism)
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until(lambda: relay.account.pausing.state.why)
            snapshot = relay.watch.snapshot()
            relay.events.flush()
            told = [relay.log.getvalue(), json.dumps(to_json(snapshot)), page.render(snapshot)]
        await probed(policy, "isp", texts.append)

    told += [_read(Path(f"{policy.history_path('isp')}.pause")), *texts]
    for secret in _forms(PASSWORD):
        assert not [piece for piece in _pieces(secret) for text in told if piece in text]


def _forms(password: str) -> Iterator[str]:
    yield password
    yield base64.b64encode(password.encode()).decode()
    yield base64.b64encode(f"\0{USER}\0{password}".encode()).decode()[4 * len(USER) // 3 :]


def _pieces(secret: str) -> Iterator[str]:
    yield from (secret[at : at + PIECE] for at in range(len(secret) - PIECE))


def _read(path: Path) -> str:
    return path.read_text()


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


async def test_a_refused_account_is_tried_with_a_password_at_rest(written: Written) -> None:
    await written.password()
    for piece in PIECES:
        written.path.write_text(piece)
        assert not await written.logins.has_new_password()
    assert [await written.logins.has_new_password() for _ in range(2)] == [True, True]


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

    async def look(self) -> None:
        await self.relay.sender.upstreams.look_at_secrets()

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
    await world.look()
    await world.look()

    assert await world.send() == der(made.right)
    assert world.told("shows it the certificate") == 2


async def test_half_of_a_renewal_changes_nothing(world: World, made: Certificates) -> None:
    await world.send()
    written = world.folder / "own.pem"
    written.write_bytes(crt(made.right).read_bytes())
    await world.look()
    await world.look()
    await world.look()

    assert await world.send() == der(made.wrong_name)
    assert world.told("its private key is not that of the certificate") == 1
    world.put(made.right)
    await world.look()
    await world.look()
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
