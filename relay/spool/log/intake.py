"""The listener's side of the log: drafts, and their acceptance.

Any number of processes may take mail into one spool.  Each holds the lock of a stream of its own.
Guarantees: a message for which `accept` returned None survives loss of power.  The messages of one call are
one group, and share one sync.  A message for which `accept` returned an error is not queued, unless the disk
also refused to take its bytes back.
Assumes: the folders exist (`layout.prepare`).  Does not: know SMTP, or when to send.
"""

import os
from collections.abc import Callable, Sequence

from relay.clock import Clock
from relay.mail.envelope import Draft, Envelope
from relay.spool.disk.durable import Disk
from relay.spool.disk.os_errors import error_of
from relay.spool.errors import kernel_errors, of_kernel
from relay.spool.identity import Identities
from relay.spool.interface import Full, Unavailable
from relay.spool.log.content import discard, name_long, record_of
from relay.spool.log.layout import FORMAT, LogLayout
from relay.spool.log.record import Record
from relay.spool.log.writer import EMPTY_STREAM, SEGMENT_BYTES, StreamWriter
from relay.spool.message.draft import SpoolDraft, create_locked, ours
from relay.spool.root.headroom import leave_headroom, room
from relay.spool.root.lock import take_intake_lock


class LogIntake:
    """Call `draft` from one thread, `accept` from one at a time, the rest from any."""

    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = os.urandom,
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Raise OSError, SpoolBusy if the spool is being converted, ValueError for another format."""
        self._lock_fd: int | None = take_intake_lock(root, disk, FORMAT)
        self._layout = LogLayout(root)
        self._disk = disk
        self._clock = clock
        self._identities = Identities(clock, random_bytes)
        self._streams = Identities(clock, random_bytes)
        self._segment_bytes = segment_bytes
        self._writer: StreamWriter | None = None
        self._stream_fd = -1

    def draft(self) -> SpoolDraft:
        queue_id = self._identities.next_id()
        return SpoolDraft(queue_id, self._disk, self._layout.part(queue_id), self._leave_room)

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[Full | Unavailable | None]:
        own = [(ours(draft), envelope) for draft, envelope in drafts]
        results: list[OSError | None] = [None] * len(own)
        records: dict[int, Record] = {}
        # Check the room once for the whole batch: if it does not fit, no message is taken.
        why_no_room = error_of(self._leave_room, sum(draft.buffered_bytes for draft, _ in own))
        for i, (draft, envelope) in enumerate(own):
            try:
                if why_no_room is not None:
                    raise why_no_room
                records[i] = record_of(draft, *draft.frame(envelope, self._clock))
            except OSError as error:
                results[i] = error
        long = [i for i, new in records.items() if not new.payload]
        for i, failed in zip(
            long, name_long(self._disk, self._layout, [own[i][0] for i in long]), strict=True
        ):
            results[i] = failed
        if whole := [i for i in records if results[i] is None]:
            refused = self._append([records[i] for i in whole])
            for i in whole:
                results[i] = refused
        for (draft, _), result in zip(own, results, strict=True):
            if result is None:
                # Close after the append: until then the lock keeps the file from looking abandoned.
                draft.close()
            else:
                discard(self._disk, self._layout, draft)
        return [None if each is None else of_kernel(each, "message") for each in results]

    def room(self) -> int:
        with kernel_errors("room"):
            return room(self._disk.free(self._layout.log))

    def close(self) -> None:
        self._end_stream()
        if self._lock_fd is not None:
            self._disk.close(self._lock_fd)
            self._lock_fd = None

    def _end_stream(self) -> None:
        """Release the stream's lock, as the death of the process does: the sender may remove the stream."""
        if self._writer is not None:
            self._writer.close()
            self._disk.close(self._stream_fd)
            self._writer = None

    def _leave_room(self, size_bytes: int) -> None:
        leave_headroom(self._disk.free(self._layout.log), size_bytes)

    def _append(self, records: Sequence[Record]) -> OSError | None:
        try:
            if self._writer is None:
                self._writer = self._begin()
            self._writer.append(records)
        except OSError as error:
            return error
        try:
            self._disk.write_at(self._stream_fd, self._writer.position.encoded(), 0)
        except OSError:
            # The mail is accepted but not announced: end the stream, as a dead stream is read to its end.
            self._end_stream()
        return None

    def _begin(self) -> StreamWriter:
        """Raise OSError."""
        name = self._streams.next_id()
        # Name the lock file once it is locked: an unlocked one is that of a dead listener.
        # Crash here: an abandoned file in long/, which `tidy` or a start removes.
        fd = create_locked(self._disk, self._layout.part(name))
        try:
            self._disk.rename(self._layout.part(name), self._layout.stream_lock(name))
        except OSError:
            self._disk.close(fd)
            raise
        self._stream_fd = fd
        return StreamWriter(self._disk, self._layout, name, self._segment_bytes, EMPTY_STREAM)
