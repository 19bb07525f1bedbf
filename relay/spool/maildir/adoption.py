"""Messages of another spool, put into this one with all that is known of them.

Guarantees: once `adopt` returned, each is in cur/ or hold/ durably, with its statuses, its notes and the
hint of its next attempt.  Crash before that: drafts, and notes without a message, which the next start
removes; the other spool still has them.  Assumes: the holder of the spool's lock.
"""

import contextlib
from collections.abc import Sequence

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk
from relay.spool.interface import Adopted, Message
from relay.spool.maildir import notes_file
from relay.spool.maildir.layout import Layout, is_published
from relay.spool.message import arriving, message_file, notes
from relay.spool.message.arriving import SpoolDraft


def adopt(disk: Disk, layout: Layout, adopted: Sequence[Adopted]) -> list[QueueId]:
    """Return those that were not here.  Raises OSError, and what reading their content raises."""
    drafts: dict[QueueId, SpoolDraft] = {}
    fds: list[int] = []
    homes: dict[QueueId, str] = {}
    try:
        for each in adopted:
            message = each.message
            queue_id = message.queue_id
            if is_published(disk, layout, queue_id):
                continue
            for remains in (layout.draft(queue_id), layout.notes(queue_id)):
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(remains)
            draft = drafts[queue_id] = SpoolDraft(queue_id)
            fds.append(_write(disk, layout.draft(queue_id), draft, each))
            homes[queue_id] = layout.held(queue_id) if message.is_held else layout.queued(queue_id)
        # The reasons are durable before the marks: as `notes_file` has it.
        told = {each.message.queue_id: notes.retold(each.notes) for each in adopted if each.notes}
        notes_file.append(
            disk, layout, {queue_id: lines for queue_id, lines in told.items() if queue_id in drafts}
        )
        for error in disk.sync_each(fds, content_only=False):
            if error is not None:
                raise error
        # Crash here: whole drafts that nobody waits for; the next start removes them.
        for queue_id, home in homes.items():
            disk.rename(layout.draft(queue_id), home)
        for folder in sorted({home.rpartition("/")[0] for home in homes.values()}):
            disk.sync_directory(folder)
    finally:
        for draft in drafts.values():
            arriving.let_go(disk, draft)
    return list(homes)


def _write(disk: Disk, path: str, draft: SpoolDraft, adopted: Adopted) -> int:
    message = adopted.message
    for chunk in adopted.content:
        draft.append(chunk)
        arriving.spill(disk, path, draft)
    accepted = message_file.encode_envelope(message.queue_id, message.envelope)
    recipients = len(message.envelope.recipients)
    header = message_file.encode_header(draft.content_bytes, accepted, recipients, message.shape, draft.crc)
    if message.is_warned:
        warned = message_file.WARNED_OFFSET
        header = header[:warned] + message_file.WARNED_BYTE + header[warned + 1 :]
    fd = arriving.complete(disk, path, draft, header, _marked(accepted, message))
    # Without a hint it is as old as the message, so that nobody takes it for one.
    disk.set_modified_at_ns(fd, message.next_attempt_at_ns or message.envelope.arrival_at_ns)
    return fd


def _marked(accepted: bytes, message: Message) -> bytes:
    """Return an envelope with the status byte of each recipient."""
    facts, *lines, end = accepted.split(b"\n")
    marked = [facts]
    for index, (line, status) in enumerate(zip(lines, message.statuses, strict=True)):
        mark = status.value.lower() if index in message.reported else status.value
        marked.append(mark + line[1:])
    return b"\n".join([*marked, end])
