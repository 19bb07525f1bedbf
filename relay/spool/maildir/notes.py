"""Why recipients failed, and what deferred ones were told last: one file of notes a message, as long as it.

Also by what those were relayed of whose success the sender is told.
Guarantees: a note of a failure or success is durable when `append` returns, which is before the recipient's
status byte says so; the opposite order loses the reason in half of all crash images.
A line that a crash tore belongs to a recipient that was never marked, and is skipped.
What deferred recipients were told is a hint, which no sync waits for (`keep`).  The file has no more
than MOST_BYTES and MOST_BYTES_EACH a recipient, but for notes that are durable.
Does not: decide who failed.  Format: one JSON object a line.
"""

import errno
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from relay.mail.envelope import QueueId
from relay.spool.durable import Disk, opened
from relay.spool.foreign import why_not_ours
from relay.spool.interface import DEFERRED, Note
from relay.spool.maildir.crash_remains import is_notes_only
from relay.spool.maildir.layout import Layout
from relay.spool.os_errors import is_our_own_lack
from relay.spool.replacing import put_in_place

OPERATOR = "operator"
REASONS = frozenset({"bounced", "expired", OPERATOR, "relayed", DEFERRED})
LONGEST_REPLY = 500
"""Characters that are kept of what a deferred recipient was told."""
MOST_ATTEMPTS = 1_000_000
MOST_BYTES = 64 * 1024
MOST_BYTES_EACH = 4 * 1024
LAST_INSTANT_NS = 1 << 63
LARGEST_BYTES = 256 * 1024 * 1024
"""Ten times what 10,000 refused recipients need; what stands behind it is not read."""


def retold(notes: Sequence[Note]) -> list[Note]:
    """Return lines from which `read` returns these notes again, with the attempts that they count."""
    lines: list[Note] = []
    for note in notes:
        deferrals = note.attempts - (note.reason not in (DEFERRED, OPERATOR))
        if note.reason != DEFERRED and deferrals > 0:
            lines.append(replace(note, reason=DEFERRED, attempts=deferrals))
        lines.append(note)
    return lines


def append(disk: Disk, layout: Layout, noted: Mapping[QueueId, Sequence[Note]]) -> None:
    """Make notes about some messages durable.  Raises OSError."""
    for queue_id, notes in noted.items():
        with opened(disk, disk.open_append(layout.notes(queue_id))) as fd:
            _write(disk, fd, notes)
            disk.sync(fd)
    if noted:
        # Also for files that were there before: who made them may have been killed before this.
        disk.sync_directory(layout.folder("bounce"))


def keep(disk: Disk, layout: Layout, queue_id: QueueId, replies: Sequence[Note], recipients: int) -> None:
    """Append what deferred recipients were told; in a file that grew long only the last of it stays.

    Raises OSError.
    """
    cut = cut_short(replies)
    path = layout.notes(queue_id)
    with opened(disk, disk.open_append(path)) as fd:
        _write(disk, fd, cut)
        is_long = disk.size(fd) > MOST_BYTES + MOST_BYTES_EACH * recipients
    if is_long and (raw := _read(disk, path)) is not None:
        # Crash here: the long file is in force.
        draft = layout.file("notes.new")
        with opened(
            disk, put_in_place(disk, path, shortened(raw), draft=draft, clear_the_way=_clearing(disk))
        ):
            pass


def cut_short(replies: Sequence[Note]) -> list[Note]:
    return [replace(note, diagnostic=(note.diagnostic or "")[:LONGEST_REPLY]) for note in replies]


def encode(notes: Sequence[Note]) -> bytes:
    return b"\n".join(map(_line, notes)) + b"\n"


def _clearing(disk: Disk) -> Callable[[str], None]:
    def clear_the_way(draft: str) -> None:
        if (why := why_not_ours(disk, draft, is_notes_only, disk.open_read)) is not None:
            raise OSError(errno.EEXIST, why)
        disk.unlink(draft)

    return clear_the_way


def shortened(raw: bytes) -> bytes:
    """Return the last failure and the last deferral of each recipient, with how many there were."""
    last: dict[tuple[int, bool], Note] = {}
    for note in _parsed(raw):
        key = note.index, note.reason == DEFERRED
        before = last.pop(key, None)
        last[key] = note if before is None else replace(note, attempts=note.attempts + before.attempts)
    return b"".join(_line(note) + b"\n" for note in last.values())


def _write(disk: Disk, fd: int, notes: Sequence[Note]) -> None:
    # A line that a crash or a full disk tore must not swallow the first of ours.
    start = b"\n" if disk.size(fd) else b""
    disk.write_all(fd, start + encode(notes))


def _line(note: Note) -> bytes:
    facts = asdict(note)
    if note.reason != DEFERRED or note.attempts == 1:
        # An older relay reads no line that has it.
        del facts["attempts"]
    return json.dumps(facts, separators=(",", ":")).encode()


def read(disk: Disk, layout: Layout, queue_id: QueueId) -> list[Note]:
    """Return the notes about a message, the last word on each recipient, with the attempts counted.

    Raises OSError only for a lack of our own: a file that cannot be read, asked twice, must
    not hold up the report, which then says less.
    """
    raw = _read(disk, layout.notes(queue_id))
    if raw is None:
        raw = _read(disk, layout.notes(queue_id))
    return latest(raw or b"")


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
    is_number = type(note.index) is type(note.at_ns) is type(note.attempts) is int
    is_count = is_number and 0 <= note.at_ns <= LAST_INSTANT_NS and 0 < note.attempts <= MOST_ATTEMPTS
    texts = [text for text in (note.status, note.reason, note.diagnostic, note.remote) if text is not None]
    # A report is made of them, and must not fail for what a flipped bit made of a note.
    if not (is_count and all(type(text) is str for text in texts)):
        return None
    return note if note.reason in REASONS and note.status is not None else None
