"""Command lines, read and written (RFC 5321, 4.1.1).  Pure.

Guarantees: a line that is read is checked to the last octet.  A refusal comes with the whole reply, in
`Refused`.  A command that is written is one line.
As strict as RFC 5321, except as `relay.mail.address` says, and except for the name in HELO and EHLO.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from relay.mail.address import (
    MalformedAddress,
    MalformedParameters,
    NonAsciiAddress,
    parse_forward_path,
    parse_reverse_path,
)
from relay.mail.dsn import (
    NO_REQUEST,
    NOTHING_ASKED,
    DsnRequest,
    RecipientRequest,
    Ret,
    ascii_orcpt,
    parse_envid,
    parse_notify,
    parse_orcpt,
    parse_ret,
)
from relay.mail.envelope import Shape
from relay.mail.text import clean
from relay.smtp import replies

MAX_LINE_BYTES = 2048
"""RFC 5321, 4.5.3.1.4 says 512, and every extension adds room for its parameters."""

# No tab here: it may end a line as white space, and every grammar refuses it elsewhere.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_SIZE = re.compile(r"[0-9]{1,20}\Z")  # RFC 1870, 4


class Refused(Exception):  # noqa: N818 - it is an answer to the client, not a fault of ours
    """`reply` is the whole SMTP reply."""

    def __init__(self, reply: str) -> None:
        super().__init__(reply)
        self.reply = reply


class MailCommand(NamedTuple):
    reverse_path: str
    size_bytes: int
    """As declared by SIZE=, in octets; 0 if not declared."""
    smtputf8: bool
    ret: Ret | None = None
    envid: str = ""


class RcptCommand(NamedTuple):
    recipient: str
    asked: RecipientRequest = NO_REQUEST


def has_control(line: bytes | bytearray) -> bool:
    return _CONTROL.search(line) is not None


def split_command(line: bytes) -> tuple[str, str | None]:
    """Return the verb in upper case, and the argument or None.

    Octets outside UTF-8 become lone surrogates (`surrogateescape`).
    """
    verb, _, argument = line.rstrip(b" \t").decode("utf-8", "surrogateescape").partition(" ")
    return verb.upper(), argument.lstrip(" ") or None


def parse_host_name(argument: str | None) -> str:
    """Return the client's host name as printable ASCII on one line; Windows sends any name."""
    if argument is None:
        raise Refused(replies.HELO_NEEDS_NAME)
    return clean(argument)


def parse_mail(argument: str | None, *, has_dsn: bool = True) -> MailCommand:
    """Parse the argument of MAIL (RFC 5321, 4.1.1.2).  Raises Refused, also for DSN without `has_dsn`."""
    if argument is None or argument[:5].upper() != "FROM:":
        raise Refused(replies.MAIL_SYNTAX)
    size_bytes, smtputf8, ret, envid = 0, False, None, ""
    with _refusing(replies.BAD_SENDER):
        path = parse_reverse_path(argument[5:])
        for keyword, value in path.parameters.items():
            match keyword, value:
                case "SIZE", str() if _SIZE.match(value):
                    size_bytes = int(value)
                case "BODY", str() if value.upper() in {"7BIT", "8BITMIME"}:
                    pass  # the content shows which it is
                case "SMTPUTF8", None:
                    smtputf8 = True
                case "AUTH", _:
                    pass  # RFC 4954, 5: must be accepted; it is dropped, because no client is trusted with it
                case "RET", _ if has_dsn:
                    ret = parse_ret(value or "")
                case "ENVID", _ if has_dsn:
                    envid = parse_envid(value or "")
                case (("SIZE" | "BODY" | "SMTPUTF8"), _):
                    raise Refused(replies.BAD_PARAMETER)
                case _:
                    raise Refused(replies.UNKNOWN_PARAMETER)
    return MailCommand(path.address, size_bytes, smtputf8, ret, envid)


def parse_rcpt(argument: str | None, *, smtputf8: bool, has_dsn: bool = True) -> RcptCommand:
    """Parse the argument of RCPT (RFC 5321, 4.1.1.3).  Raises Refused as `parse_mail` does."""
    if argument is None or argument[:3].upper() != "TO:":
        raise Refused(replies.RCPT_SYNTAX)
    notify = orcpt = ""
    with _refusing(replies.BAD_RECIPIENT):
        path = parse_forward_path(argument[3:], smtputf8=smtputf8)
        for keyword, value in path.parameters.items():
            match keyword:
                case "NOTIFY" if has_dsn:
                    notify = parse_notify(value or "")
                case "ORCPT" if has_dsn:
                    orcpt = parse_orcpt(value or "", smtputf8=smtputf8)
                case _:
                    raise Refused(replies.UNKNOWN_PARAMETER)
    return RcptCommand(path.address, RecipientRequest(notify, orcpt))


def mail_line(reverse_path: str, shape: Shape, dsn: DsnRequest = NOTHING_ASKED, *, has_size: bool) -> bytes:
    """Return MAIL for a valid address; without a size if SIZE is not offered."""
    words = [f"MAIL FROM:<{reverse_path}>"]
    if has_size:
        words.append(f"SIZE={shape.size_bytes}")
    if shape.eight_bit:
        words.append("BODY=8BITMIME")
    if shape.smtputf8:
        words.append("SMTPUTF8")
    if dsn.ret is not None:
        words.append(f"RET={dsn.ret}")
    if dsn.envid:
        words.append(f"ENVID={dsn.envid}")
    return " ".join(words).encode()


def rcpt_line(recipient: str, asked: RecipientRequest = NO_REQUEST, *, smtputf8: bool = False) -> bytes:
    """Return RCPT for a valid address; its ORCPT is in ASCII unless MAIL had SMTPUTF8."""
    line = f"RCPT TO:<{recipient}>"
    if asked.notify:
        line += f" NOTIFY={asked.notify}"
    if asked.orcpt:
        line += f" ORCPT={asked.orcpt if smtputf8 else ascii_orcpt(asked.orcpt)}"
    return line.encode()


@contextlib.contextmanager
def _refusing(bad_address: str) -> Iterator[None]:
    """Refuse an address or a parameter that its grammar does not allow."""
    try:
        yield
    except MalformedAddress as error:
        raise Refused(bad_address.format(error)) from None
    except MalformedParameters as error:
        raise Refused(replies.BAD_PARAMETERS.format(error)) from None
    except NonAsciiAddress as error:
        raise Refused(replies.NON_ASCII.format(error)) from None
