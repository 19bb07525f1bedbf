"""The certificate that an upstream is shown, and the address that connections come from."""

import hashlib
import ssl
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


def test_no_key_is_shown(pair: KeyPair) -> None:
    shown = repr(Account("h", 25, Tls.STARTTLS, "me", pair=pair))

    assert "PRIVATE" not in shown
