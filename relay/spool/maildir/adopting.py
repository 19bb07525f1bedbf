"""Messages of another spool, put into this one with all that is known of them.

Guarantees: once `adopt` returned, each is in cur/ or hold/ durably, with its statuses, notes and hint.
Crash before that: drafts, and notes without a message, which the next start removes; the other spool still
has them.  Assumes: the owner of the queue.
"""

from collections.abc import Sequence

from relay.spool.disk.durable import Disk, opened
from relay.spool.interface import Adopted, Message
from relay.spool.maildir.layout import Layout, is_published
from relay.spool.message import message_file, notes
from relay.spool.message.draft import SpoolDraft


def adopt(disk: Disk, layout: Layout, adopted: Sequence[Adopted]) -> list[Message]:
    """Return those that were not here.  Raises OSError, and what reading their content raises."""
    drafts: list[tuple[SpoolDraft, Message]] = []
    try:
        for each in adopted:
            message = each.message
            if is_published(disk, layout, message.queue_id):
                continue
            _note(disk, layout, message)
            path = f"{layout.drafts}/{message.queue_id}"
            drafts.append((SpoolDraft(message.queue_id, disk, path, lambda _bytes: None), message))
            _write(disk, drafts[-1][0], each)
        disk.sync_directory(layout.notes)
        fds = [draft.fd for draft, _ in drafts if draft.fd is not None]
        for error in disk.sync_each(fds, content_only=False):
            if error is not None:
                raise error
        # Crash here: whole drafts that nobody waits for; the next start removes them.
        homes = {
            message.queue_id: layout.home(message.queue_id, is_held=message.is_held) for _, message in drafts
        }
        for queue_id, home in homes.items():
            disk.rename(f"{layout.drafts}/{queue_id}", home)
        for folder in sorted({home.rpartition("/")[0] for home in homes.values()}):
            disk.sync_directory(folder)
    finally:
        for draft, _ in drafts:
            # Of what is in its place by now the draft has no name left.
            draft.discard()
    return [message for _, message in drafts]


def _note(disk: Disk, layout: Layout, message: Message) -> None:
    if message.notes:
        with opened(disk, disk.open_append(f"{layout.notes}/{message.queue_id}")) as fd:
            disk.write_all(fd, notes.encode(message.notes))
            disk.sync(fd)


def _write(disk: Disk, draft: SpoolDraft, adopted: Adopted) -> None:
    message = adopted.message
    for chunk in adopted.content:
        draft.append(chunk)
        draft.spill()
    accepted = message_file.encode_envelope(message.queue_id, message.envelope)
    header = draft.header(message.envelope, accepted)
    if message.is_warned:
        warned = message_file.WARNED_OFFSET
        header = header[:warned] + message_file.WARNED_BYTE + header[warned + 1 :]
    fd = draft.complete(header, message_file.marked(accepted, message))
    # Without a hint it is as old as the message, so that nobody takes it for one.
    disk.set_modified_at_ns(fd, message.next_attempt_at_ns or message.envelope.arrival_at_ns)
