"""The log engine: append-only records, and in memory where each queued message is.

For the owner of the queue, from one thread at a time.

Guarantees: a settlement's records are in one group, which is there whole or not at all; memory is changed only
when it is durable.  Nothing is sent again whose mark was durable, and nothing is dropped: what is not sound is
copied to corrupt/, reading goes on at the next sound record, and its segment is never removed.  Of a group in
which damage met something no end counts, so that a message comes again rather than never.
A segment that a start has to read, and that the disk does not give, is no empty one: `claim` raises
Unavailable until it does.  What is not given later is left where it is, and told of.
Assumes: no group before the last one of a stream is torn.
"""

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from relay.clock import Clock
from relay.mail.envelope import QueueId
from relay.spool.base import PAGE_BYTES, BaseSpool, Failure, Group
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_lack_of_room, is_not_now
from relay.spool.errors import kernel_errors
from relay.spool.interface import (
    INLINE_BYTES,
    Absent,
    Adopted,
    Corrupt,
    Message,
    Note,
    Report,
    Settlement,
)
from relay.spool.log import checkpoint
from relay.spool.log import facts as said
from relay.spool.log.checkpoint import Read
from relay.spool.log.cleaning import Cleaner
from relay.spool.log.content import (
    abandoned_files,
    decode,
    discard,
    name_long,
    notes_at,
    record_of,
    remove_orphans,
)
from relay.spool.log.index import UNKNOWN_CRC, Index, Segment
from relay.spool.log.journal import Journal
from relay.spool.log.layout import SENDER, Layout, prepare
from relay.spool.log.reader import Damage, ReadGroup
from relay.spool.log.record import HEAD_BYTES, INLINE, New
from relay.spool.log.settling import Settling
from relay.spool.log.streams import Streams
from relay.spool.log.writer import SEGMENT_BYTES, StreamWriter
from relay.spool.message import message_file, notes, reading
from relay.spool.message.draft import SpoolDraft
from relay.spool.message.reading import Stretch
from relay.spool.root.quarantine import OnCorrupt

CHECKPOINT_BYTES = 8 * 1024 * 1024
"""So much may be written before the next checkpoint, or four times as much as the last one had."""
_READ_AHEAD_BYTES = 256 * 1024
"""Of each stream, while others may wait."""
_SLICES = 64
"""That an hourly tidying cleans at once."""
_RESTING = 256
"""Settlements until a checkpoint that failed is tried again."""


