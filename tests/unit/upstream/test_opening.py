"""Opens connections: a failure before MAIL blames no message, and TLS is never opportunistic."""

import asyncio
import hashlib
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SystemClock
from relay.policy.model import Tls, Upstream
from relay.policy.secrets import read_key_pair
from relay.smtp.reply import Phase
from relay.smtp.sasl import Credentials
from relay.upstream.connection import UpstreamServer, UpstreamUnavailable, open_connection
from relay.upstream.protocol import Timeouts
from relay.upstream.transaction import why_unfit
from relay.verdicts.verdict import Verdict
from tests.fakes.certificates import Authority, outdated_context, server_context
from tests.fakes.smarthost import CLOSE, DEFAULT, RESET, SILENCE, Script, Smarthost, Turn
from tests.unit.upstream.sessions import SOON_S, account, connected, transaction

BOTH = pytest.mark.parametrize("tls", ["starttls", "implicit"])
IN = {"none": Phase.CONNECT, "implicit": Phase.CONNECT, "starttls": Phase.STARTTLS}


def server(host: str, port: int, tls: Tls) -> UpstreamServer:
    return UpstreamServer(Upstream.model_construct(host=host, port=port, tls=tls, limits=()), "me.example")


async def refused(host: Smarthost | None, opened: UpstreamServer, timeouts: Timeouts | None = None) -> str:
    """Return why no connection was opened; check that the host got no login and no message is blamed."""
    with pytest.raises(UpstreamUnavailable) as caught:
        await open_connection(opened, SystemClock(), timeouts)
    answer = caught.value.answer
    assert (answer.verdict, answer.phase) == (Verdict.PAUSE, IN[opened.upstream.tls])
    assert answer.text.isprintable()
    if host is not None:
        assert not [said for said in host.commands if not said.startswith(("EHLO", "STARTTLS"))]
        assert all(session.user is None for session in host.sessions)
    return answer.text


