"""A line on which an upstream's replies are split, late, lost, changed or unasked: all that RFC 5321 forbids.

It stands between a relay and an honest upstream, whose record stays the truth.  What a reply says of a
recipient or of content is never changed, so no copy may be missing, and nobody may be bounced who was not
refused; what is said of the account may be anything.  How each connection behaves is drawn.
"""

import asyncio
import contextlib
import random

from tests.system.kills import Kills
from tests.system.loop_thread import LoopThread

ABOUT_US = (
    b"421 4.7.0 Try again later, closing connection",
    b"550 5.4.5 Daily user sending limit exceeded",
    b"454 4.7.0 Throttling failure: Maximum sending rate exceeded",
    b"530 5.7.0 Authentication required",
    b"550 5.7.1 Your account has been suspended",
    b"550 - Stop, you are sending too fast!",
)
"""In the words of real servers."""
UNASKED = (
    b"250 2.0.0 Ok: queued",
    b"250 2.0.0 Ok",
    b"550 5.1.1 User unknown",
    b"354 go ahead",
    b"451 4.3.0 no",
)
GARBAGE = (b"250ok\r\n", b"ok\r\n", b"25", b"\xff\xfe\x00\r\n", b"250-a\r\n550 b\r\n", b"2500 a\r\n")
MANNERS = {
    "lawful": ("split", "late", "joined"),
    "breaking": ("split", "lost", "lost", "halved", "garbage", "cut"),
    "counting": ("unasked", "unasked", "before", "before"),
    "about us": ("us", "us", "split"),
}
CHANCE = 0.35


class HostileLine(LoopThread):
    """The line.  A context manager: in it, it is open."""

    def __init__(self, upstream_port: int, seed: int, kills: Kills) -> None:
        super().__init__()
        self.port = 0
        self.is_honest = False
        self.happened: dict[str, int] = {}
        """How often each manner came."""
        self._upstream_port = upstream_port
        self._dice = random.Random(seed)
        self._kills = kills
        self._writers: set[asyncio.StreamWriter] = set()

    def become_honest(self) -> None:
        """Pass everything on as it is from now on, on new connections."""
        self.is_honest = True
        with self._kills.one():
            self.run(self._hang_up())

    async def begin(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def end(self) -> None:
        self._server.close()
        await self._hang_up()

    async def _hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mood = self._dice.choice(list(MANNERS))
        from_upstream, to_upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        both = {writer, to_upstream}
        self._writers |= both
        try:
            commands = asyncio.ensure_future(_pass_on(reader, to_upstream))
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._pass_replies(from_upstream, writer, mood)
            # What the client said last arrives all the same.
            await asyncio.wait([commands], timeout=0.05)
            commands.cancel()
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()

    async def _pass_replies(
        self, replies: asyncio.StreamReader, client: asyncio.StreamWriter, mood: str
    ) -> None:
        while True:
            reply = await _whole(replies)
            if self.is_honest or self._dice.random() > CHANCE:
                client.write(reply)
                continue
            manner = self._dice.choice(MANNERS[mood])
            self.happened[manner] = self.happened.get(manner, 0) + 1
            # Whatever is not understood may be a reason to send again.
            with self._kills.one():
                await self._say(reply, client, manner)

    async def _say(self, reply: bytes, client: asyncio.StreamWriter, manner: str) -> None:
        unasked = self._dice.choice(UNASKED) + b"\r\n"
        match manner:
            case "split":
                for octet in range(len(reply)):
                    client.write(reply[octet : octet + 1])
                    await asyncio.sleep(0)
            case "late" | "joined":
                await asyncio.sleep(self._dice.choice((0.02, 0.1)))
                client.write(reply)
            case "lost":
                await asyncio.sleep(self._dice.choice((0.0, 0.3)))
                raise ConnectionAbortedError
            case "halved":
                client.write(reply[: self._dice.randrange(1, len(reply))])
                await asyncio.sleep(0.02)
                raise ConnectionAbortedError
            case "cut":
                raise ConnectionAbortedError
            case "garbage":
                client.write(self._dice.choice(GARBAGE))
            case "unasked":
                client.write(reply + unasked)
            case "before":
                # In front of the reply to what comes next, but never of a dot's: an upstream that says
                # 250 to a dot has taken the message.
                client.write(
                    reply if reply.startswith(b"354") else reply + self._dice.choice(UNASKED[2:]) + b"\r\n"
                )
            case _:
                client.write(self._dice.choice(ABOUT_US) + b"\r\n")
                await client.drain()
                raise ConnectionAbortedError


async def _whole(replies: asyncio.StreamReader) -> bytes:
    reply = b""
    while True:
        line = await replies.readuntil(b"\r\n")
        reply += line
        if line[3:4] != b"-":
            return reply


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while octets := await reader.read(65536):
            writer.write(octets)
            await writer.drain()
        writer.close()
