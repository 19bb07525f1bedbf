"""Command lines, read and written (RFC 5321, 4.1.1).  Pure.

Guarantees: what is read was checked to the last octet, and what is refused comes with the
whole reply, in `Refused`.  What is written is one line.
Strict as RFC 5321, but for what `relay.mail.address` says, and the name in HELO and EHLO.
"""

import enum
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from relay.mail.address import (
    MalformedAddress,
    MalformedParameters,
    NonAsciiAddress,
    Path,
    parse_forward_path,
    parse_reverse_path,
)
from relay.mail.dsn import (
    NO_REQUEST,
    MalformedDsn,
    Notify,
    RecipientRequest,
    Ret,
    ascii_orcpt,
    parse_envid,
    parse_notify,
    parse_orcpt,
    parse_ret,
)
from relay.mail.text import clean
from relay.smtp import replies

_Parsed = TypeVar("_Parsed")

MAX_LINE_BYTES = 2048
"""RFC 5321, 4.5.3.1.4 says 512, and every extension adds room for its parameters."""

# A tab may end a line (it is white space) and is refused by every grammar elsewhere.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LINE_END = re.compile(rb"[\r\n\0]")
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
    ret: Ret | None = None
    envid: str = ""


class RcptCommand(NamedTuple):
    recipient: str
    asked: RecipientRequest = NO_REQUEST


def has_control(line: bytes | bytearray) -> bool:
    return _CONTROL.search(line) is not None


def is_one_line(line: bytes) -> bool:
    """Return whether a command, as it is to be sent, is one line for every server."""
    return _LINE_END.search(line) is None


def split_command(line: bytes) -> tuple[str, str | None]:
    """Return the verb in upper case and the argument, None where there is none.

    Octets outside UTF-8 become lone surrogates, so that `_path` has them back.
    """
    verb, _, argument = line.rstrip(b" \t").decode("utf-8", "surrogateescape").partition(" ")
    return verb.upper(), argument.lstrip(" ") or None


def parse_host_name(argument: str | None) -> str:
    """Return what the client calls itself, as printable ASCII on one line: Windows has any name."""
    if argument is None:
        raise Refused(replies.HELO_NEEDS_NAME)
    return clean(argument)


def parse_mail(argument: str | None, *, has_dsn: bool = True) -> MailCommand:
    """Return what the argument of MAIL means (RFC 5321, 4.1.1.2).

    Raises Refused; where DSN was not announced, for its parameters too.
    """
    if argument is None or argument[:5].upper() != "FROM:":
        raise Refused(replies.MAIL_SYNTAX)
    path = _path(argument[5:], parse_reverse_path, replies.malformed_sender)
    size_bytes, eight_bit, ret, envid = 0, False, None, ""
    for keyword, value in path.parameters.items():
        is_valid = True
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
                pass  # RFC 4954, 5: must be accepted; we trust nobody's word for it, so it is dropped
            case "RET" if has_dsn:
                ret = _of_dsn(parse_ret, value)
            case "ENVID" if has_dsn:
                envid = _of_dsn(parse_envid, value)
            case _:
                raise Refused(replies.UNKNOWN_PARAMETER)
        if not is_valid:
            raise Refused(replies.BAD_PARAMETER)
    return MailCommand(path.address, size_bytes, "SMTPUTF8" in path.parameters, eight_bit, ret, envid)


def parse_rcpt(argument: str | None, *, smtputf8: bool, has_dsn: bool = True) -> RcptCommand:
    """Return what the argument of RCPT means (RFC 5321, 4.1.1.3).  Raises Refused as `parse_mail` does."""
    if argument is None or argument[:3].upper() != "TO:":
        raise Refused(replies.RCPT_SYNTAX)
    parse = partial(parse_forward_path, smtputf8=smtputf8)
    path = _path(argument[3:], parse, replies.malformed_recipient)
    notify: Notify | None = None
    orcpt = ""
    for keyword, value in path.parameters.items():
        match keyword:
            case "NOTIFY" if has_dsn:
                notify = _of_dsn(parse_notify, value)
            case "ORCPT" if has_dsn:
                orcpt = _of_dsn(partial(parse_orcpt, smtputf8=smtputf8), value)
            case _:
                raise Refused(replies.UNKNOWN_PARAMETER)
    return RcptCommand(path.address, RecipientRequest(notify, orcpt))


def mail_line(
    reverse_path: str,
    *,
    size_bytes: int | None,
    eight_bit: bool,
    smtputf8: bool,
    ret: Ret | None = None,
    envid: str = "",
) -> bytes:
    """Return MAIL for an address that is valid; no size where SIZE is not offered."""
    line = f"MAIL FROM:<{reverse_path}>"
    if size_bytes is not None:
        line += f" SIZE={size_bytes}"
    if eight_bit:
        line += " BODY=8BITMIME"
    if smtputf8:
        line += " SMTPUTF8"
    if ret is not None:
        line += f" RET={ret}"
    if envid:
        line += f" ENVID={envid}"
    return line.encode("utf-8")


def rcpt_line(recipient: str, asked: RecipientRequest = NO_REQUEST, *, smtputf8: bool = False) -> bytes:
    """Return RCPT for an address that is valid; an ORCPT is written in ASCII but where MAIL had SMTPUTF8."""
    line = f"RCPT TO:<{recipient}>"
    if asked.notify is not None:
        line += f" NOTIFY={asked.notify}"
    if asked.orcpt:
        line += f" ORCPT={asked.orcpt if smtputf8 else ascii_orcpt(asked.orcpt)}"
    return line.encode()


def _of_dsn(parse: Callable[[str], _Parsed], value: str | None) -> _Parsed:
    if value is None:
        raise Refused(replies.BAD_PARAMETER)
    try:
        return parse(value)
    except MalformedDsn as error:
        raise Refused(replies.malformed_parameters(str(error))) from None


def _path(argument: str, parse: Callable[[bytes], Path], malformed: Callable[[str], str]) -> Path:
    try:
        return parse(argument.encode("utf-8", "surrogateescape"))
    except MalformedAddress as error:
        raise Refused(malformed(str(error))) from None
    except MalformedParameters as error:
        raise Refused(replies.malformed_parameters(str(error))) from None
    except NonAsciiAddress as error:
        raise Refused(replies.non_ascii(str(error))) from None
