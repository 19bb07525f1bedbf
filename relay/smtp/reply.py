"""Replies of an SMTP server, as values.  Pure.

`ReplyParser` is strict where a code is read: three digits, then space, hyphen or the end of the line; the
same code on every line.  Peers that guess (`250ok` read as 250, a mixed multi-line reply read by its last
line) have marked mail as relayed that was not.  Any other reply is a `MalformedReply`, which the caller
treats as "unknown": close, keep the slot charged, try again.
The rest of a line decides nothing, and is taken as it comes: a line may be of any length (its first
MAX_LINE_BYTES are kept) and end in LF alone, and its text may hold any octet (`clean` replaces those that
are not printable ASCII).  An LF inside a reply's text therefore ends the reply; the caller notices that what
follows was not due, and ends the connection.
Does not: say what a reply means for us (`relay.verdicts.verdict`).
"""

import enum
import re
from functools import lru_cache
from typing import NamedTuple

from relay.mail.text import clean


class Phase(enum.StrEnum):
    """Where in a transaction a reply was due.  `EOD` is the one to the final dot."""

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
    """Printable ASCII with `?` for anything else, lines joined by one space, at most 2,000 characters: it may
    go into a log, a report or JSON as it is."""
    lines: tuple[str, ...] = ()
    """One by one, as an EHLO reply needs them; same cleaning as `text`."""

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
    """The bytes have no code that can be read.  The text says why; safe to log."""


MAX_LINE_BYTES = 2048
"""What is kept of a line; RFC 5321, 4.5.3.1.5 says 512 including CRLF, and real servers send longer ones."""
MAX_REPLY_BYTES = 64 * 1024
"""Of a reply with what is kept of its lines; the longest real EHLO replies are a few KiB."""

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
        """Return how much is waiting, of a line or of a half reply; must be nothing before a command."""
        return self._kept_bytes + len(self._buffer)

    def feed(self, received: bytes) -> None:
        """Add bytes as they came from the network; take every whole reply out before the next."""
        self._buffer += received

    def next_reply(self) -> Reply | None:
        """Take the first whole reply out, or None while it is not all here.

        Raises MalformedReply, also for what can no longer become a reply; the parser is of no use afterwards.
        """
        while (end := self._buffer.find(b"\n")) >= 0:
            line, self._buffer = self._buffer[:end].removesuffix(b"\r"), self._buffer[end + 1 :]
            if self._take_line(line[:MAX_LINE_BYTES]):
                lines, self._lines, self._kept_bytes = tuple(self._lines), [], 0
                # A new object for each reply: `telemetry.metrics` counts one that recipients share once.
                return Reply(self._code, *_cleaned(self._code, lines))
        self._buffer = self._buffer[:MAX_LINE_BYTES]  # the rest of the line is dropped as it comes
        if not _BEGINNING.match(self._buffer):
            # It would be refused at its end; a TLS alert, for one, has none to wait for.
            raise MalformedReply(f"not the beginning of a reply: {clean(self._buffer)!r}")
        return None

    def _take_line(self, line: bytes) -> bool:
        """Check and keep one line; return whether it is the last of its reply."""
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
            # Lines without end would keep the loop busy, and with it all other upstreams, until the timeout.
            raise MalformedReply(f"a reply longer than {MAX_REPLY_BYTES} bytes")
        return match[2] != b"-"


@lru_cache(64)  # an upstream says the same to every MAIL, and to nearly every RCPT
def _cleaned(code: int, raw_lines: tuple[bytes, ...]) -> tuple[str | None, str, tuple[str, ...]]:
    lines = tuple(clean(line) for line in raw_lines)
    match = _ENHANCED.match(lines[0])
    # RFC 2034, 4: the class of the enhanced code must be that of the reply code.
    enhanced = match[1] if match and match[1][0] == str(code)[0] else None
    return enhanced, clean(" ".join(line for line in lines if line)), lines
