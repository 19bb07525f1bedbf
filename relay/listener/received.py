"""The one field that the relay adds to a message: `Received:` (RFC 5321, 4.4).  Pure.

Guarantees: text from the client has only ASCII letters, digits and `.:_-[]`, with `?` for other characters.
So no HELO can end the line, open a comment or forge a clause.
Does not: name the authenticated user, since every recipient gets the line.
"""

import re
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import lru_cache

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId

MAX_HELO_CHARACTERS = 255
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9.:_\-\[\]]")


def received_line(
    *, helo: str, address: str, hostname: str, protocol: str, queue_id: QueueId, wall_ns: int
) -> bytes:
    """Return the folded field with its last CRLF.  `address` is the client's; its name is not looked up."""
    literal = f"IPv6:{address}" if ":" in address else address
    return (
        f"Received: from {as_name(helo)} (unknown [{literal}])\r\n"
        f"\tby {as_name(hostname)} with {protocol} id {queue_id};\r\n"
        f"\t{_date(wall_ns // SECOND_NS)}\r\n"
    ).encode("ascii")


@lru_cache(maxsize=4)  # many messages come in one second
def _date(wall_seconds: int) -> str:
    return format_datetime(datetime.fromtimestamp(wall_seconds, UTC))


def as_name(text: str) -> str:
    """Return foreign text in a form that a header can only read as one name."""
    return _NOT_A_NAME.sub("?", text[:MAX_HELO_CHARACTERS]) or "unknown"
