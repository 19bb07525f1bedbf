"""The log engine for the owner of the queue: append-only records, and an index in memory.

Guarantees: the records of a batch of settlements are one group, which is valid as a whole or not at all.
Memory changes only once the group is durable.  A recipient whose mark is durable is never sent to again.
Damage: an unsound stretch is copied to corrupt/, reading resumes at the next sound record, and the segment
is never removed.  An end in a damaged group is ignored: a message may come again, but must not be lost.
Failed reads: until a start has read all, all calls raise Unavailable.  A message that cannot be read later is
logged, left in its place, and claimed again after READ_AGAIN_NS.
Assumes: one thread at a time calls it, and no group before the last one of a stream is torn.
"""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from relay.clock import Clock
from relay.mail.envelope import Envelope, QueueId
from relay.spool.base import BaseSpool, Failure, Group
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_lack_of_room
from relay.spool.errors import kernel_errors
from relay.spool.interface import Absent, Corrupt, Message, Settlement
from relay.spool.log import checkpoint
from relay.spool.log.content import discard, name_long, record_of
from relay.spool.log.facts import ASIDE, ENDED
from relay.spool.log.index import Index, Segment
from relay.spool.log.journal import Cleaner, Journal
from relay.spool.log.layout import FORMAT, PART, SENDER, LogLayout, prepare
from relay.spool.log.record import RECORD_HEAD_BYTES, ReadGroup, Record
from relay.spool.log.settling import LogSettling
from relay.spool.log.streams import Streams
from relay.spool.log.writer import SEGMENT_BYTES, StreamWriter
from relay.spool.message import reading
from relay.spool.message.draft import SpoolDraft, abandoned
from relay.spool.message.reading import Stretch
from relay.spool.root.quarantine import OnCorrupt

CHECKPOINT_BYTES = 8 * 1024 * 1024
"""Bytes written before the next checkpoint; or four times the size of the last one, if that is more."""
_READ_AHEAD_BYTES = 256 * 1024
"""Read from each stream in one `claim`, so that no stream makes the others wait."""


class _Log(NamedTuple):
    queued: Index
    streams: Streams
    journal: Journal
    cleaner: Cleaner


