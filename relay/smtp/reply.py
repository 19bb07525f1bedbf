"""Replies of an SMTP server, as values.  Pure.

`ReplyParser` is strict about the code: three digits, then a space, a hyphen or the end of the line; the same
code on every line.  Clients that guess (`250ok` read as 250, a mixed multi-line reply read by its last line)
have marked mail as relayed that was not.  Any other reply raises `MalformedReply`.  The caller treats it as
"unknown": it closes, keeps the slot charged, and tries again.
The rest of a line decides nothing, and any rest is accepted.  A line may have any length (its first
MAX_LINE_BYTES are kept) and end in LF alone; its text may hold any octet (`clean` replaces those that are not
printable ASCII).  So an LF inside a reply's text ends the reply.  The caller notices that the next reply was
not due, and ends the connection.
Does not: decide what a reply means for us (`relay.verdicts.verdict`).
"""

import enum
import re
from functools import lru_cache
from typing import NamedTuple

from relay.mail.text import clean


class Phase(enum.StrEnum):
    """The step of a session at which a reply is due.  `EOD` is the reply to the final dot."""

    CONNECT = "connect"
    EHLO = "ehlo"
    STARTTLS = "starttls"
    AUTH = "auth"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    EOD = "eod"
    RSET = "rset"
    QUIT = "quit"


class Reply(NamedTuple):
    code: int
    enhanced: str | None
    text: str
    """Printable ASCII with `?` for anything else, lines joined by one space, at most 2,000 characters: safe
    in a log, a report or JSON."""
    lines: tuple[str, ...] = ()
    """The lines one by one, cleaned as `text` is; an EHLO reply needs them."""

    @property
    def is_positive(self) -> bool:
        return 200 <= self.code <= 299

    @property
    def is_transient(self) -> bool:
        return 400 <= self.code <= 499

    @property
    def is_permanent(self) -> bool:
        return 500 <= self.code <= 599

    def __str__(self) -> str:
        return f"{self.code} {self.text}".rstrip()


class MalformedReply(Exception):  # noqa: N818 - it is what the upstream sent, and reads as such
    """The octets have no code that can be read.  The text says why, and is safe to log."""


MAX_LINE_BYTES = 2048
"""How much of a line is kept.  RFC 5321, 4.5.3.1.5 says 512 with CRLF; real servers send longer lines."""
MAX_REPLY_BYTES = 64 * 1024
"""The limit of a reply, by what is kept of its lines; the longest real EHLO replies are a few KiB."""

_LINE = re.compile(rb"([2-5][0-9][0-9])(?:([ -])(.*))?\Z", re.DOTALL)
_BEGINNING = re.compile(rb"(?:[2-5](?:[0-9](?:[0-9](?:[ \-\r].*)?)?)?)?\Z", re.DOTALL)
_ENHANCED = re.compile(r"([245]\.[0-9]{1,3}\.[0-9]{1,3})(?:\s|\Z)")


class ReplyParser:
    def __init__(self) -> None:
        self._buffer = b""
        self._lines: list[bytes] = []
        self._code = 0
        self._kept_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Return how many octets of an unfinished line or reply are held; must be 0 before a command."""
        return self._kept_bytes + len(self._buffer)

    def feed(self, received: bytes) -> None:
        """Add octets from the network; take every whole reply out before the next call."""
        self._buffer += received

    def next_reply(self) -> Reply | None:
        """Take the first whole reply out and return it; None while it is incomplete.

        Raises MalformedReply, also for what can no longer become a reply; then the parser is of no more use.
        """
        while (end := self._buffer.find(b"\n")) >= 0:
            line, self._buffer = self._buffer[:end].removesuffix(b"\r"), self._buffer[end + 1 :]
            if self._take_line(line[:MAX_LINE_BYTES]):
                lines, self._lines, self._kept_bytes = tuple(self._lines), [], 0
                # A new object each time: by its identity `telemetry.metrics` counts a shared reply once.
                return Reply(self._code, *_cleaned(self._code, lines))
        self._buffer = self._buffer[:MAX_LINE_BYTES]  # the rest of the line is dropped as it comes
        if not _BEGINNING.match(self._buffer):
            # Its end would be refused, and may never come: a TLS alert has no line end.
            raise MalformedReply(f"not the beginning of a reply: {clean(self._buffer)!r}")
        return None

    def _take_line(self, line: bytes) -> bool:
        """Check and keep one line; return whether it ends its reply."""
        match = _LINE.match(line)
        if match is None:
            raise MalformedReply(f"not a reply line: {clean(line)!r}")
        code = int(match[1])
        if self._lines and code != self._code:
            raise MalformedReply(f"a reply with two codes, {self._code} and {code}")
        self._code = code
        self._lines.append(match[3] or b"")
        self._kept_bytes += len(line)
        if self._kept_bytes > MAX_REPLY_BYTES:
            # Endless lines would keep the event loop, and so all other upstreams, busy until the timeout.
            raise MalformedReply(f"a reply longer than {MAX_REPLY_BYTES} bytes")
        return match[2] != b"-"


@lru_cache(64)  # an upstream sends the same reply to every MAIL, and to nearly every RCPT
def _cleaned(code: int, raw_lines: tuple[bytes, ...]) -> tuple[str | None, str, tuple[str, ...]]:
    lines = tuple(clean(line) for line in raw_lines)
    match = _ENHANCED.match(lines[0])
    # RFC 2034, 4: the class of the enhanced code must be that of the reply code.
    enhanced = match[1] if match and match[1][0] == str(code)[0] else None
    return enhanced, clean(" ".join(line for line in lines if line)), lines
