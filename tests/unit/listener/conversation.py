"""A listener on a free port with an intake in memory, and a client that speaks raw octets."""

import asyncio
import contextlib
import re
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from relay.listener.listener_files import read_listener_files
from relay.listener.server import Listener
from relay.listener.session import ClientSession
from relay.policy.model import Listen
from tests.fakes.clock import FakeClock
from tests.fakes.intake import MemoryIntake, MemoryObserver

_LAST_LINE = re.compile(rb"[2-5][0-9][0-9](?: [^\r\n]*)?\r\n\Z")
_GIVE_UP_S = 120
"""Ends a broken test; no other test waits this long."""

TRANSACTION = b"MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.net>\r\nDATA\r\n"
GOOD, WRONG = b64encode(b"\0mjd\0open sesame"), b64encode(b"\0mjd\0guess")


class LeapingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time a test can move forward, as a suspend of the host does."""

    leaps_s = 0.0

    def time(self) -> float:
        return super().time() + self.leaps_s


def leap(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LeapingLoop)
    loop.leaps_s += seconds


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, octets: bytes) -> None:
        self.writer.write(octets)
        await self.writer.drain()

    async def reply(self) -> bytes:
        """Return the next whole reply, all its lines."""
        lines = b""
        async with asyncio.timeout(_GIVE_UP_S):
            while not _LAST_LINE.match(lines[lines.rfind(b"\n", 0, -1) + 1 :]):
                lines += await self.reader.readuntil(b"\r\n")
        return lines

    async def codes(self, count: int) -> list[int]:
        """Return the codes of the next replies."""
        return [int((await self.reply())[:3]) for _ in range(count)]

    async def ask(self, command: bytes) -> bytes:
        """Send one command line and return its reply."""
        await self.send(command + b"\r\n")
        return await self.reply()

    async def rest(self) -> bytes:
        """Return everything until the server closes; a reset is an end too."""
        received = b""
        async with asyncio.timeout(_GIVE_UP_S):
            with contextlib.suppress(ConnectionError):
                while chunk := await self.reader.read(65536):
                    received += chunk
        return received

    async def start_tls(self, ca: Path) -> None:
        """Start the TLS handshake.  The caller has read the 220 reply, if there is one."""
        await self.writer.start_tls(ssl.create_default_context(cafile=ca), server_hostname="localhost")

    def half_close(self) -> None:
        with contextlib.suppress(OSError):  # the listener may have closed first
            self.writer.write_eof()

    def reset(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@dataclass
class Room:
    listen: Listen
    listener: Listener
    intake: MemoryIntake
    observer: MemoryObserver
    clock: FakeClock
    clients: list[Client]

    async def connect(self, *, source: str | None = None) -> Client:
        """Connect and read nothing; `source` is the address that the listener sees."""
        address, local_addr = self.listener.address, (source, 0) if source else None
        streams = await asyncio.open_connection(address.host, address.port, local_addr=local_addr)
        self.clients.append(Client(*streams))
        return self.clients[-1]

    async def greeted(self, *, source: str | None = None) -> Client:
        """Connect and send EHLO."""
        client = await self.connect(source=source)
        await client.reply()
        await client.ask(b"EHLO client.example")
        return client

    async def sending(self) -> Client:
        """Return a client that has got 354."""
        client = await self.greeted()
        await client.send(TRANSACTION)
        assert await client.codes(3) == [250, 250, 354]
        return client

    async def say(self, octets: bytes) -> bytes:
        """Send octets on a new connection, close our side, and return all replies."""
        client = await self.connect()
        with contextlib.suppress(ConnectionError):  # the listener may have closed first
            await client.send(octets)
        client.half_close()
        replies = await client.rest()
        await client.close()
        return replies

    @property
    def sessions(self) -> list[ClientSession]:
        return [s for s in self.listener.sessions if isinstance(s, ClientSession)]

    async def until_over(self) -> None:
        """Wait until the server has ended every session that is open now."""
        async with asyncio.timeout(_GIVE_UP_S):
            while sessions := self.sessions:
                await asyncio.wait([session.task for session in sessions])


@contextlib.asynccontextmanager
async def listening(
    policy: Mapping[str, object] | None = None, hostname: str = "relay.example"
) -> AsyncIterator[Room]:
    """Run a listener that lets 127.0.0.0/8 relay, unless the policy says otherwise."""
    listen = Listen.model_validate(
        {"address": "127.0.0.1:0", "clients": ["127.0.0.0/8"], **(policy or {})}, strict=False
    )
    intake, observer, clock = MemoryIntake(), MemoryObserver(), FakeClock()
    listener = Listener(listen, hostname, intake, observer, files=read_listener_files(listen), clock=clock)
    await listener.start()
    room = Room(listen, listener, intake, observer, clock, [])
    try:
        yield room
        intake.gate.set()
        for client in room.clients:
            await client.close()
        await room.until_over()
        # These hold after every test.
        assert listener.admission.total == 0
        assert not intake.open_drafts
        assert len(observer.opened) == len(observer.closed)
    finally:
        await listener.close(0)


@contextlib.asynccontextmanager
async def closing(room: Room) -> AsyncIterator[None]:
    """Close the listener: the body runs once every session is stopping, the end waits for the close."""
    ended = asyncio.create_task(room.listener.close(30))
    await until(lambda: all(session.is_stopping for session in room.listener.sessions))
    yield
    await ended


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_GIVE_UP_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


def codes(replies: bytes) -> list[int]:
    """Return the code of each reply, in order."""
    return [int(line[:3]) for line in replies.split(b"\r\n") if line[3:4] == b" "]
