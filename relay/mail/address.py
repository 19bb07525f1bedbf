"""The grammar of addresses, and of the path and parameters of MAIL and RCPT.  Pure.

Bytes in, the same bytes out: an address is what the client sent within its angle brackets, less blanks at
its edges and a source route (RFC 5321, C and F.2), or it is refused; nothing is decoded, folded, unquoted or
repaired.  `comparable` is for comparing alone and is never sent.

The grammar is that of RFC 5321, 4.1.2 and 4.1.3, with UTF-8 where RFC 6531, 3.3 puts it, and takes what mail
in use has, as Postfix does without `strict_rfc821_envelopes`: dots anywhere in a local part, a final dot
behind a domain, `_` in a label, any length up to MAX_ADDRESS_BYTES; around the address blanks, a display
name, or no brackets.  A name without a domain is refused, but for the recipient `Postmaster` (4.1.1.3).
What is taken holds no control character, and `<`, `>` and blanks only in a quoted string.
"""

import contextlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address

MAX_ADDRESS_BYTES = 986
"""So that MAIL or RCPT, without its parameters, is no longer than 1,000 octets."""

_ATEXT = rb"A-Za-z0-9!#$%&'*+\-/=?^_`{|}~\x80-\xff"
# qtextSMTP and quoted-pairSMTP: no control, and a quote or backslash only after a backslash.
_QUOTED_STRING = rb'"(?:[ !#-\[\]-~\x80-\xff]|\\[ -~])*"'
_LABEL = rb"(?!-)[A-Za-z0-9_\-\x80-\xff]{1,63}(?<!-)"
_DOMAIN = _LABEL + rb"(?:\." + _LABEL + rb")*"
_MAILBOX = (
    rb"(?:[." + _ATEXT + rb"]+|" + _QUOTED_STRING + rb")"
    rb"@(?:" + _DOMAIN + rb"\.?|\[(?P<literal>[A-Za-z0-9.:]+)\])|(?i:postmaster)"
)
_SOURCE_ROUTE = rb"@" + _DOMAIN + rb"(?:,@" + _DOMAIN + rb")*:"
# A `<` that a blank or a quote does not part from what stands before is that of a parameter, `AUTH=<>`.
_DISPLAY_NAME = rb'(?:"(?:[^"\\]|\\.)*"|[^<>"\x00-\x1f\x7f])*(?<=[ "])'
_ADDRESS = re.compile(_MAILBOX)
_BARE = re.compile(rb"(?P<address>" + _MAILBOX + rb")(?= |\Z)")
_BRACKETED = re.compile(
    rb"(?:" + _DISPLAY_NAME + rb")?< *(?:" + _SOURCE_ROUTE + rb")?(?P<address>" + _MAILBOX + rb")? *>"
)
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
# U+0080 to U+009F: controls too, when a terminal decodes them.
_UTF8_CONTROL = re.compile("[\x80-\x9f]")
_QUOTED_PAIR = re.compile(r"\\(.)", re.DOTALL)
# RFC 5321, 4.1.2: esmtp-param; the value is any printable octet but `=`, and UTF-8 (RFC 6531, 3.3).
_PARAMETER = re.compile(rb"([A-Za-z0-9][A-Za-z0-9-]*)(?:=([!-<>-~\x80-\xff]+))?\Z")


class MalformedAddress(ValueError):  # noqa: N818 - it is what the client sent, and reads as such
    """Not an address by this grammar.  The text says why and quotes nothing; safe to send."""


class MalformedParameters(ValueError):  # noqa: N818 - as above
    """The path is well-formed, what follows it is not.  Safe to send."""


class NonAsciiAddress(ValueError):  # noqa: N818 - as above
    """An address that needs SMTPUTF8, which MAIL did not ask for (RFC 6531, 3.4).  Safe to send."""


@dataclass(frozen=True, slots=True)
class Path:
    address: str
    """Without the brackets; `""` for the null reverse-path."""
    parameters: Mapping[str, str | None]
    """By keyword in upper case, in the order sent; None where no `=` followed.  Values may be UTF-8."""


def parse_reverse_path(argument: bytes) -> Path:
    """Take apart what follows `MAIL FROM:`; the path may be `<>`.

    UTF-8 is allowed if SMTPUTF8 is among the parameters of this very command.
    Raises MalformedAddress, MalformedParameters or NonAsciiAddress.
    """
    raw, rest = _split_path(argument)
    if raw and b"@" not in raw:
        raise MalformedAddress("the address has no domain")
    parameters = _parse_parameters(rest)
    return Path(_decode(raw, smtputf8="SMTPUTF8" in parameters), parameters)


def parse_forward_path(argument: bytes, *, smtputf8: bool) -> Path:
    """Take apart what follows `RCPT TO:`; `smtputf8` is whether MAIL asked for it.

    Raises MalformedAddress (for `<>` too), MalformedParameters or NonAsciiAddress.
    """
    raw, rest = _split_path(argument)
    if not raw:
        raise MalformedAddress("the recipient is empty")
    parameters = _parse_parameters(rest)
    return Path(_decode(raw, smtputf8=smtputf8), parameters)


