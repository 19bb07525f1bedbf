"""Why recipients failed, one file of notes a message, until the report about them is queued.

Guarantees: a note is durable when `append` returns, which is before the recipient's
status byte says so; the opposite order loses the reason in half of all crash images.
A line that a crash tore belongs to a recipient that was never marked, and is skipped.
Does not: decide who failed.  Format: one JSON object a line.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from relay.mail.envelope import QueueId
from relay.spool.durable import Disk, opened
from relay.spool.interface import Note
from relay.spool.maildir.files import is_our_own_lack
from relay.spool.maildir.layout import Layout

REASONS = frozenset({"bounced", "expired", "operator"})
LAST_INSTANT_NS = 1 << 63
LARGEST_BYTES = 256 * 1024 * 1024
"""Ten times what 10,000 refused recipients need; what stands behind it is not read."""


def append(disk: Disk, layout: Layout, noted: Mapping[QueueId, Sequence[Note]]) -> None:
    """Make notes about some messages durable.  Raises OSError."""
    for queue_id, notes in noted.items():
        with opened(disk, disk.open_append(layout.notes(queue_id))) as fd:
            # A line that a crash or a full disk tore must not swallow the first of ours.
            start = b"\n" if disk.size(fd) else b""
            lines = [json.dumps(asdict(note), separators=(",", ":")).encode() for note in notes]
            disk.write_all(fd, start + b"\n".join(lines) + b"\n")
            disk.sync(fd)
    if noted:
        # Also for files that were there before: who made them may have been killed before this.
        disk.sync_directory(layout.folder("bounce"))


def read(disk: Disk, layout: Layout, queue_id: QueueId) -> list[Note]:
    """Return the notes about a message, the last word on each recipient.

    Raises OSError only for a lack of our own: a file that cannot be read, asked twice, must
    not hold up the report, which then says less.
    """
    raw = _read(disk, layout.notes(queue_id))
    if raw is None:
        raw = _read(disk, layout.notes(queue_id))
    latest: dict[int, Note] = {}
    for line in (raw or b"").split(b"\n"):
        if (note := parse(line)) is not None:
            latest[note.index] = note
    return [latest[index] for index in sorted(latest)]


def _read(disk: Disk, path: str) -> bytes | None:
    """Return the file, or None where it cannot be read now."""
    try:
        with opened(disk, disk.open_read(path)) as fd:
            return disk.pread(fd, min(disk.size(fd), LARGEST_BYTES), 0)
    except FileNotFoundError:
        return b""
    except OSError as error:
        if is_our_own_lack(error):
            raise
        return None


def parse(line: bytes) -> Note | None:
    """Return the note that a line holds, or None for one that a crash tore or damage changed."""
    try:
        note = Note(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    is_number = type(note.index) is type(note.at_ns) is int
    texts = [text for text in (note.status, note.reason, note.diagnostic, note.remote) if text is not None]
    # A report is made of them, and must not fail for what a flipped bit made of a note.
    if not (is_number and all(type(text) is str for text in texts) and 0 <= note.at_ns <= LAST_INSTANT_NS):
        return None
    return note if note.reason in REASONS and note.status is not None else None
