"""One connection to the practice smarthost: bytes to lines and content, TLS, late replies.

Guarantees: lines end in CRLF and nothing else does, content ends at CRLF.CRLF only;
replies go out in the order of the commands; while one is held back, what the client sends
waits; a message whose client is gone before its reply is decided all the same.
"""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field
from typing import cast

from relay.practice.account import PracticeAccount
from relay.practice.dialogue import HOSTNAME, MAX_CONTENT_BYTES, Dialogue, TokenCheck
from relay.smtp.dot_stuffing import DotUnstuffing
from relay.smtp.sasl import Credentials
from relay.smtp.session_machine import SessionStep, Then

MAX_COMMAND_BYTES = 12_288
"""RFC 4954, 4: what a line of AUTH may need."""


@dataclass(frozen=True, slots=True)
class PracticeTerms:
    account: PracticeAccount
    credentials: Credentials
    tls: ssl.SSLContext | None
    is_token: TokenCheck | None = None
    open: set["PracticeSession"] = field(default_factory=set)
    """The connections that there are, and those lost whose last message is not decided yet."""


class PracticeSession(asyncio.Protocol):
    """One connection, from its banner to its end."""

    _transport: asyncio.Transport
    _dialogue: Dialogue

    def __init__(self, terms: PracticeTerms) -> None:
        self._terms = terms
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._replies: list[str] = []
        self._unstuffing: DotUnstuffing | None = None
        """None outside of content."""
        self._content = bytearray()
        self._is_overlong = False
        self._is_held = False
        self._is_over = False
        self._late_reply: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports are asyncio's by behaviour, not by class.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._dialogue = Dialogue(
            self._terms.account,
            self._terms.credentials,
            client=f"unknown[{peer[0]}]" if peer else "unknown",
            has_tls=self._terms.tls is not None,
            is_token=self._terms.is_token,
        )
        self._terms.open.add(self)
        self._replies.append(f"220 {HOSTNAME} ESMTP practice smarthost")
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave what is held back to be decided when its time comes."""
        del exc
        self._is_over = True
        if self._late_reply is None:
            self._terms.open.discard(self)
            self._dialogue.abandon()
        if not self.ended.done():
            self.ended.set_result(None)

    def abort(self) -> None:
        """End as a power cut would; nothing more is decided."""
        if self._late_reply is not None:
            self._late_reply.cancel()
        if self._handshake is not None:
            self._handshake.cancel()
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._is_held and len(self._buffer) > MAX_COMMAND_BYTES:
            self._transport.pause_reading()
        self._advance()

    def pause_writing(self) -> None:
        """Read nothing from a client that does not read its replies."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._is_held:
            self._transport.resume_reading()

    def _advance(self) -> None:
        is_more = True
        while is_more and not self._is_held and not self._is_over:
            is_more = self._take_line() if self._unstuffing is None else self._take_content(self._unstuffing)
        self._flush()

    def _flush(self) -> None:
        if self._replies and not self._transport.is_closing():
            self._transport.write(("\r\n".join(self._replies) + "\r\n").encode("ascii"))
        self._replies.clear()

    def _take_line(self) -> bool:
        """Return False if the line is not all here."""
        end = self._buffer.find(b"\r\n")
        if end > MAX_COMMAND_BYTES or (end < 0 and len(self._buffer) > MAX_COMMAND_BYTES):
            self._follow(SessionStep("500 5.5.2 Line too long", Then.END))
            return False
        if end < 0:
            return False
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        self._follow(self._dialogue.answer(line))
        return True

    def _follow(self, answer: SessionStep) -> None:
        self._replies.append(answer.reply)
        match answer.then:
            case Then.CONTENT:
                self._unstuffing, self._is_overlong = DotUnstuffing(), False
            case Then.TLS if self._terms.tls is not None:
                self._start_tls(self._terms.tls)
            case Then.END:
                self._flush()
                self._is_over = True
                self._transport.close()

    def _take_content(self, unstuffing: DotUnstuffing) -> bool:
        """Return False if the final dot is not here."""
        self._content += unstuffing.feed(bytes(self._buffer))
        self._buffer = bytearray(unstuffing.rest)
        if len(self._content) > MAX_CONTENT_BYTES:
            self._is_overlong = True
            self._content.clear()
        if not unstuffing.is_ended:
            return False
        self._unstuffing = None
        content = b"" if self._is_overlong else bytes(self._content)
        self._content.clear()
        self._dialogue.dot()
        delay_seconds = self._terms.account.delay_seconds()
        if delay_seconds > 0:
            self._is_held = True
            self._late_reply = self._loop.call_later(delay_seconds, self._reply_late, content)
        else:
            self._settle(content)
        return True

    def _settle(self, content: bytes) -> None:
        self._replies.append(self._dialogue.settle(content, is_overlong=self._is_overlong))

    def _reply_late(self, content: bytes) -> None:
        self._late_reply = None
        self._settle(content)
        if self._is_over:
            self._terms.open.discard(self)
            self._replies.clear()
        else:
            self._release()

    def _release(self) -> None:
        self._is_held = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._advance()

    def _start_tls(self, tls: ssl.SSLContext) -> None:
        self._flush()
        # What came in clear behind STARTTLS is not the client's word (RFC 3207, 5).
        self._buffer.clear()
        self._is_held = True
        self._transport.pause_reading()
        self._handshake = self._loop.create_task(self._secure(tls))

    async def _secure(self, tls: ssl.SSLContext) -> None:
        transport: asyncio.Transport | None = None
        try:
            # Includes ssl.SSLError: the client did not like us, or never meant to.
            with contextlib.suppress(OSError):
                transport = await self._loop.start_tls(self._transport, self, tls, server_side=True)
        finally:
            if transport is None:
                # asyncio does not tell us of a connection lost in the middle of a handshake.
                self._transport.abort()
                self.connection_lost(None)
        if transport is not None:
            self._transport = transport
            self._dialogue.secured()
            self._release()
