"""The listener's side of the maildir: drafts, and the moment they become ours.

Any number of processes may take mail into one spool; they share only the disk.
Guarantees: a message for which `accept` returned None survives loss of power; of one for which it
returned an error nothing is queued.  A draft's file is locked while its writer lives, so that no
other process removes it.  Assumes: the folders exist (`prepare`).  Does not: know SMTP, or when to send.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Sequence

from relay.clock import Clock
from relay.mail.draft import Draft
from relay.mail.envelope import Envelope, QueueId
from relay.spool.durable import Disk
from relay.spool.headroom import NoHeadroom, why_no_room
from relay.spool.identity import Identities
from relay.spool.lock import prepare_root
from relay.spool.maildir import files, message_file
from relay.spool.maildir.layout import FORMAT, Layout


class MaildirDraft:
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


class MaildirIntake:
    """Call `draft` from one thread, the rest from any."""

    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = os.urandom,
        *,
        headroom: bool = True,
    ) -> None:
        """`headroom` is False for reports: they may use what new mail has to leave free."""
        self._layout = Layout(root)
        self._disk = disk
        self._clock = clock
        self._identities = Identities(clock, random_bytes)
        self._leaves_headroom = headroom

    def draft(self) -> MaildirDraft:
        return MaildirDraft(self._identities.next_id())

    def spill(self, draft: Draft) -> None:
        ours = _ours(draft)
        try:
            self._write(ours, ours.take_buffer())
        except OSError:
            self._discard(ours)
            raise

    def is_on_disk(self, draft: Draft) -> bool:
        return _ours(draft).fd is not None

    def discard(self, draft: Draft) -> None:
        self._discard(_ours(draft))

    def _discard(self, draft: MaildirDraft) -> None:
        draft.take_buffer()
        if draft.fd is None:
            return
        # What cannot be unlinked is removed by the sender's clean-up, once the lock is free.
        with contextlib.suppress(OSError):
            self._disk.unlink(self._layout.draft(draft.queue_id))
        with contextlib.suppress(OSError):
            self._disk.close(draft.fd)
        draft.fd = None

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[OSError | None]:
        completed = [self._complete(_ours(draft), envelope) for draft, envelope in drafts]
        results = [each if isinstance(each, OSError) else None for each in completed]
        whole = [i for i, error in enumerate(results) if error is None]
        # Crash here: drafts in tmp/, no 250 was sent; their locks died with us, clean-up removes them.
        fds = [each for each in completed if isinstance(each, int)]
        synced = self._disk.sync_each(fds, content_only=False)
        for i, error in zip(whole, synced, strict=True):
            results[i] = error or self._publish(drafts[i][0].queue_id)
        published = [i for i in whole if results[i] is None]
        if published:
            # Crash here: whole files, names perhaps not durable; no 250 was sent, either is right.
            error = self._sync_new()
            for i in published if error else ():
                results[i] = error
                with contextlib.suppress(OSError):
                    self._disk.unlink(self._layout.accepted(drafts[i][0].queue_id))
        for draft, _ in drafts:
            # Crash here: accepted, with a second name in tmp/ that clean-up removes.
            self.discard(draft)
        return results

    def publish_once(self, queue_id: QueueId, envelope: Envelope, content: bytes) -> bool:
        """Publish a report durably, unless it is there: False.  For the sender alone.  Raises OSError."""
        if files.is_published(self._disk, self._layout, queue_id):
            return False
        with contextlib.suppress(FileNotFoundError):
            # Only the sender writes reports, so this is what an earlier attempt left.
            self._disk.unlink(self._layout.draft(queue_id))
        draft = MaildirDraft(queue_id)
        draft.append(content)
        (error,) = self.accept([(draft, envelope)])
        if error is not None:
            raise error
        return True

    def free(self) -> tuple[int, int | None]:
        return self._disk.free(self._layout.folder("tmp"))

    def _complete(self, draft: MaildirDraft, envelope: Envelope) -> int | OSError:
        """Write all of a draft that is not written yet, header last; return its descriptor."""
        try:
            accepted = self._clock.boot_id(), self._clock.boottime_ns()
            tail = message_file.encode_envelope(draft.queue_id, envelope, accepted)
        except ValueError as error:
            return OSError(errno.EINVAL, f"an envelope that cannot be stored: {error}")
        shape = message_file.shape_of(envelope, draft.content_bytes, eight_bit=draft.eight_bit)
        header = message_file.encode_header(
            draft.content_bytes, tail, len(envelope.recipients), shape, draft.crc
        )
        rest = draft.take_buffer()
        try:
            self._leave_headroom(len(header) + len(rest) + len(tail))
            if draft.fd is None:
                draft.fd = self._create(draft.queue_id)
                self._disk.write_all(draft.fd, header + rest + tail)
            else:
                self._disk.write_all(draft.fd, rest + tail)
                self._disk.write_at(draft.fd, header, 0)
                # The length tells of every other write that said nothing was wrong and did nothing.
                if self._disk.pread(draft.fd, len(header), 0) != header:
                    raise OSError(errno.EIO, "the header is not what was written")
            if self._disk.size(draft.fd) != len(header) + draft.content_bytes + len(tail):
                raise OSError(errno.EINVAL, "a draft that was given up")
        except OSError as error:
            return error
        return draft.fd

    def _write(self, draft: MaildirDraft, chunk: bytes) -> None:
        self._leave_headroom(len(chunk))
        if draft.fd is None:
            draft.fd = self._create(draft.queue_id)
            # The place of the header: all zero until the message is whole, so that it is none before.
            self._disk.write_all(draft.fd, bytes(message_file.HEADER_BYTES))
        self._disk.write_all(draft.fd, chunk)

    def _leave_headroom(self, size_bytes: int) -> None:
        if self._leaves_headroom and (why := why_no_room(self.free(), size_bytes)) is not None:
            raise NoHeadroom(why)

    def _create(self, queue_id: QueueId) -> int:
        fd = self._disk.open_new(self._layout.draft(queue_id))
        try:
            # Clean-up may be quicker: it removes what it took for the file of a dead writer.  Where it is
            # done before we look, `link` will find no draft.
            if not self._disk.lock_open(fd):
                raise OSError(errno.EAGAIN, "a draft was taken for abandoned")
        except OSError:
            self._disk.close(fd)
            raise
        return fd

    def _publish(self, queue_id: QueueId) -> OSError | None:
        try:
            # link, not rename: it refuses a name that is taken, so that no message replaces another.
            self._disk.link(self._layout.draft(queue_id), self._layout.accepted(queue_id))
        except OSError as error:
            return error
        return None

    def _sync_new(self) -> OSError | None:
        try:
            self._disk.sync_directory(self._layout.folder("new"))
        except OSError as error:
            return error
        return None


def _ours(draft: Draft) -> MaildirDraft:
    if not isinstance(draft, MaildirDraft):
        raise TypeError("a draft of another spool")
    return draft


def prepare(root: str, disk: Disk) -> None:
    prepare_root(root, disk, FORMAT, Layout(root).folders())
