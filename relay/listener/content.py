"""Finds the end of content, takes the dot-stuffing off, and judges what is between.  Pure.

Content ends at CRLF `.` CRLF and nowhere else (RFC 5321, 4.1.1.4); the CRLF that ended
the DATA command counts as the first of the two.  A dot is taken off only after a true
CRLF.  No verdict depends on how the network cut the bytes: every flag is a property of
the octets up to the end, so that a client cannot choose an answer by its packets.

Costs: a few searches at memory speed per chunk, no step per line.  Holds at most four
octets back, plus ten of the header; what was decoded is the caller's.
Does not: store, know the time, or say how a refusal is worded.
"""

import enum
import re

_END = b"\r\n.\r\n"
# What a chunk may end in that the next one could turn into the end, or into a stuffed dot.
_HELD_BACK = (b"\r\n.\r", b"\r\n.", b"\r\n", b"\r")
_ANY_NEWLINE = re.compile(rb"\r\n|\r|\n")
# How much more than max_size may come over the wire before the end: dots double at most a
# third of the octets, so no content that fits is ever cut off by this.
_WIRE_SLACK_BYTES = 64 * 1024


class Fault(enum.Enum):
    """Why content cannot be accepted, most decisive first."""

    TOO_BIG = enum.auto()
    NUL = enum.auto()
    BARE_NEWLINE = enum.auto()
    LOOP = enum.auto()


class ContentDecoder:
    """The content of one message: feed it what arrives after 354, store what it returns."""

    def __init__(self, max_size_bytes: int, max_hops: int, *, normalise: bool) -> None:
        self._max_size_bytes = max_size_bytes
        self._max_hops = max_hops
        self._normalise = normalise
        self._wire_bytes = 0
        self._held = b"\r\n"  # the one that ended the DATA command; not content
        self._skip_bytes = 2
        self._trace = TraceCounter()
        self._has_nul = False
        self._has_bare_newline = False
        self.size_bytes = 0
        """Octets of content so far, without stuffing; goes on counting after a fault."""
        self.is_ended = False
        self.rest = b""
        """What came after the end: commands, never content."""

    @property
    def hops(self) -> int:
        """Return how many Received: lines the header has so far."""
        return self._trace.count

    @property
    def fault(self) -> Fault | None:
        """Return why this content cannot be accepted, as far as it is known."""
        if self.size_bytes > self._max_size_bytes:
            return Fault.TOO_BIG
        if self._has_nul:
            return Fault.NUL
        if self._has_bare_newline and not self._normalise:
            return Fault.BARE_NEWLINE
        return Fault.LOOP if self.hops > self._max_hops else None

    @property
    def is_hopeless(self) -> bool:
        """Return whether so much came without an end that reading on is no use."""
        return self._wire_bytes > 2 * self._max_size_bytes + _WIRE_SLACK_BYTES

    def feed(self, received: bytes) -> bytes:
        """Add what arrived; return the content that is now certain, or nothing after a fault.

        Once `is_ended`, feed no more: `rest` holds what was too much.
        """
        self._wire_bytes += len(received)
        text = self._held + received
        end = text.find(_END)
        if end >= 0:
            self.is_ended = True
            self.rest = text[end + len(_END) :]
            self._held = b""
            return self._decode(text[: end + 2])
        for tail in _HELD_BACK:
            if text.endswith(tail):
                self._held = tail
                return self._decode(text[: -len(tail)])
        self._held = b""
        return self._decode(text)

    def _decode(self, block: bytes) -> bytes:
        """Judge and unstuff a block that splits no CRLF and no CRLF-dot."""
        if not block:
            return b""
        line_ends = block.count(b"\r\n")
        self._has_nul = self._has_nul or b"\0" in block
        is_bare = block.count(b"\n") != line_ends or block.count(b"\r") != line_ends
        block = block.replace(b"\r\n.", b"\r\n")
        if is_bare:
            self._has_bare_newline = True
            block = _ANY_NEWLINE.sub(b"\r\n", block) if self._normalise else block
        # The first block begins with the CRLF that is not content.
        block, self._skip_bytes = block[self._skip_bytes :], 0
        self.size_bytes += len(block)
        if self.size_bytes > self._max_size_bytes:
            return b""
        self._trace.feed(block)
        return b"" if self.fault else block


class TraceCounter:
    """Counts Received: lines in the header, however it is cut (RFC 5321, 6.3)."""

    _LINE = b"\r\nreceived:"
    _HEADER_END = b"\r\n\r\n"

    def __init__(self) -> None:
        self.count = 0
        self._carry = b"\r\n"
        self._is_past_header = False

    def feed(self, block: bytes) -> None:
        """Add content; what is after the header is not looked at."""
        if self._is_past_header:
            return
        text = self._carry + block
        end = text.find(self._HEADER_END)
        if end >= 0:
            self._is_past_header = True
            text = text[: end + 2]
        self.count += text.lower().count(self._LINE)
        # One octet less than the line, so that none is counted twice.
        self._carry = text[1 - len(self._LINE) :]
