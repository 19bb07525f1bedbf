"""Whatever octets come, in whatever pieces: replies or a close, never a fault of ours."""

import asyncio
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.listener.conversation import TRANSACTION, Room, listening

TOKENS = [
    b"\r\n", b"\n", b"\r", b"\0", b".", b" ", b"\r\n.\r\n", b"x" * 3000, b"<", b">", b":", b"=", b"\xff",
    b"EHLO x\r\n", b"HELO x\r\n", b"NOOP\r\n", b"RSET\r\n", b"QUIT\r\n", b"DATA\r\n", b"HELP\r\n",
    b"MAIL FROM:<a@b>\r\n", b"MAIL FROM:<>", b" SIZE=", b" SMTPUTF8", b" BODY=8BITMIME", b" AUTH=<>",
    b"RCPT TO:<c@d>\r\n", b"RCPT TO:", b"STARTTLS\r\n", b"AUTH PLAIN ", b"AUTH LOGIN\r\n", b"bWpk\r\n",
    b"AG1qZABvcGVuIHNlc2FtZQ==\r\n", b"*\r\n", b"VRFY x\r\n", TRANSACTION, b"Received: x\r\n",
]  # fmt: skip

_REPLIES = re.compile(rb"(?:[2-5][0-9][0-9]-[ -~]*\r\n)*(?:[2-5][0-9][0-9] [ -~]*\r\n)")


async def _converse(pieces: list[bytes], users_file: Path) -> tuple[bytes, Room]:
    policy: dict[str, object] = {"users_file": str(users_file), "max_size": 5000, "max_recipients": 3}
    async with listening(policy) as room:
        client = await room.connect()
        for piece in pieces:
            client.writer.write(piece)
            await asyncio.sleep(0)
        if client.writer.can_write_eof() and not client.writer.is_closing():
            client.half_close()
        told = await client.rest()
        await client.close()
        await room.until_over()
    return told, room


@given(st.lists(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=20)), max_size=30))
def test_any_octets_yield_replies_or_a_close(users_file: Path, pieces: list[bytes]) -> None:
    told, room = asyncio.run(_converse(pieces, users_file))

    assert room.observer.faults == []
    assert len(room.observer.closed) == 1
    assert _REPLIES.sub(b"", told) == b""
    assert b"451" not in told
    assert told.count(b"queued as") == len(room.intake.accepted)