@lru_cache(1024)  # the same senders over and over
def is_valid_address(text: str, *, smtputf8: bool) -> bool:
    """Check for the way out what was stored, by the grammar that let it in; False for `""`."""
    try:
        raw = text.encode("utf-8")
        match = _ADDRESS.fullmatch(raw)
        if match is None:
            return False
        _check(raw, match["literal"])
        _decode(raw, smtputf8=smtputf8)
    except ValueError:  # UnicodeEncodeError (a lone surrogate) is one
        return False
    return True


@lru_cache(4096)  # the same senders over and over
def comparable(address: str) -> str:
    """Return what all spellings of an address have in common.

    The local part is without quotes and quoted-pairs (RFC 5321, 4.1.2: the quoted form of a name is the same
    name), without regard to case, in one Unicode normalization; the domain as in `comparable_domain`.
    A sub-address (`a+b`) is another address.  Patterns with `*` keep it.
    """
    local, at, domain = address.rpartition("@")
    if len(local) > 1 and local[0] == local[-1] == '"':
        local = _QUOTED_PAIR.sub(r"\1", local[1:-1])
    return f"{folded(local)}{at}{comparable_domain(domain) if at else folded(domain)}"


def folded(text: str) -> str:
    """Return text without regard to case and to how Unicode composes its characters."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


FULL_STOPS = ".\u3002\uff0e\uff61"
"""What ends a label (RFC 3490, 3.1)."""


@lru_cache(4096)
def comparable_domain(domain: str) -> str:
    """Return a domain, literal or pattern without case and final dot, and with U-labels as A-labels."""
    domain = folded(domain).rstrip(FULL_STOPS)
    if domain.isascii() and not domain.startswith("[ipv6:"):
        return domain  # as nearly always; IDNA is slow
    with contextlib.suppress(AddressValueError):
        found = IPv6Address(domain.removeprefix("[ipv6:").removesuffix("]"))
        return f"[{found.ipv4_mapped or f'ipv6:{found}'}]"
    with contextlib.suppress(UnicodeError):  # no label that a resolver would find
        return domain.encode("idna").decode("ascii")
    return domain


def _split_path(argument: bytes) -> tuple[bytes, bytes]:
    """Return the address, empty for the null path, and what follows the path.  Raises MalformedAddress."""
    argument = argument.lstrip(b" ")
    match = _BARE.match(argument) or _BRACKETED.match(argument)
    if match is None:
        raise MalformedAddress(_why_malformed(argument))
    raw = match["address"] or b""
    _check(raw, match["literal"])
    return raw, argument[match.end() :]


def _why_malformed(argument: bytes) -> str:
    if _CONTROL.search(argument):
        return "control characters are not allowed in an address"
    if b"@" not in argument:
        return "the address has no domain"
    if b"<" in argument and b">" not in argument:
        return "the address does not end in an angle bracket"
    return "not an address by RFC 5321, 4.1.2"


def _check(raw: bytes, literal: bytes | None) -> None:
    """Check what the pattern does not: length, and a literal (RFC 5321, 4.1.3).  Raises MalformedAddress."""
    if len(raw) > MAX_ADDRESS_BYTES:
        raise MalformedAddress(f"the address is longer than {MAX_ADDRESS_BYTES} octets")
    if literal is None:
        return
    text = literal.decode("ascii")
    try:
        IPv6Address(text[5:]) if text[:5].upper() == "IPV6:" else IPv4Address(text)
    except AddressValueError:
        raise MalformedAddress("the address literal is neither IPv4 nor IPv6") from None


def _decode(raw: bytes, *, smtputf8: bool) -> str:
    """Return the address as text; UTF-8 only where it was asked for, and no C1 control."""
    if raw.isascii():
        return raw.decode("ascii")
    if not smtputf8:
        raise NonAsciiAddress("an address outside ASCII needs SMTPUTF8")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedAddress("the address is not valid UTF-8") from None
    if _UTF8_CONTROL.search(text):
        raise MalformedAddress("control characters are not allowed in an address")
    return text


def _parse_parameters(rest: bytes) -> Mapping[str, str | None]:
    """Take the parameters apart: spaces before each, no keyword twice.  Raises MalformedParameters."""
    parameters: dict[str, str | None] = {}
    rest = rest.rstrip(b" ")  # RFC 5321, 4.1.1: tolerate white space before the CRLF
    if rest and not rest.startswith(b" "):
        raise MalformedParameters("a space must follow the path")
    for raw in filter(None, rest.split(b" ")):
        match = _PARAMETER.match(raw)
        if match is None:
            raise MalformedParameters("a parameter is not KEYWORD or KEYWORD=VALUE")
        keyword = match[1].decode("ascii").upper()
        if keyword in parameters:
            raise MalformedParameters(f"the parameter {keyword} is given twice")
        try:
            parameters[keyword] = None if match[2] is None else match[2].decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedParameters("a parameter is not valid UTF-8") from None
    return parameters
