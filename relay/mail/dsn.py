"""What a sender asks to be told of, and how: the DSN parameters of MAIL and RCPT (RFC 3461, 4).  Pure.

Guarantees: what is read here was checked to the last character, holds no space, no control and no line
end, and is written again as it was read: RFC 3461, 5.2.1 has a relay pass on identical values.
An ORCPT of type `utf-8` (RFC 6533, 3) may hold UTF-8 where SMTPUTF8 was asked for; `ascii_orcpt` writes
it for a next hop that does not take SMTPUTF8.
Does not: know commands and replies (`relay.smtp.commands`), or decide who is told.
"""

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_ENVID = 100
"""Characters of ENVID as sent (RFC 3461, 4.4)."""

# RFC 3461, 4: xtext; only capital letters are hexadecimal digits.
_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-F]{2})+\Z")
_HEXCHAR = re.compile(r"\+([0-9A-F]{2})")
_XCHAR = re.compile(r"[!-*,-<>-~]")
# RFC 3461, 4.2 with RFC 5322, 3.2.3: the type of an address is an atom.
_ADDRESS_TYPE = re.compile(r"[A-Za-z0-9!#$%&'*/?^_`{|}~-]{1,40}\Z")
_PRINTABLE = re.compile(r"[ -~]+\Z")
# RFC 6533, 3: QCHAR, EmbeddedUnicodeChar and, in utf-8-addr-unitext, UTF-8.
_UTF8_ADDRESS = re.compile(r"(?:[^\x00-\x20+=\\\x7f]|\\x\{[0-9A-F]{2,6}\})+\Z")
_EMBEDDED = re.compile(r"\\x\{([0-9A-F]{2,6})\}")
_NO_QCHAR = re.compile(r"[+=\\ ]")
_UTF8_TYPE = "utf-8"
# Controls, also those of C1, which a terminal obeys, marks that turn the direction of a line, surrogates,
# and the separators that end a line.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class MalformedDsn(ValueError):  # noqa: N818 - it is what the client sent, and reads as such
    """Not a value by this grammar.  The text says why and quotes nothing; safe to send."""


class Notify(enum.Flag):
    """Of what the sender wants to be told about a recipient (RFC 3461, 4.1)."""

    NEVER = 0
    SUCCESS = enum.auto()
    FAILURE = enum.auto()
    DELAY = enum.auto()

    def __str__(self) -> str:
        """Return the value of NOTIFY."""
        return ",".join(str(each.name) for each in self) or "NEVER"


_UNASKED = Notify.FAILURE | Notify.DELAY
"""Of what a sender is told that says nothing (RFC 3461, 4.1 leaves DELAY to us)."""
_LISTED = {each.name: each for each in Notify}


class Ret(enum.StrEnum):
    """What of the message a report of failure returns (RFC 3461, 4.3)."""

    FULL = "FULL"
    HDRS = "HDRS"


class RecipientRequest(NamedTuple):
    notify: Notify | None = None
    """None: not given."""
    orcpt: str = ""
    """As given, `type;xtext`."""

    def joined(self, other: "RecipientRequest") -> "RecipientRequest":
        """Return what both together ask, where one recipient is named twice."""
        orcpt = self.orcpt or other.orcpt
        if self.notify is other.notify is None:
            return RecipientRequest(None, orcpt)
        both = [_UNASKED if notify is None else notify for notify in (self.notify, other.notify)]
        return RecipientRequest(both[0] | both[1], orcpt)


NO_REQUEST = RecipientRequest()


@dataclass(frozen=True, slots=True)
class DsnRequest:
    ret: Ret | None = None
    envid: str = ""
    """As given, in xtext."""
    recipients: tuple[RecipientRequest, ...] = ()
    """One for each recipient of the envelope; or none, where nothing was given for any."""

    def of(self, index: int) -> RecipientRequest:
        return self.recipients[index] if self.recipients else NO_REQUEST

    def wants(self, index: int, what: Notify) -> bool:
        """Whether the sender is to be told of this about a recipient."""
        notify = self.of(index).notify
        return what in (_UNASKED if notify is None else notify)

    def for_some(self, indices: Iterable[int]) -> "DsnRequest":
        """Return what was asked of some recipients, in their order."""
        return DsnRequest(self.ret, self.envid, tuple(map(self.of, indices)) if self.recipients else ())


NOTHING_ASKED = DsnRequest()


def asked_of(requests: Sequence[RecipientRequest]) -> tuple[RecipientRequest, ...]:
    """Return the requests of all recipients, or none of them where nobody asked for anything."""
    return tuple(requests) if any(each != NO_REQUEST for each in requests) else ()


