"""The extensions that a server offers in its reply to EHLO.  Pure.

They are valid only for the connection that read the reply: capabilities differ between the hosts behind one
name, and before and after TLS (RFC 3207, 4.2).
"""

import re
from dataclasses import dataclass

from relay.smtp.reply import Reply

_NUMBER = re.compile(r"[0-9]{1,20}\Z")


@dataclass(frozen=True, slots=True)
class Extensions:
    """The extensions that matter to a relay; after HELO there are none."""

    starttls: bool = False
    mechanisms: frozenset[str] = frozenset()
    """SASL mechanisms in lower case."""
    has_size: bool = False
    """The parameter SIZE= may be sent (RFC 1870)."""
    max_size_bytes: int | None = None
    """The maximum message size that the server announces; None if it announces none."""
    eight_bit: bool = False
    smtputf8: bool = False
    pipelining: bool = False
    """RFC 2920: MAIL, RCPT and DATA may be sent at once."""
    dsn: bool = False
    """RFC 3461: the server takes over the reports that the sender asked for."""


def extensions_of(reply: Reply) -> Extensions:
    """Read a positive reply to EHLO; a line that is not understood offers nothing."""
    offered: dict[str, str] = {}
    mechanisms: list[str] = []
    for line in reply.lines[1:]:  # the first line names the host
        # Before RFC 2554 some servers wrote `AUTH=PLAIN`, and some still write both.
        old_style = line[:5].lower() == "auth="
        keyword, _, parameters = line.partition("=" if old_style else " ")
        offered[keyword.lower()] = parameters
        if keyword.lower() == "auth":
            mechanisms += parameters.lower().split()
    size = offered.get("size", "").strip()
    return Extensions(
        starttls="starttls" in offered,
        mechanisms=frozenset(mechanisms),
        has_size="size" in offered,
        # RFC 1870, 4: zero, or no number, means no fixed maximum.
        max_size_bytes=(int(size) if _NUMBER.match(size) else 0) or None,
        eight_bit="8bitmime" in offered,
        smtputf8="smtputf8" in offered,
        pipelining="pipelining" in offered,
        dsn="dsn" in offered,
    )
