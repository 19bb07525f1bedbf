"""The grammar of addresses, in MAIL and RCPT and in lists of a header.  Pure.

An address is what the client sent between its angle brackets, without blanks at its edges and without a
source route (RFC 5321, C and F.2).  It stays the same byte for byte, or it is refused: nothing is decoded,
folded, unquoted or repaired.  `comparable` is for comparison only and is never sent.

The grammar is that of RFC 5321, 4.1.2 and 4.1.3, with UTF-8 where RFC 6531, 3.3 allows it.  It also accepts
what mail in use has, as Postfix does without `strict_rfc821_envelopes`: dots anywhere in a local part, a
final dot behind a domain, `_` in a label, any length up to MAX_ADDRESS_BYTES; and around the address blanks,
a display name, or no brackets.  A name without a domain is refused, except the recipient `Postmaster`
(4.1.1.3).  An accepted address has no control character, and has `<`, `>` and blanks only in a quoted string.

`mailboxes` reads a list of addresses (RFC 5322, 3.4) and checks none of them.  `parse_search` and `matches`
are the operator's search in the queue and in the outcomes: words, each a part of an id, a Subject or an
address of a message.  Case, Unicode normalization and the spelling of an address make no difference.
"""

import contextlib
import re
import unicodedata
from collections.abc import Collection, Iterable
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NamedTuple

MAX_ADDRESS_BYTES = 986
"""Keeps MAIL and RCPT, without parameters, within 1,000 octets."""

# Sets say what they exclude: `re` compiles such a set in 1 ms, and one that lists all of UTF-8 in 9 ms.
NO_TEXT = r"\x7f-\x9f\ud800-\udfff"
"""For a set: what no text has, which are controls and what stands for other octets (`surrogateescape`)."""
_ATEXT_OR_DOT = rf'[^\0- "(),:;<>@\[-\]{NO_TEXT}]'
# qtextSMTP and quoted-pairSMTP: no control, and a quote or backslash only after a backslash.
_QUOTED_STRING = rf'"(?:[^\0-\x1f"\\{NO_TEXT}]|\\[ -~])*"'
_LABEL = rf"(?!-)[^\0-,./:-@\[-^`{{-~{NO_TEXT}]{{1,63}}(?<!-)"
_DOMAIN = rf"{_LABEL}(?:\.{_LABEL})*"
_MAILBOX = (
    rf"(?:{_ATEXT_OR_DOT}+|{_QUOTED_STRING})"
    rf"@(?:{_DOMAIN}\.?|\[(?P<literal>[A-Za-z0-9.:]+)\])|(?ai:postmaster)"
)
_SOURCE_ROUTE = rf"@{_DOMAIN}(?:,@{_DOMAIN})*:"
# A `<` without a blank or a quote before it belongs to a parameter, such as `AUTH=<>`.
_DISPLAY_NAME = r'(?:"(?:[^"\\]|\\.)*"|[^<>"\x00-\x1f\x7f])*(?<=[ "])'
_BARE = re.compile(rf"(?P<address>{_MAILBOX})(?= |\Z)")
_BRACKETED = re.compile(rf"(?:{_DISPLAY_NAME})?< *(?:{_SOURCE_ROUTE})?(?P<address>{_MAILBOX})? *>")
_QUOTED_PAIR = re.compile(r"\\(.)", re.DOTALL)


class Malformed(ValueError):  # noqa: N818 - it is what the client sent, and reads as such
    """The text is not what its grammar allows.  The error says why, quotes nothing, and is safe to send."""


def split_path(argument: str) -> tuple[str, str]:
    """Return the address in what follows `MAIL FROM:` or `RCPT TO:`, and what stands behind the path.

    The address is `""` for `<>`.  Octets outside UTF-8 are lone surrogates, as `surrogateescape` makes them.
    Raises Malformed.
    """
    argument = argument.lstrip(" ")
    found = _BARE.match(argument) or _BRACKETED.match(argument)
    if found is None:
        raise Malformed(
            "not an address by RFC 5321, 4.1.2" if "@" in argument else "the address has no domain"
        )
    if why := _fault(found):
        raise Malformed(why)
    return found["address"] or "", argument[found.end() :]


@lru_cache(1024)  # the same senders over and over
def is_valid_address(text: str, *, smtputf8: bool) -> bool:
    """Check a stored address before it is sent, by the grammar that accepted it; False for `""`."""
    found = _BARE.fullmatch(text)
    return found is not None and (smtputf8 or text.isascii()) and not _fault(found)


