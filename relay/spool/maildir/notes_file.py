"""The notes of a maildir: one file a message, as long as it.

Guarantees: a note of a failure or success is durable when `append` returns, which is before the recipient's
status byte says so; the opposite order loses the reason in half of all crash images.
A line that a crash tore belongs to a recipient that was never marked, and is skipped.
What deferred recipients were told is a hint, which no sync waits for (`keep`).  The file has no more
than MOST_BYTES and MOST_BYTES_EACH a recipient, but for notes that are durable.
"""

import errno
from collections.abc import Callable, Mapping, Sequence

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_our_own_lack
from relay.spool.disk.replacing import put_in_place
from relay.spool.interface import Note
from relay.spool.maildir.crash_remains import is_notes_only
from relay.spool.maildir.layout import Layout
from relay.spool.message.notes import cut_short, encode, latest, shortened
from relay.spool.root.foreign import why_not_ours

MOST_BYTES = 64 * 1024
MOST_BYTES_EACH = 4 * 1024
LARGEST_BYTES = 256 * 1024 * 1024
"""Ten times what 10,000 refused recipients need; what stands behind it is not read."""


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


def read(disk: Disk, layout: Layout, queue_id: QueueId) -> list[Note]:
    """Return the notes about a message, the last word on each recipient, with the attempts counted.

    Raises OSError only for a lack of our own: a file that cannot be read, asked twice, must
    not hold up the report, which then says less.
    """
    raw = _read(disk, layout.notes(queue_id))
    if raw is None:
        raw = _read(disk, layout.notes(queue_id))
    return latest(raw or b"")


def _clearing(disk: Disk) -> Callable[[str], None]:
    def clear_the_way(draft: str) -> None:
        if (why := why_not_ours(disk, draft, is_notes_only, disk.open_read)) is not None:
            raise OSError(errno.EEXIST, why)
        disk.unlink(draft)

    return clear_the_way


def _write(disk: Disk, fd: int, notes: Sequence[Note]) -> None:
    # A line that a crash or a full disk tore must not swallow the first of ours.
    start = b"\n" if disk.size(fd) else b""
    disk.write_all(fd, start + encode(notes))


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
