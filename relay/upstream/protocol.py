"""SMTP on one connection: it sends commands, and takes exactly one strict reply to each.

Guarantees
- A reply is believed only if its code can be read (`relay.smtp.reply`) and the reply is due.  Octets that
  wait before a command, or follow the last reply, end the connection.  Only 421 may come without a command
  (RFC 5321, 3.8); the replies before it stay valid.
- After any `Broken` the connection cannot be used, and every further command raises.
- No command line contains a control character, and no exception contains a command line.
- The final dot is written only after complete content that ends in CRLF, and never after an early reply.
The base class, aiosmtplib's, provides the transport and flow control.  Its reader of replies is not used: it
pairs `250ok`, or a leftover line, with a command, and costs a Task for each.
Assumes: one user at a time.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import cast

from aiosmtplib.protocol import SMTPProtocol

from relay.mail.text import clean
from relay.smtp.commands import has_control
from relay.smtp.dot_stuffing import DotStuffing
from relay.smtp.reply import MalformedReply, Phase, Reply, ReplyParser
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

BLOCK_BYTES = 64 * 1024
"""Content is sent in blocks of at least this many octets.  The rest goes in one write with the final dot."""
_UNASKED = "the upstream sent more than the replies that were due"
_NAMED = {Phase.CONNECT: "the greeting", Phase.EOD: "the reply to the final dot"}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each step of a session may take, in seconds of the loop's clock.

    The defaults are the minimum of RFC 5321, 4.5.3.2 for a client, where it has one.  A client that hangs up
    sooner after the final dot relays the message twice.
    """

    connect_s: float = 30.0  # for the lookup, and for each address: a silent one must not hide the next
    greeting_s: float = 300.0
    hello_s: float = 300.0
    tls_s: float = 60.0  # for the handshake after STARTTLS; connect_s bounds that of implicit TLS
    auth_s: float = 120.0  # for each step of the exchange
    mail_s: float = 300.0
    rcpt_s: float = 300.0
    data_s: float = 120.0
    block_s: float = 180.0  # without any progress, while content is being sent
    eod_s: float = 600.0  # from the final dot to its reply
    reset_s: float = 30.0
    quit_s: float = 2.0  # the connection is closed afterwards with or without a reply


class Broken(Exception):  # noqa: N818 - it is what became of the connection, and reads as such
    """The connection cannot be used any more.  The text says why, and is safe to log."""

    reply: Reply | None = None
    """The proper reply that ended the connection, if there was one."""
    is_unasked = False
    """The connection ended before the command was sent."""
    status: str | None = None
    """The enhanced status code for a reply that cannot be read; None for silence or a proper reply.

    A message that is old enough expires by an answer that has such a code, but not by silence.
    """

    def answer(self, phase: Phase, verdict: Verdict) -> Answer:
        waited_for = _NAMED.get(phase) or f"the reply to {phase.upper()}"
        text = str(self.reply) if self.reply else f"waiting for {waited_for}: {self}"
        return Answer(verdict, phase, self.reply, text, own_status=self.status)


class Lost(Broken):
    """The connection was closed or reset."""


class Late(Broken):
    """Nothing came, or nothing could be sent, before the deadline."""


class Garbled(Broken):
    """A reply is malformed, not due, or without meaning here: replies cannot be matched to commands now."""

    status = "4.5.0"  # RFC 3463, 3.6: other or undefined protocol status


class Farewell(Broken):
    reply: Reply

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = reply


