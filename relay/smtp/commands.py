"""Command lines, read and written (RFC 5321, 4.1.1).  Pure.

Guarantees: what is read was checked to the last octet, and what is refused comes with the
whole reply, in `Refused`.  What is written is one line.
Strict as RFC 5321, but for what `relay.mail.address` says.
"""

import enum
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from relay.mail.address import (
    MalformedAddress,
    MalformedParameters,
    NonAsciiAddress,
    Path,
    parse_forward_path,
    parse_reverse_path,
)
from relay.smtp import replies

MAX_LINE_BYTES = 2048
"""RFC 5321, 4.5.3.1.4 says 512, and every extension adds room for its parameters."""

# A tab may end a line (it is white space) and is refused by every grammar elsewhere.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LINE_END = re.compile(rb"[\r\n\0]")
_HOST_NAME = re.compile(r"[!-~]{1,255}\Z")
_FORWARD_UTF8 = partial(parse_forward_path, smtputf8=True)
_FORWARD_ASCII = partial(parse_forward_path, smtputf8=False)
# RFC 3461, 4: xtext; `<>` is one too.
_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-Fa-f]{2})+\Z")
_SIZE = re.compile(r"[0-9]{1,20}\Z")  # RFC 1870, 4


class SmtpVerb(enum.StrEnum):
    HELO = "HELO"
    EHLO = "EHLO"
    STARTTLS = "STARTTLS"
    AUTH = "AUTH"
    MAIL = "MAIL"
    RCPT = "RCPT"
    DATA = "DATA"
    RSET = "RSET"
    NOOP = "NOOP"
    HELP = "HELP"
    VRFY = "VRFY"
    EXPN = "EXPN"
    QUIT = "QUIT"


class Refused(Exception):  # noqa: N818 - it is an answer to the client, not a fault of ours
    """`reply` is the whole SMTP reply."""

    def __init__(self, reply: str) -> None:
        super().__init__(reply)
        self.reply = reply


class MailCommand(NamedTuple):
    reverse_path: str
    size_bytes: int
    """As declared by SIZE=, octets; 0 where it was not."""
    smtputf8: bool
    eight_bit: bool
    """BODY=8BITMIME."""


def has_control(line: bytes) -> bool:
    return _CONTROL.search(line) is not None


def is_one_line(line: bytes) -> bool:
    """Return whether a command, as it is to be sent, is one line for every server."""
    return _LINE_END.search(line) is None


def split_command(line: bytes) -> tuple[str, str | None]:
    """Return the verb in upper case and the argument, None where there is none.

    Octets outside UTF-8 become lone surrogates, so that `_path` has them back.
    """
    verb, _, argument = line.rstrip(b" \t").decode("utf-8", "surrogateescape").partition(" ")
    return verb.upper(), argument or None


def parse_host_name(argument: str | None) -> str:
    """Return the argument of HELO or EHLO: any one word of printable ASCII; clients send what they like."""
    if argument is None or not _HOST_NAME.match(argument):
        raise Refused(replies.HELO_NEEDS_NAME)
    return argument


def parse_mail(argument: str | None) -> MailCommand:
    """Return what the argument of MAIL means (RFC 5321, 4.1.1.2).  Raises Refused."""
    if argument is None or argument[:5].upper() != "FROM:":
        raise Refused(replies.MAIL_SYNTAX)
    path = _path(argument[5:], parse_reverse_path, replies.malformed_sender)
    size_bytes, eight_bit = 0, False
    for keyword, value in path.parameters.items():
        match keyword:
            case "SIZE":
                is_valid = value is not None and _SIZE.match(value) is not None
                size_bytes = int(value) if value is not None and is_valid else 0
            case "BODY":
                eight_bit = value is not None and value.upper() == "8BITMIME"
                is_valid = eight_bit or (value is not None and value.upper() == "7BIT")
            case "SMTPUTF8":
                is_valid = value is None
            case "AUTH":
                # RFC 4954, 5: must be accepted; we trust nobody's word for it, so it is dropped.
                is_valid = value is not None and _XTEXT.match(value) is not None
            case _:
                raise Refused(replies.UNKNOWN_PARAMETER)
        if not is_valid:
            raise Refused(replies.BAD_PARAMETER)
    return MailCommand(path.address, size_bytes, "SMTPUTF8" in path.parameters, eight_bit)


def parse_rcpt(argument: str | None, *, smtputf8: bool) -> str:
    """Return the recipient that the argument of RCPT names (RFC 5321, 4.1.1.3).  Raises Refused."""
    if argument is None or argument[:3].upper() != "TO:":
        raise Refused(replies.RCPT_SYNTAX)
    parse = _FORWARD_UTF8 if smtputf8 else _FORWARD_ASCII
    path = _path(argument[3:], parse, replies.malformed_recipient)
    if path.parameters:
        raise Refused(replies.UNKNOWN_PARAMETER)
    return path.address


def mail_line(reverse_path: str, *, size_bytes: int | None, eight_bit: bool, smtputf8: bool) -> bytes:
    """Return MAIL for an address that is valid; no size where SIZE is not offered."""
    line = f"MAIL FROM:<{reverse_path}>"
    if size_bytes is not None:
        line += f" SIZE={size_bytes}"
    if eight_bit:
        line += " BODY=8BITMIME"
    if smtputf8:
        line += " SMTPUTF8"
    return line.encode("utf-8")


def rcpt_line(recipient: str) -> bytes:
    return f"RCPT TO:<{recipient}>".encode()


def _path(argument: str, parse: Callable[[bytes], Path], malformed: Callable[[str], str]) -> Path:
    try:
        return parse(argument.encode("utf-8", "surrogateescape"))
    except MalformedAddress as error:
        raise Refused(malformed(str(error))) from None
    except MalformedParameters as error:
        raise Refused(replies.malformed_parameters(str(error))) from None
    except NonAsciiAddress as error:
        raise Refused(replies.non_ascii(str(error))) from None