def encode_xtext(text: str) -> str:
    """Write printable ASCII as xtext (RFC 3461, 4)."""
    return "".join(c if _XCHAR.match(c) else f"+{ord(c):02X}" for c in text)


def decode_xtext(text: str) -> str:
    """Raise MalformedDsn for what is no xtext, or holds what is no printable ASCII."""
    decoded = _octets_of_xtext(text).decode("latin-1")
    if not _PRINTABLE.match(decoded):
        raise MalformedDsn("not printable ASCII")
    return decoded


def decode_address(text: str) -> str:
    """As `decode_xtext`, for the address of an ORCPT: its octets may be UTF-8.

    Postfix 3.7 writes an address beyond ASCII so, as type `rfc822`; RFC 6533 would have type `utf-8`.
    """
    try:
        decoded = _octets_of_xtext(text).decode()
    except UnicodeDecodeError:
        raise MalformedDsn("neither ASCII nor UTF-8") from None
    if _UNSEEN.search(decoded):
        raise MalformedDsn("what holds controls")
    return decoded


def _octets_of_xtext(text: str) -> bytes:
    if not _XTEXT.match(text):
        raise MalformedDsn("not xtext by RFC 3461, 4")
    return _HEXCHAR.sub(lambda match: chr(int(match[1], 16)), text).encode("latin-1")


def parse_notify(value: str) -> Notify:
    """Raise MalformedDsn."""
    words = value.upper().split(",")
    if words == ["NEVER"]:
        return Notify.NEVER
    notify = Notify.NEVER
    for word in words:
        if word not in _LISTED:
            raise MalformedDsn("NOTIFY is NEVER alone, or a list of SUCCESS, FAILURE and DELAY")
        notify |= _LISTED[word]
    return notify


def parse_ret(value: str) -> Ret:
    """Raise MalformedDsn."""
    try:
        return Ret(value.upper())
    except ValueError:
        raise MalformedDsn("RET is FULL or HDRS") from None


def parse_envid(value: str) -> str:
    """Return it as it is.  Raises MalformedDsn."""
    if len(value) > MAX_ENVID:
        raise MalformedDsn(f"ENVID is longer than {MAX_ENVID} characters")
    try:
        decode_xtext(value)
    except MalformedDsn as error:
        raise MalformedDsn(f"ENVID is {error}") from None
    return value


def parse_orcpt(value: str, *, smtputf8: bool) -> str:
    """Return it as it is, of any length: Postfix makes it of the address.  Raises MalformedDsn."""
    kind, separator, address = value.partition(";")
    if not separator or not _ADDRESS_TYPE.match(kind):
        raise MalformedDsn("ORCPT does not begin with an address type and a semicolon")
    if kind.lower() == _UTF8_TYPE:
        _check_utf8(address, smtputf8=smtputf8)
        return value
    try:
        decode_address(address)
    except MalformedDsn as error:
        raise MalformedDsn(f"the address of ORCPT is {error}") from None
    return value


def _check_utf8(address: str, *, smtputf8: bool) -> None:
    if not _UTF8_ADDRESS.match(address):
        raise MalformedDsn("the address of ORCPT is no utf-8-addr-xtext by RFC 6533, 3")
    if not address.isascii() and not smtputf8:
        raise MalformedDsn("an ORCPT outside ASCII needs SMTPUTF8")
    points = [int(digits, 16) for digits in _EMBEDDED.findall(address)]
    if any(point > 0x10FFFF for point in points) or _UNSEEN.search(
        address + "".join(chr(point) for point in points if point <= 0x10FFFF)
    ):
        raise MalformedDsn("the address of ORCPT holds what is no character to be seen")


def ascii_orcpt(orcpt: str) -> str:
    """Return an ORCPT as utf-8-addr-xtext, for where UTF-8 may not stand (RFC 6533, 3)."""
    return "".join(c if c.isascii() else f"\\x{{{ord(c):02X}}}" for c in orcpt)


def original_recipient(orcpt: str) -> tuple[str, str]:
    """Return type and address of an ORCPT, as Original-Recipient has them (RFC 3464, 2.3.1), in ASCII."""
    kind, _, address = orcpt.partition(";")
    if kind.lower() != _UTF8_TYPE:
        address = decode_address(address)
        if address.isascii():
            return kind, address
        kind, address = _UTF8_TYPE, _NO_QCHAR.sub(lambda match: f"\\x{{{ord(match[0]):02X}}}", address)
    return kind, ascii_orcpt(address)
