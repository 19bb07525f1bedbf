"""Stores a message in a record, or in a file of its own if its content is long.

Both hold the bytes of a message file (`relay.spool.message.message_file`) with all recipients to do; `facts`
says what became of them since.  A file of its own is called ID.part until it is whole.  The file and its name
are synced before its record is written.  Crash here, between the rename and the record: a file without a
record, which the owner of the queue removes.
"""

import contextlib
from collections.abc import Sequence

from relay.spool.disk.durable import Disk
from relay.spool.disk.os_errors import error_of
from relay.spool.interface import INLINE_BYTES
from relay.spool.log.layout import LogLayout
from relay.spool.log.record import MESSAGE, Record
from relay.spool.message.draft import SpoolDraft


def record_of(draft: SpoolDraft, header: bytes, tail: bytes) -> Record:
    """Return the record of a message; write long content into its file.  Raises OSError."""
    if draft.is_on_disk or draft.content_bytes > INLINE_BYTES:
        draft.complete(header, tail)
        return Record(MESSAGE, draft.queue_id)
    return Record(MESSAGE, draft.queue_id, b"".join((header, draft.take_buffer(), tail)))


def name_long(disk: Disk, layout: LogLayout, drafts: Sequence[SpoolDraft]) -> list[OSError | None]:
    """Sync the files of drafts, rename them to their ids, and sync the folder; an error or None for each."""
    written = [(i, draft, draft.fd) for i, draft in enumerate(drafts) if draft.fd is not None]
    results: list[OSError | None] = [None] * len(drafts)
    if not written:
        return results
    synced = disk.sync_each([fd for _, _, fd in written], content_only=False)
    for (i, draft, _), error in zip(written, synced, strict=True):
        named = error_of(disk.rename, layout.part(draft.queue_id), layout.content(draft.queue_id))
        results[i] = error or named
    failed = error_of(disk.sync_directory, layout.long)
    for i, _, _ in written:
        results[i] = results[i] or failed
    return results


def discard(disk: Disk, layout: LogLayout, draft: SpoolDraft) -> None:
    """Remove the files of a message that is not accepted; never raises."""
    if draft.is_on_disk:
        # Unlink before the lock is released: then no other process takes the file for abandoned.
        with contextlib.suppress(OSError):
            disk.unlink(layout.content(draft.queue_id))
    draft.discard()
