"""Content over a real socket: what is accepted, what is refused, and how much memory it takes."""

import email
import re
from email.utils import parsedate_to_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.listener.content import ContentDecoder
from relay.listener.received import received_line
from relay.listener.session import SPILL_BYTES
from relay.mail.envelope import QueueId
from relay.smtp.commands import Refused
from tests.fakes.clock import START_WALL_NS
from tests.unit.listener.conversation import TRANSACTION, listening

FULL = "452 4.3.1 Insufficient system storage"


async def test_a_message_over_one_connection_is_accepted_unchanged() -> None:
    async with listening() as room:
        client = await room.connect()
        assert await client.reply() == b"220 relay.example ESMTP relay\r\n"
        assert (await client.ask(b"EHLO mx.example.org")).startswith(b"250-relay.example\r\n")
        assert await client.ask(b"MAIL FROM:<a@example.org> SIZE=10 BODY=8BITMIME") == b"250 2.1.0 Ok\r\n"
        assert await client.ask(b"RCPT TO:<b@example.net>") == b"250 2.1.5 Ok\r\n"
        assert await client.ask(b"DATA") == b"354 End with <CRLF>.<CRLF>\r\n"
        reply = await client.ask(b"Message-ID: <1@x>\r\nSubject: \xff\r\n\r\n..\r\n...x\r\n.")
        assert await client.ask(b"QUIT") == b"221 2.0.0 Bye\r\n"
        assert await client.rest() == b""

        (message,) = room.intake.accepted
        assert reply == f"250 2.0.0 Ok: queued as {message.queue_id}\r\n".encode()
        assert message.received == b"Message-ID: <1@x>\r\nSubject: \xff\r\n\r\n.\r\n..x\r\n"
        assert message.trace == (
            b"Received: from mx.example.org (unknown [127.0.0.1])\r\n"
            b"\tby relay.example with ESMTP id 0000000000000000;\r\n"
            b"\tThu, 09 Oct 2025 08:53:20 +0000\r\n"
        )
        envelope = message.envelope
        assert (envelope.reverse_path, envelope.recipients) == ("a@example.org", ("b@example.net",))
        assert (envelope.client, envelope.helo) == ("unknown[127.0.0.1]", "mx.example.org")
        assert (envelope.protocol, envelope.user) == ("ESMTP", None)
        assert (room.observer.sizes, room.observer.message_ids) == ([len(message.content)], ["<1@x>"])
        await room.until_over()
        assert room.observer.closed == ["quit"]
        assert room.observer.refusals == []


@example("x" * 256, "192.0.2.1")
@given(st.text(max_size=400), st.sampled_from(["192.0.2.1", "2001:db8::1"]))
def test_no_helo_breaks_the_received_field_or_forges_a_clause(helo: str, address: str) -> None:
    line = received_line(
        helo=helo,
        address=address,
        hostname="relay.example",
        protocol="ESMTP",
        queue_id=QueueId("0123456789abcdef"),
        wall_ns=START_WALL_NS,
    )
    folded = line.split(b"\r\n")
    header = email.message_from_bytes(line + b"Subject: x\r\n\r\n")

    literal = rb"\(unknown \[(192\.0\.2\.1|IPv6:2001:db8::1)\]\)"
    assert re.fullmatch(rb"Received: from [A-Za-z0-9.:_\-\[\]?]{1,255} " + literal, folded[0])
    assert len(folded) == 4
    assert header.keys() == ["Received", "Subject"]
    date = header["Received"].rpartition(";")[2].strip()
    assert parsedate_to_datetime(date).timestamp() * 1e9 == START_WALL_NS


def test_only_the_first_part_of_an_endless_header_is_examined() -> None:
    for behind in (b"Message-ID: <1@x>\r\n", b"To: \xff\r\n"):
        decoder = ContentDecoder(1_000_000, 5, normalise=False)
        for _ in range(20):
            decoder.feed(b"To: x\r\n" * 1000)
        decoder.feed(behind + b"\r\n.\r\n")
        assert (decoder.message_id, decoder.has_ascii_header) == (None, False)


async def test_bare_newlines_are_normalised_only_for_the_configured_networks() -> None:
    async with listening({"normalise_from": ["127.0.0.2", "127.0.1.0/24"]}) as room:
        for source, is_mended in (("127.0.0.1", False), ("127.0.0.2", True), ("127.0.1.9", True)):
            client = await room.greeted(source=source)
            await client.send(TRANSACTION + b"a\nb\n..c\rd\r\n..e\r\n.\r\n")
            assert await client.codes(4) == [250, 250, 354, 250 if is_mended else 550]
        assert [message.received for message in room.intake.accepted] == [b"a\r\nb\r\n.c\r\nd\r\n.e\r\n"] * 2


async def test_an_intake_without_room_refuses_mail_with_452() -> None:
    async with listening() as room:
        room.intake.refuses = FULL
        client = await room.greeted()
        assert await client.ask(b"MAIL FROM:<a@b>") == f"{FULL}\r\n".encode()
        room.intake.refuses = None
        assert (await client.ask(b"MAIL FROM:<a@b>")).startswith(b"250 ")


@pytest.mark.parametrize("where", ["accept_error", "spill_error"])
async def test_a_refusal_of_the_intake_is_the_reply_and_a_fault_gets_451(where: str) -> None:
    """After a fault the next octets could be content: the listener must not read them as commands."""
    async with listening() as room:
        client = await room.sending()
        setattr(room.intake, where, Refused(FULL))
        await client.send(b"x" * (2 * SPILL_BYTES) + b"\r\n.\r\nNOOP\r\n")
        assert await client.codes(2) == [452, 250]
        assert room.observer.faults == []

        error = OSError(28, "secret detail")
        setattr(room.intake, where, error)
        await client.send(TRANSACTION + b"x" * (2 * SPILL_BYTES) + b"\r\n.\r\nNOOP\r\n")
        await client.codes(3)
        assert await client.rest() == b"451 4.3.0 Internal error, try again later\r\n"
        await client.close()
        await room.until_over()
        assert (room.observer.faults, room.observer.closed) == ([error], ["fault"])


async def test_endless_content_is_cut_off_and_does_not_fill_memory() -> None:
    """The client offers 200 MiB to a limit of 1 MiB.  What is read and what is held is bounded."""
    offered = 0
    async with listening({"max_size": 1 << 20}) as room:
        client = await room.sending()
        block = b"x" * (1 << 20)
        try:
            while offered < 200 * len(block):
                await client.send(block)
                offered += len(block)
        except ConnectionError:
            pass
        told = await client.rest()
        await room.until_over()

        (draft,) = room.intake.drafts
        assert told in (b"", b"552 5.3.4 The message exceeds the size limit\r\n")
        assert offered < 100 * len(block)
        assert len(draft.content) <= 1 << 20
        assert draft.most_buffered_bytes <= SPILL_BYTES + 512 * 1024
        assert room.observer.closed == ["refused"]


async def test_a_reset_after_any_octet_causes_no_fault() -> None:
    """tests/fuzz/listener_session tests an end of input at these places."""
    wire = b"EHLO x\r\n" + TRANSACTION + b"a\r\n.\r\nQUIT\r\n"
    async with listening() as room:
        for length in range(len(wire)):
            client = await room.connect()
            await client.send(wire[:length])
            client.reset()
            await room.until_over()

        assert room.observer.faults == []
