"""Takes a command line apart: verb, argument, and the meaning of MAIL and RCPT.  Pure.

Guarantees: what comes out was checked to the last octet; what is refused comes with the
whole reply, in `Refused`.  Strict as RFC 5321, 4.1.1, but for what `relay.mail.address` says.
"""

import re
from dataclasses import dataclass

from relay.listener import replies
from relay.mail.address import (
    MalformedAddress,
    MalformedParameters,
    NonAsciiAddress,
    Path,
    parse_forward_path,
    parse_reverse_path,
)

MAX_LINE_BYTES = 2048
"""RFC 5321, 4.5.3.1.4 says 512, and every extension adds room for its parameters."""

# A tab may end a line (it is white space) and is refused by every grammar elsewhere.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_HOST_NAME = re.compile(r"[!-~]{1,255}\Z")
# RFC 3461, 4: xtext; `<>` is one too.
_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-Fa-f]{2})+\Z")
_SIZE = re.compile(r"[0-9]{1,20}\Z")  # RFC 1870, 4


class Refused(Exception):  # noqa: N818 - it is an answer to the client, not a fault of ours
    """The command is refused; `reply` is the whole SMTP reply."""

    def __init__(self, reply: str) -> None:
        super().__init__(reply)
        self.reply = reply


@dataclass(frozen=True, slots=True)
class MailCommand:
    """What a MAIL command asked for."""

    reverse_path: str
    size_bytes: int
    """As declared by SIZE=, octets; 0 where it was not."""
    smtputf8: bool


def has_control(line: bytes) -> bool:
    """Return whether a line holds an octet that no command may hold."""
    return _CONTROL.search(line) is not None


def split_command(line: bytes) -> tuple[str, str | None]:
    """Return the verb in upper case and the argument, None where there is none.

    Octets outside UTF-8 become lone surrogates, so that `octets` gives them back.
    """
    verb, _, argument = line.rstrip(b" \t").decode("utf-8", "surrogateescape").partition(" ")
    return verb.upper(), argument or None


def octets(argument: str) -> bytes:
    """Return the argument as it was on the wire."""
    return argument.encode("utf-8", "surrogateescape")


def parse_host_name(argument: str | None) -> str:
    """Return the argument of HELO or EHLO: any one word of printable ASCII; clients send what they like."""
    if argument is None or not _HOST_NAME.match(argument):
        raise Refused(replies.HELO_NEEDS_NAME)
    return argument


def parse_mail(argument: str | None) -> MailCommand:
    """Return what the argument of MAIL means.  Raises Refused."""
    if argument is None or argument[:5].upper() != "FROM:":
        raise Refused(replies.MAIL_SYNTAX)
    try:
        path = parse_reverse_path(octets(argument[5:]))
    except MalformedAddress as error:
        raise Refused(replies.malformed_sender(str(error))) from None
    except MalformedParameters as error:
        raise Refused(replies.malformed_parameters(str(error))) from None
    except NonAsciiAddress as error:
        raise Refused(replies.non_ascii(str(error))) from None
    return _mail(path)


def _mail(path: Path) -> MailCommand:
    size_bytes = 0
    for keyword, value in path.parameters.items():
        match keyword:
            case "SIZE":
                is_valid = value is not None and _SIZE.match(value) is not None
                size_bytes = int(value) if value is not None and is_valid else 0
            case "BODY":
                is_valid = value is not None and value.upper() in {"7BIT", "8BITMIME"}
            case "SMTPUTF8":
                is_valid = value is None
            case "AUTH":
                # RFC 4954, 5: must be accepted; we trust nobody's word for it, so it is dropped.
                is_valid = value is not None and _XTEXT.match(value) is not None
            case _:
                raise Refused(replies.UNKNOWN_PARAMETER)
        if not is_valid:
            raise Refused(replies.BAD_PARAMETER)
    return MailCommand(path.address, size_bytes, "SMTPUTF8" in path.parameters)


def parse_rcpt(argument: str | None, *, smtputf8: bool) -> str:
    """Return the recipient that the argument of RCPT names.  Raises Refused."""
    if argument is None or argument[:3].upper() != "TO:":
        raise Refused(replies.RCPT_SYNTAX)
    try:
        path = parse_forward_path(octets(argument[3:]), smtputf8=smtputf8)
    except MalformedAddress as error:
        raise Refused(replies.malformed_recipient(str(error))) from None
    except MalformedParameters as error:
        raise Refused(replies.malformed_parameters(str(error))) from None
    except NonAsciiAddress as error:
        raise Refused(replies.non_ascii(str(error))) from None
    if path.parameters:
        raise Refused(replies.UNKNOWN_PARAMETER)
    return path.address
