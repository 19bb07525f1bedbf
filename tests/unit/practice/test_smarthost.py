"""The practice smarthost, through SMTP."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.policy.limits import LimitSettings
from relay.policy.units import HostPort
from relay.practice.account import PracticeAccount
from relay.practice.smarthost import MAX_LINE_BYTES, PracticeSmarthost, Practised
from relay.smtp.sasl import Credentials
from tests.fakes.clock import FakeClock

MINUTE_NS = 60 * SECOND_NS
PLAIN = base64.b64encode(b"\0mjd\0correct horse").decode()
MESSAGE = b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nSubject: x\r\n\r\nHello\r\n.\r\n"


class Practice:
    """A smarthost that allows so many messages a minute, and clients of it."""

    def __init__(self, count: int = 1000, keep: Path | None = None) -> None:
        self.clock = FakeClock()
        self.seen: list[Practised] = []
        limit = LimitSettings.model_validate({"messages": count, "per": "60s"})
        account, credentials = PracticeAccount(limit, 10 * MINUTE_NS), Credentials("mjd", "correct horse")
        self.host = PracticeSmarthost(
            HostPort("127.0.0.1", 0), credentials, account, self.clock, keep=keep, observer=self.seen.append
        )

    @asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.host.port)
        assert (await reply(reader)).startswith("220 ")
        yield reader, writer
        writer.transport.abort()

    async def replies(self, said: bytes, *, step: int = 0) -> list[str]:
        """Log in, say this in pieces, and quit; return the replies."""
        said = f"EHLO client.example\r\nAUTH PLAIN {PLAIN}\r\n".encode() + said + b"QUIT\r\n"
        async with self.client() as (reader, writer):
            for start in range(0, len(said), step or len(said)):
                writer.write(said[start : start + (step or len(said))])
                await writer.drain()
            replies: list[str] = []
            while not reader.at_eof() and not (replies and replies[-1].startswith("221")):
                replies.append(await reply(reader))
            return replies[2:]


async def reply(reader: asyncio.StreamReader) -> str:
    lines: list[str] = []
    while not lines or lines[-1][3:4] == "-":
        lines.append((await reader.readuntil(b"\r\n")).decode("ascii").removesuffix("\r\n"))
    return lines[-1]


@asynccontextmanager
async def practice(count: int = 1000, keep: Path | None = None) -> AsyncIterator[Practice]:
    made = Practice(count, keep)
    await made.host.start()
    yield made
    await made.host.close()


async def test_the_limit_is_enforced_exactly_and_the_cut_off_ends() -> None:
    async with practice(3) as made:
        said = [each for each in await made.replies(4 * MESSAGE) if each[:3] in {"250", "550"}]
        decided = said[2::3]
        made.clock.advance(10 * MINUTE_NS)
        decided += (await made.replies(MESSAGE))[3:4]

    assert [each[:9] for each in decided] == [*["250 2.0.0"] * 3, "550 5.7.1", "250 2.0.0"]
    assert decided[3] == "550 5.7.1 You have exceeded your sending limit of 3 messages per 60s"


async def test_all_connections_share_the_limit_of_the_account() -> None:
    async with practice(20) as made:
        await asyncio.gather(*(made.replies(2 * MESSAGE) for _ in range(20)))

    assert (made.host.account.relayed, made.host.account.refused) == (20, 20)


CONVERSATION = (
    b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n..stuffed\r\n.\n.\r\n\n..\r\n.\r\nNOOP\r\n"
    b"MAIL FROM:<>\r\nRCPT TO:<c@d>\r\nDATA\r\n.\r\n"
)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 0])
async def test_pipelined_commands_are_answered_in_order_at_every_cut(step: int, tmp_path: Path) -> None:
    async with practice(keep=tmp_path) as made:
        replies = await made.replies(CONVERSATION, step=step)

    # Neither LF.CRLF nor a dot with LF ended the content: it went on to CRLF.CRLF, and is one message.
    codes = ["250", "250", "354", "250", "250", "250", "250", "354", "250", "221"]
    assert [each[:3] for each in replies] == codes
    assert (tmp_path / "000001.eml").read_bytes() == b".stuffed\r\n\n.\r\n\n..\r\n"
    assert (tmp_path / "000002.eml").read_bytes() == b""


async def test_what_it_keeps_is_numbered_behind_what_was_there(tmp_path: Path) -> None:
    keep = tmp_path / "made" / "on demand"
    async with practice(keep=keep) as made:
        await made.replies(MESSAGE)
    async with practice(keep=keep) as made:
        assert (await made.replies(MESSAGE))[3] == "250 2.0.0 Ok: practised as 2"

    assert sorted(path.name for path in keep.iterdir()) == ["000001.eml", "000002.eml"]
    assert (keep / "000002.eml").read_bytes() == b"Subject: x\r\n\r\nHello\r\n"


async def test_mail_needs_the_password_of_the_account() -> None:
    async with practice() as made, made.client() as (reader, writer):
        wrong = base64.b64encode(b"\0mjd\0wrong").decode()
        writer.write(f"EHLO x\r\nAUTH PLAIN {wrong}\r\nMAIL FROM:<a@b>\r\n".encode())
        assert [(await reply(reader))[:3] for _ in range(3)] == ["250", "535", "530"]


async def test_a_client_that_sends_a_line_without_end_is_cut_off() -> None:
    async with practice() as made, made.client() as (reader, writer):
        writer.write(bytes(2 * MAX_LINE_BYTES))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reply(reader)


def test_passwords_in_clear_are_taken_on_loopback_only() -> None:
    account = PracticeAccount(LimitSettings.model_validate({"messages": 1, "per": "1m"}), 1)
    with pytest.raises(ValueError, match="loopback only"):
        PracticeSmarthost(HostPort("0.0.0.0", 0), Credentials("u", "p"), account, FakeClock())
