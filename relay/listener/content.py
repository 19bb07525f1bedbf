"""The content of one message, from 354 to the verdict on it.

`ContentDecoder` is pure.  Every flag is a property of the octets up to the end, so a client cannot
choose an answer by its packets.  It takes a few searches at memory speed per chunk, no step per line.

`Transfer` takes the content in.  Guarantees: memory is bounded by `_CHUNK_BYTES`, `SPILL_BYTES` and one
read; content is read to its true end or the session ends, so that no octet of it is ever taken for a
command; a draft that is not accepted is discarded, also when the session is cancelled half-way.
"""

import re
from collections.abc import Callable

from relay.listener.ports import IntakePort, NotAccepted
from relay.listener.wire import ClientConnection, SessionEnd
from relay.mail.draft import Draft
from relay.mail.envelope import Envelope
from relay.mail.header import DECIDING_BYTES, HEAD_BYTES, message_id_of, opened
from relay.smtp import replies
from relay.smtp.dot_stuffing import DotUnstuffing, has_only_crlf

SPILL_BYTES = 256 * 1024
_CHUNK_BYTES = 32 * 1024

# A client that takes LF for a line's end stuffs the dots behind it (smtplib); a lone one is not stuffed.
_ANY_NEWLINE = re.compile(rb"\r\n|\r|\n(?:\.(?=\.))?")
_CUT_NEWLINE = re.compile(rb"(?<!\r)\n\.?\Z")
"""What the next octets may show to be stuffed."""
# How much more than max_size may come over the wire before the end: dots double at most a
# third of the octets, so no content that fits is ever cut off by this.
_WIRE_SLACK_BYTES = 64 * 1024
_RECEIVED = b"\r\nreceived:"
_HEADER_END = b"\r\n\r\n"


class ContentDecoder:
    """Feed it what arrives after 354, store what it returns."""

    def __init__(self, max_size_bytes: int, max_hops: int, *, normalise: bool) -> None:
        self._max_size_bytes = max_size_bytes
        self._max_hops = max_hops
        self._normalise = normalise
        self._wire_bytes = 0
        self._unstuffing = DotUnstuffing()
        self._head = b""
        self._has_bare_newline = False
        self._held = b""
        self._first: bytes | None = b""
        """The first octets, until they are enough for `opened`; then None."""
        self.size_bytes = 0
        """Octets of content as it is stored, so far; goes on counting after a fault."""
        self.hops = 0
        """Received: lines in the header (RFC 5321, 6.3)."""
        self.has_ascii_header = True
        self._header: bytes | None = b"\r\n"
        """The end of what was read of the header; None behind it."""

    @property
    def is_ended(self) -> bool:
        return self._unstuffing.is_ended

    @property
    def rest(self) -> bytes:
        return self._unstuffing.rest

    @property
    def message_id(self) -> str | None:
        return message_id_of(self._head)

    @property
    def refusal(self) -> str | None:
        """Return why this content cannot be accepted, as far as it is known; the most decisive first."""
        if self.size_bytes > self._max_size_bytes:
            return replies.TOO_BIG
        if self._has_bare_newline and not self._normalise:
            return replies.BARE_NEWLINE
        return replies.LOOPING if self.hops > self._max_hops else None

    @property
    def is_hopeless(self) -> bool:
        """Whether so much came without an end that reading on is no use."""
        return self._wire_bytes > 2 * self._max_size_bytes + _WIRE_SLACK_BYTES

    def feed(self, received: bytes) -> bytes:
        """Add what arrived; return the content that is now certain, or nothing after a fault.

        Once `is_ended`, feed no more: `rest` holds what was too much.
        """
        self._wire_bytes += len(received)
        block = self._unstuffing.feed(received)
        if not block:
            return b""
        if not has_only_crlf(block):
            self._has_bare_newline = True
        if self._has_bare_newline and self._normalise:
            block = self._normalised(block)
        if self._first is not None:
            block = self._opened(block)
        self.size_bytes += len(block)
        if self.size_bytes > self._max_size_bytes:
            return b""
        self._read_header(block)
        self._head += block[: HEAD_BYTES - len(self._head)]
        return b"" if self.refusal else block

    def _opened(self, block: bytes) -> bytes:
        first = (self._first or b"") + block
        if len(first) < DECIDING_BYTES and not self.is_ended:
            self._first = first
            return b""
        self._first = None
        return opened(first)

    def _normalised(self, block: bytes) -> bytes:
        """Make every line end in CRLF.  The end was found before: no dot here can be taken for it."""
        block = self._held + block
        cut = None if self.is_ended else _CUT_NEWLINE.search(block[-3:])
        self._held = cut[0] if cut else b""
        return _ANY_NEWLINE.sub(b"\r\n", block[: len(block) - len(self._held)])

    def _read_header(self, block: bytes) -> None:
        if self._header is None:
            return
        text = self._header + block
        end = text.find(_HEADER_END)
        if end >= 0:
            text = text[: end + 2]
        self.hops += text.lower().count(_RECEIVED)
        self.has_ascii_header = self.has_ascii_header and text.isascii()
        # One octet less than the line, so that none is counted twice.
        self._header = text[1 - len(_RECEIVED) :] if end < 0 else None