class LogSpool(BaseSpool):
    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        on_corrupt: OnCorrupt = lambda _n, _w: None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        """Own the queue.  Raises SpoolBusy, OSError, and ValueError for a spool of another format."""
        prepare(root, disk)
        super().__init__(root, FORMAT, disk, clock, on_corrupt)
        self._layout = LogLayout(root)
        self._segment_bytes = segment_bytes
        self._checkpoint_bytes = self._least_bytes = checkpoint_bytes
        self._read_bytes = 0
        """Bytes of listeners' streams since the last checkpoint."""
        self._found: _Log | None = None
        self._kept: tuple[str, int] | None = None
        """Path and descriptor of the segment that was read last: most messages are read in their order."""

    def claim(self, most: int) -> list[Message]:
        with kernel_errors("claim"):
            self._log()
            try:
                if not self._ahead:
                    self._ahead.extend(self._due_again())
                    self._read_new(_READ_AHEAD_BYTES)
            except OSError:
                if not self._ahead:
                    raise
            page = self._page(most)
        self._keep_up()
        return page

    def settle(self, settlements: Sequence[Settlement]) -> list[Failure | None]:
        group = Group(settlements)
        try:
            log = self._log()
            settling = LogSettling(log.queued, self._record_of)
            for index, each in group.unfailed():
                try:
                    settling.add(each)
                except Corrupt as fault:
                    group.fail(index, self._damaged(each.queue_id, fault))
                except (Absent, OSError) as failure:
                    group.fail(index, failure)
                else:
                    if each.next_attempt_at_ns is not None and each.queue_id in log.queued.places:
                        log.journal.hint(each.queue_id, each.next_attempt_at_ns)
            self._write_group(settling)
            self._keep_up()
        except OSError as error:
            for index, _ in group.unfailed():
                group.fail(index, error)
        return group.results

    def tidy(self) -> int:
        with kernel_errors("tidy"):
            self._log()
            found = list(abandoned(self._disk, self._layout.long))
            # Read all records first: long content of an unread record is no orphan.
            self._read_new(None)
            return self._remove_orphans(found)

    def close(self) -> None:
        self._close_segment()
        if self._found is not None:
            # Without a checkpoint the next start reads more.
            with contextlib.suppress(OSError):
                self._checkpoint(self._found)
            self._found.journal.writer.close()
        super().close()

    def _log(self) -> _Log:
        """Return the log, which the first call reads.  Raises OSError."""
        if self._found is not None:
            return self._found
        orphans = list(abandoned(self._disk, self._layout.long))
        queued, positions = checkpoint.read(self._disk, self._layout, partial(self._aside.keep, "checkpoint"))
        streams = Streams(self._disk, self._layout, queued, positions)
        damaged: list[tuple[Segment, ReadGroup]] = []
        # Read the messages before the sender's stream, which says what became of them.
        for segment, group in chain(streams.read_new(None), streams.replay_sender()):
            _take_in(queued, segment, group)
            if group.damages:
                damaged.append((segment, group))
        # After all was read: a reading that fails is repeated from the beginning.
        for segment, group in damaged:
            self._keep_damage(segment, group)
        writer = StreamWriter(self._disk, self._layout, SENDER, self._segment_bytes, streams.end_of_sender())
        journal = Journal(queued, writer)
        cleaner = Cleaner(self._disk, self._layout, queued, journal)
        self._found = _Log(queued, streams, journal, cleaner)
        self._ahead = deque(sorted(queued.places))
        with contextlib.suppress(OSError):
            self._remove_orphans(orphans)
            if damaged:
                self._checkpoint(self._found)
        return self._found

    def _read_new(self, most_bytes: int | None) -> None:
        """Take in new mail, about `most_bytes` a stream.  Raises OSError, and keeps what was read by then."""
        log = self._log()
        came: list[QueueId] = []
        try:
            for segment, group in log.streams.read_new(most_bytes):
                came += _take_in(log.queued, segment, group)
                self._read_bytes += group.end - group.at
                self._keep_damage(segment, group)
        finally:
            self._ahead.extend(sorted(came))

    def _remove_orphans(self, found: Sequence[str]) -> int:
        """Remove files of no message.  They were `found` abandoned before all records were read."""
        queued, removed = self._log().queued, 0
        for name in found:
            path = f"{self._layout.long}/{name}"
            if QueueId(name) in queued.places:
                continue
            if not name.endswith(PART) and any(segment.is_damaged for segment in queued.segments.values()):
                self._aside.move(path, "no record names it: its record may be in a damaged part of the log")
                continue
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
                removed += 1
        return removed

    def _claimed(self, name: str) -> Message | None:
        queue_id = QueueId(name)
        if queue_id not in self._log().queued.places:
            return None
        try:
            with self._at(queue_id) as at:
                return self._known(reading.read(self._disk, at, queue_id), at)
        except Corrupt as fault:
            self._set_aside(queue_id, str(fault))
        return None

    @contextlib.contextmanager
    def _at(self, queue_id: QueueId) -> Iterator[Stretch]:
        place = self._log().queued.places.get(queue_id)
        if place is None:
            raise Absent(queue_id)
        head_bytes, path = RECORD_HEAD_BYTES + len(queue_id), self._layout.segment(place.segment.name)
        if place.is_long:
            path = self._layout.content(queue_id)
        try:
            if not place.is_long:
                yield Stretch(self._segment(path), place.length - head_bytes, place.offset + head_bytes)
                return
            with opened(self._disk, self._disk.open_read(path)) as fd:
                yield Stretch(fd, self._disk.size(fd))
        except FileNotFoundError:
            raise Corrupt("its file is missing") from None

    def _segment(self, path: str) -> int:
        if self._kept is None or self._kept[0] != path:
            self._close_segment()
            self._kept = path, self._disk.open_read(path)
        return self._kept[1]

    def _close_segment(self) -> None:
        if self._kept is not None:
            self._disk.close(self._kept[1])
            self._kept = None

    def _known(self, message: Message, at: Stretch) -> Message:  # noqa: ARG002 - the maildir needs `at`
        queued = self._log().queued
        queued.read_with(message.queue_id, message.envelope.recipients)
        facts = queued.facts.get(message.queue_id)
        return message if facts is None else facts.laid_over(message)

    def _unclaimed(self) -> int:
        return len({*self._unread, *self._ahead})

    def _set_aside(self, queue_id: QueueId, why: str) -> None:
        place = self._log().queued.places.get(queue_id)
        if place is None:
            return
        path, raw = self._layout.content(queue_id), b""
        if place.is_long and self._disk.inode(path) is not None:
            self._aside.move(path, why)
        else:
            # If its content is gone, an empty file keeps its name.
            with contextlib.suppress(Corrupt), self._at(queue_id) as at:
                raw = self._disk.pread(at.fd, at.size_bytes, at.begin)
            self._aside.keep(queue_id, raw, why)
        # Crash here: the next start finds the message damaged again, or without content.
        self._write([Record(ASIDE, queue_id)])

    def _keep_damage(self, segment: Segment, group: ReadGroup) -> None:
        """Copy the damaged stretches of a group to corrupt/.  Raises OSError."""
        for begin, end in group.damages:
            segment.is_damaged, segment.section = True, None
            with opened(self._disk, self._disk.open_read(self._layout.segment(segment.name))) as fd:
                content = self._disk.pread(fd, end - begin, begin)
            self._aside.keep(f"{segment.name}-{begin}", content, f"damaged at {begin} of {segment.name}")

    def _write_group(self, settling: LogSettling) -> None:
        """Write settled records.  Raises OSError: none is durable, except perhaps the relayed marks."""
        places = self._log().queued.places
        ending = [each.queue_id for each in settling.records if each.kind == ENDED]
        long = [queue_id for queue_id in ending if queue_id in places and places[queue_id].is_long]
        try:
            self._write(settling.records)
        except OSError as error:
            if is_lack_of_room(error):
                with contextlib.suppress(OSError):
                    self._write(settling.relayed)
            raise
        for queue_id in long:
            # Crash here, or an error: content without a record, which `tidy` or a start removes.
            with contextlib.suppress(OSError):
                self._disk.unlink(self._layout.content(queue_id))

    def _write(self, records: Sequence[Record]) -> None:
        if records:
            self._ahead.extend(self._log().journal.write(records))

    def _take(self, messages: Sequence[tuple[QueueId, Envelope, Iterable[bytes]]]) -> None:
        places = self._log().queued.places
        self._write([self._record_of(*each) for each in messages if each[0] not in places])

    def _record_of(self, queue_id: QueueId, envelope: Envelope, content: Iterable[bytes]) -> Record:
        """Return the record of a message, its long content durable in a file.  Raises OSError."""
        path = self._layout.part(queue_id)
        with contextlib.suppress(OSError):
            # An earlier call may have left this file: nobody else writes under this id.
            self._disk.unlink(path)
        draft = SpoolDraft(queue_id, self._disk, path, lambda _bytes: None)
        try:
            draft.fill(content)
            record = record_of(draft, *draft.frame(envelope, self._clock))
            for error in filter(None, name_long(self._disk, self._layout, [draft])):
                raise error
        except BaseException:
            discard(self._disk, self._layout, draft)
            raise
        # Crash here: content without a record, which the next start removes.
        draft.close()
        return record

    def _keep_up(self) -> None:
        """Clean a slice, and write a checkpoint if one is due; never raises OSError."""
        with contextlib.suppress(OSError):
            log = self._log()
            written_bytes = self._read_bytes + log.journal.written_bytes
            dead_bytes = sum(each.end for each in log.queued.segments.values() if each.is_dead)
            if max(written_bytes, dead_bytes - 2 * self._segment_bytes) > self._least_bytes:
                self._checkpoint(log)
            log.cleaner.clean(2 * self._segment_bytes)

    def _checkpoint(self, log: _Log) -> None:
        """Write a checkpoint, and remove the segments that it does not need.  Raises OSError."""
        positions = log.streams.positions()
        if log.journal.writer.position.number:
            positions[SENDER] = log.journal.writer.position
        dead = [segment for segment in log.queued.segments.values() if segment.is_dead]
        content = checkpoint.encode(log.queued, positions)
        # Reset before the write: a failed checkpoint is tried again after as many bytes more.
        self._read_bytes = log.journal.written_bytes = 0
        checkpoint.write(self._disk, self._layout, content)
        self._least_bytes = max(self._checkpoint_bytes, 4 * len(content))
        self._close_segment()
        # Crash here, or below: the next start finds some dead segments, all below their streams' positions.
        for segment in dead:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._layout.segment(segment.name))
        # The removal must be durable before a stream's position is forgotten.
        self._disk.sync_directory(self._layout.log)
        for segment in dead:
            del log.queued.segments[segment.name]
        log.streams.forget_removed()


def _take_in(queued: Index, segment: Segment, group: ReadGroup) -> list[QueueId]:
    is_whole = group.is_whole
    return [each.queue_id for each in group.records if queued.take_in(segment, each, is_whole=is_whole)]
