"""A message in a record, or in a file of its own where its content is long.

The bytes are a message file's (`relay.spool.message.message_file`) with all recipients to do; `facts` says
what became of them since.  A file of its own is synced, and its name, before its record is written; until it
is whole it is called ID.part.  Crash here, between its own name and its record: a file without a record,
which the owner of the queue removes.
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
    """Return the record of a message; long content is written into its file.  Raises OSError."""
    if draft.is_on_disk or draft.content_bytes > INLINE_BYTES:
        draft.complete(header, tail)
        return Record(MESSAGE, draft.queue_id)
    return Record(MESSAGE, draft.queue_id, b"".join((header, draft.take_buffer(), tail)))


def name_long(disk: Disk, layout: LogLayout, drafts: Sequence[SpoolDraft]) -> list[OSError | None]:
    """Make what drafts have in files durable, and its names, before any record tells of it."""
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
    """Remove what a message that is not accepted wrote; never raises."""
    if draft.is_on_disk:
        # Before its lock is free: then nobody takes it for another's.
        with contextlib.suppress(OSError):
            disk.unlink(layout.content(draft.queue_id))
    draft.discard()
