"""Decodes and checks the content of one message, from 354 to the final dot.  Pure.

Guarantees: the result depends on the octets only, not on how the client's packets divide them.  A chunk takes
a few searches at memory speed and no step for each line.
"""

import re

from relay.mail.header import below_our_field, message_id_of
from relay.smtp import replies
from relay.smtp.dot_stuffing import DotUnstuffing, has_only_crlf

# A client that ends lines in LF doubles a dot behind it (smtplib), so a single dot there is content.
_ANY_NEWLINE = re.compile(rb"\r\n|\r|\n(?:\.(?=\.))?")
_CUT_NEWLINE = re.compile(rb"(?<!\r)\n\.?\Z")
"""The next octets decide whether a dot here was stuffed."""
_HEADER_BYTES = 100 * 1024
"""Only so much of a header is read (Postfix: header_size_limit).  The hops of a loop are at the top."""
_RECEIVED = b"\r\nreceived:"
_HEADER_END = b"\r\n\r\n"


class ContentDecoder:
    """Feed it the octets behind 354; store what `feed` returns."""

    def __init__(self, max_size_bytes: int, max_hops: int, *, normalise: bool) -> None:
        self._max_size_bytes, self._max_hops, self._normalise = max_size_bytes, max_hops, normalise
        self._unstuffing = DotUnstuffing()
        self._has_bare_newline = False
        self._held = b""
        self._head: bytearray | None = bytearray()
        """The first octets, until `_read_head` has examined them; then None."""
        self.size_bytes = 0
        """Octets of content so far, as stored; counts on after a fault."""
        self.hops = 0
        """`Received:` lines in the header: each server adds one on top (RFC 5321, 6.3)."""
        self.has_ascii_header = False
        self.message_id: str | None = None
        self.is_ended = False
        self.rest = b""
        """The octets behind the end: commands."""

    @property
    def refusal(self) -> str | None:
        """Return the reply that refuses this content, by its gravest fault so far; None without a fault."""
        if self.size_bytes > self._max_size_bytes:
            return replies.TOO_BIG
        if self._has_bare_newline and not self._normalise:
            return replies.BARE_NEWLINE
        return replies.LOOPING if self.hops > self._max_hops else None

    @property
    def is_hopeless(self) -> bool:
        """Return whether twice the maximum size came without an end: the session gives up."""
        return self.size_bytes > 2 * self._max_size_bytes

    def feed(self, received: bytes) -> bytes:
        """Add octets; return the content that is now certain, nothing after a fault.

        Must not be called once `is_ended`.
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
        """Make every line end a CRLF.  The end was found before, so no dot here can be taken for it."""
        block = self._held + block
        cut = None if self.is_ended else _CUT_NEWLINE.search(block[-3:])
        self._held = cut[0] if cut else b""
        return _ANY_NEWLINE.sub(b"\r\n", block[: len(block) - len(self._held)])

    def _read_head(self, head: bytearray, block: bytes) -> bytes:
        """Hold back the first octets until they contain the header or _HEADER_BYTES; examine them once."""
        seen = max(0, len(head) - len(_HEADER_END))
        head += block
        end = head.find(_HEADER_END, seen)
        if end < 0 and len(head) < _HEADER_BYTES and not self.is_ended:
            return b""
        self._head = None
        first = below_our_field(bytes(head[:_HEADER_BYTES]))
        header, blank, _ = (b"\r\n" + first).partition(_HEADER_END)
        self.hops = header.lower().count(_RECEIVED)
        # The unread rest of a longer header may not be ASCII.
        self.has_ascii_header = header.isascii() and (blank != b"" or len(head) < _HEADER_BYTES)
        self.message_id = message_id_of(first)
        return first + head[_HEADER_BYTES:]
