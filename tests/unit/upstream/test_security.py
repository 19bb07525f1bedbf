"""TLS: verified, current, complete; never opportunistic; and the certificate that an upstream is shown."""

import hashlib
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SystemClock
from relay.policy.model import Mechanism, Tls
from relay.policy.secrets import KeyPair, read_key_pair
from relay.smtp.reply import Phase
from relay.upstream.connection import UpstreamServer, UpstreamUnavailable, open_connection
from relay.upstream.timeouts import Timeouts
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import CLOSE, DEFAULT, RESET, SILENCE, Script, Smarthost, Turn
from tests.unit.upstream.certificates import (
    Certificates,
    outdated_context,
    server_context,
    without_key_identifiers,
)
from tests.unit.upstream.sessions import SOON_S, account, connected, transaction

BOTH = pytest.mark.parametrize("tls", [Tls.STARTTLS, Tls.IMPLICIT])


async def failure(opened: UpstreamServer, timeouts: Timeouts | None = None) -> str:
    with pytest.raises(UpstreamUnavailable) as caught:
        await open_connection(opened, SystemClock(), timeouts)
    answer = caught.value.answer
    assert answer.verdict is Verdict.PAUSE
    expected = Phase.STARTTLS if opened.tls is Tls.STARTTLS else Phase.CONNECT
    assert answer.phase is expected
    return answer.text


def assert_nothing_was_entrusted(host: Smarthost) -> None:
    assert not [command for command in host.commands if not command.startswith(("EHLO", "STARTTLS"))]
    assert all(session.user is None for session in host.sessions)


@BOTH
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_mail_goes_over_tls_after_a_login(tls: Tls, name: str, certificates: Certificates) -> None:
    context = server_context(certificates.right)
    async with Smarthost(tls=context, is_implicit=tls is Tls.IMPLICIT, accounts={"u": "p"}) as host:
        opened = account(host, tls=tls, name=name, ca_file=certificates.ca, user="u", password="p")
        async with connected(opened) as connection:
            big = b"x" * 70 + b"\r\n"
            outcome = await connection.transact(transaction(chunks=[big * 2000] * 3))
            assert connection.tls == "TLSv1.3"
            await connection.close()

        assert {answer.verdict for answer in outcome.answers} == {Verdict.RELAYED}
        assert host.relayed[0].content == big * 6000
        session = host.relayed[0].session
        assert (session.tls, session.user) == ("TLSv1.3", "u")
        said = [command.split()[0] for command in session.commands]
        before = ["EHLO", "STARTTLS"] if tls is Tls.STARTTLS else []
        assert said[: len(before) + 2] == [*before, "EHLO", "AUTH"]
        assert said[-1] == "QUIT"


@BOTH
@pytest.mark.parametrize(
    ("which", "why", "is_ours"),
    [
        ("wrong_name", "not valid for", True),
        ("expired", "expired", True),
        ("self_signed", "self-signed", True),
        ("right", "certificate", False),  # of an authority that the system does not know
    ],
)
async def test_a_certificate_that_is_not_right_is_refused(
    tls: Tls, which: str, why: str, certificates: Certificates, *, is_ours: bool
) -> None:
    context = server_context(getattr(certificates, which))
    async with Smarthost(tls=context, is_implicit=tls is Tls.IMPLICIT, accounts={"u": "p"}) as host:
        ca_file = certificates.ca if is_ours else None
        opened = account(host, tls=tls, ca_file=ca_file, user="u", password="p")

        assert why in (await failure(opened)).replace("self signed", "self-signed")
        assert_nothing_was_entrusted(host)


@BOTH
async def test_tls_before_1_2_is_refused(tls: Tls, certificates: Certificates) -> None:
    context = outdated_context(certificates.right)
    async with Smarthost(tls=context, is_implicit=tls is Tls.IMPLICIT) as host:
        assert await failure(account(host, tls=tls, ca_file=certificates.ca))
        assert all(session.tls is None for session in host.sessions)
        assert_nothing_was_entrusted(host)


async def test_a_ca_file_that_was_replaced_is_read_anew(certificates: Certificates, tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(certificates.self_signed.read_bytes().partition(b"-----BEGIN PRIVATE")[0])
    async with Smarthost(tls=server_context(certificates.right)) as host:
        opened = account(host, tls=Tls.STARTTLS, ca_file=ca_file)
        assert "certificate" in await failure(opened)

        ca_file.unlink()
        ca_file.write_bytes(certificates.ca.read_bytes())
        async with connected(opened) as connection:
            assert connection.is_usable


async def test_starttls_that_is_not_offered_ends_it() -> None:
    async with Smarthost(accounts={"u": "p"}) as host:
        text = await failure(account(host, tls=Tls.STARTTLS, user="u", password="p"))

        assert "does not offer STARTTLS" in text
        assert_nothing_was_entrusted(host)


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        *(("454 4.7.0 not now", "454 4.7.0 not now"), ("502 5.5.1 what?", "502 5.5.1 what?")),
        *(("250 sure", "250 sure"), ("421 4.3.2 bye", "421 4.3.2 bye")),
        ([DEFAULT, b"250 injected\r\n"], "more than the replies"),
        *(([DEFAULT, b"2"], "more than the replies"), ([DEFAULT, b"421 4.3.2 bye\r\n"], "421 4.3.2 bye")),
        ([DEFAULT, CLOSE], "lost|closed|reset|EOF|TLS failed"),
        ([DEFAULT, RESET], "lost|closed|reset|EOF|TLS failed"),
        *(([b"22", CLOSE], "in the middle of a reply"), (b"220go\r\n", "not a reply"), (CLOSE, "closed")),
    ],
)  # fmt: skip
async def test_starttls_that_goes_wrong_ends_it(turn: Turn, why: str, certificates: Certificates) -> None:
    script, context = Script(starttls=turn), server_context(certificates.right)
    async with Smarthost(script, tls=context, accounts={"u": "p"}) as host:
        opened = account(host, tls=Tls.STARTTLS, ca_file=certificates.ca, user="u", password="p")
        with pytest.raises(UpstreamUnavailable, match=f"(?i){why}") as caught:
            await open_connection(opened, SystemClock())

        assert (caught.value.answer.verdict, caught.value.answer.phase) == (Verdict.PAUSE, Phase.STARTTLS)
        assert_nothing_was_entrusted(host)