class StrictProtocol(SMTPProtocol):
    """One connection.  Every method that waits raises Broken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.phase = Phase.CONNECT
        """The phase of the last reply, or of the reply that is due."""
        self._parser = ReplyParser()
        self._due = 1  # how many replies are due; the greeting needs no command
        self._replies: deque[Reply] = deque()  # received, and not yet taken
        self._is_closing = False  # 421 came before the last reply that was due: ignore what follows it
        self.fault: Broken | None = None
        """What ended the connection."""
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0
        """The loop's time at which the present wait ends; the timer may be earlier."""
        self._writer: asyncio.WriteTransport  # once it is connected

    @property
    def is_quiet(self) -> bool:
        """Whether the next command may be sent: connected, and no reply is due or unread."""
        return self.fault is None and not self._due and not self._replies and self.is_connected

    async def reply(self, timeout_s: float) -> Reply:
        """Return the next reply that is due: the greeting, or one to a command.  Raise Farewell for 421.

        After the final dot, Broken without a reply means: nobody knows whether the message was relayed.
        """
        until = self._loop.time() + timeout_s
        while not self._replies:
            if self.fault is not None:
                raise self.fault
            if not await self._wait(until):
                self._give_up(f"nothing came within {timeout_s:g} s")
        return self._take_reply()

    async def command(self, line: bytes, phase: Phase, timeout_s: float) -> Reply:
        """Raise Farewell for 421 in any phase, and ValueError if the line has a control character."""
        self.phase = phase
        self.send([line])
        return await self.reply(timeout_s)

    def send(self, lines: Sequence[bytes]) -> None:
        """Send commands; `reply` then returns each reply.  Several at once need PIPELINING (RFC 2920).

        Raises ValueError, and sends nothing, if a line has a control character, and might be two lines.
        """
        if has_control(b" ".join(lines)):
            raise ValueError(f"a control character in a command line ({self.phase})")
        self._begin(len(lines))
        self._writer.write(b"\r\n".join([*lines, b""]))

    async def secure(self, context: ssl.SSLContext, host: str, timeout_s: float) -> Reply:
        """Send STARTTLS and, after 220, change to TLS (RFC 3207); return the reply, also if it is a refusal.

        Also raises ssl.SSLError and OSError, from the handshake.
        """
        reply = await self.command(b"STARTTLS", Phase.STARTTLS, timeout_s)
        if reply.code == 220:
            # Octets behind the 220 would be taken for octets that came encrypted.
            self._raise_fault()
            self.transport = await self._loop.start_tls(
                self._writer, self, context, server_hostname=host, ssl_handshake_timeout=timeout_s
            )
            self._take_transport()
        return reply

    async def send_content(self, chunks: AsyncIterator[bytes], block_s: float, until: float) -> Reply | None:
        """Send the content, dot-stuffed, and the final dot; return None once the dot is written.

        Return the reply if one came before the dot: the dot was not written, and the caller must abort.
        Raises Late if the loop's time passes `until` while a block is sent.  What the chunks raise, and
        UnsendableContent, is passed on: the caller must abort, and the upstream has seen no end of the
        content.
        """
        self._begin(1)
        stuffing = DotStuffing()
        block = bytearray()
        async for chunk in chunks:
            block += stuffing.add(chunk)
            if len(block) >= BLOCK_BYTES:
                await self._send_block(block, block_s, until)
                if self._replies:
                    break
                block = bytearray()  # a new object: the transport may still hold the old
        else:
            block += stuffing.finish()
        if self._replies:
            return self._take_reply()
        self._raise_fault()
        # Crash here: without the dot, the upstream discards the content (RFC 5321, 4.1.1.4).
        self._writer.write(block)
        return None

    async def quit(self, timeout_s: float) -> None:
        """Send QUIT if possible, and close; take about twice the timeout at most, and never raise Broken."""
        try:
            if self.is_quiet:
                await self.command(b"QUIT", Phase.QUIT, timeout_s)
                self._writer.close()
                until = self._loop.time() + timeout_s
                while self.transport is not None and await self._wait(until):
                    pass
        except Broken:
            pass  # it is gone already
        finally:
            self.abort()

    def abort(self) -> None:
        """Close at once; drop what was written and is not sent yet."""
        self._break(Lost("the relay closed the connection"))
        if self.transport is not None:
            self._writer.abort()

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._take_transport()

    def data_received(self, data: bytes) -> None:
        if self.fault is not None or self._is_closing:
            return
        self._parser.feed(data)
        try:
            while self._due and (reply := self._parser.next_reply()) is not None:
                self._replies.append(reply)
                self._due -= 1
                if reply.code == 421 and self._due:
                    # After 421 the upstream obeys no command.
                    self._due, self._is_closing, self._parser = 0, True, ReplyParser()
            if not self._due and self._parser.held_bytes:
                self._take_unasked()
        except MalformedReply as error:
            # A reply to AUTH may repeat the password, so it is not shown.
            text = "the answer is not an SMTP reply" if self.phase is Phase.AUTH else str(error)
            if not self._due:
                text = _UNASKED
                if self.phase is not Phase.EOD:
                    # The reply to the dot stays, or noise behind it would make us send the message again.
                    self._replies.clear()
            self.fault = Garbled(text)
        if self._replies or self.fault is not None:
            self._wake()

    def eof_received(self) -> bool:
        self._lose("the upstream closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        reason = clean(str(exc)) if exc is not None else ""
        self._lose(f"the connection was lost: {reason}" if reason else "the connection was closed")
        super().connection_lost(exc)
        self._wake()
        if self._timer is not None:
            self._timer.cancel()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wake()

    def _begin(self, commands: int) -> None:
        """Check that no reply is due or unread, and expect a reply to each command."""
        self._raise_fault()
        if not self.is_quiet:
            raise Garbled("a command was started before the last one was answered")
        self._due = commands

    def _take_transport(self) -> None:
        # Under TLS the default is 512 KiB: at 1 kB/s no progress would show for minutes.
        self._writer = cast("asyncio.WriteTransport", self.transport)
        self._writer.set_write_buffer_limits(high=BLOCK_BYTES)

    def _raise_fault(self) -> None:
        """Raise the fault if the connection ended before anything more was sent."""
        if self.fault is not None:
            self.fault.is_unasked = True
            raise self.fault

    def _take_reply(self) -> Reply:
        reply = self._replies.popleft()
        if reply.code == 421:
            self.fault = Farewell(reply)
            raise self.fault
        return reply

    def _take_unasked(self) -> None:
        unasked = self._parser.next_reply()
        if unasked is not None and unasked.code == 421 and not self._parser.held_bytes:
            self.fault = Farewell(unasked)
            self.fault.is_unasked = True
        else:
            self._replies.clear()
            self.fault = Garbled(_UNASKED)

    async def _send_block(self, block: bytearray, block_s: float, until: float) -> None:
        """Send part of the content and wait for room in the transport; return at once when a reply came."""
        self._raise_fault()
        self._writer.write(block)
        # Let an early reply come in, and other connections run.
        await asyncio.sleep(0)
        unsent_bytes = self._writer.get_write_buffer_size()
        while not self._replies:
            self._raise_fault()
            left_s = until - self._loop.time()
            if left_s <= 0:
                self._give_up("sending the content took too long")
            elif not self._paused:
                return
            elif not await self._wait(self._loop.time() + min(block_s, left_s)):
                before_bytes, unsent_bytes = unsent_bytes, self._writer.get_write_buffer_size()
                if unsent_bytes >= before_bytes:
                    self._give_up(f"nothing could be sent for {block_s:g} s")

    def _give_up(self, text: str) -> None:
        """End the connection as Late, unless a reply has just come."""
        if not self._replies:
            self._break(Late(text))

    def _lose(self, text: str) -> None:
        self._break(Lost(f"{text}, in the middle of a reply" if self._parser.held_bytes else text))

    def _break(self, fault: Broken) -> None:
        """End the connection; the first fault stays."""
        self.fault = self.fault or fault
        self._wake()

    async def _wait(self, until: float) -> bool:
        """Return True when something happens, False at the loop's time `until`."""
        self._until = until
        # Most waits end later than the one before: one timer for all of them costs less than one for each.
        if self._timer is None or self._timer.when() > until:
            self._set_timer()
        self._waiter = self._loop.create_future()
        return await self._waiter

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._until, self._ring)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def _ring(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._until:
            self._set_timer()
            return
        # After SIGSTOP and SIGCONT the timer may be due while the reply is in the socket.  asyncio and uvloop
        # run due timers before they read sockets.  Deferred twice, this call runs after such a read.
        self._loop.call_soon(self._loop.call_soon, _say_late, self._waiter)


def _say_late(waiter: "asyncio.Future[bool]") -> None:
    if not waiter.done():
        waiter.set_result(False)
