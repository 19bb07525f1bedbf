"""One client's connection as lines, chunks and replies: the wire, without SMTP's meaning.

A protocol of asyncio whose coroutine waits on one future: for octets, room to write, an end or its deadline.

Guarantees: holds at most `READ_AHEAD_BYTES` plus one read of the event loop (256 KiB) of what a client
sent, and the transport's 64 KiB plus `MOST_REPLIES` of what it does not read; an end of input cancels
nothing, what came before it is still answered; every wait has a deadline.
"""

import asyncio
import contextlib
import ssl
from typing import cast

from relay.smtp import replies
from relay.smtp.commands import MAX_LINE_BYTES, has_control

READ_AHEAD_BYTES = 64 * 1024
MOST_REPLIES = 16
"""Replies to commands sent ahead that go out in one write; then other sessions have their turn."""
LINGER_S = 5.0
"""How long a client may take to read our last reply and close."""
LINGER_BYTES = 1024 * 1024
READING_S = 1.0
"""At a stop, how long a client has to read its last reply and to go on.  Some take two replies that come
together for one, the last (dma): with 421 right behind the 250 they would send the message again."""


class SessionEnd(Exception):  # noqa: N818 - how a session ends is not an error
    """The session is over: `reason` as `Observer.connection_closed` has it, and a last reply."""

    def __init__(self, reason: str, reply: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reply = reply


class ClientConnection(asyncio.Protocol):
    transport: asyncio.Transport
    task: "asyncio.Task[None]"
    """The coroutine that uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_tls = self.is_stopping = False
        self._received = bytearray()
        self._can_write = True
        self._is_at_end = self._is_lost = False
        self._replies: list[str] = []
        self._sent_at = 0.0
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        self.is_tls = transport.get_extra_info("sslcontext") is not None

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > READ_AHEAD_BYTES:
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Keep the other direction open; TLS closes both (RFC 8446, 6.1)."""
        self._is_at_end = True
        self._wake()
        return not self.is_tls

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - lost is lost
        self._is_lost = True
        self._wake()

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self._wake()

    def shut_down(self) -> None:
        """End the session where it waits for a command and has read its last reply."""
        self.is_stopping = True
        self._wake()

    @property
    def has_unread(self) -> bool:
        return bool(self._received)

    def reply(self, text: str) -> None:
        """Add a reply; it goes out in one write with others, at the next wait."""
        self._replies.append(text)

    async def read_line(self, deadline: float) -> bytes:
        """Return the line without its CRLF.  Raises SessionEnd, also for a line that is no command."""
        if len(self._replies) >= MOST_REPLIES:
            await self._flush(deadline)
            await asyncio.sleep(0)
        while (end := self._received.find(b"\r\n")) < 0:
            # A CR at the very end may be half of the CRLF.
            _check_line(self._received.removesuffix(b"\r"))
            await self._flush(deadline)
            until = self._sent_at + READING_S if self.is_stopping else deadline
            if self.is_stopping and self.loop.time() >= until:
                raise SessionEnd("shutdown", replies.CLOSING)
            await self._more(until)
        if self._is_lost:
            raise SessionEnd("lost")
        line = bytes(self._received[:end])
        del self._received[: end + 2]
        _check_line(line)
        return line

    async def read_chunk(self, deadline: float) -> bytes:
        """Return everything that has come, at least one octet.  Raises SessionEnd."""
        while not self.has_unread:
            await self._flush(deadline)
            await self._more(deadline)
        chunk = bytes(self._received)
        self._received.clear()
        return chunk

    def unread(self, rest: bytes) -> None:
        """Put back what `read_chunk` returned too much; before anything else is awaited."""
        self._received[:0] = rest

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Send the replies and go on under TLS.  Raises SessionEnd.

        Nothing may be unread: what came in the clear must not be taken for what came under TLS
        (CVE-2011-0411).  No octet can come in between: the loop takes the transport over before it waits.
        A handshake has a minute, as asyncio's default says.
        """
        self._send()
        secured = None
        with contextlib.suppress(OSError):  # ssl.SSLError, ConnectionError and TimeoutError are
            secured = await self.loop.start_tls(self.transport, self, context, server_side=True)
        if secured is None:
            self.transport.abort()
            self._is_lost = True  # of a failed handshake nobody is told
            raise SessionEnd("lost")
        self.transport, self.is_tls = secured, True

    async def finish(self, *, linger: bool) -> None:
        """Send what is left, and wait a while until the client has it.  Linger if it may still be sending.

        Closing at once would reset the connection, and the client would not see our last
        reply (RFC 1122, 4.2.2.13; RFC 9112, 9.6 asks the same of a web server).
        """
        deadline = self.loop.time() + LINGER_S
        with contextlib.suppress(OSError, SessionEnd):  # the client was quicker, or takes too long
            await self._flush(deadline)
            if linger and not self.is_tls and not self.transport.is_closing():
                self.transport.write_eof()
                left = LINGER_BYTES
                while left > 0:
                    left -= len(await self.read_chunk(deadline))
        self.transport.close()
        with contextlib.suppress(SessionEnd):
            while not self._is_lost:
                await self._wait(deadline)

    def _send(self) -> None:
        if self._replies:
            if not self.transport.is_closing():
                self.transport.write("\r\n".join([*self._replies, ""]).encode("ascii"))
            self._replies.clear()
            self._sent_at = self.loop.time()

    async def _flush(self, deadline: float) -> None:
        """Send the replies and wait while the client does not read them.  Raises SessionEnd."""
        self._send()
        while not self._can_write and not self._is_lost:
            await self._wait(deadline)

    async def _more(self, deadline: float) -> None:
        """Wait until more may have come.  Raises SessionEnd."""
        if self._is_at_end or self._is_lost:
            raise SessionEnd("lost")
        self.transport.resume_reading()
        await self._wait(deadline)

    async def _wait(self, deadline: float) -> None:
        """Wait for octets, an end, room to write, or less.  Raises SessionEnd once the deadline is over."""
        if self.loop.time() >= deadline:
            # Octets that trickle in may always be quicker than the timer.
            raise SessionEnd("timeout", replies.IDLE_TOO_LONG)
        self._waiter = self.loop.create_future()
        timer = self.loop.call_at(deadline, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _check_line(line: bytes | bytearray) -> None:
    """Raise SessionEnd for the first fault of a line, so that the network's cuts make no difference."""
    if has_control(line[:MAX_LINE_BYTES]):
        raise SessionEnd("errors", replies.BAD_LINE_END)
    if len(line) > MAX_LINE_BYTES:
        raise SessionEnd("errors", replies.LINE_TOO_LONG)
