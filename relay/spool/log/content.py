"""Long content: a message file of its own, in the maildir's format, synced before its record is written.

Its writer holds its lock while it lives.  Until it is whole it is called ID.part: such a file whose lock is
free is of a dead listener, and nobody was promised anything.
Crash here, between its own name and its record: a file without a record, which the next start removes.
"""

import contextlib
import errno

from relay.mail.envelope import QueueId
from relay.spool.durable import Disk, opened, why_a_strangers
from relay.spool.identity import is_queue_id
from relay.spool.interface import Adopted, Message
from relay.spool.log.layout import LogLayout, draft_of
from relay.spool.log.record import LONG, MESSAGE, New
from relay.spool.maildir import crash_remains, message_file
from relay.spool.maildir.layout import NOT_OUR_NAME
from relay.spool.quarantine import Quarantine

HEADER_BYTES = message_file.HEADER_BYTES


class LongContent:
    def __init__(self, disk: Disk, layout: LogLayout) -> None:
        self._disk = disk
        self._layout = layout

    def create(self, queue_id: QueueId) -> int:
        path = self._layout.part(queue_id)
        fd = self._disk.open_new(path)
        try:
            # Clean-up may be quicker: it removes what it took for the file of a dead writer.
            if not self._disk.lock_open(fd) or not self._disk.leads_to(path, fd):
                raise OSError(errno.EAGAIN, "a draft was taken for abandoned")
            # The place of the header: all zero until the message is whole, so that it is none before.
            self._disk.write_all(fd, bytes(HEADER_BYTES))
        except OSError:
            self.discard(queue_id, fd)
            raise
        return fd

    def complete(self, fd: int, header: bytes, rest: bytes, content_bytes: int, tail: bytes) -> None:
        """Write what is missing, the header last; not durable yet."""
        self._disk.write_all(fd, rest + tail)
        self._disk.write_at(fd, header, 0)
        # The length tells of every other write that said nothing was wrong and did nothing.
        if self._disk.pread(fd, len(header), 0) != header:
            raise OSError(errno.EIO, "the header is not what was written")
        if self._disk.size(fd) != len(header) + content_bytes + len(tail):
            raise OSError(errno.EINVAL, "a draft that was given up")

    def name(self, queue_id: QueueId) -> None:
        """Give a synced file its own name; durable with the sync of the folder."""
        self._disk.rename(self._layout.part(queue_id), self._layout.content(queue_id))

    def sync_names(self) -> None:
        self._disk.sync_directory(self._layout.long)

    def discard(self, queue_id: QueueId, fd: int | None) -> None:
        """Remove a draft; never raises.  What cannot be removed goes with the next start."""
        for path in (self._layout.part(queue_id), self._layout.content(queue_id)):
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
        self.let_go(fd)

    def let_go(self, fd: int | None) -> None:
        if fd is not None:
            with contextlib.suppress(OSError):
                self._disk.close(fd)

    def remove(self, queue_id: QueueId) -> None:
        """Remove the content of a message that ended; what a crash keeps of it the next start removes."""
        with contextlib.suppress(OSError):
            self._disk.unlink(self._layout.content(queue_id))


def unlocked(disk: Disk, layout: LogLayout, aside: Quarantine) -> tuple[list[QueueId], list[QueueId]]:
    """Return whose files in long/ no writer holds: drafts, and whole ones; others' go to corrupt/."""
    drafts: list[QueueId] = []
    whole: list[QueueId] = []
    for name in disk.names(layout.long):
        path = f"{layout.long}/{name}"
        queue_id = draft_of(name)
        if queue_id is None and not is_queue_id(name):
            aside.move(path, NOT_OUR_NAME, "long-")
            continue
        try:
            with opened(disk, disk.open_update(path)) as fd:
                if not disk.lock_open(fd):
                    continue
                why = why_a_strangers(disk, fd, path)
                if why is None and queue_id and not crash_remains.is_draft(disk, fd, queue_id):
                    why = "not written by us"
        except FileNotFoundError:
            continue  # its writer was quicker
        except OSError as error:
            aside.move_unusable(path, error, "long-")
            continue
        if why is not None:
            aside.move(path, why, "long-")
        elif queue_id is not None:
            drafts.append(queue_id)
        else:
            whole.append(QueueId(name))
    return drafts, whole


def remove_drafts(disk: Disk, layout: LogLayout, queue_ids: list[QueueId]) -> int:
    removed = 0
    for queue_id in queue_ids:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(layout.part(queue_id))
            removed += 1
    return removed


def adopted_record(adopted: Adopted, disk: Disk, long: LongContent) -> New:
    """Return the record of a message.  Raises OSError, and what reading its content raises."""
    message = adopted.message
    recipients = len(message.envelope.recipients)
    tail = message_file.encode_envelope(message.queue_id, message.envelope)
    if message.content is not None:
        content = b"".join(adopted.content)
        header = _header(message, tail, len(content), message_file.checksum(content))
        return New(MESSAGE, message.queue_id, b"".join((header, content, tail)), recipients)
    # What an earlier call left is of a message that is not here.
    long.discard(message.queue_id, None)
    fd = long.create(message.queue_id)
    try:
        crc = size_bytes = 0
        for chunk in adopted.content:
            disk.write_all(fd, chunk)
            crc = message_file.checksum(chunk, crc)
            size_bytes += len(chunk)
        long.complete(fd, _header(message, tail, size_bytes, crc), b"", size_bytes, tail)
        disk.sync(fd)
        long.name(message.queue_id)
        long.sync_names()
    except BaseException:
        long.discard(message.queue_id, fd)
        raise
    # Crash here: content without a record, which the next start removes.
    long.let_go(fd)
    return New(LONG, message.queue_id, b"", recipients)


def _header(message: Message, tail: bytes, size_bytes: int, crc: int) -> bytes:
    recipients = len(message.envelope.recipients)
    return message_file.encode_header(size_bytes, tail, recipients, message.shape, crc)
