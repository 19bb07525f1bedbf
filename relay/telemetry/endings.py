r"""A line for what became of one recipient: the format of the recent past.  Pure.

    {"at_ns": 1766102400000000000, "queue_id": "…", …, "reply": "250 2.0.0 Ok"} CRC32\n

JSON in ASCII, then the CRC-32 of it, so that a line that a crash or a disk spoiled is known as such.
Keys may be added: a version passes over those that it does not know.
"""

import json
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from relay.mail.formats import Value
from relay.verdicts.decision import Fate

LONGEST_REPLY = 500
"""Characters of a reply that are kept."""
LONGEST_LINE = 64 * 1024
"""Octets; ours are shorter: texts are bounded, and JSON makes of one character at most 12."""
ENDINGS = {
    "delivery": frozenset({Fate.RELAYED.value, Fate.BOUNCED.value, Fate.EXPIRED.value}),
    "recipient_deleted": frozenset({None}),
}
"""The events of the log that may be an ending, and of which `status` they are one."""
_DELETED = "deleted"
_CRC_BYTES = 8


class PastEnding(NamedTuple):
    at_ns: int
    """Wall clock."""
    queue_id: str
    message_id: str | None
    reverse_path: str
    recipient: str
    became: str
    """relayed, bounced, expired or deleted."""
    upstream: str = ""
    """By its name in the policy; empty where none was asked."""
    relay: str = ""
    """`host[address]:port`, or `none`."""
    dsn: str = ""
    reply: str = ""
    """The upstream's, or what there is to say instead."""


_TYPES: dict[str, tuple[type, ...]] = dict.fromkeys(PastEnding._fields, (str,))
_TYPES |= {"at_ns": (int,), "message_id": (str, type(None))}


def ending_of(fields: Mapping[str, Value], at_ns: int) -> PastEnding:
    """Return the ending that an event is."""

    def text(name: str) -> str:
        return str(fields.get(name) or "")

    return PastEnding(
        at_ns,
        text("queue_id"),
        text("message_id") or None,
        text("reverse_path"),
        text("recipient"),
        text("status") or _DELETED,
        text("upstream"),
        text("relay"),
        text("dsn"),
        text("text")[:LONGEST_REPLY],
    )


def encode(ending: PastEnding) -> bytes:
    told = json.dumps(ending._asdict()).encode("ascii")
    return b"%s %08x\n" % (told, zlib.crc32(told))


def is_whole(line: bytes) -> bool:
    """Return whether a line, without its end, is as it was written."""
    told, blank, crc = line[: -_CRC_BYTES - 1], line[-_CRC_BYTES - 1 : -_CRC_BYTES], line[-_CRC_BYTES:]
    return blank == b" " and crc == b"%08x" % zlib.crc32(told)


def decode(line: bytes) -> PastEnding:
    """Return the ending of a whole line.  Raises ValueError for what this version does not write."""
    try:
        told = json.loads(line[: -_CRC_BYTES - 1])
        ending = PastEnding(**{name: told[name] for name in PastEnding._fields})
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("not an ending") from error
    if not all(type(value) in _TYPES[name] for name, value in ending._asdict().items()):
        raise ValueError("an ending of other types than we write")
    return ending
