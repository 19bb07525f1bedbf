"""One client's connection as lines, chunks and replies: the wire, without SMTP's meaning.

A protocol of asyncio whose coroutine waits on one future: for octets, room to write, an end or its deadline.

Guarantees: holds at most `READ_AHEAD_BYTES` plus one read of the event loop (256 KiB) of what a client
sent, and the transport's 64 KiB plus `REPLIES_BYTES` of what it does not read; an end of input cancels
nothing, what came before it is still answered; every wait has a deadline.
"""

import asyncio
import contextlib
import ssl
from typing import cast

from relay.smtp import replies
from relay.smtp.commands import MAX_LINE_BYTES, Refused, has_control

READ_AHEAD_BYTES = 64 * 1024
REPLIES_BYTES = 16 * 1024
LINGER_S = 5.0
"""How long a client may take to read our last reply and close."""
LINGER_BYTES = 1024 * 1024
HANDSHAKE_S = 60.0
READING_S = 1.0
"""At a stop, how long a client has to read its last reply and to go on.  Some take two replies that come
together for one, the last (dma): with 421 right behind the 250 they would send the message again."""
TURN_COMMANDS = 8
"""How many commands of one client, sent ahead, are read before others have their turn."""


class SessionEnd(Exception):  # noqa: N818 - how a session ends is not an error
    """The session is over: `reason` as `Observer.connection_closed` has it, and a last reply."""

    def __init__(self, reason: str, reply: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reply = reply


class ClientConnection(asyncio.Protocol):
    transport: asyncio.Transport
    task: "asyncio.Task[None]"
    """What makes the connection, and then the coroutine that uses it."""
    reason = "fault"
    """Of its end, as of `SessionEnd`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_tls = self.is_stopping = False
        self._received, self._position = b"", 0
        self._is_skipping = False
        self._is_reading = self._can_write = True
        self._is_at_end = self._is_lost = False
        self._replies = bytearray()
        self._can_reply = False
        self._in_turn = 0
        self._settled_at = 0.0
        """When the client will have had its time to read what it was told last."""
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        """Of the wait, or of the last one."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        self._can_reply = True

    def data_received(self, data: bytes) -> None:
        self.unread(self._received[self._position :] + data if self.has_unread else data)
        if self._is_reading and len(self._received) > READ_AHEAD_BYTES:
            self._is_reading = False
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

    def end(self, reason: str, text: str | None = None) -> None:
        """End it, whatever it is doing; a last reply goes where it can be written at once."""
        if not self.task.done():
            self.reason = reason
            if text is not None and self._can_reply:
                self.reply(text)
                self._send()
            self.task.cancel()

    def let_go(self) -> None:
        """Drop the connection, a turn of the loop behind a last reply: before, uvloop has not written."""
        if self._timer is not None:
            self._timer.cancel()
        self.transport.abort()

    @property
    def has_unread(self) -> bool:
        return self._position < len(self._received)

    def reply(self, text: str) -> None:
        """Add a reply; it goes out in one write with others, at the next wait."""
        self._replies += text.encode("ascii") + b"\r\n"

    async def flush(self, deadline: float) -> None:
        """Send the replies and wait while the client does not read them.  Raises SessionEnd."""
        self._send()
        while not self._can_write and not self._is_lost:
            if self.loop.time() >= deadline:
                raise SessionEnd("timeout", replies.IDLE_TOO_LONG)
            await self._wait(deadline)

    async def flush_much(self, deadline: float) -> None:
        """Send the replies if they are many, and let other sessions run after TURN_COMMANDS.

        So a client that pipelines neither makes others wait nor fills memory.
        """
        if len(self._replies) > REPLIES_BYTES:
            await self.flush(deadline)
        self._in_turn += 1
        if self._in_turn >= TURN_COMMANDS:
            self._in_turn = 0
            await asyncio.sleep(0)

    async def read_line(self, deadline: float) -> bytes:
        """Return the line without its CRLF.  Raises Refused, SessionEnd."""
        while not self._is_lost:
            end = self._received.find(b"\r\n", self._position)
            if end >= 0:
                line = self._received[self._position : end]
                self._position = end + 2
                if not self._is_skipping:
                    _check_line(line)
                    return line
                self._is_skipping = False
            else:
                if self.has_unread:
                    self._look_at_partial_line()
                await self._more(deadline, is_idle=True)
        raise SessionEnd("lost")

    async def read_chunk(self, deadline: float) -> bytes:
        """Return everything that has come, at least one octet.  Raises SessionEnd."""
        if not self.has_unread:
            await self._more(deadline)
        elif self.loop.time() >= deadline:
            raise SessionEnd("timeout", replies.IDLE_TOO_LONG)
        chunk = self._received[self._position :]
        self.unread(b"")
        return chunk

    def unread(self, rest: bytes) -> None:
        """Put back what `read_chunk` returned too much; before anything else is awaited."""
        self._received, self._position = rest, 0

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Send the replies and go on under TLS.  Raises SessionEnd.

        Nothing may be unread: what came in the clear must not be taken for what came under TLS
        (CVE-2011-0411).  No octet can come in between: the loop takes the transport over before it waits.
        """
        self._send()
        self._can_reply = False
        try:
            secured = await self.loop.start_tls(
                self.transport, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError:  # ssl.SSLError, ConnectionError and TimeoutError are
            secured = None
        if secured is None:
            self.transport.abort()
            self._is_lost = True  # of a failed handshake nobody is told
            raise SessionEnd("lost")
        self.transport, self.is_tls, self._can_reply = secured, True, True

    async def finish(self, text: str | None, *, linger: bool) -> None:
        """Send what is left, and wait a while until the client has it.  Linger if it may still be sending.

        Closing at once would reset the connection, and the client would not see our last
        reply (RFC 1122, 4.2.2.13; RFC 9112, 9.6 asks the same of a web server).
        """
        if text is not None:
            self.reply(text)
        deadline = self.loop.time() + LINGER_S
        with contextlib.suppress(OSError, SessionEnd):  # the client was quicker, or takes too long
            await self.flush(deadline)
            self._can_reply = False
            if linger and not self.is_tls and not self.transport.is_closing():
                self.transport.write_eof()
                left = LINGER_BYTES
                while left > 0:
                    left -= len(await self.read_chunk(deadline))
        self.transport.close()
        while not self._is_lost and self.loop.time() < deadline:
            await self._wait(deadline)

    def _send(self) -> None:
        if self._replies:
            if not self.transport.is_closing():
                self.transport.write(bytes(self._replies))
            self._replies.clear()
            self._settled_at = self.loop.time() + READING_S

    def _look_at_partial_line(self) -> None:
        """Raise Refused once; then the line is skipped to its end."""
        partial = self._received[self._position :]
        # A CR at the very end may be half of the CRLF.
        checked = partial[:-1] if partial.endswith(b"\r") else partial
        is_new = not self._is_skipping
        if is_new and len(checked) <= MAX_LINE_BYTES and not has_control(checked):
            return
        self._is_skipping = True
        self.unread(partial[len(checked) :])
        if is_new:
            _check_line(checked)

    async def _more(self, deadline: float, *, is_idle: bool = False) -> None:
        """Send the replies and wait until more has come.  Raises SessionEnd."""
        await self.flush(deadline)
        self.unread(self._received[self._position :])
        self._in_turn = 0
        held = len(self._received)
        while len(self._received) == held:
            now = self.loop.time()
            if now >= deadline:
                # Before the first wait too: octets that trickle in may always be quicker than the timer.
                raise SessionEnd("timeout", replies.IDLE_TOO_LONG)
            if self._is_at_end or self._is_lost:
                raise SessionEnd("lost")
            until = deadline
            if is_idle and self.is_stopping:
                if now >= self._settled_at:
                    raise SessionEnd("shutdown", replies.CLOSING)
                until = min(deadline, self._settled_at)
            if not self._is_reading:
                self._is_reading = True
                self.transport.resume_reading()
            await self._wait(until)

    async def _wait(self, deadline: float) -> None:
        """Wait for octets, an end, room to write or the deadline, whichever comes first."""
        self._deadline = deadline
        if self._timer is None or self._timer.when() > deadline:
            self._set_timer()
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _set_timer(self) -> None:
        """Set one timer for many waits: it rings at the first deadline, and is set again for the last."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(self._deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self.loop.time() >= self._deadline:
            self._wake()
        elif self._waiter is not None:
            self._set_timer()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _check_line(line: bytes) -> None:
    """Refuse a line for its first fault, so that the network's cuts make no difference."""
    if has_control(line[:MAX_LINE_BYTES]):
        raise Refused(replies.BAD_LINE_END)
    if len(line) > MAX_LINE_BYTES:
        raise Refused(replies.LINE_TOO_LONG)
