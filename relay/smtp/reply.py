"""Replies of an SMTP server, as values.  Pure.

`ReplyParser` accepts the shape of RFC 5321, 4.2 and nothing looser: three digits, space or hyphen,
text, CRLF; the same code on every line.  Peers that guess (`250ok` read as 250, a mixed multi-line
reply read by its last line) have marked mail as relayed that was not.  Here any other reply is a
`MalformedReply`, which the caller treats as "unknown": close, keep the slot charged, try again.
Two things pass, since they change no meaning: a second digit above 5 (servers do send 571), and octets
in the text that are not printable ASCII (`clean` takes them out).
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
    """One whole reply: the code, its enhanced code if it has one, and the text.

    `text` is printable ASCII with `?` for anything else, lines joined by one space,
    at most 2,000 characters: it may go into a log, a report or JSON as it is.
    """

    code: int
    enhanced: str | None
    text: str
    lines: tuple[str, ...] = ()
    """The lines one by one, as an EHLO reply needs them; same cleaning as `text`."""

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
    """The bytes are not a reply by RFC 5321, 4.2.  The text says why; safe to log."""


MAX_LINE_BYTES = 2048
"""RFC 5321, 4.5.3.1.5 says 512 including CRLF; real servers send longer ones."""
MAX_REPLY_BYTES = 32 * 1024
"""One reply with all its lines; the longest real EHLO replies are a few KiB."""

_LINE = re.compile(rb"([2-5][0-9][0-9])(?:([ -])(.*))?\Z", re.DOTALL)
_BEGINNING = re.compile(rb"(?:[2-5](?:[0-9](?:[0-9](?:[ \-\r].*)?)?)?)?\Z", re.DOTALL)
_ENHANCED = re.compile(r"([245]\.[0-9]{1,3}\.[0-9]{1,3})(?:\s|\Z)")


class ReplyParser:
    def __init__(self) -> None:
        self._buffer = b""
        self._lines: list[bytes] = []
        self._code = 0
        self._taken_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is waiting: no byte, no half reply.  Must hold before a command."""
        return not self._buffer and not self._lines

    def feed(self, received: bytes) -> None:
        """Add bytes as they came from the network; take every whole reply out before the next."""
        self._buffer += received

    def next_reply(self) -> Reply | None:
        """Take the first whole reply out, or None while it is not all here.

        Raises MalformedReply, also for what can no longer become a reply of bounded length; the parser is
        of no use afterwards.
        """
        while (end := self._buffer.find(b"\n")) >= 0:
            line, self._buffer = self._buffer[: end + 1], self._buffer[end + 1 :]
            self._taken_bytes += len(line)
            if self._taken_bytes > MAX_REPLY_BYTES:
                raise MalformedReply(f"a reply longer than {MAX_REPLY_BYTES} bytes")
            if self._take_line(line):
                lines, self._lines, self._taken_bytes = tuple(self._lines), [], 0
                # A new object for each reply: `telemetry.metrics` counts one that recipients share once.
                return Reply(self._code, *_said(self._code, lines))
        if not self._buffer:
            return None
        if len(self._buffer) > MAX_LINE_BYTES:
            raise MalformedReply(f"a line longer than {MAX_LINE_BYTES} bytes")
        if not _BEGINNING.match(self._buffer):
            # It would be refused at its end; a TLS alert, for one, has none to wait for.
            raise MalformedReply(f"not the beginning of a reply: {clean(self._buffer)!r}")
        return None

    def _take_line(self, line: bytes) -> bool:
        """Check and keep one line; return whether it is the last of its reply."""
        code, text, is_last = _read(line)
        if self._lines and code != self._code:
            raise MalformedReply(f"a reply with two codes, {self._code} and {code}")
        self._code = code
        self._lines.append(text)
        return is_last


# An upstream says the same to every MAIL, and to nearly every RCPT.
_LINES_KNOWN = 64


@lru_cache(_LINES_KNOWN)
def _read(line: bytes) -> tuple[int, bytes, bool]:
    """Return a line's code and text, and whether it is the last of its reply.  Raises MalformedReply."""
    if len(line) > MAX_LINE_BYTES:
        raise MalformedReply(f"a line longer than {MAX_LINE_BYTES} bytes")
    if not line.endswith(b"\r\n"):
        raise MalformedReply(f"a line that does not end in CRLF: {clean(line)!r}")
    match = _LINE.match(line[:-2])
    if match is None:
        raise MalformedReply(f"not a reply line: {clean(line[:-2])!r}")
    text = match[3] or b""
    if b"\r" in text or b"\0" in text:
        raise MalformedReply(f"CR or NUL inside a reply line: {clean(text)!r}")
    return int(match[1]), text, match[2] != b"-"


@lru_cache(_LINES_KNOWN)
def _said(code: int, raw_lines: tuple[bytes, ...]) -> tuple[str | None, str, tuple[str, ...]]:
    lines = tuple(clean(line) for line in raw_lines)
    match = _ENHANCED.match(lines[0])
    # RFC 2034, 4: the class of the enhanced code must be that of the reply code.
    enhanced = match[1] if match and match[1][0] == str(code)[0] else None
    return enhanced, clean(" ".join(line for line in lines if line)), lines