@pytest.mark.parametrize("turn", [[DEFAULT, SILENCE], SILENCE], ids=["handshake", "reply"])
async def test_starttls_that_hangs_ends_in_time(turn: Turn, certificates: Certificates) -> None:
    # What is read after the 220 is not understood as a handshake: the host only listens.
    async with Smarthost(Script(starttls=turn), tls=server_context(certificates.right)) as host:
        opened = account(host, tls=Tls.STARTTLS, ca_file=certificates.ca)

        assert await failure(opened, Timeouts(tls_s=SOON_S))
        assert_nothing_was_entrusted(host)


@pytest.mark.parametrize("under_tls", [b"250-STARTTLS\r\n250 AUTH PLAIN\r\n", b"250 AUTH=PLAIN\r\n"])
async def test_what_is_offered_under_tls_alone_counts(certificates: Certificates, under_tls: bytes) -> None:
    # The one in the middle adds SMTPUTF8; the host itself offers nothing of the kind.
    before = b"250-SMTPUTF8\r\n250-AUTH GSSAPI\r\n250 STARTTLS\r\n"

    def offers(_argument: str) -> Turn:
        return b"250-fake.example\r\n" + (before if len(host.commands) == 1 else under_tls)

    tls = server_context(certificates.right)
    async with Smarthost(Script(ehlo=offers), tls=tls, accounts={"u": "p"}) as host:
        opened = account(host, tls=Tls.STARTTLS, ca_file=certificates.ca, user="u", password="p")
        async with connected(opened) as connection:
            assert [command.split()[0] for command in host.commands] == ["EHLO", "STARTTLS", "EHLO", "AUTH"]
            assert host.sessions[0].user == "u"
            assert connection.unfit(transaction(smtputf8=True).shape) is not None


async def test_plain_speech_on_the_port_of_implicit_tls_ends_it(certificates: Certificates) -> None:
    async with Smarthost(Script(connect=[DEFAULT, SILENCE])) as host:
        text = await failure(account(host, tls=Tls.IMPLICIT, ca_file=certificates.ca))

        assert "TLS failed" in text
        assert_nothing_was_entrusted(host)


async def test_silence_on_the_port_of_implicit_tls_ends_in_time(certificates: Certificates) -> None:
    async with Smarthost(Script(connect=SILENCE)) as host:
        opened = account(host, tls=Tls.IMPLICIT, ca_file=certificates.ca)

        assert "no answer within" in await failure(opened, Timeouts(connect_s=SOON_S))


@BOTH
async def test_an_authority_without_key_identifiers_is_trusted_by_each_python(
    tls: Tls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = ssl.create_default_context

    def as_python_3_13(*arguments: Any, **named: Any) -> ssl.SSLContext:
        context = default(*arguments, **named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", as_python_3_13)
    ca, pem = without_key_identifiers(tmp_path)
    async with (
        Smarthost(tls=server_context(pem), is_implicit=tls is Tls.IMPLICIT) as host,
        connected(account(host, tls=tls, name="localhost", ca_file=ca)) as connection,
    ):
        assert connection.is_usable


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


def showing(host: Smarthost, tls: Tls, certificates: Certificates, pair: KeyPair | None) -> UpstreamServer:
    return replace(account(host, tls=tls, ca_file=certificates.ca), pair=pair)


@BOTH
async def test_without_a_certificate_such_an_upstream_is_away(tls: Tls, certificates: Certificates) -> None:
    async with Smarthost(tls=demanding(certificates), is_implicit=tls is Tls.IMPLICIT) as host:
        with pytest.raises(UpstreamUnavailable) as caught:
            await open_connection(showing(host, tls, certificates, None), SystemClock())

    assert caught.value.answer.verdict is Verdict.PAUSE


@BOTH
async def test_an_upstream_is_shown_the_certificate_of_its_account(
    tls: Tls, certificates: Certificates, pair: KeyPair
) -> None:
    assert "PRIVATE" not in repr(pair)
    certificates.right.chmod(0o600)
    pairs = [pair, read_key_pair(certificates.right, None), pair]
    async with Smarthost(tls=demanding(certificates), is_implicit=tls is Tls.IMPLICIT) as host:
        for each in pairs:
            async with connected(showing(host, tls, certificates, each)):
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
