"""The addresses in a header or on a command line: `a@b, "A, B" <c@d> (comment), group: e@f;`.  Pure.

The grammar is that of RFC 5322, 3.4, without its obsolete forms.  Guarantees: nothing is repaired, decoded
or left out: what is no address raises, so that no recipient is lost without a word.  A name without a
domain gets that of this host, where one is given.  Time is linear in the text: no token is looked for twice
in the same octets (Python's own parsers are quadratic).
"""

import re

from relay.mail.address import is_valid_address

# A literal that is not closed is given up at the next bracket.  At most one quote has no end: every other
# one behind it would be its end.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|\[[^\[\]\\]*+\]|\\.|.', re.DOTALL)
_SHOWN = 200
"""So many characters of a text does an error show."""
_UNREADABLE = "\ufffd"
"""What an octet outside UTF-8 was read as."""


class NotAnAddress(ValueError):  # noqa: N818 - it is what the caller wrote
    """The text says what is no address."""


def addresses_in(text: str, hostname: str | None) -> list[str]:
    """Return each once, in order.  Raises NotAnAddress."""
    found = (_address(member, text) for member in _members(text))
    return list(dict.fromkeys(_qualified(address, hostname) for address in found if address))


def _members(text: str) -> list[list[str]]:
    """Split at commas and around groups; comments are dropped."""
    members: list[list[str]] = [[]]
    depth, is_angle = 0, False
    for piece in _TOKEN.findall(text):
        if depth or (piece == "(" and not is_angle):
            depth += (piece == "(") - (piece == ")")
        elif is_angle or piece not in {",", ";", ":"}:
            members[-1].append(piece)
            is_angle = piece == "<" or (is_angle and piece != ">")
        elif piece == ":":
            members[-1].clear()  # it was the name of a group
        else:
            members.append([])
    if depth or is_angle:
        raise NotAnAddress(f"{text[:_SHOWN]}: a bracket is not closed")
    return members


def _address(tokens: list[str], text: str) -> str:
    """Return nothing for an empty member."""
    if "<" not in tokens:
        return "".join(tokens).strip()
    begin = tokens.index("<")
    end = tokens.index(">", begin)
    if end == begin + 1 or "".join(tokens[end + 1 :]).strip():
        raise NotAnAddress(f"{text[:_SHOWN]}: is not a list of addresses")
    return "".join(tokens[begin + 1 : end]).strip()


def _qualified(address: str, hostname: str | None) -> str:
    full = f"{address}@{hostname}" if "@" not in address and hostname else address
    if _UNREADABLE in full or not is_valid_address(full, smtputf8=True):
        raise NotAnAddress(f"{address[:_SHOWN]}: is not an address")
    return full
