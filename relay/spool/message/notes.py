"""Why recipients failed, and what deferred ones were told last: notes, one JSON object a line.

Also by what those were relayed of whose success the sender is told.
Guarantees: a line that a crash tore is skipped, and the notes on either side of it are read.
Encoding and decoding only: no I/O.  Does not: decide who failed.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from relay.spool.interface import DEFERRED, Note

OPERATOR = "operator"
REASONS = frozenset({"bounced", "expired", OPERATOR, "relayed", DEFERRED})
LONGEST_REPLY = 500
"""Characters that are kept of what a deferred recipient was told."""
MOST_ATTEMPTS = 1_000_000
LAST_INSTANT_NS = 1 << 63


def retold(notes: Sequence[Note]) -> list[Note]:
    """Return lines from which `latest` returns these notes again, with the attempts that they count."""
    lines: list[Note] = []
    for note in notes:
        deferrals = note.attempts - (note.reason not in (DEFERRED, OPERATOR))
        if note.reason != DEFERRED and deferrals > 0:
            lines.append(replace(note, reason=DEFERRED, attempts=deferrals))
        lines.append(note)
    return lines


def cut_short(replies: Sequence[Note]) -> list[Note]:
    return [replace(note, diagnostic=(note.diagnostic or "")[:LONGEST_REPLY]) for note in replies]


def encode(notes: Sequence[Note]) -> bytes:
    return b"\n".join(map(_line, notes)) + b"\n"


def shortened(raw: bytes) -> bytes:
    """Return the last failure and the last deferral of each recipient, with how many there were."""
    last: dict[tuple[int, bool], Note] = {}
    for note in _parsed(raw):
        key = note.index, note.reason == DEFERRED
        before = last.pop(key, None)
        last[key] = note if before is None else replace(note, attempts=note.attempts + before.attempts)
    return b"".join(_line(note) + b"\n" for note in last.values())


def _line(note: Note) -> bytes:
    facts = asdict(note)
    if note.reason != DEFERRED or note.attempts == 1:
        # An older relay reads no line that has it.
        del facts["attempts"]
    return json.dumps(facts, separators=(",", ":")).encode()


def latest(raw: bytes) -> list[Note]:
    """Return the last word on each recipient, with the attempts counted."""
    last: dict[int, Note] = {}
    deferrals: dict[int, int] = {}
    for note in _parsed(raw):
        last[note.index] = note
        if note.reason == DEFERRED:
            deferrals[note.index] = deferrals.get(note.index, 0) + note.attempts
    return [_counted(last[index], deferrals.get(index, 0)) for index in sorted(last)]


def _counted(note: Note, deferrals: int) -> Note:
    return replace(note, attempts=deferrals + (note.reason not in (DEFERRED, OPERATOR)))


def _parsed(raw: bytes) -> Iterator[Note]:
    return (note for line in raw.split(b"\n") if (note := parse(line)) is not None)


def parse(line: bytes) -> Note | None:
    """Return the note that a line holds, or None for one that a crash tore or damage changed."""
    try:
        note = Note(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    is_number = type(note.index) is type(note.at_ns) is type(note.attempts) is int
    is_count = is_number and 0 <= note.at_ns <= LAST_INSTANT_NS and 0 < note.attempts <= MOST_ATTEMPTS
    texts = [text for text in (note.status, note.reason, note.diagnostic, note.remote) if text is not None]
    # A report is made of them, and must not fail for what a flipped bit made of a note.
    if not (is_count and all(type(text) is str for text in texts)):
        return None
    return note if note.reason in REASONS and note.status is not None else None
