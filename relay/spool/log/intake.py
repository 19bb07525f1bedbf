"""The listener's side of the log: drafts, and the moment they become ours.

Any number of processes may take mail into one spool: each writes a stream of its own, under a lock that says
that it lives.  Guarantees: a message for which `accept` returned None survives loss of power; all that are
accepted together are one group, and share one sync.  Of one for which it returned an error nothing is queued,
unless the disk refused to take it back too: then its stream is given up, and the next batch begins another.
Assumes: the folders exist (`layout.prepare`).  Does not: know SMTP, or when to send.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Sequence

from relay.clock import Clock
from relay.mail.draft import Draft
from relay.mail.envelope import Envelope
from relay.spool.disk.durable import Disk
from relay.spool.identity import Identities
from relay.spool.interface import INLINE_BYTES
from relay.spool.log.layout import LogLayout
from relay.spool.log.record import LONG, MESSAGE, New
from relay.spool.log.stream_writer import Position, StreamWriter, encode_position
from relay.spool.message import arriving
from relay.spool.message.arriving import SpoolDraft
from relay.spool.root.headroom import leave_headroom

_TRIES = 3


class LogIntake:
    """Call `draft` from one thread, `accept` from one at a time, the rest from any."""

    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._layout = LogLayout(root)
        self._disk = disk
        self._clock = clock
        self._random_bytes = random_bytes
        self._identities = Identities(clock, random_bytes)
        self._writer: StreamWriter | None = None
        self._lock_fd = -1
        self._messages = 0

    def draft(self) -> SpoolDraft:
        return SpoolDraft(self._identities.next_id())

    def spill(self, draft: Draft) -> None:
        ours = arriving.ours(draft)
        try:
            leave_headroom(self.free(), ours.buffered_bytes)
            arriving.spill(self._disk, self._layout.part(ours.queue_id), ours)
        except OSError:
            self.discard(ours)
            raise

    def is_on_disk(self, draft: Draft) -> bool:
        return arriving.ours(draft).fd is not None

    def discard(self, draft: Draft) -> None:
        ours = arriving.ours(draft)
        paths = self._layout.part(ours.queue_id), self._layout.content(ours.queue_id)
        arriving.discard(self._disk, ours, *paths)

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[OSError | None]:
        results: list[OSError | None] = [None] * len(drafts)
        records: dict[int, New] = {}
        try:
            leave_headroom(self.free(), sum(draft.buffered_bytes for draft, _ in drafts))
        except OSError as error:
            for draft, _ in drafts:
                self.discard(draft)
            return [error] * len(drafts)
        for number, (draft, envelope) in enumerate(drafts):
            try:
                records[number] = self._record(arriving.ours(draft), envelope)
            except OSError as error:
                results[number] = error
        self._name_long([number for number, new in records.items() if new.kind == LONG], drafts, results)
        whole = [number for number in records if results[number] is None]
        refused = self._append([records[number] for number in whole]) if whole else None
        for number in whole:
            results[number] = refused
        for (draft, _), result in zip(drafts, results, strict=True):
            if result is not None:
                self.discard(draft)
            else:
                # Only now: until its record is there, its lock says that it is no remains of a crash.
                arriving.let_go(self._disk, arriving.ours(draft))
        return results

    def free(self) -> tuple[int, int | None]:
        return self._disk.free(self._layout.log)

    def close(self) -> None:
        """End the stream, so that the sender may remove it; by dying a process does the same."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                self._disk.close(self._lock_fd)
            self._writer = None

    def _record(self, draft: SpoolDraft, envelope: Envelope) -> New:
        header, tail = draft.frame(envelope, self._clock)
        recipients = len(envelope.recipients)
        if draft.fd is None and draft.content_bytes <= INLINE_BYTES:
            content = draft.take_buffer()
            if len(content) != draft.content_bytes:
                raise OSError(errno.EINVAL, "a draft that was given up")
            return New(MESSAGE, draft.queue_id, b"".join((header, content, tail)), recipients)
        arriving.complete(self._disk, self._layout.part(draft.queue_id), draft, header, tail)
        return New(LONG, draft.queue_id, b"", recipients)

    def _name_long(
        self,
        long: Sequence[int],
        drafts: Sequence[tuple[Draft, Envelope]],
        results: list[OSError | None],
    ) -> None:
        """Make long content durable, and its names, before any record tells of it."""
        if not long:
            return
        fds = [fd for number in long if (fd := arriving.ours(drafts[number][0]).fd) is not None]
        synced = self._disk.sync_each(fds, content_only=False)
        for number, error in zip(long, synced, strict=True):
            results[number] = error
            if error is None:
                try:
                    queue_id = drafts[number][0].queue_id
                    self._disk.rename(self._layout.part(queue_id), self._layout.content(queue_id))
                except OSError as failed:
                    results[number] = failed
        try:
            self._disk.sync_directory(self._layout.long)
        except OSError as failed:
            for number in long:
                results[number] = results[number] or failed

    def _append(self, records: Sequence[New]) -> OSError | None:
        try:
            if self._writer is None:
                self._writer = self._begin()
            self._writer.append(records)
        except OSError as error:
            # Nobody adds anything behind what failed.
            self.close()
            return error
        self._messages += len(records)
        try:
            self._announce(Position(*self._writer.position, self._messages))
        except OSError:
            # It is accepted, and nobody can be told how far: of a stream without a writer all is read.
            self.close()
        return None

    def _begin(self) -> StreamWriter:
        for _ in range(_TRIES):
            name = Identities(self._clock, self._random_bytes).next_id()
            path = self._layout.stream_lock(name)
            fd = self._disk.lock(path, wait=False)
            if fd is None:
                continue
            try:
                if self._disk.leads_to(path, fd):
                    self._lock_fd, self._messages = fd, 0
                    return StreamWriter(self._disk, self._layout, name)
            except OSError:
                # A lock that is held says that its stream lives.
                self._disk.close(fd)
                raise
            # The sender was quicker, and took it for what a dead listener left.
            self._disk.close(fd)
        raise OSError(errno.EAGAIN, "each new stream was taken for abandoned")

    def _announce(self, position: Position) -> None:
        raw = encode_position(position)
        self._disk.write_at(self._lock_fd, raw, 0)
