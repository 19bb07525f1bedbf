"""Why recipients failed, one file of notes a message, until the report about them is queued.

Guarantees: a note is durable when `append` returns, which is before the recipient's
status byte says so; the opposite order loses the reason in half of all crash images.
A line that a crash tore belongs to a recipient that was never marked, and is skipped.
Does not: decide who failed.  Format: one JSON object a line.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from relay.envelope import QueueId
from relay.spool.durable import Disk, opened
from relay.spool.files import is_our_own_lack
from relay.spool.interface import Note
from relay.spool.layout import Layout


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

    Raises OSError only for a lack of our own: a file that cannot be read must not hold up
    the report, which then says less.
    """
    try:
        with opened(disk, disk.open_read(layout.notes(queue_id))) as fd:
            raw = disk.pread(fd, disk.size(fd), 0)
    except OSError as error:
        if is_our_own_lack(error):
            raise
        return []
    latest: dict[int, Note] = {}
    for line in raw.split(b"\n"):
        try:
            note = Note(**json.loads(line))
        except (ValueError, TypeError):
            continue
        latest[note.index] = note
    return [latest[index] for index in sorted(latest)]
