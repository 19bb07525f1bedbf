"""A message while it arrives: its content in memory, and its file, which its writer keeps locked.

Guarantees: a draft's file is no message before `complete`: its header is all zeros until then.  A writer is
dead if its lock is free; clocks and file times do not count.  So a step of the clock neither removes an
arriving message nor keeps the file of a dead listener.
Does not: sync a file, or put it into the queue (the engine does).
"""

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from relay.clock import Clock
from relay.mail.envelope import Draft, Envelope, QueueId, Shape
from relay.spool.disk.durable import Disk, opened
from relay.spool.errors import kernel_errors
from relay.spool.interface import INLINE_BYTES
from relay.spool.message import message_file
from relay.spool.message.message_file import HEADER_BYTES


class SpoolDraft:
    def __init__(self, queue_id: QueueId, disk: Disk, path: str, leave_room: Callable[[int], None]) -> None:
        """`leave_room` raises OSError if that many bytes more may not be written."""
        self.queue_id = queue_id
        self.content_bytes = 0
        self.crc = 0
        self.eight_bit = False
        self.is_given_up = False
        self.fd: int | None = None
        self._buffer: list[bytes] = []
        self._disk = disk
        self._path = path
        self._leave_room = leave_room

    def append(self, chunk: bytes) -> None:
        self.content_bytes += len(chunk)
        self.crc = message_file.checksum(chunk, self.crc)
        self.eight_bit = self.eight_bit or not chunk.isascii()
        self._buffer.append(chunk)

    def fill(self, chunks: Iterable[bytes]) -> None:
        """Append content; write it to the file if it is long.  Raises OSError, and what `chunks` raises."""
        for chunk in chunks:
            self.append(chunk)
            if self.content_bytes > INLINE_BYTES:
                self._spill()

    @property
    def buffered_bytes(self) -> int:
        return sum(map(len, self._buffer))

    @property
    def is_on_disk(self) -> bool:
        return self.fd is not None

    def spill(self) -> None:
        with kernel_errors("draft"):
            self._spill()

    def _spill(self) -> None:
        try:
            self._leave_room(self.buffered_bytes)
            self._write(b"", bytes(HEADER_BYTES))
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        self.is_given_up = True
        self._buffer = []
        if self.fd is not None:
            # If this fails, `tidy` of the queue's owner removes the file once the lock is free.
            with contextlib.suppress(OSError):
                self._disk.unlink(self._path)
            self.close()

    def close(self) -> None:
        """Close the file, and do not remove it."""
        if self.fd is not None:
            with contextlib.suppress(OSError):
                self._disk.close(self.fd)
            self.fd = None

    def frame(self, envelope: Envelope, clock: Clock) -> tuple[bytes, bytes]:
        """Return the encoded header and envelope; an envelope without a boot gets this boot and boottime.

        Raises OSError for a discarded draft, and for an envelope that could not be read back.
        """
        if self.is_given_up:
            raise OSError(errno.EINVAL, "the draft was discarded")
        if not envelope.boot_id:
            envelope = replace(envelope, boot_id=clock.boot_id(), boottime_ns=clock.boottime_ns())
        try:
            tail = message_file.encode_envelope(self.queue_id, envelope)
        except ValueError as error:
            raise OSError(errno.EINVAL, f"the envelope cannot be stored: {error}") from error
        shape = Shape(self.content_bytes, self.eight_bit, envelope.smtputf8)
        recipients = len(envelope.recipients)
        return message_file.encode_header(self.content_bytes, tail, recipients, shape, self.crc), tail

    def take_buffer(self) -> bytes:
        """Return the content in memory, and empty the buffer."""
        chunks, self._buffer = self._buffer, []
        return b"".join(chunks)

    def complete(self, header: bytes, tail: bytes) -> int:
        """Write all that is not written yet, the header last; return the descriptor.  Raises OSError."""
        self._leave_room(len(header) + self.buffered_bytes + len(tail))
        was_begun = self.is_on_disk
        fd = self._write(tail, header)
        if was_begun:
            self._disk.write_at(fd, header, 0)
        return fd

    def _write(self, tail: bytes, begin: bytes) -> int:
        if self.fd is None:
            self.fd = create_locked(self._disk, self._path)
            self._disk.write_all(self.fd, begin + self.take_buffer() + tail)
        else:
            self._disk.write_all(self.fd, self.take_buffer() + tail)
        return self.fd


def ours(draft: Draft) -> SpoolDraft:
    if not isinstance(draft, SpoolDraft):
        raise TypeError("not a draft of this spool")
    return draft


def create_locked(disk: Disk, path: str) -> int:
    """Create a file that stays locked until it is closed; return its descriptor.  Raises OSError."""
    fd = disk.open_new(path)
    try:
        # `tidy` may lock the file first, take its writer for dead, and remove it.
        if not disk.lock_open(fd):
            raise OSError(errno.EAGAIN, "another process locked the new draft")
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(path)
        disk.close(fd)
        raise
    return fd


def remove_abandoned(disk: Disk, folder: str) -> int:
    """Remove files whose writers are dead; return how many."""
    removed = 0
    for name in abandoned(disk, folder):
        # A file that cannot be removed now does no harm.
        with contextlib.suppress(OSError):
            disk.unlink(f"{folder}/{name}")
            removed += 1
    return removed


def abandoned(disk: Disk, folder: str) -> Iterator[str]:
    """Yield the names of files whose writers are dead; each file is locked until the next name is taken."""
    for name in disk.names(folder):
        try:
            fd = disk.open_update(f"{folder}/{name}")
        except OSError:
            continue  # its writer removed it, or it is no draft
        with opened(disk, fd):
            if disk.lock_open(fd):
                yield name