class Transfer:
    """One message arriving.  First `receive`, then `accept` unless there was a refusal."""

    def __init__(
        self,
        intake: IntakePort,
        draft: Draft,
        decoder: ContentDecoder,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._intake = intake
        self._draft: Draft | None = draft
        self._decoder = decoder
        self._on_fault = on_fault
        self._pending = bytearray()
        self._not_stored: str | None = None

    @property
    def refusal(self) -> str | None:
        # What is wrong with the message comes first: the client need not try it again.
        return self._decoder.refusal or self._not_stored

    async def receive(self, wire: ClientConnection, idle_s: float, transfer_s: float) -> str | None:
        """Take the content in, to its end; return the refusal, or None if the draft is whole.

        Raises SessionEnd if the end never came.
        """
        until = wire.loop.time() + transfer_s
        try:
            is_ended = False
            while not is_ended:
                if self._decoder.is_hopeless:
                    raise SessionEnd("refused", self.refusal or replies.TOO_BIG)
                content = self._decoder.feed(await wire.read_chunk(min(wire.loop.time() + idle_s, until)))
                is_ended = self._decoder.is_ended
                if is_ended:
                    wire.unread(self._decoder.rest)
                await self._store(content)
        except BaseException:
            await self._discard()
            raise
        return self.refusal

    async def accept(self, envelope: Envelope) -> str | None:
        """Hand the draft to the intake; return the refusal, or None when it is durably ours.

        Nothing here is cancelled when the client goes away: the message is then queued
        though the 250 is lost, and the client may send it again (RFC 1047).
        """
        draft, self._draft = self._draft, None
        if draft is not None:
            try:
                await self._intake.accept(draft, envelope)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become a 5yz
                return self._answer_to(error)
        return self.refusal

    async def _store(self, content: bytes) -> None:
        """Pass content on in pieces that are not small, and out of memory when it is much."""
        if self.refusal is not None:
            await self._discard()
            return
        if self._draft is None:  # it could not be stored
            return
        self._pending += content
        if len(self._pending) < _CHUNK_BYTES and not self._decoder.is_ended:
            return
        self._draft.append(bytes(self._pending))
        self._pending.clear()
        if self._draft.buffered_bytes < SPILL_BYTES:
            return
        try:
            await self._intake.spill(self._draft)
        except Exception as error:  # noqa: BLE001 - as in accept
            self._not_stored = self._answer_to(error)
            await self._discard()

    def _answer_to(self, error: Exception) -> str:
        if isinstance(error, NotAccepted):
            self._draft = None  # it is gone
            return error.reply
        self._on_fault(error)
        return replies.INTERNAL_FAULT

    async def _discard(self) -> None:
        self._pending.clear()
        draft, self._draft = self._draft, None
        if draft is not None:
            await self._intake.discard(draft)
