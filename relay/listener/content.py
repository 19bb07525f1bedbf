"""The content of one message, from 354 to the verdict on it.

`ContentDecoder` is pure.  Every flag is a property of the octets up to the end, so a client cannot
choose an answer by its packets.  It takes a few searches at memory speed per chunk, no step per line.
"""

import re

from relay.listener.ports import IntakePort
from relay.listener.wire import ClientConnection, SessionEnd
from relay.mail.draft import Draft
from relay.mail.header import DECIDING_BYTES, HEAD_BYTES, message_id_of, opened
from relay.smtp import replies
from relay.smtp.commands import Refused
from relay.smtp.dot_stuffing import DotUnstuffing, has_only_crlf

SPILL_BYTES = 256 * 1024
_CHUNK_BYTES = 32 * 1024
"""What a draft is given at once, so that octets that trickle in cost it no object each."""

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
        self._header: bytes | None = b"\r\n"
        """The end of what was read of the header; None behind it."""
        self.size_bytes = 0
        """Octets of content as it is stored, so far; goes on counting after a fault."""
        self.hops = 0
        """Received: lines in the header (RFC 5321, 6.3)."""
        self.has_ascii_header = True

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
            block = self._opened(self._first + block)
        self.size_bytes += len(block)
        if self.size_bytes > self._max_size_bytes:
            return b""
        if self._header is not None:
            self._read_header(self._header + block)
        self._head += block[: HEAD_BYTES - len(self._head)]
        return b"" if self.refusal else block

    def _opened(self, first: bytes) -> bytes:
        is_enough = len(first) >= DECIDING_BYTES or self.is_ended
        self._first = None if is_enough else first
        return opened(first) if is_enough else b""

    def _normalised(self, block: bytes) -> bytes:
        """Make every line end in CRLF.  The end was found before: no dot here can be taken for it."""
        block = self._held + block
        cut = None if self.is_ended else _CUT_NEWLINE.search(block[-3:])
        self._held = cut[0] if cut else b""
        return _ANY_NEWLINE.sub(b"\r\n", block[: len(block) - len(self._held)])

    def _read_header(self, text: bytes) -> None:
        end = text.find(_HEADER_END)
        if end >= 0:
            text = text[: end + 2]
        self.hops += text.lower().count(_RECEIVED)
        self.has_ascii_header = self.has_ascii_header and text.isascii()
        # One octet less than the line, so that none is counted twice.
        self._header = text[1 - len(_RECEIVED) :] if end < 0 else None


async def receive(
    wire: ClientConnection,
    decoder: ContentDecoder,
    draft: Draft,
    intake: IntakePort,
    *,
    idle_s: float,
    transfer_s: float,
) -> None:
    """Take the content in, to its end; on return the draft is whole.

    Memory is bounded by `_CHUNK_BYTES`, `SPILL_BYTES` and one read.  Raises Refused at the end, SessionEnd
    if the end never came.  A draft that is not whole is discarded, also when the session is cancelled.
    """
    until = wire.loop.time() + transfer_s
    is_kept, not_stored, pending = True, "", bytearray()
    try:
        while not decoder.is_ended:
            if decoder.is_hopeless:
                raise SessionEnd("refused", decoder.refusal or replies.TOO_BIG)
            pending += decoder.feed(await wire.read_chunk(min(wire.loop.time() + idle_s, until)))
            if decoder.refusal is not None or not is_kept:
                pending.clear()
                if is_kept:
                    is_kept = False
                    await intake.discard(draft)
            elif len(pending) >= _CHUNK_BYTES or decoder.is_ended:
                draft.append(bytes(pending))
                pending.clear()
                not_stored = await _spilled(draft, intake)
                is_kept = not not_stored
    except BaseException:
        if is_kept:
            await intake.discard(draft)
        raise
    wire.unread(decoder.rest)
    # What is wrong with the message comes first: the client need not try it again.
    if refusal := decoder.refusal or not_stored:
        raise Refused(refusal)


async def _spilled(draft: Draft, intake: IntakePort) -> str:
    """Keep memory bounded; return the refusal, with which the draft is gone."""
    if draft.buffered_bytes >= SPILL_BYTES:
        try:
            await intake.spill(draft)
        except Refused as refused:
            return refused.reply
    return ""
