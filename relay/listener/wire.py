"""One client's connection as lines, chunks and replies: the wire, without SMTP's meaning.

The connection is aiosmtpd's `SMTP`, its stream and its writer.  Not in use is how aiosmtpd reads lines
(a long one fills memory), writes replies (one by one) and ends (an end of input cancels what runs).

Guarantees: holds at most `READ_AHEAD_BYTES` plus one read of the event loop (256 KiB)
of what a client sent, and `REPLIES_BYTES` plus one reply of what it does not read; end
of input cancels nothing, what came before it is still answered; every wait has a deadline.
"""

import asyncio
import contextlib
import math
import ssl
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from aiosmtpd.smtp import SMTP

from relay.smtp import replies
from relay.smtp.commands import MAX_LINE_BYTES, has_control

READ_AHEAD_BYTES = 64 * 1024
_ALL_BYTES = 1024 * 1024
"""More than a stream ever holds: a read takes all of it, so that nothing is left when TLS begins."""
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


_Waited = TypeVar("_Waited")


class SessionEnd(Exception):  # noqa: N818 - how a session ends is not an error
    """The session is over: `reason` as `Observer.connection_closed` has it, and a last reply."""

    def __init__(self, reason: str, reply: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reply = reply


class BadLine(Exception):  # noqa: N818 - it is what the client sent
    """Not a command line; it was skipped to its end.  `reply` is the refusal."""

    def __init__(self, reply: str, *, is_too_long: bool = False) -> None:
        super().__init__(reply)
        self.reply = reply
        self.is_too_long = is_too_long


class ClientConnection(SMTP):
    """The protocol instance of one connection.  One coroutine, `_handle_client`, uses it."""

    transport: asyncio.Transport
    task: "asyncio.Task[None]"
    """Of `_handle_client`; once `has_begun`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.has_begun = False
        self.is_tls = False
        self.is_stopping = False
        self._can_reply = True
        self._received = b""
        self._position = 0
        self._is_skipping = False
        self._replies = bytearray()
        self._in_turn = 0
        self._settled_at = 0.0
        """When the client will have had its time to read what it was told last."""
        self._deadline = math.inf
        """Of what is waited for; of nothing: never."""
        self._is_idle = False
        self._is_late = False
        self._timer: asyncio.TimerHandle | None = None
        self._open_stream()

    def _open_stream(self) -> None:
        """Begin with nothing read.  Not by SMTP.__init__, which scans this class for each connection."""
        reader = asyncio.StreamReader(READ_AHEAD_BYTES // 2, self.loop)  # it holds twice its limit
        asyncio.StreamReaderProtocol.__init__(self, reader, self._cb_client_connected, self.loop)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        asyncio.StreamReaderProtocol.connection_made(self, transport)
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        self.task = self.loop.create_task(self._handle_client())
        self.has_begun = True

    eof_received = asyncio.StreamReaderProtocol.eof_received  # SMTP's would cancel what runs

    def connection_lost(self, error: Exception | None) -> None:
        asyncio.StreamReaderProtocol.connection_lost(self, error)

    # Called by the listener.

    def shut_down(self) -> None:
        """End the session where it waits for a command and has read its last reply."""
        self.is_stopping = True
        if self._is_idle:
            self._set_deadline(min(self._settled_at, self._deadline))

    def send_away(self, text: str) -> None:
        """Send a last reply, where it can be written at once, and drop the connection."""
        if self._can_reply and not self.transport.is_closing():
            self.reply(text)
            self._send()
        # The coroutine drops the transport at its end, a turn of the loop later: until then uvloop
        # has not written.
        self.task.cancel()

    def abort(self) -> None:
        self.transport.abort()
        self.task.cancel()

    # Called by the session.

    @property
    def has_unread(self) -> bool:
        return self._position < len(self._received)

    def reply(self, text: str) -> None:
        """Add a reply; it goes out in one write with others, at the next wait."""
        self._replies += text.encode("ascii") + b"\r\n"

    async def flush(self, deadline: float) -> None:
        """Wait while the client does not read its replies.  Raises SessionEnd."""
        self._send()
        await self._by(deadline, self._writer.drain())

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
        """Return the line without its CRLF.  Raises BadLine, SessionEnd."""
        while True:
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

        Nothing may be unread: what came in the clear must not be taken for what came
        under TLS (CVE-2011-0411).  What the old stream still gets is lost with it.
        """
        self._send()
        plain, self._plain_writer = (
            self.transport,
            self._writer,
        )  # a writer that is dropped closes its transport
        self._open_stream()
        self._can_reply = False
        try:
            secured = await self.loop.start_tls(
                plain, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError:  # ssl.SSLError, ConnectionError and TimeoutError are
            secured = None
        if secured is None:
            plain.abort()
            raise SessionEnd("lost")
        asyncio.StreamReaderProtocol.connection_made(self, secured)
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
            self._send()
            self._can_reply = False
            if linger and not self.is_tls and not self.transport.is_closing():
                self._writer.write_eof()
                left = LINGER_BYTES
                while left > 0 and (dropped := await self._by(deadline, self._reader.read(_ALL_BYTES))):
                    left -= len(dropped)
            self._writer.close()
            await self._by(deadline, self._writer.wait_closed())

    # Inside.

    def _send(self) -> None:
        if self._replies:
            self._writer.write(bytes(self._replies))
            self._replies.clear()
            self._settled_at = self.loop.time() + READING_S

    def _look_at_partial_line(self) -> None:
        """Raise BadLine once; then the line is skipped to its end."""
        partial = self._received[self._position :]
        # A CR at the very end may be half of the CRLF.
        checked = partial[:-1] if partial.endswith(b"\r") else partial
        if self._is_skipping:
            self.unread(partial[len(checked) :])
        elif len(checked) > MAX_LINE_BYTES or has_control(checked[:MAX_LINE_BYTES]):
            self._is_skipping = True
            self.unread(partial[len(checked) :])
            _check_line(checked)

    async def _more(self, deadline: float, *, is_idle: bool = False) -> None:
        """Send the replies and wait until more has come.  Raises SessionEnd."""
        self._send()
        self.unread(self._received[self._position :])
        if self.loop.time() >= deadline:
            # Checked before waiting too: octets that trickle in may always be quicker than the timer.
            raise SessionEnd("timeout", replies.IDLE_TOO_LONG)
        if self.transport.get_write_buffer_size() > REPLIES_BYTES:
            await self._by(deadline, self._writer.drain())
        until = min(deadline, self._settled_at) if is_idle and self.is_stopping else deadline
        self._is_idle = is_idle
        try:
            more = await self._by(until, self._reader.read(_ALL_BYTES))
        except SessionEnd as end:
            if end.reason == "timeout" and is_idle and self.is_stopping and self.loop.time() < deadline:
                raise SessionEnd("shutdown", replies.CLOSING) from None
            raise
        finally:
            self._is_idle = False
        if not more:
            raise SessionEnd("lost")
        self._in_turn = 0
        self._received += more

    async def _by(self, deadline: float, wait: Coroutine[Any, Any, _Waited]) -> _Waited:
        """Raise SessionEnd where it takes too long, or the connection is lost.

        As `asyncio.timeout_at`, but that costs a timer for each wait: here one rings at the first
        deadline, and is set again for the last.
        """
        self._set_deadline(deadline)
        try:
            return await wait
        except asyncio.CancelledError:
            if not self._is_late or self.task.uncancel():
                raise
            raise SessionEnd("timeout", replies.IDLE_TOO_LONG) from None
        except OSError:
            raise SessionEnd("lost") from None
        finally:
            self._deadline, self._is_late = math.inf, False

    def _set_deadline(self, deadline: float) -> None:
        self._deadline = deadline
        if self._timer is None or self._timer.when() > deadline:
            self._stop_timer()
            self._timer = self.loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self.loop.time() >= self._deadline:
            self._is_late = True
            self.task.cancel()
        elif self._deadline < math.inf:
            self._set_deadline(self._deadline)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _check_line(line: bytes) -> None:
    """Refuse a line for its first fault, so that the network's cuts make no difference."""
    if has_control(line[:MAX_LINE_BYTES]):
        raise BadLine(replies.BAD_LINE_END)
    if len(line) > MAX_LINE_BYTES:
        raise BadLine(replies.LINE_TOO_LONG, is_too_long=True)
