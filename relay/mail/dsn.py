"""The DSN parameters of MAIL and RCPT: which reports a sender asks for, and how (RFC 3461, 4).  Pure.

Also `Note`, which a report is made of, so that the spool need not load what writes reports.

Guarantees: an accepted value has no space, control or line end.  It is written as it was read, as RFC 3461,
5.2.1 demands of a relay, except for the case of NOTIFY and RET.  An ORCPT of type `utf-8` (RFC 6533, 3) may
have UTF-8 if SMTPUTF8 was asked for; `utf8_xtext` writes it for a next hop without SMTPUTF8.
Does not: know commands and replies (`relay.smtp.commands`), or decide who gets a report.
"""

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay.mail.address import NO_TEXT, Malformed

MAX_ENVID = 100
"""Characters of ENVID as sent (RFC 3461, 4.4)."""

# RFC 3461, 4: xtext of printable ASCII; only capital letters are hexadecimal digits.
_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[2-6][0-9A-F]|\+7[0-9A-E])+\Z")
# Postfix writes an address beyond ASCII as xtext of its UTF-8 octets, with the type `rfc822`.
_XTEXT_ADDRESS = re.compile(r"(?:[!-*,-<>-~]|\+[2-6][0-9A-F]|\+7[0-9A-E]|\+[89A-F][0-9A-F])+\Z")
# RFC 6533, 3: QCHAR, EmbeddedUnicodeChar and, in utf-8-addr-unitext, UTF-8; no controls.
_UTF8_ADDRESS = re.compile(rf"(?:[^\0- +=\\{NO_TEXT}]|\\x\{{[0-9A-F]{{2,6}}\}})+\Z")
_HEXCHAR = re.compile(r"\+([0-9A-F]{2})")
_NO_XCHAR = re.compile(r"[^!-*,-<>-~]")
# RFC 3461, 4.2 with RFC 5322, 3.2.3: the type of an address is an atom.
_ADDRESS_TYPE = re.compile(r"[A-Za-z0-9!#$%&'*/?^_`{|}~-]{1,40}\Z")
_UTF8_TYPE = "utf-8"


@dataclass(frozen=True, slots=True)
class Note:
    """Why one recipient failed or is late, or which reply relayed it.

    The spool makes it durable before the recipient's status changes.
    """

    index: int
    """Index of the recipient in the envelope."""
    status: str
    """Enhanced status code, RFC 3463."""
    reason: str
    """A `report.Reason`; DELAYED only in a warning."""
    diagnostic: str | None
    """The upstream's reply, or another explanation; printable ASCII."""
    remote: str | None
    """The upstream, as `host`; None if no upstream was tried."""
    at_ns: int
    """Wall clock."""


class Notify(enum.StrEnum):
    """The outcomes of a recipient that the sender may ask reports on (RFC 3461, 4.1)."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    DELAY = "DELAY"


class Ret(enum.StrEnum):
    """The part of the message that a report of failure returns (RFC 3461, 4.3)."""

    FULL = "FULL"
    HDRS = "HDRS"


class RecipientRequest(NamedTuple):
    notify: str = ""
    """NEVER, or words of `Notify` with commas between them; empty if the sender gave none."""
    orcpt: str = ""

    def wants(self, what: Notify) -> bool:
        # RFC 3461, 4.1: without NOTIFY failures are reported, and delays are left to us.
        return what in (self.notify or "FAILURE,DELAY").split(",")


NO_REQUEST = RecipientRequest()


@dataclass(frozen=True, slots=True)
class DsnRequest:
    ret: Ret | None = None
    envid: str = ""
    recipients: tuple[RecipientRequest, ...] = ()
    """One for each recipient of the envelope; empty if no recipient has parameters."""

    def of(self, index: int) -> RecipientRequest:
        return self.recipients[index] if self.recipients else NO_REQUEST

    def for_some(self, indices: Iterable[int]) -> "DsnRequest":
        return DsnRequest(self.ret, self.envid, tuple(map(self.of, indices)) if self.recipients else ())


NOTHING_ASKED = DsnRequest()


def asked_of(requests: Sequence[RecipientRequest]) -> tuple[RecipientRequest, ...]:
    """Return the requests of all recipients, or an empty tuple if no recipient has parameters."""
    return tuple(requests) if any(each != NO_REQUEST for each in requests) else ()


def encode_xtext(text: str) -> str:
    """Write printable ASCII as xtext (RFC 3461, 4)."""
    return _NO_XCHAR.sub(lambda found: f"+{ord(found[0]):02X}", text)


def decode_xtext(text: str) -> str:
    """Return the text that xtext encodes; octets beyond ASCII are read as UTF-8."""
    octets = _HEXCHAR.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1")
    return octets.decode("utf-8", "replace")


def parse_notify(value: str) -> str:
    """Raise Malformed."""
    words = value.upper()
    if words != "NEVER" and not {*Notify}.issuperset(words.split(",")):
        raise Malformed("NOTIFY is NEVER alone, or a list of SUCCESS, FAILURE and DELAY")
    return ",".join(dict.fromkeys(words.split(",")))


def parse_ret(value: str) -> Ret:
    """Raise Malformed."""
    if value.upper() not in {*Ret}:
        raise Malformed("RET is FULL or HDRS")
    return Ret(value.upper())


def parse_envid(value: str) -> str:
    """Raise Malformed."""
    if len(value) > MAX_ENVID:
        raise Malformed(f"ENVID is longer than {MAX_ENVID} characters")
    if not _XTEXT.match(value):
        raise Malformed("ENVID is not xtext of printable ASCII by RFC 3461, 4")
    return value


def parse_orcpt(value: str) -> str:
    """Return the value, of any length: Postfix derives it from the address.  Raises Malformed."""
    kind, separator, address = value.partition(";")
    if not separator or not _ADDRESS_TYPE.match(kind):
        raise Malformed("ORCPT does not begin with an address type and a semicolon")
    if not (_UTF8_ADDRESS if kind.lower() == _UTF8_TYPE else _XTEXT_ADDRESS).match(address):
        raise Malformed("the address of ORCPT is not valid by RFC 3461, 4.2 or RFC 6533, 3")
    return value


def utf8_xtext(text: str) -> str:
    """Return an address or an ORCPT as utf-8-addr-xtext (RFC 6533, 3) if it is beyond ASCII."""
    if text.isascii():
        return text
    return _NO_XCHAR.sub(lambda found: f"\\x{{{ord(found[0]):02X}}}", text)


def original_recipient(orcpt: str) -> tuple[str, str]:
    """Return type and address of an ORCPT in ASCII, as Original-Recipient has them (RFC 3464, 2.3.1)."""
    kind, _, address = orcpt.partition(";")
    if kind.lower() == _UTF8_TYPE:
        return kind, utf8_xtext(address)
    address = decode_xtext(address)
    return (kind, address) if address.isascii() else (_UTF8_TYPE, utf8_xtext(address))
