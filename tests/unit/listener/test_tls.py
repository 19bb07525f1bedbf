"""STARTTLS and implicit TLS, and what a man in the middle might try."""

import ssl
from pathlib import Path

import pytest

from relay.listener.listener_files import ListenerFiles
from relay.policy.secrets import read_key_pair
from tests.fakes.certificates import Certificates, make_certificates
from tests.unit.listener.conversation import TRANSACTION, codes, listening


async def test_starttls_is_offered_once_and_discards_what_was_said_before(certificates: Certificates) -> None:
    async with listening(certificates.policy()) as room:
        client = await room.greeted()
        assert b"250-STARTTLS\r\n" in await client.ask(b"EHLO x")
        await client.ask(b"MAIL FROM:<a@b>")
        assert await client.ask(b"STARTTLS") == b"220 2.0.0 Ready to start TLS\r\n"
        await client.start_tls(certificates.ca)
        assert codes(await client.ask(b"RCPT TO:<c@d>")) == [503]
        assert await client.ask(b"MAIL FROM:<a@b>") == b"503 5.5.1 Send EHLO or HELO first\r\n"
        assert b"STARTTLS" not in await client.ask(b"EHLO y")
        assert codes(await client.ask(b"STARTTLS")) == [503]
        # Long content is spilled in pieces.
        content = b"".join(b"%07d .%s\r\n" % (n, b"x" * (n % 300)) for n in range(20_000))
        await client.send(TRANSACTION + content + b".\r\nQUIT\r\n")
        assert codes(await client.rest()) == [250, 250, 354, 250, 221]

        (message,) = room.intake.accepted
        assert message.received == content
        assert (message.envelope.protocol, message.envelope.helo) == ("ESMTPS", "y")


@pytest.mark.parametrize("injected", [b"x", TRANSACTION + b"spam\r\n.\r\n"])
async def test_octets_behind_starttls_end_the_session(certificates: Certificates, injected: bytes) -> None:
    """CVE-2011-0411: octets in the clear must never count as received under TLS."""
    async with listening(certificates.policy()) as room:
        client = await room.greeted()
        await client.send(b"STARTTLS\r\n" + injected)
        assert codes(await client.rest()) == [554]
        assert room.intake.drafts == []


async def test_octets_in_the_clear_after_starttls_are_no_commands(certificates: Certificates) -> None:
    async with listening(certificates.policy()) as room:
        client = await room.greeted()
        await client.ask(b"STARTTLS")
        await client.send(b"EHLO x\r\n" + TRANSACTION + b"spam\r\n.\r\n")
        told = await client.rest()
        await client.close()
        await room.until_over()

        assert b"250" not in told
        assert room.intake.drafts == []
        assert (room.observer.closed, room.observer.faults) == (["lost"], [])


async def test_tls_older_than_1_2_is_refused(certificates: Certificates) -> None:
    async with listening(certificates.policy("implicit")) as room:
        assert room.listener.tls is not None
        assert room.listener.tls.minimum_version is ssl.TLSVersion.TLSv1_2
        # A ClientHello of TLS 1.1 at most, whatever the library would allow the client.
        client = await room.connect()
        await client.send(bytes.fromhex("160301002f0100002b0302" + "00" * 32 + "000004c014c00a0100"))
        assert b"220" not in await client.rest()
        await room.until_over()
        assert room.observer.opened == []


async def test_implicit_tls_shows_the_renewed_certificate_and_offers_no_starttls(
    certificates: Certificates, tmp_path: Path
) -> None:
    renewed = make_certificates(tmp_path)
    async with listening(certificates.policy("implicit")) as room:
        room.listener.use(ListenerFiles({}, read_key_pair(renewed.cert, renewed.key)))

        # The client trusts only the authority of the renewed certificate.
        client = await room.connect()
        await client.start_tls(renewed.ca)
        assert (await client.reply()).startswith(b"220 ")
        assert b"STARTTLS" not in await client.ask(b"EHLO x")
        assert codes(await client.ask(b"STARTTLS")) == [503]
        await client.send(TRANSACTION + b"x\r\n.\r\nQUIT\r\n")
        assert codes(await client.rest()) == [250, 250, 354, 250, 221]
        assert room.intake.accepted[0].envelope.protocol == "ESMTPS"
