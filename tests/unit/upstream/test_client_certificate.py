"""The certificate that an upstream is shown, and the address that connections come from."""

import asyncio
import hashlib
import socket
import ssl
from collections.abc import Sequence
from dataclasses import replace

import pytest

from relay.clock import SystemClock
from relay.policy.model import Mechanism, Tls
from relay.policy.secrets import KeyPair, read_key_pair
from relay.upstream.connection import Account, UpstreamUnavailable, open_connection
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import Smarthost
from tests.unit.upstream.certificates import Certificates, server_context
from tests.unit.upstream.sessions import account, connected

BOTH = pytest.mark.parametrize("tls", [Tls.STARTTLS, Tls.IMPLICIT])


def demanding(certificates: Certificates) -> ssl.SSLContext:
    """Return the context of a server that wants a certificate of our authority."""
    context = server_context(certificates.right)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.ca)
    return context


@pytest.fixture
def pair(certificates: Certificates) -> KeyPair:
    certificates.wrong_name.chmod(0o600)
    return read_key_pair(certificates.wrong_name, None)


def showing(host: Smarthost, tls: Tls, certificates: Certificates, pair: KeyPair | None) -> Account:
    return replace(account(host, tls=tls, ca_file=certificates.ca), pair=pair)


@BOTH
async def test_an_upstream_is_shown_the_certificate(
    tls: Tls, certificates: Certificates, pair: KeyPair
) -> None:
    context = demanding(certificates)
    async with Smarthost(tls=context, is_implicit=tls is Tls.IMPLICIT) as host:
        async with connected(showing(host, tls, certificates, pair)) as connection:
            assert connection.is_usable
        shown = host.sessions[0].shown

    assert shown is not None
    assert hashlib.sha256(shown).digest().hex(":").upper() == pair.fingerprint


@BOTH
async def test_without_a_certificate_such_an_upstream_is_away(tls: Tls, certificates: Certificates) -> None:
    async with Smarthost(tls=demanding(certificates), is_implicit=tls is Tls.IMPLICIT) as host:
        with pytest.raises(UpstreamUnavailable) as caught:
            await open_connection(showing(host, tls, certificates, None), SystemClock())

    assert caught.value.answer.verdict is Verdict.PAUSE


async def test_two_certificates_are_never_mixed_up(certificates: Certificates, pair: KeyPair) -> None:
    certificates.right.chmod(0o600)
    pairs = [pair, read_key_pair(certificates.right, None), pair]
    async with Smarthost(tls=demanding(certificates)) as host:
        for each in pairs:
            async with connected(showing(host, Tls.STARTTLS, certificates, each)):
                pass
        shown = [session.shown for session in host.sessions]

    assert [hashlib.sha256(each or b"").digest().hex(":").upper() for each in shown] == [
        each.fingerprint for each in pairs
    ]


async def test_the_end_of_the_upstreams_certificate_is_known(certificates: Certificates) -> None:
    certificates.right.chmod(0o600)
    theirs = read_key_pair(certificates.right, None)
    async with (
        Smarthost(tls=server_context(certificates.right)) as host,
        connected(showing(host, Tls.STARTTLS, certificates, None)) as connection,
    ):
        assert connection.certificate_ends_at_ns == theirs.ends_at_ns
    async with Smarthost() as host, connected(account(host)) as connection:
        assert connection.certificate_ends_at_ns is None


async def test_a_certificate_logs_in_where_that_is_asked_for(
    certificates: Certificates, pair: KeyPair
) -> None:
    context, accounts = demanding(certificates), {"u": ""}
    async with Smarthost(tls=context, accounts=accounts, mechanisms=("PLAIN", "EXTERNAL")) as host:
        opened = showing(host, Tls.STARTTLS, certificates, pair)
        async with connected(replace(opened, user="u", password="", mechanism=Mechanism.EXTERNAL)):
            pass
        assert host.sessions[0].user == "u"
        assert host.commands[-1] == "AUTH EXTERNAL dQ=="
        # Not of itself: an upstream that offers it may know the relay by its certificate without it.
        async with connected(opened):
            pass
        assert not [command for command in host.sessions[1].commands if command.startswith("AUTH")]


async def test_an_upstream_without_external_is_told_of(certificates: Certificates, pair: KeyPair) -> None:
    async with Smarthost(tls=demanding(certificates), accounts={"u": ""}) as host:
        opened = replace(
            showing(host, Tls.STARTTLS, certificates, pair),
            user="u", password="", mechanism=Mechanism.EXTERNAL,
        )  # fmt: skip
        with pytest.raises(UpstreamUnavailable, match=r"no usable mechanism.*CRAM-MD5"):
            await open_connection(opened, SystemClock())


async def test_connections_come_from_the_policys_address() -> None:
    steps = []
    async with Smarthost() as host:
        opened = replace(account(host), source_address="127.0.0.7")
        connection = await open_connection(opened, SystemClock(), None, lambda *step: steps.append(step))
        (session,) = host.sessions
        assert session.writer is not None
        assert session.writer.get_extra_info("peername")[0] == "127.0.0.7"
        connection.abort()

    assert ("connect", f"127.0.0.1[127.0.0.1]:{host.port} from 127.0.0.7") in steps


async def test_an_address_that_this_host_lacks_is_said() -> None:
    async with Smarthost() as host:
        with pytest.raises(UpstreamUnavailable) as caught:
            await open_connection(replace(account(host), source_address="192.0.2.1"), SystemClock())

    assert caught.value.answer.verdict is Verdict.PAUSE
    assert "source_address 192.0.2.1: this host has no such address" in caught.value.answer.text


async def test_only_addresses_of_its_family_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Smarthost() as host:
        loop = asyncio.get_running_loop()

        async def answer(*_: object, **__: object) -> Sequence[tuple[object, ...]]:
            v6 = (socket.AF_INET6, 1, 6, "", ("::1", host.port, 0, 0))
            return [v6, (socket.AF_INET, 1, 6, "", ("127.0.0.1", host.port))]

        monkeypatch.setattr(loop, "getaddrinfo", answer)
        opened = replace(account(host, name="two.example"), source_address="127.0.0.7")
        async with connected(opened) as connection:
            assert "[127.0.0.1]" in connection.name


async def test_a_name_without_an_address_of_its_family_is_said() -> None:
    async with Smarthost() as host:
        with pytest.raises(UpstreamUnavailable) as caught:
            await open_connection(replace(account(host), source_address="::1"), SystemClock())

    assert "source_address ::1 is IPv6: the name has no IPv6 address" in caught.value.answer.text
    assert caught.value.answer.verdict is Verdict.PAUSE


def test_no_key_is_shown(pair: KeyPair) -> None:
    shown = repr(Account("h", 25, Tls.STARTTLS, "me", pair=pair))

    assert "PRIVATE" not in shown
