"""The header section of a message, read leniently (RFC 5322, 2.2), and the first line of a content.  Pure.

All readers of a header use one pattern, in time linear in the header.  The header ends before the first line
that is not a field.
"""

import re
from collections.abc import Iterator
from email.errors import MessageError
from email.header import decode_header
from encodings import normalize_encoding
from encodings.aliases import aliases
from typing import NamedTuple

_READ_BYTES = 32 * 1024
LONGEST_MESSAGE_ID = 998
"""The most characters kept of a Message-ID: as many as a line may have (RFC 5322, 2.1.1)."""
LONGEST_SUBJECT = 200
LONGEST_CLIENT_QUEUE_ID = 100
MAILBOX_LINE = b"X-Mailbox-Line"
_FROM_LINES = (b"From ", b">From ")
_LINE = rb"[^\r]*+(?:\r(?!\n)[^\r]*+)*+\r\n"
_FIELD = re.compile(rb"([!-9;-~]++)[ \t]*+:(" + _LINE + rb"(?:[ \t]" + _LINE + rb")*+)")
_COMMENT = re.compile(r"\([^()]*\)")
_ID = re.compile(r"(?:^|\s)id\s+([^\s;]+)", re.IGNORECASE)
# No other charset is looked up: Python caches every unknown name for ever.
_CHARSETS = frozenset({*aliases, *aliases.values(), "koi8_u"})


class Names(NamedTuple):
    """The names by which people and other mail servers know a message.  None has a line end in it."""

    message_id: str | None = None
    """The first Message-ID, with its brackets."""
    subject: str = ""
    """The first Subject, decoded (RFC 2047)."""
    client_queue_id: str = ""
    """The `id` of the Received field below ours: the message's id in the client's queue."""


NO_NAMES = Names()


def below_our_field(content: bytes) -> bytes:
    """Return content that can follow a header field of ours, as Postfix makes it.

    A first line of an mbox becomes a field.  A first line that begins with a blank would continue our field,
    so an empty line before it ends the header.
    """
    if content.startswith(_FROM_LINES):
        return MAILBOX_LINE + b": " + content
    return b"\r\n" + content if content.startswith((b" ", b"\t")) else content


def split_header(content: bytes) -> tuple[list[bytes], bytes]:
    """Return the fields of the header, each with its folded lines and line ends, and what follows them."""
    fields = [found[0] for found in _fields(content)]
    return fields, content[sum(map(len, fields)) :]


def _fields(content: bytes) -> Iterator[re.Match[bytes]]:
    end = 0
    while (found := _FIELD.match(content, end)) is not None:
        yield found
        end = found.end()


def field_name(field: bytes) -> bytes:
    return field.partition(b":")[0].rstrip(b" \t").lower()


def header_fields(head: bytes) -> Iterator[tuple[str, str]]:
    """Yield name, in lower case, and value, with white space as one space.  The last may be cut."""
    for found in _fields(head + b"\r\n"):
        yield found[1].lower().decode("ascii"), _value(found)


def _value(found: re.Match[bytes]) -> str:
    return " ".join(found[2].decode("utf-8", "replace").split())


def message_id_of(content: bytes) -> str | None:
    """Return the first Message-ID in the first _READ_BYTES: unfolded, cut, and otherwise unchecked."""
    values = (_value(found) for found in _fields(content[:_READ_BYTES]) if found[1].lower() == b"message-id")
    return next(values, "")[:LONGEST_MESSAGE_ID] or None


def names_of(content: bytes) -> Names:
    """Return the names in the first _READ_BYTES of stored content, which has our Received field on top."""
    values: dict[bytes, list[str]] = {b"message-id": [], b"subject": [], b"received": []}
    for found in _fields(content[:_READ_BYTES]):
        if (of_name := values.get(found[1].lower())) is not None and len(of_name) < 2:
            of_name.append(_value(found))
    message_id, subject = ([*values[name], ""][0] for name in (b"message-id", b"subject"))
    theirs = [*values[b"received"], "", ""][1]
    # Comments may be nested; mail in use nests them two deep.
    ids = _ID.findall(_COMMENT.sub(" ", _COMMENT.sub(" ", theirs)))
    return Names(
        message_id[:LONGEST_MESSAGE_ID] or None,
        decoded(subject[: 10 * LONGEST_SUBJECT])[:LONGEST_SUBJECT],
        ids[-1][:LONGEST_CLIENT_QUEUE_ID] if ids else "",
    )


def decoded(value: str) -> str:
    """Return a field's value with encoded words decoded (RFC 2047), or unchanged if one cannot be."""
    if "=?" not in value:
        return value
    # No encoded word ends behind the last `?=`: Python would search there from each beginning.
    words, end, rest = value.rpartition("?=")
    text = ""
    try:
        for part, charset in decode_header(words + end):
            codec = normalize_encoding((charset or "ascii").lower())
            if codec not in _CHARSETS:
                return value
            text += part if isinstance(part, str) else part.decode(codec, "replace")
    except (MessageError, LookupError, ValueError):
        return value
    # A charset may decode to a lone surrogate or a line end.
    return " ".join((text + rest).encode("utf-8", "replace").decode().split())
