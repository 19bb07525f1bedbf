"""Command lines, read and written (RFC 5321, 4.1.1).  Pure.

Guarantees: a line that is read is checked to the last octet.  A refusal comes with the whole reply, in
`Refused`.  A command that is written is one line.
As strict as RFC 5321, except as `relay.mail.address` says, and except for the name in HELO and EHLO.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from relay.mail.address import NO_TEXT, Malformed, split_path
from relay.mail.dsn import (
    NO_REQUEST,
    NOTHING_ASKED,
    DsnRequest,
    RecipientRequest,
    Ret,
    asked_of,
    parse_envid,
    parse_notify,
    parse_orcpt,
    parse_ret,
    utf8_xtext,
)
from relay.mail.envelope import Shape
from relay.mail.text import clean
from relay.smtp import replies

MAX_LINE_BYTES = 2048
"""RFC 5321, 4.5.3.1.4 says 512, and every extension adds room for its parameters."""

# No tab here: it may end a line as white space, and every grammar refuses it elsewhere.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_SIZE = re.compile(r"[0-9]{1,20}\Z")  # RFC 1870, 4
# RFC 5321, 4.1.2: esmtp-param; the value is any printable octet but `=`, and UTF-8 (RFC 6531, 3.3).
_PARAMETER = re.compile(rf"([A-Za-z0-9][A-Za-z0-9-]*)(?:=([^\0- ={NO_TEXT}]+))?\Z")
_T = TypeVar("_T")


class Refused(Exception):  # noqa: N818 - it is an answer to the client, not a fault of ours
    """`reply` is the whole SMTP reply."""

    def __init__(self, reply: str) -> None:
        super().__init__(reply)
        self.reply = reply


@dataclass(slots=True)
class MailTransaction:
    """What MAIL says, and the recipients that follow it."""

    reverse_path: str
    size_bytes: int
    """As declared by SIZE=, in octets; 0 if not declared."""
    smtputf8: bool
    """MAIL carried SMTPUTF8 (RFC 6531, 3.4)."""
    ret: Ret | None = None
    envid: str = ""
    asked: dict[str, RecipientRequest] = field(default_factory=dict)
    """By recipient, in the order in which the client named them."""

    @property
    def recipients(self) -> tuple[str, ...]:
        return tuple(self.asked)

    @property
    def is_ascii(self) -> bool:
        return self.reverse_path.isascii() and all(map(str.isascii, self.asked))

    @property
    def dsn(self) -> DsnRequest:
        return DsnRequest(self.ret, self.envid, asked_of(list(self.asked.values())))


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


def parse_mail(argument: str | None, *, has_dsn: bool = True) -> MailTransaction:
    """Parse the argument of MAIL (RFC 5321, 4.1.1.2).  Raises Refused, also for DSN without `has_dsn`."""
    address, rest = _path(argument, "FROM:", replies.MAIL_SYNTAX, replies.BAD_SENDER)
    if address and "@" not in address:
        raise Refused(replies.BAD_SENDER.format("the address has no domain"))
    size_bytes, smtputf8, ret, envid = 0, False, None, ""
    for keyword, value in _parameters(rest):
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
                ret = _dsn(parse_ret, value)
            case "ENVID", _ if has_dsn:
                envid = _dsn(parse_envid, value)
            case _:
                is_known = keyword in {"SIZE", "BODY", "SMTPUTF8"}
                raise Refused(replies.BAD_PARAMETER if is_known else replies.UNKNOWN_PARAMETER)
    if not (smtputf8 or address.isascii()):
        raise Refused(replies.NON_ASCII)
    return MailTransaction(address, size_bytes, smtputf8, ret, envid)


def parse_rcpt(argument: str | None, *, smtputf8: bool, has_dsn: bool = True) -> tuple[str, RecipientRequest]:
    """Parse the argument of RCPT (RFC 5321, 4.1.1.3); `smtputf8` is whether MAIL had it.

    Return the recipient, and its DSN parameters.  Raises Refused as `parse_mail` does.
    """
    address, rest = _path(argument, "TO:", replies.RCPT_SYNTAX, replies.BAD_RECIPIENT)
    if not address:
        raise Refused(replies.BAD_RECIPIENT.format("the recipient is empty"))
    notify = orcpt = ""
    for keyword, value in _parameters(rest):
        match keyword:
            case "NOTIFY" if has_dsn:
                notify = _dsn(parse_notify, value)
            case "ORCPT" if has_dsn:
                orcpt = _dsn(parse_orcpt, value)
            case _:
                raise Refused(replies.UNKNOWN_PARAMETER)
    if not (smtputf8 or (address.isascii() and orcpt.isascii())):
        raise Refused(replies.NON_ASCII)
    return address, RecipientRequest(notify, orcpt)


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
        line += f" ORCPT={asked.orcpt if smtputf8 else utf8_xtext(asked.orcpt)}"
    return line.encode()


def _path(argument: str | None, prefix: str, syntax: str, bad_address: str) -> tuple[str, str]:
    """Return the address behind `FROM:` or `TO:`, and the rest; refuse by one of the two replies."""
    if argument is None or argument[: len(prefix)].upper() != prefix:
        raise Refused(syntax)
    try:
        return split_path(argument[len(prefix) :])
    except Malformed as error:
        raise Refused(bad_address.format(error)) from None


def _parameters(rest: str) -> Iterator[tuple[str, str | None]]:
    """Yield each keyword, in upper case, and its value: a space before each, no keyword twice."""
    known = set[str]()
    if rest and not rest.startswith(" "):
        raise Refused(replies.BAD_PARAMETERS.format("a space must follow the path"))
    for word in filter(None, rest.split(" ")):
        found = _PARAMETER.match(word)
        if found is None:
            raise Refused(replies.BAD_PARAMETERS.format("a parameter is not KEYWORD or KEYWORD=VALUE"))
        keyword = found[1].upper()
        if keyword in known:
            raise Refused(replies.BAD_PARAMETERS.format(f"the parameter {keyword} is given twice"))
        known.add(keyword)
        yield keyword, found[2]


def _dsn(parse: Callable[[str], _T], value: str | None) -> _T:
    try:
        return parse(value or "")
    except Malformed as error:
        raise Refused(replies.BAD_PARAMETERS.format(error)) from None
