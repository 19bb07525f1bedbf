"""Why recipients failed: notes, one JSON object a line.  Encoding and decoding only: no I/O.

Also by what those were relayed of whose success the sender is told.
Guarantees: a line that a crash tore is skipped, and the notes on either side of it are read.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

from relay.spool.interface import Note

REASONS = frozenset({"bounced", "expired", "operator", "relayed"})
LAST_INSTANT_NS = 1 << 63


def encode(notes: Sequence[Note]) -> bytes:
    # A line that a crash or a full disk tore must not swallow the first of these.
    lines = (json.dumps(asdict(note), separators=(",", ":")) for note in notes)
    return "".join(f"\n{line}" for line in lines).encode() + b"\n"


def latest(raw: bytes) -> tuple[Note, ...]:
    """Return the last note about each recipient."""
    last = {note.index: note for line in raw.split(b"\n") if (note := parse(line)) is not None}
    return tuple(last[index] for index in sorted(last))


def parse(line: bytes) -> Note | None:
    """Return the note that a line holds, or None for one that a crash tore or damage changed."""
    try:
        note = Note(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    is_number = type(note.index) is type(note.at_ns) is int
    texts = [text for text in (note.status, note.reason, note.diagnostic, note.remote) if text is not None]
    # A report is made of them, and must not fail for what a flipped bit made of a note.
    if not (is_number and 0 <= note.at_ns <= LAST_INSTANT_NS and all(type(text) is str for text in texts)):
        return None
    return note if note.reason in REASONS and note.status is not None else None
