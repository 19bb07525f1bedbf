"""The one line that we add: `Received:` (RFC 5321, 4.4).  Pure.

Whatever a client said of itself is cut to printable ASCII without a character that means
something in a header, so that no HELO can end the line, open a comment or forge a
clause.  The user that authenticated is not named: the line travels to every recipient.
"""

import re
from datetime import UTC, datetime
from email.utils import format_datetime

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId

MAX_HELO_CHARACTERS = 255
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9.:_\-\[\]]")


def received_line(
    *, helo: str, address: str, hostname: str, protocol: str, queue_id: QueueId, wall_ns: int
) -> bytes:
    """Return the whole folded line with its last CRLF.  The client, at an IP address, has no name."""
    literal = f"IPv6:{address}" if ":" in address else address
    return (
        f"Received: from {as_name(helo)} (unknown [{literal}])\r\n"
        f"\tby {as_name(hostname)} with {protocol} id {queue_id};\r\n"
        f"\t{format_datetime(datetime.fromtimestamp(wall_ns // SECOND_NS, UTC))}\r\n"
    ).encode("ascii")


def as_name(text: str) -> str:
    """Return foreign text as something that can only be read as one name in a header."""
    return _NOT_A_NAME.sub("?", text[:MAX_HELO_CHARACTERS]) or "unknown"
