"""The header section of a message, read leniently (RFC 5322, 2.2), and the first line of a content.  Pure."""

import re
from collections.abc import Iterator

HEAD_BYTES = 32 * 1024
"""In which a Message-ID is looked for."""
LONGEST_MESSAGE_ID = 998
"""Characters that are kept of one: as many as a line may have (RFC 5322, 2.1.1)."""
_MESSAGE_ID_NAME = b"\r\nmessage-id:"
_MESSAGE_ID = re.compile(_MESSAGE_ID_NAME + rb"((?:[^\r]|\r\n[ \t])*)\r\n", re.IGNORECASE)
MAILBOX_LINE = b"X-Mailbox-Line"
_FROM_LINES = (b"From ", b">From ")
"""How the line begins that an mbox has in front of a message."""
DECIDING_BYTES = max(map(len, _FROM_LINES))
"""So many first octets of content tell what `opened` makes of it."""


def opened(content: bytes) -> bytes:
    """Return content that can follow a field of ours, as Postfix makes it.

    The line of an mbox becomes a field.  A line that begins with a blank would go on with our field: an empty
    line keeps it out of the header.
    """
    if content.startswith(_FROM_LINES):
        return MAILBOX_LINE + b": " + content
    return b"\r\n" + content if content.startswith((b" ", b"\t")) else content


def header_fields(head: bytes) -> Iterator[tuple[str, str]]:
    """Read to an empty line or the end; names in lower case, runs of white space as one space."""
    name, value = "", ""
    for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        text = line.decode("utf-8", "replace")
        if text[:1] in {" ", "\t"}:
            value += text
            continue
        if name:
            yield name, " ".join(value.split())
        if not text:
            return
        name, _, value = text.partition(":")
        name = name.strip().lower()
    if name:
        yield name, " ".join(value.split())


def message_id_of(content: bytes) -> str | None:
    """Return the first Message-ID in the first HEAD_BYTES, unfolded, and cut; anything may be in it."""
    head = b"\r\n" + content[:HEAD_BYTES]
    if (end := head.find(b"\r\n\r\n")) >= 0:
        head = head[: end + 2]
    # A search without regard to case takes far longer than this.
    at = head.lower().find(_MESSAGE_ID_NAME)
    found = _MESSAGE_ID.search(head, at) if at >= 0 else None
    return (
        " ".join(found[1].decode("utf-8", "replace").split())[:LONGEST_MESSAGE_ID] or None if found else None
    )
