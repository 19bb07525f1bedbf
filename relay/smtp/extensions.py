"""What the upstream promised in its reply to EHLO.  Pure.

Valid for the connection that heard it and no other: capabilities differ between the
hosts behind one name, and before and after TLS (RFC 3207, 4.2).
"""

import re
from dataclasses import dataclass

from aiosmtplib.esmtp import parse_esmtp_extensions

from relay.smtp.reply import Reply

# RFC 9422, 4: one to six digits, not zero.
_LIMIT = re.compile(r"([A-Z0-9]+)=([1-9][0-9]{0,5})\Z")
_NUMBER = re.compile(r"[0-9]{1,20}\Z")


@dataclass(frozen=True, slots=True)
class Extensions:
    """The extensions that matter to a relay; none of them after HELO."""

    starttls: bool = False
    mechanisms: frozenset[str] = frozenset()
    """Of SASL, in lower case."""
    has_size: bool = False
    """SIZE= may be sent (RFC 1870)."""
    max_size_bytes: int | None = None
    """The most that it says it takes; None where it names no maximum."""
    eight_bit: bool = False
    """8BITMIME (RFC 6152)."""
    smtputf8: bool = False
    """SMTPUTF8 (RFC 6531)."""
    pipelining: bool = False
    """PIPELINING (RFC 2920): MAIL, RCPT and DATA may be sent at once."""
    max_recipients: int | None = None
    """LIMITS RCPTMAX (RFC 9422): recipients in a transaction."""
    max_transactions: int | None = None
    """LIMITS MAILMAX (RFC 9422): transactions on a connection."""


def extensions_of(reply: Reply) -> Extensions:
    """Read a positive reply to EHLO; what is not understood is not offered."""
    offered, mechanisms = parse_esmtp_extensions("\n".join(reply.lines))
    size = offered.get("size", "").strip()
    # RFC 1870, 4: zero, or no number, is no fixed maximum.
    max_size_bytes = int(size) if _NUMBER.match(size) else 0
    limits = _limits(offered.get("limits", ""))
    return Extensions(
        starttls="starttls" in offered,
        mechanisms=frozenset(mechanisms),
        has_size="size" in offered,
        max_size_bytes=max_size_bytes or None,
        eight_bit="8bitmime" in offered,
        smtputf8="smtputf8" in offered,
        pipelining="pipelining" in offered,
        max_recipients=limits.get("RCPTMAX"),
        max_transactions=limits.get("MAILMAX"),
    )


def _limits(parameters: str) -> dict[str, int]:
    matches = (_LIMIT.match(word.upper()) for word in parameters.split())
    return {match[1]: int(match[2]) for match in matches if match}