class _Log(NamedTuple):
    """What a start found."""

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
        """Own the queue.  Raises SpoolBusy, OSError, and ValueError for one of another format."""
        prepare(root, disk)
        super().__init__(root, disk, on_corrupt)
        self._layout = Layout(root)
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._checkpoint_bytes = checkpoint_bytes
        self._last_checkpoint_bytes = 0
        self._read_bytes = 0
        """Of listeners' streams, since the last checkpoint."""
        self._resting = 0
        self._found: _Log | None = None
        self._ahead: deque[tuple[QueueId, bytes]] = deque()
        """To claim; with its record's payload where that was just read."""

    def claim(self, most: int) -> list[Message]:
        with kernel_errors("claim"):
            self._log()
            if not self._ahead:
                try:
                    self._listen()
                except OSError:
                    if not self._ahead:
                        raise
            page: list[Message] = []
            size_bytes = 0
            while self._ahead and len(page) < most and size_bytes < PAGE_BYTES:
                try:
                    message = self._claimed(*self._ahead[0])
                except OSError:
                    if not page:
                        raise
                    break  # what is claimed by now is not claimed again
                self._ahead.popleft()
                if message is not None:
                    page.append(message)
                    size_bytes += len(message.head)
        self._keep_up()
        return page

    def settle(self, settlements: Sequence[Settlement]) -> list[Failure | None]:
        group = Group(settlements)
        try:
            log = self._log()
            settling = Settling(log.queued, self._recipients_of, self._published)
            for index, each in group.going():
                try:
                    settling.add(each)
                except (Absent, Corrupt, OSError) as failure:
                    group.fail(index, failure)
                    continue
                if each.next_attempt_at_ns is not None and each.queue_id in log.queued.where:
                    log.journal.hint(each.queue_id, each.next_attempt_at_ns)
            self._write_group(settling)
        except OSError as error:
            for index, _ in group.going():
                group.fail(index, error)
        else:
            self._keep_up()
        return group.results

    def adopt(self, adopted: Sequence[Adopted]) -> None:
        drafts: list[SpoolDraft] = []
        with kernel_errors("adopted messages"):
            log = self._log()
            try:
                records: list[New] = []
                for each in adopted:
                    if each.message.queue_id not in log.queued.where:
                        drafts.append(self._draft(each.message.queue_id))
                        records += self._adopted(drafts[-1], each)
                self._name_long([draft for draft in drafts if draft.is_on_disk])
                if records:
                    # Crash here: content without a record, which the next start removes.
                    self._write(records)
            except BaseException:
                for draft in drafts:
                    discard(self._disk, self._layout, draft)
                raise
            for draft in drafts:
                draft.close()

    def tidy(self) -> int:
        with kernel_errors("tidy"):
            log = self._log()
            found = abandoned_files(self._disk, self._layout)
            self._listen()
            removed = remove_orphans(self._disk, self._layout, found, log.queued.where)
            for _ in range(_SLICES):
                if not log.cleaner.clean():
                    break
            return removed

    def close(self) -> None:
        if self._found is not None:
            # Else the next start reads more.
            with contextlib.suppress(OSError):
                self._checkpoint(self._found)
            self._found.journal.close()
        super().close()

    def _log(self) -> _Log:
        """Return what there is; the first time read it.  Raises OSError."""
        if self._found is None:
            # What a killed process wrote may be in memory only, and would be taken for durable.
            self._disk.sync_all(self._root)
            orphans = abandoned_files(self._disk, self._layout)
            damaged: list[str] = []

            def keep(raw: bytes, why: str) -> None:
                damaged.append(why)
                self._aside.keep("checkpoint", raw, why)

            index, positions = checkpoint.read(self._disk, self._layout, keep)
            streams = Streams(self._disk, self._layout, index, positions)
            damages: list[tuple[Segment, Damage]] = []
            ended: set[QueueId] = set()
            for segment, group in chain(streams.listen(None), streams.replay_sender()):
                _take_in(index, segment, group)
                damages += [(segment, damage) for damage in group.damages]
                ended.update(each.queue_id for each in group.records if each.kind in said.ENDS)
            self._found = self._going_on(index, streams)
            self._ahead = deque((queue_id, b"") for queue_id in sorted(index.where))
            for segment, damage in damages:
                self._keep_damage(segment, damage, is_known=damage.queue_id in ended)
            with contextlib.suppress(OSError):
                remove_orphans(self._disk, self._layout, orphans, index.where)
                if damages or damaged:
                    self._checkpoint(self._found)
        return self._found

    def _going_on(self, index: Index, streams: Streams) -> _Log:
        writer = StreamWriter(
            self._disk,
            self._layout,
            SENDER,
            streams.sender.read[:2],
            streams.highest,
            has_room=True,
            segment_bytes=self._segment_bytes,
        )
        journal = Journal(index, writer)
        spare_bytes = 2 * self._segment_bytes
        cleaner = Cleaner(
            self._disk, self._layout, index, journal, spare_bytes=spare_bytes, set_aside=self._set_aside
        )
        return _Log(index, streams, journal, cleaner)

    def _listen(self) -> None:
        """Take in what listeners accepted.  Raises OSError; what came by then is there."""
        log = self._log()
        came: list[tuple[QueueId, bytes]] = []
        try:
            for segment, group in log.streams.listen(_READ_AHEAD_BYTES):
                came += _take_in(log.queued, segment, group)
                self._read_bytes += group.end - group.at
                for damage in group.damages:
                    self._keep_damage(segment, damage, is_known=False)
        finally:
            self._ahead.extend(sorted(came))

    def _claimed(self, queue_id: QueueId, payload: bytes) -> Message | None:
        """Return a message; None for one that ended, or is set aside.  Raises OSError."""
        index = self._log().queued
        if queue_id not in index.where or self._aside.has_left(self._left(queue_id)):
            return None
        try:
            message = self._known(decode(queue_id, payload) if payload else self._stored(queue_id))
        except Corrupt as fault:
            self._set_aside(queue_id, str(fault))
            return None
        except OSError as error:
            if not is_not_now(error):
                raise
            self._aside.leave(self._left(queue_id), f"cannot be read now: {error.strerror}")
            return None
        index.read_with(queue_id, message.envelope.recipients)
        return message

    def _stored(self, queue_id: QueueId) -> Message:
        """Return a message as it was accepted.  Raises Absent, Corrupt, OSError."""
        with self._at(queue_id) as at:
            return reading.read(self._disk, at, queue_id)

    @contextlib.contextmanager
    def _at(self, queue_id: QueueId) -> Iterator[Stretch]:
        index = self._log().queued
        if queue_id not in index.where:
            raise Absent(queue_id)
        place = index.place(queue_id)
        path = self._layout.segment(index.where[queue_id].name)
        path = self._layout.content(queue_id) if place.is_long else path
        try:
            fd = self._disk.open_read(path)
        except FileNotFoundError:
            raise Corrupt("its content is not there") from None
        with opened(self._disk, fd):
            if place.is_long:
                yield Stretch(fd, self._disk.size(fd))
            else:
                head_bytes = HEAD_BYTES + len(queue_id)
                yield Stretch(fd, place.length - head_bytes, place.offset + head_bytes)

    def _known(self, message: Message) -> Message:
        facts = self._log().queued.facts.get(message.queue_id)
        if facts is None:
            return message
        message = facts.laid_over(message)
        if not facts.notes or message.owed_report is None:
            return message
        return message._replace(notes=self._notes_of(message.queue_id, facts))

    def _notes_of(self, queue_id: QueueId, facts: said.Facts) -> tuple[Note, ...]:
        try:
            return notes.latest(notes_at(self._disk, self._layout, queue_id, facts.notes))
        except OSError:
            return ()  # the report says less

    def _recipients_of(self, queue_id: QueueId) -> int:
        index = self._log().queued
        if index.place(queue_id).recipients_crc == UNKNOWN_CRC:
            index.read_with(queue_id, self._stored(queue_id).envelope.recipients)
        return index.place(queue_id).recipients_crc

    def _unclaimed(self) -> int:
        return len(self._ahead) + (0 if self._found is None else self._found.streams.unread)

    def _left(self, queue_id: QueueId) -> str:
        return f"{self._layout.log}/{queue_id}"

    def _set_aside(self, queue_id: QueueId, why: str) -> None:
        index = self._log().queued
        left = self._left(queue_id)
        if queue_id not in index.where or self._aside.has_left(left):
            return
        place = index.place(queue_id)
        try:
            if place.is_long:
                self._aside.move(self._layout.content(queue_id), why)
                if self._aside.has_left(self._layout.content(queue_id)):
                    return
            else:
                with self._at(queue_id) as at:
                    raw = self._disk.pread(at.fd, at.size_bytes, at.begin)
                self._aside.keep(queue_id, raw, why)
            # Crash here: it is found damaged again, or its content gone, by the next start.
            self._write([New(said.ASIDE, queue_id)])
        except (Corrupt, OSError) as error:
            self._aside.leave(left, f"{why}; it cannot be set aside: {error}")

    def _keep_damage(self, segment: Segment, damage: Damage, *, is_known: bool) -> None:
        """Copy a damaged stretch; as a message where it is one that is nowhere else."""
        segment.is_damaged, segment.section = True, None
        name, begin = f"log-{segment.name}-{damage.at}", damage.at
        queue_id = damage.queue_id
        is_known = is_known or queue_id in self._log().queued.where
        if damage.kind in INLINE and not is_known:
            name, begin = queue_id, damage.at + HEAD_BYTES + len(queue_id)
        path, why = self._layout.segment(segment.name), f"damaged at {damage.at} of {segment.name}"
        try:
            with opened(self._disk, self._disk.open_read(path)) as fd:
                self._aside.keep(name, self._disk.pread(fd, damage.end - begin, begin), why)
        except OSError as error:
            self._aside.leave(path, f"{why}, and cannot be copied: {error.strerror}")

    def _write_group(self, settling: Settling) -> None:
        """Write what is settled.  Raises OSError: nothing of it is, but perhaps that recipients are relayed."""
        if not settling.records:
            return
        index = self._log().queued
        ending = [new.queue_id for new in settling.records if new.kind == said.ENDED]
        long = [own for own in map(QueueId, ending) if own in index.where and index.place(own).is_long]
        try:
            self._write(settling.records)
        except OSError as error:
            if is_lack_of_room(error) and settling.relayed:
                with contextlib.suppress(OSError):
                    self._write(settling.relayed)
            raise
        for queue_id in long:
            # Crash here, or an error: content without a record, which goes when the spool is tidied.
            with contextlib.suppress(OSError):
                self._disk.unlink(self._layout.content(queue_id))

    def _write(self, records: Sequence[New]) -> None:
        self._ahead.extend((queue_id, b"") for queue_id in self._log().journal.write(records))

    def _published(self, report: Report) -> New:
        draft = self._draft(report.queue_id)
        draft.append(report.content)
        try:
            record = record_of(draft, report.envelope, *draft.frame(report.envelope, self._clock))
            self._name_long([draft] if draft.is_on_disk else [])
        except OSError:
            discard(self._disk, self._layout, draft)
            raise
        draft.close()
        return record

    def _adopted(self, draft: SpoolDraft, adopted: Adopted) -> list[New]:
        message = adopted.message
        for chunk in adopted.content:
            draft.append(chunk)
            if draft.content_bytes > INLINE_BYTES:
                draft.spill()
        accepted = message_file.encode_envelope(message.queue_id, message.envelope)
        records = [record_of(draft, message.envelope, draft.header(message.envelope, accepted), accepted)]
        known, raw = said.of_message(message), notes.encode(message.notes) if message.notes else b""
        if known or raw:
            records.append(New(said.SAID, message.queue_id, said.encode(known, raw)))
        return records

    def _draft(self, queue_id: QueueId) -> SpoolDraft:
        path = self._layout.part(queue_id)
        with contextlib.suppress(OSError):
            # What an earlier call left: nobody else writes under an id of ours.
            self._disk.unlink(path)
        return SpoolDraft(queue_id, self._disk, path, lambda _bytes: None)

    def _name_long(self, drafts: Sequence[SpoolDraft]) -> None:
        for error in name_long(self._disk, self._layout, drafts):
            if error is not None:
                raise error

    def _keep_up(self) -> None:
        """Clean a little, and write a checkpoint, where it is time for that; never raises."""
        log = self._log()
        with contextlib.suppress(OSError):
            log.cleaner.clean()
        self._resting = max(0, self._resting - 1)
        suffix_bytes = self._read_bytes + log.journal.written_bytes
        dead_bytes = sum(segment.end for segment in log.queued.segments.values() if segment.is_dead)
        most_bytes = max(self._checkpoint_bytes, 4 * self._last_checkpoint_bytes)
        if (suffix_bytes > most_bytes or dead_bytes > 2 * self._segment_bytes) and not self._resting:
            self._resting = _RESTING
            with contextlib.suppress(OSError):
                self._checkpoint(log)
                self._resting = 0

    def _checkpoint(self, log: _Log) -> None:
        """Write one, and remove what it does not need.  Raises OSError."""
        positions = log.streams.positions()
        if log.journal.position != (0, 0):
            positions[SENDER] = Read(*log.journal.position)
        dead = log.queued.dead()
        content = checkpoint.encode(log.queued, positions)
        checkpoint.write(self._disk, self._layout, content)
        self._last_checkpoint_bytes, self._read_bytes, log.journal.written_bytes = len(content), 0, 0
        # Crash here, or below: the next start finds some of them, below their streams' positions and dead.
        for segment in dead:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._layout.segment(segment.name))
        # Before a stream's position is forgotten, its segments are gone for ever.
        self._disk.sync_directory(self._layout.log)
        for segment in dead:
            del log.queued.segments[segment.name]
        log.streams.forget_removed()


def _take_in(index: Index, segment: Segment, group: ReadGroup) -> list[tuple[QueueId, bytes]]:
    """Return which messages came, and the payloads of their records."""
    return [
        (each.queue_id, each.payload)
        for each in group.records
        if index.take_in(segment, each, is_whole=group.is_whole)
    ]
