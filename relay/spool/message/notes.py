"""The format of notes: one JSON object a line.  Encoding and decoding only: no I/O.

A note says why a recipient failed, or which reply relayed it if the sender asked to be told of the success.
Guarantees: a line that a crash tore is skipped, and the notes before and after it are read.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

from relay.mail.dsn import Note

REASONS = frozenset({"bounced", "expired", "operator", "relayed"})
LAST_INSTANT_NS = 1 << 63


def encode(notes: Sequence[Note]) -> bytes:
    # Begin with a newline: a line that a crash or a full disk tore must not swallow the first note.
    lines = (json.dumps(asdict(note), separators=(",", ":")) for note in notes)
    return "".join(f"\n{line}" for line in lines).encode() + b"\n"


def latest(raw: bytes) -> tuple[Note, ...]:
    """Return the last note about each recipient."""
    last = {note.index: note for line in raw.split(b"\n") if (note := parse(line)) is not None}
    return tuple(last[index] for index in sorted(last))


def parse(line: bytes) -> Note | None:
    """Return the note of a line, or None if a crash tore the line or damage changed it."""
    try:
        note = Note(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    is_number = type(note.index) is type(note.at_ns) is int
    texts = [text for text in (note.status, note.reason, note.diagnostic, note.remote) if text is not None]
    # A report is made of these fields, and must not fail because of a flipped bit in a note.
    if not (is_number and 0 <= note.at_ns <= LAST_INSTANT_NS and all(type(text) is str for text in texts)):
        return None
    return note if note.reason in REASONS and note.status is not None else None