@pytest.fixture
def _two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve every name to 127.0.0.9 and then 127.0.0.1."""

    def found(_host: Any, port: Any, *_others: Any) -> list[Any]:
        return [(socket.AF_INET, 1, 6, "", (address, port)) for address in ("127.0.0.9", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop has a resolver of its own
@pytest.mark.usefixtures("_two_addresses")
async def test_a_second_address_is_tried_when_the_first_refuses() -> None:
    async with Smarthost() as host, connected(account(host, name="two.example")) as connection:
        assert connection.name == f"two.example[127.0.0.1]:{host.port}"


@pytest.mark.asyncio(loop_factories=["asyncio"])  # as above
@pytest.mark.usefixtures("_two_addresses")
@BOTH
async def test_one_opening_makes_one_connection_that_the_upstream_counts(tls: Tls) -> None:
    seen = []

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("sockname")[0])
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as one:
        port = one.sockets[0].getsockname()[1]
        async with await asyncio.start_server(hang_up, "127.0.0.9", port):
            with pytest.raises(UpstreamUnavailable):
                await open_connection(server("two.example", port, tls), SystemClock())

    assert seen == ["127.0.0.9"]


async def test_no_password_leaves_this_host_in_the_clear() -> None:
    # 192.0.2.1 is TEST-NET-1: an attempt to connect would fail with another error.
    opened = replace(server("192.0.2.1", 25, "none"), credentials=Credentials("u", "p"))
    assert "sent only to this host itself" in await refused(None, opened)


@pytest.mark.parametrize("turn", [DEFAULT, SILENCE, CLOSE, b"rubbish\r\n"], ids=str)
async def test_close_sends_quit_and_ends_whatever_the_host_replies(turn: Turn) -> None:
    async with Smarthost(Script(quit=turn)) as host:
        connection = await open_connection(account(host), SystemClock(), Timeouts(quit_s=SOON_S))
        await connection.close()
        await host.until(lambda: not host.sessions[0].is_open)

        assert host.commands[-1] == "QUIT"
        assert not connection.is_usable


@pytest.mark.parametrize(("tls", "name"), [("starttls", "127.0.0.1"), ("implicit", "localhost")])
async def test_mail_goes_over_tls_after_a_login(tls: Tls, name: str, authority: Authority) -> None:
    context = server_context(authority.sign())
    async with Smarthost(tls=context, is_implicit=tls == "implicit", accounts={"u": "p"}) as host:
        opened = account(host, tls=tls, name=name, ca_file=authority.ca, user="u", password="p")
        async with connected(opened) as connection:
            big = b"x" * 70 + b"\r\n"
            outcome = await connection.transact(transaction(chunks=[big * 2000] * 3))
            assert (connection.tls, connection.name) == ("TLSv1.3", f"{name}[127.0.0.1]:{host.port}")
            await connection.close()

        assert {answer.verdict for answer in outcome.answers} == {Verdict.RELAYED}
        assert host.relayed[0].content == big * 6000
        session = host.relayed[0].session
        assert (session.tls, session.user) == ("TLSv1.3", "u")
        said = [command.split()[0] for command in session.commands]
        before = ["EHLO", "STARTTLS"] if tls == "starttls" else []
        assert said[: len(before) + 2] == [*before, "EHLO", "AUTH"]


@BOTH
@pytest.mark.parametrize(
    ("which", "why"),
    [
        *(("wrong name", "not valid for"), ("expired", "expired"), ("self-signed", "self-signed")),
        *(("foreign", "certificate"), ("outdated", "")),
    ],
)
async def test_an_untrusted_certificate_or_an_old_tls_version_is_refused(
    tls: Tls, which: str, why: str, authority: Authority, tmp_path: Path
) -> None:
    """The authority of `foreign` is unknown to the system."""
    match which:
        case "wrong name":
            pem = authority.sign(hosts=["elsewhere.example"])
        case "expired":
            pem = authority.sign(days=-1)
        case "self-signed":
            pem = Authority(tmp_path).pem
        case _:
            pem = authority.sign()
    context = outdated_context(pem) if which == "outdated" else server_context(pem)
    async with Smarthost(tls=context, is_implicit=tls == "implicit", accounts={"u": "p"}) as host:
        ca_file = None if which == "foreign" else authority.ca
        opened = account(host, tls=tls, ca_file=ca_file, user="u", password="p")

        assert why in (await refused(host, opened)).replace("self signed", "self-signed")
        assert all(session.tls is None for session in host.sessions) or which != "outdated"


async def test_a_replaced_ca_file_is_read_again(authority: Authority, tmp_path: Path) -> None:
    ca_file = tmp_path / "trusted.pem"
    ca_file.write_bytes(Authority(tmp_path).ca.read_bytes())
    async with Smarthost(tls=server_context(authority.sign())) as host:
        opened = account(host, tls="starttls", ca_file=ca_file)
        assert "certificate" in await refused(host, opened)

        ca_file.unlink()
        ca_file.write_bytes(authority.ca.read_bytes())
        async with connected(opened) as connection:
            assert connection.is_usable


async def test_a_host_without_starttls_ends_the_opening() -> None:
    async with Smarthost(accounts={"u": "p"}) as host:
        opened = account(host, tls="starttls", user="u", password="p")
        assert "does not offer STARTTLS" in await refused(host, opened)


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        ("454 4.7.0 not now", "454 4.7.0 not now"),
        ("250 sure", "250 sure"),
        ([DEFAULT, b"250 injected\r\n"], "more than the replies"),
        ([DEFAULT, b"2"], "more than the replies"),
        ([DEFAULT, b"421 4.3.2 bye\r\n"], "421 4.3.2 bye"),
        ([DEFAULT, RESET], ""),
        (CLOSE, "closed"),
        # The host does not answer the handshake after its 220.
        ([DEFAULT, SILENCE], ""),
        (SILENCE, "within"),
    ],
)
async def test_a_failed_starttls_ends_the_opening(turn: Turn, why: str, authority: Authority) -> None:
    script, context = Script(starttls=turn), server_context(authority.sign())
    timeouts = Timeouts(tls_s=SOON_S) if turn in (SILENCE, [DEFAULT, SILENCE]) else None
    async with Smarthost(script, tls=context, accounts={"u": "p"}) as host:
        opened = account(host, tls="starttls", ca_file=authority.ca, user="u", password="p")
        assert why in await refused(host, opened, timeouts)


@pytest.mark.parametrize(("turn", "why"), [([DEFAULT, SILENCE], "TLS failed"), (SILENCE, "no answer within")])
async def test_a_port_of_implicit_tls_without_tls_ends_the_opening(
    turn: Turn, why: str, authority: Authority
) -> None:
    timeouts = Timeouts(connect_s=SOON_S) if turn is SILENCE else None
    async with Smarthost(Script(connect=turn)) as host:
        opened = account(host, tls="implicit", ca_file=authority.ca)
        assert why in await refused(host, opened, timeouts)


@pytest.mark.parametrize("under_tls", [b"250-STARTTLS\r\n250 AUTH PLAIN\r\n", b"250 AUTH=PLAIN\r\n"])
async def test_only_extensions_offered_under_tls_count(authority: Authority, under_tls: bytes) -> None:
    # A man in the middle adds SMTPUTF8; the host itself does not offer it.
    before = b"250-SMTPUTF8\r\n250-AUTH GSSAPI\r\n250 STARTTLS\r\n"

    def offers(_argument: str) -> Turn:
        return b"250-fake.example\r\n" + (before if len(host.commands) == 1 else under_tls)

    tls = server_context(authority.sign())
    async with Smarthost(Script(ehlo=offers), tls=tls, accounts={"u": "p"}) as host:
        opened = account(host, tls="starttls", ca_file=authority.ca, user="u", password="p")
        async with connected(opened) as connection:
            assert host.sessions[0].user == "u"
            assert why_unfit(connection.extensions, transaction(smtputf8=True).shape) is not None


async def test_a_ca_without_key_identifiers_is_trusted_by_each_python_version(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = ssl.create_default_context

    def as_python_3_13(*arguments: Any, **named: Any) -> ssl.SSLContext:
        context = default(*arguments, **named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", as_python_3_13)
    ca_file = tmp_path / "ca.pem"  # a new file, because a context is cached by its file
    ca_file.write_bytes(authority.ca.read_bytes())
    async with (
        Smarthost(tls=server_context(authority.sign())) as host,
        connected(account(host, tls="starttls", ca_file=ca_file)) as connection,
    ):
        assert connection.is_usable


async def test_the_client_certificate_is_shown_and_logs_in_with_external(authority: Authority) -> None:
    pair = read_key_pair(authority.sign("client"), None)
    assert "PRIVATE" not in repr(pair)
    context = server_context(authority.sign())
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.ca)
    offers = ("PLAIN", "EXTERNAL")
    async with Smarthost(tls=context, accounts={"u": ""}, mechanisms=offers) as host:
        opened = replace(account(host, tls="starttls", ca_file=authority.ca), pair=pair)
        async with connected(replace(opened, credentials=Credentials("u", ""), mechanism="external")):
            assert host.commands[-1] == "AUTH EXTERNAL dQ=="
        # Without EXTERNAL in the policy there is no login: the certificate alone may identify the relay.
        async with connected(opened):
            pass
        assert [session.user for session in host.sessions] == ["u", None]
        for session in host.sessions:
            assert hashlib.sha256(session.shown or b"").digest().hex(":").upper() == pair.fingerprint
