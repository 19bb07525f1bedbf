"""Parses the options of sendmail(1), as programs write them.  Pure.

Guarantees: an option without effect here is accepted and ignored, with its value.  An option that is
unknown, or asks for another program, is refused.  Options may follow recipients until `--`, as in glibc's
getopt(3).  The list is that of Postfix' sendmail(1).
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from getopt import GetoptError, gnu_getopt
from pathlib import Path

from relay.mail.address import Malformed
from relay.mail.dsn import Ret, encode_xtext, parse_envid, parse_notify, parse_ret

_SHORT = "imntvGIUq" + "".join(f"{letter}:" for letter in "ABCFLNORVXbefhopr")
_LONG = ["policy=", "spool="]


class WrongUsage(Exception):  # noqa: N818 - it is what the caller wrote
    """A call that sendmail(1) or this relay does not support."""


class Mode(enum.Enum):
    SUBMIT = "m"
    LIST = "p"
    SMTP = "s"
    NEW_ALIASES = "i"
    FLUSH = "q"


@dataclass(slots=True)
class SendmailCall:
    mode: Mode = Mode.SUBMIT
    recipients: list[str] = field(default_factory=list)
    takes_header: bool = False
    """`-t`: send to the recipients of the header too."""
    dot_ends: bool = True
    """Without `-i`: a line of a single dot ends the message."""
    sender: str | None = None
    full_name: str | None = None
    notify: str = ""
    """`-N`: the reports that the sender wants about each recipient (RFC 3461)."""
    ret: Ret | None = None
    envid: str = ""
    """`-V`, as it goes into MAIL."""
    policy: Path | None = None
    spool: Path | None = None


def parse_call(words: Sequence[str]) -> SendmailCall:
    call = SendmailCall()
    try:
        options, call.recipients = gnu_getopt(_without_optional_values(words), _SHORT, _LONG)
    except GetoptError as error:
        raise WrongUsage(str(error)) from None
    for name, value in options:
        if (effect := _EFFECTS.get(name.lstrip("-"))) is not None:
            effect(call, value)
    return call


def _without_optional_values(words: Sequence[str]) -> list[str]:
    """Drop the value of each `-q`, which is the rest of the word: getopt has no optional values."""
    end = list(words).index("--") if "--" in words else len(words)
    return [*("-q" if word.startswith("-q") else word for word in words[:end]), *words[end:]]


def _dsn(parse: Callable[[str], object], option: str, value: str) -> object:
    try:
        return parse(value)
    except Malformed as error:
        raise WrongUsage(f"-{option}: {error}") from None


_EFFECTS: dict[str, Callable[[SendmailCall, str], None]] = {
    "t": lambda call, _: setattr(call, "takes_header", True),
    "i": lambda call, _: setattr(call, "dot_ends", False),
    "o": lambda call, value: setattr(call, "dot_ends", call.dot_ends and value != "i"),
    "f": lambda call, value: setattr(call, "sender", value),
    "r": lambda call, value: setattr(call, "sender", value),
    "F": lambda call, value: setattr(call, "full_name", value),
    "N": lambda call, value: setattr(call, "notify", _dsn(parse_notify, "N", value)),
    "R": lambda call, value: setattr(call, "ret", _dsn(parse_ret, "R", value)),
    "V": lambda call, value: setattr(call, "envid", _dsn(parse_envid, "V", encode_xtext(value))),
    "b": lambda call, value: setattr(call, "mode", _mode(value)),
    "q": lambda call, _: setattr(call, "mode", Mode.FLUSH),
    "policy": lambda call, value: setattr(call, "policy", Path(value)),
    "spool": lambda call, value: setattr(call, "spool", Path(value)),
}
"""All other options are ignored."""


def _mode(value: str) -> Mode:
    if value == "d":
        raise WrongUsage("-bd: the relay is started by `relay run`")
    try:
        return Mode(value)
    except ValueError:
        raise WrongUsage(f"-b{value} is not supported") from None
