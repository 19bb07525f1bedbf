"""A message while it arrives: its content in memory, and its file, which its writer keeps locked.

Guarantees: a draft's file is no message before `complete`: the place of its header is all zero.  The file of
a writer that lives is never taken for abandoned: a writer is dead when its lock is free.  No clock and no
time of a file counts, so no step of a clock removes a message that is just arriving, or keeps what a dead
listener left.  Does not: sync a file, or give it its place in the queue (the engine).
"""

import contextlib
import errno
from collections.abc import Callable, Iterator

from relay.clock import Clock
from relay.mail.draft import Draft
from relay.mail.envelope import Envelope, QueueId
from relay.spool.disk.durable import SECTOR_BYTES, Disk, opened, why_a_strangers
from relay.spool.identity import is_queue_id
from relay.spool.interface import Corrupt
from relay.spool.message import message_file
from relay.spool.message.message_file import HEADER_BYTES
from relay.spool.root.foreign import NOT_OUR_NAME
from relay.spool.root.quarantine import Quarantine

_READ_BYTES = 1024 * 1024
"""A multiple of SECTOR_BYTES."""


class SpoolDraft:
    __slots__ = ("_buffer", "content_bytes", "crc", "eight_bit", "fd", "queue_id")

    def __init__(self, queue_id: QueueId) -> None:
        self.queue_id = queue_id
        self.content_bytes = 0
        self.crc = 0
        self.eight_bit = False
        self.fd: int | None = None
        self._buffer: list[bytes] = []

    def append(self, chunk: bytes) -> None:
        self.content_bytes += len(chunk)
        self.crc = message_file.checksum(chunk, self.crc)
        self.eight_bit = self.eight_bit or not chunk.isascii()
        self._buffer.append(chunk)

    @property
    def buffered_bytes(self) -> int:
        return sum(map(len, self._buffer))

    def take_buffer(self) -> bytes:
        chunks, self._buffer = self._buffer, []
        return b"".join(chunks)

    def frame(self, envelope: Envelope, clock: Clock) -> tuple[bytes, bytes]:
        """Return header and envelope of a message accepted now.  OSError for what could not be read back."""
        try:
            tail = message_file.encode_envelope(
                self.queue_id, envelope, (clock.boot_id(), clock.boottime_ns())
            )
        except ValueError as error:
            raise OSError(errno.EINVAL, f"an envelope that cannot be stored: {error}") from error
        shape = message_file.shape_of(envelope, self.content_bytes, eight_bit=self.eight_bit)
        recipients = len(envelope.recipients)
        return message_file.encode_header(self.content_bytes, tail, recipients, shape, self.crc), tail


def ours(draft: Draft) -> SpoolDraft:
    if not isinstance(draft, SpoolDraft):
        raise TypeError("a draft of another spool")
    return draft


def spill(disk: Disk, path: str, draft: SpoolDraft) -> None:
    """Write what is buffered.  Raises OSError."""
    chunk = draft.take_buffer()
    if draft.fd is None:
        draft.fd = _create(disk, path)
        # The place of the header: all zero until the message is whole, so that it is none before.
        disk.write_all(draft.fd, bytes(HEADER_BYTES))
    disk.write_all(draft.fd, chunk)


def complete(disk: Disk, path: str, draft: SpoolDraft, header: bytes, tail: bytes) -> int:
    """Write all that is not written yet, the header last; return the file's descriptor.  Raises OSError."""
    rest = draft.take_buffer()
    if draft.fd is None:
        draft.fd = _create(disk, path)
        disk.write_all(draft.fd, header + rest + tail)
    else:
        disk.write_all(draft.fd, rest + tail)
        disk.write_at(draft.fd, header, 0)
        # The length tells of every other write that said nothing was wrong and did nothing.
        if disk.pread(draft.fd, len(header), 0) != header:
            raise OSError(errno.EIO, "the header is not what was written")
    if disk.size(draft.fd) != len(header) + draft.content_bytes + len(tail):
        raise OSError(errno.EINVAL, "a draft that was given up")
    return draft.fd


