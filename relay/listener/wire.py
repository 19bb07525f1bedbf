"""One client's connection as lines, chunks and replies, without their meaning in SMTP.

An asyncio protocol.  The session waits on one future for octets, room to write, an end or its deadline.

Guarantees: input in memory is at most `READ_AHEAD_BYTES` and one read of the event loop (256 KiB).  Output in
memory is at most the transport's 64 KiB and `MOST_REPLIES`.  An end of input cancels nothing: commands before
it are still answered.  Every wait has a deadline.
"""

import asyncio
import contextlib
import ssl
from typing import cast

from relay.smtp import replies
from relay.smtp.commands import MAX_LINE_BYTES, has_control

READ_AHEAD_BYTES = 64 * 1024
MOST_REPLIES = 16
"""Replies to pipelined commands in one write; then other sessions run."""
LINGER_S = 5.0
"""How long a client may take to read the last reply and close."""
LINGER_BYTES = 1024 * 1024
READING_S = 1.0
"""At a stop, the time between a client's last reply and the 421.  Some clients (dma) take the last of two
replies that arrive together for the only one: with 421 right behind the 250 they send the message again."""


class SessionEnd(Exception):  # noqa: N818 - the end of a session is not an error
    """The session is over.  `reason` is as in `Observer.connection_closed`; `reply` is the last reply."""

    def __init__(self, reason: str, reply: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reply = reply


class ClientConnection(asyncio.Protocol):
    transport: asyncio.Transport
    task: "asyncio.Task[None]"
    """Runs the session's coroutine."""

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
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(LINGER_S, self._expire)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > READ_AHEAD_BYTES:
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Keep the output open; under TLS both directions close (RFC 8446, 6.1)."""
        self._is_at_end = True
        self._wake()
        return not self.is_tls

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the cause does not matter
        self._is_lost = True
        self._wake()

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self._wake()

    def shut_down(self) -> None:
        """End the session when it waits for a command, READING_S after its last reply."""
        self.is_stopping = True
        self._wake()

    @property
    def has_unread(self) -> bool:
        return bool(self._received)

    def reply(self, text: str) -> None:
        """Add a reply; the next wait sends all replies in one write."""
        self._replies.append(text)

    async def read_line(self, deadline: float) -> bytes:
        """Return a line without its CRLF.  Raises SessionEnd, also for a bad or too long line."""
        if len(self._replies) >= MOST_REPLIES:
            await self._flush(deadline)
            await asyncio.sleep(0)
        while (end := self._received.find(b"\r\n")) < 0:
            # A CR at the end may be half of a CRLF.
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
        """Return all octets received so far, at least one.  Raises SessionEnd."""
        while not self.has_unread:
            await self._flush(deadline)
            await self._more(deadline)
        chunk = bytes(self._received)
        self._received.clear()
        return chunk

    def unread(self, rest: bytes) -> None:
        """Put back octets of `read_chunk` behind the content.  Call it before the next await."""
        self._received[:0] = rest

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Send the replies and go on under TLS.  Raises SessionEnd.

        Nothing may be unread: plain octets must not count as received under TLS (CVE-2011-0411).  None can
        arrive in between, since the loop takes over the transport before it waits.  The handshake may take
        a minute, asyncio's default.
        """
        self._send()
        secured = None
        with contextlib.suppress(OSError):  # the base of ssl.SSLError and TimeoutError
            secured = await self.loop.start_tls(self.transport, self, context, server_side=True)
        if secured is None:
            self.transport.abort()
            self._is_lost = True  # connection_lost may never come after a failed handshake
            raise SessionEnd("lost")
        self.transport, self.is_tls = secured, True

    async def finish(self, *, linger: bool) -> None:
        """Send the last replies and close, within LINGER_S.  `linger` if the client may still be sending.

        To close with unread input would reset the connection, and the client would lose the last reply
        (RFC 1122, 4.2.2.13; RFC 9112, 9.6 has the same rule for web servers).
        """
        deadline = self.loop.time() + LINGER_S
        with contextlib.suppress(OSError, SessionEnd):  # the client closed first, or takes too long
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
        """Send the replies, and wait until the transport takes more.  Raises SessionEnd."""
        self._send()
        while not self._can_write and not self._is_lost:
            await self._wait(deadline)

    async def _more(self, deadline: float) -> None:
        """Wait for more octets; may return without any.  Raises SessionEnd."""
        if self._is_at_end or self._is_lost:
            raise SessionEnd("lost")
        self.transport.resume_reading()
        await self._wait(deadline)

    async def _wait(self, deadline: float) -> None:
        """Wait for any event; may return without one.  Raises SessionEnd after the deadline."""
        if self.loop.time() >= deadline:
            # Checked here too: octets that trickle in may each time wake the session before the timer.
            raise SessionEnd("timeout", replies.IDLE_TOO_LONG)
        # A timer costs as much as a command: a short session has only its first, others one once it fired.
        if self._timer is None or self._timer.when() > deadline:
            self.cancel_timer()
            self._timer = self.loop.call_at(deadline, self._expire)
        self._waiter = self.loop.create_future()
        await self._waiter

    def cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _check_line(line: bytes | bytearray) -> None:
    """Raise SessionEnd for the first fault of a line, whichever way TCP divides the line."""
    if has_control(line[:MAX_LINE_BYTES]):
        raise SessionEnd("errors", replies.BAD_LINE_END)
    if len(line) > MAX_LINE_BYTES:
        raise SessionEnd("errors", replies.LINE_TOO_LONG)
