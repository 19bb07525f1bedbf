"""The content of one message, from 354 to the verdict on it.  Pure.

Every flag is a property of the octets up to the end, so a client cannot
choose an answer by its packets.  It takes a few searches at memory speed per chunk, no step per line.
"""

import re

from relay.mail.header import message_id_of, opened
from relay.smtp import replies
from relay.smtp.dot_stuffing import DotUnstuffing, has_only_crlf

# A client that takes LF for a line's end stuffs the dots behind it (smtplib); a lone one is not stuffed.
_ANY_NEWLINE = re.compile(rb"\r\n|\r|\n(?:\.(?=\.))?")
_CUT_NEWLINE = re.compile(rb"(?<!\r)\n\.?\Z")
"""What the next octets may show to be stuffed."""
_HEADER_BYTES = 100 * 1024
"""What is looked at of a header (Postfix: header_size_limit); a message that loops has its hops on top."""
_RECEIVED = b"\r\nreceived:"
_HEADER_END = b"\r\n\r\n"


class ContentDecoder:
    """Feed it what arrives after 354, store what it returns."""

    def __init__(self, max_size_bytes: int, max_hops: int, *, normalise: bool) -> None:
        self._max_size_bytes = max_size_bytes
        self._max_hops = max_hops
        self._normalise = normalise
        self._unstuffing = DotUnstuffing()
        self._has_bare_newline = False
        self._held = b""
        self._head: bytearray | None = bytearray()
        """The first octets, until they are enough for `_read_head`; then None."""
        self.size_bytes = 0
        """Octets of content as it is stored, so far; goes on counting after a fault."""
        self.hops = 0
        """Received: lines in the header (RFC 5321, 6.3), of which each server adds one on top."""
        self.has_ascii_header = False
        self.message_id: str | None = None
        self.is_ended = False
        self.rest = b""
        """What came behind the end."""

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
        return self.size_bytes > 2 * self._max_size_bytes

    def feed(self, received: bytes) -> bytes:
        """Add what arrived; return the content that is now certain, or nothing after a fault.

        Once `is_ended`, feed no more.
        """
        block = self._unstuffing.feed(received)
        self.is_ended, self.rest = self._unstuffing.is_ended, self._unstuffing.rest
        if not has_only_crlf(block):
            self._has_bare_newline = True
        if self._has_bare_newline and self._normalise:
            block = self._normalised(block)
        if self._head is not None:
            block = self._read_head(self._head, block)
        self.size_bytes += len(block)
        return b"" if self.refusal else block

    def _normalised(self, block: bytes) -> bytes:
        """Make every line end in CRLF.  The end was found before: no dot here can be taken for it."""
        block = self._held + block
        cut = None if self.is_ended else _CUT_NEWLINE.search(block[-3:])
        self._held = cut[0] if cut else b""
        return _ANY_NEWLINE.sub(b"\r\n", block[: len(block) - len(self._held)])

    def _read_head(self, head: bytearray, block: bytes) -> bytes:
        """Keep the first octets back until they hold the header, or _HEADER_BYTES, and look at them once."""
        seen = max(0, len(head) - len(_HEADER_END))
        head += block
        end = head.find(_HEADER_END, seen)
        if end < 0 and len(head) < _HEADER_BYTES and not self.is_ended:
            return b""
        self._head = None
        first = opened(bytes(head[:_HEADER_BYTES]))
        header, blank, _ = (b"\r\n" + first).partition(_HEADER_END)
        self.hops = header.lower().count(_RECEIVED)
        # What of a longer header was not seen may be anything.
        self.has_ascii_header = header.isascii() and (blank != b"" or len(head) < _HEADER_BYTES)
        self.message_id = message_id_of(first)
        return first + head[_HEADER_BYTES:]
