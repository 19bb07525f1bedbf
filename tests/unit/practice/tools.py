"""What the tests of the practice smarthost share: a clock moved by hand, a limit, a bare client."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from relay.clock import SECOND_NS
from relay.policy.limits import LimitSettings
from relay.policy.units import HostPort

LOOPBACK = HostPort("127.0.0.1", 0)
MINUTE_NS = 60 * SECOND_NS
USER, PASSWORD = "mjd", "correct horse"
PLAIN = base64.b64encode(f"\0{USER}\0{PASSWORD}".encode()).decode()


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND_NS

    def wall_ns(self) -> int:
        return self.now_ns

    def boottime_ns(self) -> int:
        return self.now_ns

    def boot_id(self) -> str:
        return "practice"


def limit(unit: str, count: int, per: str = "60s") -> LimitSettings:
    return LimitSettings.model_validate({unit: count, "per": per})


class BareClient:
    """Says exactly the bytes that it is told, and reads replies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, octets: bytes) -> None:
        self.writer.write(octets)

    async def reply(self) -> str:
        """Return one reply, its lines joined by LF."""
        lines = []
        while True:
            line = (await self.reader.readuntil(b"\r\n")).decode("ascii").removesuffix("\r\n")
            lines.append(line)
            if line[3:4] != "-":
                return "\n".join(lines)

    async def ask(self, line: str) -> str:
        self.send(line.encode() + b"\r\n")
        return await self.reply()

    async def log_in(self) -> None:
        assert (await self.ask("EHLO client.example")).startswith("250-")
        assert (await self.ask(f"AUTH PLAIN {PLAIN}")).startswith("235 ")

    async def mail(self, content: bytes = b"Subject: x\r\n\r\nHello\r\n", recipients: int = 1) -> str:
        """Return the reply to the final dot of one message."""
        assert (await self.ask("MAIL FROM:<a@example.org>")).startswith("250 ")
        for number in range(recipients):
            assert (await self.ask(f"RCPT TO:<r{number}@example.com>")).startswith("250 ")
        assert (await self.ask("DATA")).startswith("354 ")
        self.send(content + b".\r\n")
        return await self.reply()


@asynccontextmanager
async def bare_client(port: int) -> AsyncIterator[BareClient]:
    """Connect, read the banner, and hang up at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = BareClient(reader, writer)
    try:
        assert (await client.reply()).startswith("220 ")
        yield client
    finally:
        writer.transport.abort()
