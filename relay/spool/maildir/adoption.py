"""Messages of another spool, put into this one with all that is known of them.

Guarantees: once `adopt` returned, each is in cur/ or hold/ durably, with its statuses, its notes and the
hint of its next attempt.  Crash before that: drafts, and notes without a message, which the next start
removes; the other spool still has them.  Assumes: the holder of the spool's lock.
"""

import contextlib
from collections.abc import Sequence

from relay.mail.envelope import QueueId
from relay.spool.durable import Disk
from relay.spool.interface import Adopted, Message
from relay.spool.maildir import files, message_file, notes
from relay.spool.maildir.layout import Layout


def adopt(disk: Disk, layout: Layout, adopted: Sequence[Adopted]) -> list[QueueId]:
    """Return those that were not here.  Raises OSError, and what reading their content raises."""
    fds: dict[QueueId, int] = {}
    homes: dict[QueueId, str] = {}
    try:
        for each in adopted:
            message = each.message
            queue_id = message.queue_id
            if files.is_published(disk, layout, queue_id):
                continue
            for remains in (layout.draft(queue_id), layout.notes(queue_id)):
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(remains)
            fds[queue_id] = disk.open_new(layout.draft(queue_id))
            _write(disk, fds[queue_id], each)
            homes[queue_id] = layout.held(queue_id) if message.is_held else layout.queued(queue_id)
        # The reasons are durable before the marks: as `notes` has it.
        told = {each.message.queue_id: notes.retold(each.notes) for each in adopted if each.notes}
        notes.append(disk, layout, {queue_id: lines for queue_id, lines in told.items() if queue_id in fds})
        for error in disk.sync_each(list(fds.values()), content_only=False):
            if error is not None:
                raise error
        # Crash here: whole drafts that nobody waits for; the next start removes them.
        for queue_id, home in homes.items():
            disk.rename(layout.draft(queue_id), home)
        for folder in sorted({home.rpartition("/")[0] for home in homes.values()}):
            disk.sync_directory(folder)
    finally:
        for fd in fds.values():
            disk.close(fd)
    return list(homes)


def _write(disk: Disk, fd: int, adopted: Adopted) -> None:
    message = adopted.message
    crc = size_bytes = 0
    # All zero until the message is whole, as with any draft.
    disk.write_all(fd, bytes(message_file.HEADER_BYTES))
    for chunk in adopted.content:
        disk.write_all(fd, chunk)
        crc = message_file.checksum(chunk, crc)
        size_bytes += len(chunk)
    accepted = message_file.encode_envelope(message.queue_id, message.envelope)
    recipients = len(message.envelope.recipients)
    header = message_file.encode_header(size_bytes, accepted, recipients, message.shape, crc)
    if message.is_warned:
        warned = message_file.WARNED_OFFSET
        header = header[:warned] + message_file.WARNED_BYTE + header[warned + 1 :]
    disk.write_all(fd, _marked(accepted, message))
    disk.write_at(fd, header, 0)
    # Without a hint it is as old as the message, so that nobody takes it for one.
    disk.set_modified_at_ns(fd, message.next_attempt_at_ns or message.envelope.arrival_at_ns)


def _marked(accepted: bytes, message: Message) -> bytes:
    """Return an envelope with the status byte of each recipient."""
    facts, *lines, end = accepted.split(b"\n")
    marked = [facts]
    for index, (line, status) in enumerate(zip(lines, message.statuses, strict=True)):
        mark = status.value.lower() if index in message.reported else status.value
        marked.append(mark + line[1:])
    return b"\n".join([*marked, end])