def _fault(found: re.Match[str]) -> str:
    """Return what the pattern leaves: a fault of length or of the literal (RFC 5321, 4.1.3), or `""`."""
    literal = found["literal"] or ""
    if len((found["address"] or "").encode()) > MAX_ADDRESS_BYTES:
        return f"the address is longer than {MAX_ADDRESS_BYTES} octets"
    try:
        if literal:
            IPv6Address(literal[5:]) if literal[:5].upper() == "IPV6:" else IPv4Address(literal)
    except AddressValueError:
        return "the address literal is neither IPv4 nor IPv6"
    return ""


@lru_cache(4096)  # the same senders over and over
def comparable(address: str) -> str:
    """Return one form for all spellings of an address.

    The local part is without quotes and quoted-pairs (RFC 5321, 4.1.2: the quoted form of a name is the same
    name), and `folded`.  The domain is as in `comparable_domain`.  A sub-address (`a+b`) is another address.
    Patterns keep their `*`.
    """
    local, at, domain = address.rpartition("@")
    if len(local) > 1 and local[0] == local[-1] == '"':
        local = _QUOTED_PAIR.sub(r"\1", local[1:-1])
    return f"{folded(local)}{at}{comparable_domain(domain) if at else folded(domain)}"


def folded(text: str) -> str:
    """Return one form for all variants of a text in case and in Unicode composition."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


@lru_cache(4096)
def comparable_domain(domain: str) -> str:
    """Return a domain, literal or pattern without case and final dot, and with U-labels as A-labels."""
    domain = folded(domain)
    if not domain.isascii():
        with contextlib.suppress(UnicodeError):  # a label that no resolver would find
            domain = domain.encode("idna").decode("ascii")
    elif domain.startswith("[ipv6:"):
        with contextlib.suppress(AddressValueError):
            found = IPv6Address(domain.removeprefix("[ipv6:").removesuffix("]"))
            return f"[{found.ipv4_mapped or f'ipv6:{found}'}]"
    return domain.rstrip(".")


@lru_cache(16)
def parse_search(text: str) -> str:
    """Return the words, `folded`.  Raise ValueError if there is none, or for undecodable octets."""
    words = [word for each in text.split() if (word := each.strip("<>"))]
    if not words or any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError(
            "give an address, a Message-ID, a queue id, words of a Subject, or a part of any of these"
        )
    return " ".join(map(folded, words))


def matches(search: str, names: Iterable[str | None], addresses: Collection[str]) -> bool:
    """Return whether each word is in a message's ids and Subject (`names`), or in its addresses."""
    texts = [*map(folded, [*filter(None, names), *addresses]), *map(comparable, addresses)]
    text = "\n".join(texts)
    return all(word in text or comparable(word) in text for word in search.split())


# An unclosed literal is given up at the next bracket.  At most one quote is unclosed, because any later quote
# would close it.  So no octet is read twice (Python's own parsers are quadratic).
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|\[[^\[\]\\]*+\]|\\.|.', re.DOTALL)


class Mailbox(NamedTuple):
    phrase: str
    address: str
    """As written, without blanks at its edges and without a source route; unchecked."""
    rest: str
    """What follows the closing bracket; empty in a well-formed mailbox."""


def mailboxes(text: str) -> tuple[list[Mailbox], bool]:
    """Return the mailboxes of `a@b, "A, B" <c@d> (comment), group: e@f;`, and whether brackets were closed.

    Comments and empty members are left out, and nothing is decoded.  The time is linear in the text.
    """
    members: list[list[str]] = [[]]
    depth, is_angle = 0, False
    for piece in _TOKEN.findall(text):
        if depth or (piece == "(" and not is_angle):
            depth += (piece == "(") - (piece == ")")
        elif is_angle or piece not in {",", ";", ":"}:
            members[-1].append(piece)
            is_angle = piece == "<" or (is_angle and piece != ">")
        elif piece == ":":
            members[-1].clear()  # the name of a group
        else:
            members.append([])
    found = [_mailbox(tokens) for tokens in members if "".join(tokens).strip()]
    return found, not depth and not is_angle


def _mailbox(tokens: list[str]) -> Mailbox:
    if "<" not in tokens:
        return Mailbox("", "".join(tokens).strip(), "")
    begin = tokens.index("<")
    end = tokens.index(">", begin) if ">" in tokens[begin:] else len(tokens)
    # An unclosed quote in the phrase would swallow the address.
    phrase = "" if '"' in tokens[:begin] else "".join(tokens[:begin]).strip()
    address = "".join(tokens[begin + 1 : end]).strip()
    if address.startswith("@"):
        address = address.partition(":")[2].strip()
    return Mailbox(phrase, address, "".join(tokens[end + 1 :]).strip())
