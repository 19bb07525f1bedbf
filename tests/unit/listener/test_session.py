"""Commands and their order, over a real socket."""

from tests.unit.listener.conversation import listening


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
