"""The addresses of a header field or a command line, as RFC 5322, 3.4 writes them.  Pure.

`a@b, "A, B" <c@d> (comment), group: e@f;`.  Nothing is decoded.  Time is linear in the text: no token is
looked for twice in the same octets (Python's own parsers are quadratic).
"""

import re
from typing import NamedTuple

# A literal that is not closed is given up at the next bracket.  At most one quote has no end: every other
# one behind it would be its end.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|\[[^\[\]\\]*+\]|\\.|.', re.DOTALL)


class Mailbox(NamedTuple):
    phrase: str
    """What stands before the angle, without comments; empty without one."""
    address: str
    """As it is written, less blanks at its edges and a source route; anything may be in it."""
    rest: str
    """What stands behind the angle; empty where nothing is wrong."""


def mailboxes(text: str) -> tuple[list[Mailbox], bool]:
    """Return the mailboxes, and whether every bracket was closed.  Empty members are left out."""
    members, is_closed = _members(text)
    return [_mailbox(tokens) for tokens in members if "".join(tokens).strip()], is_closed


def _members(text: str) -> tuple[list[list[str]], bool]:
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
    return members, not depth and not is_angle


def _mailbox(tokens: list[str]) -> Mailbox:
    if "<" not in tokens:
        return Mailbox("", "".join(tokens).strip(), "")
    begin = tokens.index("<")
    end = tokens.index(">", begin) if ">" in tokens[begin:] else len(tokens)
    # A quote that is not closed would take the address into the phrase.
    phrase = "" if '"' in tokens[:begin] else "".join(tokens[:begin]).strip()
    address = "".join(tokens[begin + 1 : end]).strip()
    if address.startswith("@"):
        address = address.partition(":")[2].strip()
    return Mailbox(phrase, address, "".join(tokens[end + 1 :]).strip())
