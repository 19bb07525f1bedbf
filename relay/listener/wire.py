"""One client's connection as lines, chunks and replies: the wire, without SMTP's meaning.

Little of aiosmtpd's `SMTP` is in use: its reader bounds lines but not memory, its replies are
written one by one, and an end of input cancels whatever runs.

Guarantees: holds at most `READ_AHEAD_BYTES` plus one read of the event loop (256 KiB)
of what a client sent, and `REPLIES_BYTES` plus one reply of what it does not read; end
of input cancels nothing, what came before it is still answered; every wait has a
deadline, kept by the register.
"""

import asyncio
import contextlib
import math
import ssl
from collections.abc import Iterator
from typing import cast

from aiosmtpd.smtp import SMTP, Session

from relay.smtp import replies
from relay.smtp.commands import MAX_LINE_BYTES, has_control

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
LONGEST_TICK_S = 1.0
SHORTEST_TICK_S = 0.01


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
    """The protocol instance of one connection.  One coroutine uses it."""

    transport: asyncio.Transport
    session: Session
    task: "asyncio.Task[None]"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not SMTP.__init__: it scans this class and the handler for every connection.
        # None for the reader, which typeshed does not know: the octets are kept here.
        asyncio.StreamReaderProtocol.__init__(self, None, loop=loop)  # type: ignore[arg-type]  # see above
        self.loop = loop
        self.deadline = math.inf
        self.is_tls = False
        self.has_begun = False
        self._received = b""
        self._position = 0
        self._is_skipping = False
        self._replies = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._is_reading = True
        self._can_write = True
        self._is_at_eof = False
        self._is_lost = False
        self._is_expired = False
        self.is_stopping = False
        self._settled_at = 0.0
        """When the client will have had its time to read what it was told last."""
        self._is_shaking_hands = False
        self._is_sent_away = False
        self._is_ending = False
        self._in_turn = 0
        self._discarded_bytes: int | None = None  # counts once we only wait for the client to close

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        self.session = self._create_session()
        self.session.peer = transport.get_extra_info("peername")
        self.task = self.loop.create_task(self._handle_client())
        self.has_begun = True

    def data_received(self, data: bytes) -> None:
        if self._discarded_bytes is not None:
            self._discarded_bytes += len(data)
        else:
            self._received = self._received[self._position :] + data if self._received else data
            self._position = 0
            if len(self._received) > READ_AHEAD_BYTES and self._is_reading:
                self._is_reading = False
                self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Keep the other direction open, but TLS closes both (RFC 8446, 6.1)."""
        self._is_at_eof = True
        self._wake()
        return not self.is_tls

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - lost is lost
        asyncio.StreamReaderProtocol.connection_lost(self, None)
        self._is_lost = True
        self._wake()

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self._wake()

    # Called by the register and the listener.

    def expire(self) -> None:
        self._is_expired = True
        self._wake()

    def shut_down(self) -> None:
        """End the session where it waits for a command and has read its last reply.

        Of commands that come before that, `ANSWERED_AT_A_STOP` are obeyed.
        """
        self.is_stopping = True
        self._wake()

    def send_away(self, text: str) -> None:
        """Send a last reply and drop the connection, whatever it is doing.

        The reply is lost where it cannot be written at once: nothing is waited for.
        """
        if self.task.done():
            return
        self._is_sent_away = True
        if not (self._is_lost or self._is_ending or self._is_shaking_hands):
            self.reply(text)
            self.transport.write(bytes(self._replies))
            self._replies.clear()
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
        if self._is_lost:
            raise SessionEnd("lost")
        if self._replies:
            self.transport.write(bytes(self._replies))
            self._replies.clear()
            self._settled_at = self.loop.time() + READING_S
        while not self._can_write:
            await self._wait(deadline)
            if self._is_lost:
                raise SessionEnd("lost")
            if self._is_expired:
                self.transport.abort()
                raise SessionEnd("timeout")

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
            if self._is_lost:
                raise SessionEnd("lost")
            if self.has_unread:
                end = self._received.find(b"\r\n", self._position)
                if end >= 0:
                    line = self._received[self._position : end]
                    self._position = end + 2
                    if self._is_skipping:
                        self._is_skipping = False
                        continue
                    _check_line(line)
                    return line
                self._look_at_partial_line()
            await self._more(deadline, is_idle=True)

    async def read_chunk(self, deadline: float) -> bytes:
        """Return everything that has come, at least one octet.  Raises SessionEnd."""
        if self._is_lost:
            raise SessionEnd("lost")
        if not self.has_unread:
            await self._more(deadline, is_idle=False)
        elif self.loop.time() >= deadline:
            raise SessionEnd("timeout", replies.IDLE_TOO_LONG)
        chunk = self._received[self._position :]
        self._received, self._position = b"", 0
        return chunk

    def unread(self, rest: bytes) -> None:
        """Put back what `read_chunk` returned too much; before anything else is awaited."""
        self._received, self._position = rest, 0

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Send the replies and go on under TLS.  Raises SessionEnd.

        Nothing may be unread: what came in the clear must not be taken for what came
        under TLS (CVE-2011-0411).  No octet can arrive in between: `loop.start_tls` takes
        the transport over before it first waits.
        """
        self.transport.write(bytes(self._replies))
        self._replies.clear()
        plain = self.transport
        self._is_shaking_hands = True
        try:
            secured = await self.loop.start_tls(
                plain, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError:  # ssl.SSLError, ConnectionError and TimeoutError are
            secured = None
        self._is_shaking_hands = False
        if secured is None:
            # connection_lost is not called for a handshake that failed.
            plain.abort()
            self._is_lost = True
            raise SessionEnd("lost")
        self.transport = secured
        self.is_tls = True

    async def finish(self, text: str | None, *, linger: bool) -> None:
        """Linger if the client may still be sending."""
        self._is_ending = True
        if text is not None:
            self.reply(text)
        if not self._is_lost and not self.transport.is_closing():
            self.transport.write(bytes(self._replies))
            if linger and not self.is_tls and not self._is_at_eof:
                await self._linger()
            self.transport.close()
        await self._until_lost()
        if not self._is_lost:
            # What we sent is still not read, or TLS is not closed by the other side.
            self.transport.abort()
            await self._until_lost()

    # Inside.

    async def _linger(self) -> None:
        """Read and drop what the client still sends, until it closes too.

        Closing at once would reset the connection, and the client would not see our last
        reply (RFC 1122, 4.2.2.13; RFC 9112, 9.6 asks the same of a web server).
        """
        with contextlib.suppress(OSError):  # the client was quicker
            self.transport.write_eof()
        self._received, self._position, self._discarded_bytes = b"", 0, 0
        self._go_on_reading()
        deadline = self.loop.time() + LINGER_S
        while not (self._is_at_eof or self._is_lost or self._discarded_bytes > LINGER_BYTES):
            await self._wait(deadline)
            if self._is_expired:
                return

    async def _until_lost(self) -> None:
        deadline = self.loop.time() + LINGER_S
        while not self._is_lost:
            await self._wait(deadline)
            if self._is_expired:
                return

    def _look_at_partial_line(self) -> None:
        """Raise BadLine once; then the line is skipped to its end."""
        partial = self._received[self._position :]
        # A CR at the very end may be half of the CRLF.
        checked = partial[:-1] if partial.endswith(b"\r") else partial
        if self._is_skipping:
            self._received, self._position = partial[len(checked) :], 0
        elif len(checked) > MAX_LINE_BYTES or has_control(checked[:MAX_LINE_BYTES]):
            self._is_skipping = True
            self._received, self._position = partial[len(checked) :], 0
            _check_line(checked)

    async def _more(self, deadline: float, *, is_idle: bool) -> None:
        """Send the replies and wait until more has come.  Raises SessionEnd."""
        await self.flush(deadline)
        self._received, self._position = self._received[self._position :], 0
        had_bytes = len(self._received)
        if self.loop.time() >= deadline:
            # Checked before waiting too: octets that trickle in may always be quicker than the timer.
            raise SessionEnd("timeout", replies.IDLE_TOO_LONG)
        while len(self._received) == had_bytes:
            if self._is_at_eof or self._is_lost:
                raise SessionEnd("lost")
            until = deadline
            if is_idle and self.is_stopping:
                if self.loop.time() >= self._settled_at:
                    raise SessionEnd("shutdown", replies.CLOSING)
                until = min(deadline, self._settled_at)
            self._go_on_reading()
            await self._wait(until)
            if self._is_expired and len(self._received) == had_bytes and until == deadline:
                raise SessionEnd("timeout", replies.IDLE_TOO_LONG)

    def _go_on_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.transport.resume_reading()

    async def _wait(self, deadline: float) -> None:
        self.deadline = deadline
        self._is_expired = False
        self._waiter = self.loop.create_future()
        self._in_turn = 0
        try:
            await self._waiter
        finally:
            self._waiter = None
            self.deadline = math.inf

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _check_line(line: bytes) -> None:
    """Refuse a line for its first fault, so that the network's cuts make no difference."""
    if has_control(line[:MAX_LINE_BYTES]):
        raise BadLine(replies.BAD_LINE_END)
    if len(line) > MAX_LINE_BYTES:
        raise BadLine(replies.LINE_TOO_LONG, is_too_long=True)


class Register:
    """The open connections of a listener, and one timer for the deadlines of them all.

    A timer per wait would cost more than the waits do: each connection only writes down
    when it will have waited too long, and one call per tick looks at them.  A deadline is
    therefore kept a little late, by at most a quarter of the shortest timeout or a second.
    Nothing runs while no connection is open.  Used from one event loop.
    """

    def __init__(self, shortest_timeout_s: float) -> None:
        self._tick_s = min(LONGEST_TICK_S, max(SHORTEST_TICK_S, shortest_timeout_s / 4))
        self._open: set[ClientConnection] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(tuple(self._open))

    def add(self, connection: ClientConnection) -> None:
        self._open.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def remove(self, connection: ClientConnection) -> None:
        self._open.discard(connection)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        if not self._open:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in tuple(self._open):
            if connection.deadline <= now:
                connection.expire()
        self._timer = loop.call_later(self._tick_s, self._tick)