def discard(disk: Disk, draft: SpoolDraft, *paths: str) -> None:
    """Forget a draft, and remove what its file may be called; never raises."""
    draft.take_buffer()
    if draft.fd is None:
        return
    # What cannot be removed goes with the sender's clean-up, once the lock is free.
    for path in paths:
        with contextlib.suppress(OSError):
            disk.unlink(path)
    let_go(disk, draft)


def let_go(disk: Disk, draft: SpoolDraft) -> None:
    if draft.fd is not None:
        with contextlib.suppress(OSError):
            disk.close(draft.fd)
        draft.fd = None


def _create(disk: Disk, path: str) -> int:
    fd = disk.open_new(path)
    try:
        # Clean-up may be quicker: it removes what it took for the file of a dead writer.  Where it is done
        # before we look, the draft has no name to be published by.
        if not disk.lock_open(fd):
            raise OSError(errno.EAGAIN, "a draft was taken for abandoned")
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(path)
        disk.close(fd)
        raise
    return fd


def unlocked(
    disk: Disk,
    folder: str,
    aside: Quarantine,
    draft_of: Callable[[str], QueueId | None],
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """Yield the names of files that no writer holds; each is locked by us until the next is asked for.

    `draft_of` returns which message a name is a draft of; any other file is called as its message.
    What is no draft of ours, or no name of ours, goes to corrupt/.
    """
    prefix = folder.rpartition("/")[2] + "-"
    for name in disk.names(folder):
        on_step()
        path, queue_id = f"{folder}/{name}", draft_of(name)
        if queue_id is None and not is_queue_id(name):
            aside.move(path, NOT_OUR_NAME, prefix)
            continue
        try:
            fd = disk.open_update(path)
        except FileNotFoundError:
            continue  # its writer was quicker
        except OSError as error:
            aside.move_unusable(path, error, prefix)
            continue
        with opened(disk, fd):
            if not disk.lock_open(fd):
                continue
            try:
                why = why_a_strangers(disk, fd, path)
                if why is None and queue_id is not None and not is_draft(disk, fd, queue_id):
                    why = "not written by us"
            except OSError as error:
                aside.move_unusable(path, error, prefix)
                continue
            if why is not None:
                aside.move(path, why, prefix)
                continue
            yield name


def is_draft(disk: Disk, fd: int, queue_id: QueueId) -> bool:
    """Return whether a listener of ours may have written an open file, torn by any crash.

    Its header is all zero until the message is whole; content behind that may be anything.
    Where there is a header, the rest is that message, or zeros that keep the place of what
    never reached the disk, or not there.  A file of others is taken for ours where it begins with as many
    zeros as a header has.  Raises OSError.
    """
    start = disk.pread(fd, HEADER_BYTES, 0)
    if message_file.is_begun(start):
        return True
    try:
        header = message_file.decode_header(start)
    except Corrupt:
        return False
    if (size := disk.size(fd)) != header.file_bytes:
        return size < header.file_bytes
    try:
        raw = disk.pread(fd, header.envelope_bytes, header.envelope_offset)
        message_file.decode_envelope(queue_id, header, raw)
    except message_file.AnotherMessage:
        return False
    except Corrupt:
        return _has_lost_sectors(disk, fd)
    crc = 0
    for offset in range(HEADER_BYTES, header.envelope_offset, _READ_BYTES):
        size = min(_READ_BYTES, header.envelope_offset - offset)
        crc = message_file.checksum(disk.pread(fd, size, offset), crc)
    return crc == header.content_crc or _has_lost_sectors(disk, fd)


def _has_lost_sectors(disk: Disk, fd: int) -> bool:
    """Return whether zeros stand where a sector, or what one write brought into it, begins or ends."""
    edges = disk.pread(fd, 1, HEADER_BYTES) + disk.pread(fd, 1, disk.size(fd) - 1)
    for offset in range(0, disk.size(fd), _READ_BYTES):
        chunk = disk.pread(fd, _READ_BYTES, offset)
        edges += chunk[::SECTOR_BYTES] + chunk[SECTOR_BYTES - 1 :: SECTOR_BYTES]
    return b"\0" in edges
