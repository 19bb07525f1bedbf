"""Commands and their order, over a real socket."""

import pytest

from relay.smtp import replies
from tests.unit.listener.conversation import TRANSACTION, codes, listening


async def test_one_message_over_one_connection_is_taken_as_it_came() -> None:
    async with listening() as room:
        client = await room.connect()
        assert await client.reply() == b"220 relay.example ESMTP relay\r\n"
        assert (await client.ask(b"EHLO mx.example.org")).startswith(b"250-relay.example\r\n")
        assert await client.ask(b"MAIL FROM:<a@example.org> SIZE=10 BODY=8BITMIME") == b"250 2.1.0 Ok\r\n"
        assert await client.ask(b"RCPT TO:<b@example.net>") == b"250 2.1.5 Ok\r\n"
        assert await client.ask(b"DATA") == b"354 End with <CRLF>.<CRLF>\r\n"
        reply = await client.ask(b"Subject: \xff\r\n\r\n..\r\n...x\r\n.")
        assert await client.ask(b"QUIT") == b"221 2.0.0 Bye\r\n"
        assert await client.rest() == b""

        (message,) = room.intake.accepted
        assert reply == f"250 2.0.0 Ok: queued as {message.queue_id}\r\n".encode()
        assert message.received == b"Subject: \xff\r\n\r\n.\r\n..x\r\n"
        assert message.trace.startswith(
            b"Received: from mx.example.org (unknown [127.0.0.1])\r\n\tby relay.ex"
        )
        assert message.envelope.reverse_path == "a@example.org"
        assert message.envelope.recipients == ("b@example.net",)
        assert message.envelope.client == "unknown[127.0.0.1]"
        assert message.envelope.helo == "mx.example.org"
        assert message.envelope.protocol == "ESMTP"
        assert message.envelope.user is None
        assert room.observer.sizes == [len(message.content)]
        await room.until_over()
        assert room.observer.closed == ["quit"]
        assert room.observer.refusals == []


async def test_client_that_knows_only_helo_is_served() -> None:
    async with listening() as room:
        client = await room.greeted(b"HELO old.example")
        assert await client.ask(b"MAIL FROM:<>") == b"250 2.1.0 Ok\r\n"
        assert await client.ask(b"RCPT TO: <b@example.net>") == b"250 2.1.5 Ok\r\n"
        await client.ask(b"DATA")
        assert (await client.ask(b".")).startswith(b"250 2.0.0 ")

        (message,) = room.intake.accepted
        assert message.envelope.protocol == "SMTP"
        assert message.envelope.reverse_path == ""
        assert message.envelope.is_null
        assert message.received == b""


async def test_pipelined_transactions_are_answered_in_order() -> None:
    async with listening() as room:
        told = await room.say(
            b"EHLO x\r\n" + (TRANSACTION + b"one\r\n.\r\n") * 3 + b"NOOP\r\nQUIT\r\n" + b"RSET\r\n" * 3
        )

    assert codes(told) == [220, 250, *[250, 250, 354, 250] * 3, 250, 221]
    assert [message.received for message in room.intake.accepted] == [b"one\r\n"] * 3


@pytest.mark.parametrize(
    ("before", "command", "reply"),
    [
        (b"EHLO x\r\nMAIL FROM:<a@b>\r\nRSET", b"RCPT TO:<a@b>", replies.NEEDS_MAIL),
        (b"", b"HELO two w\xf6rds", "250 relay.example"),
        (b"", b" NOOP", replies.UNKNOWN_COMMAND),
        (b"", b"noop whatever  ", replies.OK),
        (b"EHLO x\r\nMAIL FROM:<a@b> \r\nRCPT TO:<c@d> ", b"DATA ", replies.GO_AHEAD),
        (b"EHLO [127.0.0.1]\r\nEHLO [IPv6:2001:db8::1]\r\nHELO localhost.", b"RSET", replies.OK),
        (b"EHLO x", b"MAIL FROM:<a@b> RET=HDRS ENVID=QQ+2B1 SIZE=9", replies.SENDER_OK),
        (b"EHLO x", b"mail from:<a@b> auth=<> body=7bit size=0", replies.SENDER_OK),
        (b"HELO x\r\nMAIL FROM:<>", b"RCPT TO:<a@b> NOTIFY=NEVER", replies.UNKNOWN_PARAMETER),
        (b"EHLO x\r\nMAIL FROM:<>", b"RCPT TO:<a@b> NOTIFY=NEVER ORCPT=rfc822;a+2Bc@b", replies.RECIPIENT_OK),
    ],
)
async def test_command_gets_its_reply(before: bytes, command: bytes, reply: str) -> None:
    async with listening() as room:
        client = await room.connect()
        await client.reply()
        for line in before.split(b"\r\n") if before else []:
            assert (await client.ask(line)).startswith(b"250")

        assert await client.ask(command) == reply.encode() + b"\r\n"


async def test_an_address_outside_ascii_needs_smtputf8_and_no_more() -> None:
    async with listening() as room:
        client = await room.greeted()
        assert (await client.ask("MAIL FROM:<é@b>".encode())).startswith(b"553 5.6.7 ")
        await client.ask(b"MAIL FROM:<a@b>")
        assert (await client.ask("RCPT TO:<é@b>".encode())).startswith(b"553 5.6.7 ")
        await client.ask(b"RSET")
        assert (await client.ask("MAIL FROM:<é@b> SMTPUTF8".encode())).startswith(b"250 ")
        assert (await client.ask(b"RCPT TO:<\xff@b>")).startswith(b"501 5.1.3 ")
        assert (await client.ask("RCPT TO:<ü@ü.example>".encode())).startswith(b"250 ")
        await client.ask(b"DATA")
        await client.ask(b".")

        (message,) = room.intake.accepted
        assert message.envelope.reverse_path == "é@b"
        assert message.envelope.recipients == ("ü@ü.example",)
        assert message.envelope.smtputf8
        assert message.envelope.protocol == "UTF8SMTP"


async def test_web_browser_is_turned_away_before_it_can_post_a_message() -> None:
    async with listening() as room:
        told = await room.say(b"POST / HTTP/1.1\r\n\r\nEHLO x\r\n" + TRANSACTION + b"spam\r\n.\r\n")

        assert codes(told) == [220, 421]
        assert room.observer.closed == ["refused"]
        assert room.intake.accepted == []
