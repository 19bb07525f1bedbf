"""A message in a record, or in a file of its own where its content is long.

The bytes are a message file's (`relay.spool.message.message_file`), its recipients all to do; what became of
them since is said by `facts`.  A file of its own is synced before its record is written; until it is whole it
is called ID.part.  Crash here, between its own name and its record: a file without a record, which the next
start removes.  Raises Corrupt for what does not match its checksums, Absent for a file that is gone.
"""

import contextlib

from relay.mail.envelope import QueueId
from relay.mail.header import names_of
from relay.queue.sorting import Sorter
from relay.spool.disk.durable import Disk
from relay.spool.interface import INLINE_BYTES, Adopted, Corrupt
from relay.spool.log import record
from relay.spool.log.layout import LogLayout, draft_of
from relay.spool.log.record import HEAD_BYTES, LONG, MESSAGE, New, Record
from relay.spool.message import arriving, message_file
from relay.spool.message.arriving import SpoolDraft
from relay.spool.message.message_file import HEADER_BYTES, Opened
from relay.spool.root.quarantine import Quarantine

_FRONT_BYTES = 64 * 1024


def decode(queue_id: QueueId, payload: bytes, *, sorter: Sorter | None = None) -> Opened:
    """Return the message of a sound record's payload."""
    header = message_file.decode_header(payload[:HEADER_BYTES])
    message = message_file.decode_envelope(queue_id, header, payload[header.envelope_offset :])
    content = payload[HEADER_BYTES : header.envelope_offset]
    front = content[:_FRONT_BYTES]
    message.names = names_of(front)
    if sorter is not None:
        message.sorted = sorter.sort(message.envelope, lambda: front)
    message.content = content if len(content) <= INLINE_BYTES else None
    return message


def sound_record(raw: bytes, mark: bytes, queue_id: QueueId, at: int) -> Record:
    """Return the record of a message that `raw` is.  Raises Corrupt."""
    found = record.decode_head(mark, raw)
    if found is None or found[1] != queue_id:
        raise Corrupt("its record's head is damaged")
    head = found[0]
    payload = raw[HEAD_BYTES + head.id_bytes :]
    if not record.is_sound(head, payload):
        raise Corrupt("its record does not match its checksums")
    return Record(head.kind, queue_id, payload, head.number, at)


def payload_of(raw: bytes, queue_id: QueueId) -> bytes:
    """Return what a damaged record has behind its head, for a human being."""
    return raw[HEAD_BYTES + len(queue_id) :]


def front_of(payload: bytes) -> bytes:
    """Return the first part of a sound record's content."""
    header = message_file.decode_header(payload[:HEADER_BYTES])
    return payload[HEADER_BYTES : header.envelope_offset][:_FRONT_BYTES]


def recipients_of(raw: bytes, mark: bytes, queue_id: QueueId) -> int:
    """Return how many recipients a damaged record's message has, by either head; 0 where both are damaged."""
    if (found := record.decode_head(mark, raw)) is not None:
        return found[0].number
    try:
        return message_file.decode_header(payload_of(raw, queue_id)[:HEADER_BYTES]).recipient_count
    except Corrupt:
        return 0


def adopted_record(adopted: Adopted, disk: Disk, layout: LogLayout) -> New:
    """Return the record of a message.  Raises OSError, and what reading its content raises."""
    message = adopted.message
    paths = layout.part(message.queue_id), layout.content(message.queue_id)
    # What an earlier call left is of a message that is not here.
    for path in paths:
        with contextlib.suppress(OSError):
            disk.unlink(path)
    draft, recipients = SpoolDraft(message.queue_id), len(message.envelope.recipients)
    try:
        for chunk in adopted.content:
            draft.append(chunk)
            if message.content is None:
                arriving.spill(disk, paths[0], draft)
        tail = message_file.encode_envelope(message.queue_id, message.envelope)
        header = message_file.encode_header(draft.content_bytes, tail, recipients, message.shape, draft.crc)
        if message.content is not None:
            return New(MESSAGE, message.queue_id, header + draft.take_buffer() + tail, recipients)
        disk.sync(arriving.complete(disk, paths[0], draft, header, tail))
        disk.rename(*paths)
        disk.sync_directory(layout.long)
    except BaseException:
        arriving.discard(disk, draft, *paths)
        raise
    # Crash here: content without a record, which the next start removes.
    arriving.let_go(disk, draft)
    return New(LONG, message.queue_id, b"", recipients)


def remove_drafts(disk: Disk, layout: LogLayout, aside: Quarantine) -> tuple[int, list[QueueId]]:
    """Remove drafts in long/ that no writer holds; return how many, and which files there are whole."""
    removed, whole = 0, []
    for name in arriving.unlocked(disk, layout.long, aside, draft_of):
        if (queue_id := draft_of(name)) is None:
            whole.append(QueueId(name))
            continue
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(layout.part(queue_id))
            removed += 1
    return removed, whole
