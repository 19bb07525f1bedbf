"""The log engine: the sender's side.

For the one sender that holds the spool's lock, from one thread at a time.
Guarantees: what was called is seen by every read at once, and durable, in order and as one group, when
`commit` returned.  Assumes: nobody adds to the sender's stream but the holder of the lock.
Does not: decide what becomes of a message, or build reports.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence

from relay.clock import Clock
from relay.mail.envelope import Envelope, QueueId
from relay.queue.sorting import Sorter
from relay.spool.disk.durable import Disk
from relay.spool.disk.os_errors import is_our_own_lack
from relay.spool.faults import faults
from relay.spool.interface import (
    Absent,
    Adopted,
    Corrupt,
    Entry,
    LedgerAccount,
    Message,
    Note,
    OwedReport,
    Recovery,
    SetAside,
    SpoolFault,
    SpoolFull,
    Status,
    Totals,
    Unreadable,
)
from relay.spool.ledger import fates_of
from relay.spool.log import facts as said
from relay.spool.log import message, recovery
from relay.spool.log.cleaning import Cleaner
from relay.spool.log.damaged import Damaged
from relay.spool.log.index import UNPLACED, LogIndex
from relay.spool.log.journal import Journal
from relay.spool.log.layout import LogLayout, prepare
from relay.spool.log.reading import MessageReader
from relay.spool.log.record import MESSAGE, New, Record
from relay.spool.log.segments import SegmentEvent, Segments, is_perhaps_long, is_senders
from relay.spool.log.stream_writer import StreamWriter
from relay.spool.log.streams import Streams
from relay.spool.log.summary import Summaries
from relay.spool.message import files, notes
from relay.spool.message.arriving import SpoolDraft
from relay.spool.message.message_file import Opened
from relay.spool.message.recent import Recent
from relay.spool.root import quarantine
from relay.spool.root.headroom import gives_way
from relay.spool.root.lock import take_root


class LogSpool:
    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        on_corrupt: Callable[[str, str], None] = lambda _n, _w: None,
    ) -> None:
        """Take the spool.  Raises SpoolBusy, OSError, and ValueError for one of another format.

        `on_corrupt` is told the name and the fault of each thing that is set aside.
        """
        prepare(root, disk)
        self._layout = LogLayout(root)
        self._disk = disk
        self._clock = clock
        self._lock_fd, self._aside, self._reserve = take_root(root, disk, on_corrupt)
        self._begin()

    def _begin(self, writer: StreamWriter | None = None) -> None:
        """Know nothing yet of what is on the disk, but which segment we write."""
        self._segments = Segments(self._disk, self._layout)
        self._queued = LogIndex(self._segments)
        log = self._segments, self._queued
        self._journal = Journal(*log, writer)
        self._memory = Recent()
        self._damaged = Damaged(*log, self._journal, aside=self._aside, memory=self._memory)
        self._summaries = Summaries(*log)
        self._streams = Streams(
            *log, aside=self._aside, summaries=self._summaries, on_damage=self._damaged.meet
        )
        self._cleaner = Cleaner(*log, self._journal, self._streams)
        self._reader = MessageReader(
            *log, aside=self._aside, damaged=self._damaged, journal=self._journal, commit=self.commit
        )
        self._walk = recovery.QueueWalk(*log, self._summaries, self._reader)
        self._reports: list[QueueId] = []
        """Queued by us and not taken yet."""
        self._long_ended: list[QueueId] = []

    def recover(
        self, sorter: Sorter | None = None, on_step: Callable[[], None] = lambda: None
    ) -> Generator[list[Entry], None, Recovery]:
        self.commit()
        self._streams.close()
        self._segments.close()
        self._begin(self._journal.writer)
        self._aside.stuck.clear()
        moved = self._aside.moved
        quarantine.clear_the_way(self._disk, self._layout.root, self._aside, {})
        # Who named what is there may have been killed before that was durable.
        self._disk.sync_directory(self._layout.log)
        # Before the streams are read: what is whole and held by nobody has its record by now, or never.
        abandoned, whole = message.remove_drafts(self._disk, self._layout, self._aside)
        self._streams.drain(on_step)
        own = self._journal.end
        numbers = self._streams.senders
        self._queued.listeners_are_read(are_all=self._streams.are_read)
        end = recovery.replay(
            self._segments,
            self._queued,
            numbers,
            on_damage=self._damaged.meet,
            on_step=on_step,
            own=own,
            is_all_read=self._is_all_read,
        )
        self._journal.go_on(end.number, end.end, max(numbers, default=0), end.torn)
        self._queued.sender_is_read()
        if not self._is_all_read:
            # What ended would come again as soon as it can be read.
            for _, segment in self._segments:
                if is_senders(segment.name):
                    segment.change(SegmentEvent.KEEP)
        abandoned += self._remove_orphans(
            whole, is_all_there=self._damaged.places == 0 and self._aside.moved == moved
        )
        self._damaged.end_suspects()
        if self._may_judge_long:
            # Else long content whose record is damaged is still in long/, and no summary may hide that.
            self._damaged.start_is_done()
        removed = self._damaged.forget_what_was_removed()
        held = resumed = finished = 0
        try:
            for batch in self._walk.batches(sorter, on_step):
                entries = [each.entry(is_held=self._queued.is_held(each.queue_id)) for each in batch]
                held += sum(entry.is_held for entry in entries)
                finished += sum(entry.recipients_left == 0 for entry in entries)
                resumed += sum(
                    0 < entry.recipients_left < len(each.statuses)
                    for entry, each in zip(entries, batch, strict=True)
                )
                yield entries
        finally:
            self._walk.ahead = 0
        with contextlib.suppress(SpoolFull):  # the next commit tidies up
            self._cleaner.remove_dead()
        return Recovery(
            corrupt=self.corrupt_count(),
            abandoned=abandoned,
            missing_recipients=0,
            corrupt_recipients=sum(self._queued.account.aside.values()),
            accepted=0,
            held=held,
            resumed=resumed,
            finished=finished,
            set_aside=self._aside.moved - moved,
            removed_recipients=removed,
            damaged_lines=self._damaged.places,
        )

    def unread_count(self) -> int:
        return self._walk.ahead

    @property
    def _is_all_read(self) -> bool:
        """Whether no part of a stream is there that could not be read when this start came to it."""
        return self._streams.are_read and not any(segment.is_pinned for _, segment in self._segments)

    @property
    def _may_judge_long(self) -> bool:
        """Whether long content without a record has none."""
        return self._is_all_read and not self._aside.stuck

    def _remove_orphans(self, whole: Sequence[QueueId], *, is_all_there: bool) -> int:
        """Remove long content without a record: nobody was promised it, or its message ended."""
        if not self._may_judge_long:
            return 0  # its record may be what cannot be read now; the next start looks again
        removed, moved = 0, self._aside.moved
        for queue_id in whole:
            if queue_id in self._queued.places:
                continue
            path = self._layout.content(queue_id)
            if queue_id in self._queued.account.aside:
                self._aside.move(path, "was set aside, and is back after a loss of power")
            elif not is_all_there:
                # Its record may be what is damaged, or was set aside with its segment.
                self._aside.move(path, "content whose record is not there")
            else:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(path)
                    removed += 1
        if self._aside.moved > moved:
            # Before the segment of its record may go: then nothing would tell that it was a message.
            self._disk.sync_directory(self._layout.corrupt)
        return removed

    @gives_way
    def commit(self) -> None:
        for queue_id in self._queued.crowded(self._journal.said_of):
            with faults("notes"):
                self._journal.call(self._cleaner.said_anew(queue_id))
        self._journal.said_of.clear()
        if not self._journal.has_pending:
            return
        self._journal.commit()
        self._damaged.is_committed()
        for queue_id in self._long_ended:
            # What a crash keeps of it the next start removes.
            with contextlib.suppress(OSError):
                self._disk.unlink(self._layout.content(queue_id))
        self._long_ended.clear()
        # What was called is durable: that there is no room to tidy up is nobody's failure.
        with contextlib.suppress(SpoolFull):
            self._cleaner.remove_dead()
            if self._cleaner.is_crowded:
                self._cleaner.clean()

    @gives_way
    def take(self, most: int, sorter: Sorter | None = None) -> list[Entry]:
        """Take fewer when we lack descriptors or memory: the rest is still there the next time."""
        self._reserve.keep()
        if self._reports:
            self.commit()
        taken: list[Opened] = []
        try:
            with faults("log"):
                for waiting in (self._reports, self._reader.again.due):
                    while waiting and len(taken) < most:
                        opened = self._reader.enter(waiting[0], sorter)
                        del waiting[0]
                        taken += [] if opened is None else [opened]
                records = self._streams.take(most - len(taken))
        except SpoolFull:
            if not taken:
                raise
            records = []
        self._damaged.end_suspects()
        taken += self._opened(records, sorter)
        for opened in taken:
            self._memory.keep(opened)
        self._summaries.write_some()
        return [opened.entry(is_held=self._queued.is_held(opened.queue_id)) for opened in taken]

    def _opened(self, records: Sequence[Record], sorter: Sorter | None) -> list[Opened]:
        taken = []
        for found in records:
            try:
                taken.append(self._reader.laid_over(self._reader.opened(found, sorter)))
                self._reader.mark_what_was_reported(taken[-1])
            except (Corrupt, Absent) as fault:
                self._damaged.set_aside(found.queue_id, str(fault), found.payload, found.number)
            except OSError as error:
                if not (isinstance(error, Unreadable) or is_our_own_lack(error)):
                    raise SpoolFault(f"log: {error.strerror}") from error
                self._reader.again.leave(found.queue_id)
        return taken

    def sort(self, queue_ids: Sequence[QueueId], sorter: Sorter) -> dict[QueueId, Entry]:
        sorted_anew = {}
        for queue_id in queue_ids:
            with contextlib.suppress(Absent, Corrupt, OSError):
                opened = self._reader.read(queue_id, sorter)
                sorted_anew[queue_id] = opened.entry(is_held=self._queued.is_held(queue_id))
        return sorted_anew

    def at_hand(self, queue_id: QueueId) -> Message | None:
        known = self._memory.whole(queue_id)
        return None if known is None else known.message(is_held=self._queued.is_held(queue_id))

    def load(self, queue_id: QueueId) -> Message:
        self._memory.forget(queue_id)
        opened = self._reader.read(queue_id)
        loaded = opened.message(is_held=self._queued.is_held(queue_id))
        self._memory.remember(opened)
        return loaded

    def content(self, queue_id: QueueId, *, is_checked: bool = True) -> Generator[bytes, None, None]:
        yield from self._reader.stream(queue_id, is_checked=is_checked)

    def note(self, noted: Mapping[QueueId, Sequence[Note]]) -> None:
        for queue_id, its in noted.items():
            if queue_id in self._queued.places:
                self._journal.call(New(said.NOTES, queue_id, notes.encode(its)))

    def keep_replies(self, queue_id: QueueId, replies: Sequence[Note]) -> None:
        if queue_id in self._queued.places:
            self._journal.call(New(said.NOTES, queue_id, notes.encode(notes.cut_short(replies))))

    def notes(self, queue_id: QueueId) -> list[Note]:
        with faults("notes"):
            return notes.latest(self._cleaner.notes_of(queue_id))

    def mark(self, marks: Mapping[QueueId, Mapping[int, Status]]) -> None:
        lost: Absent | Corrupt | None = None
        for queue_id, of_message in marks.items():
            if self._queued.has_ended(queue_id):
                continue
            try:
                known = self._known(queue_id)
                new = self._not_marked_yet(known, of_message)
            except (Absent, Corrupt) as loss:
                lost = loss
                continue
            if new:
                self._journal.call(New(said.MARKS, queue_id, said.encode_marks(new)))
                self._reader.laid_over(known)
        if lost is not None:
            raise lost

    @staticmethod
    def _not_marked_yet(known: Opened, marks: Mapping[int, Status]) -> dict[int, Status]:
        new = {}
        for index, status in marks.items():
            before = known.statuses[index]
            if before is Status.TODO:
                new[index] = status
            elif before is not status:
                raise SpoolFault(f"{known.queue_id}: recipient {index} is {before.name} already")
        return new

    def mark_warned(self, queue_id: QueueId) -> None:
        known = self._known(queue_id)
        self._journal.call(New(said.WARNED, queue_id))
        self._reader.laid_over(known)

    def owed_report(self, queue_id: QueueId) -> OwedReport | None:
        if self._queued.has_ended(queue_id):
            return None
        return self._known(queue_id).owed_report

    def mark_reported(self, queue_id: QueueId, told: Sequence[int]) -> None:
        known = self._known(queue_id)
        self._journal.call(New(said.TOLD, queue_id, said.encode_told(told)))
        self._reader.laid_over(known)

    def postpone(self, queue_id: QueueId, next_attempt_at_ns: int) -> None:
        # What waits for hours need not be in memory.
        self._memory.forget(queue_id)
        if queue_id in self._queued.places:
            self._journal.call(New(said.POSTPONED, queue_id, said.encode_instant(next_attempt_at_ns)))

    def publish_report(self, queue_id: QueueId, envelope: Envelope, content: bytes) -> bool:
        if queue_id in self._queued.places or self._queued.has_ended(queue_id):
            return False
        draft = SpoolDraft(queue_id)
        draft.append(content)
        with faults("report"):
            header, tail = draft.frame(envelope, self._clock)
        payload = b"".join((header, content, tail))
        self._journal.publish(New(MESSAGE, queue_id, payload, len(envelope.recipients)))
        self._reports.append(queue_id)
        return True

    def make_room(self) -> bool:
        return self._reserve.spend()

    def finish(self, queue_ids: Sequence[QueueId]) -> None:
        for queue_id in queue_ids:
            try:
                statuses = self._known(queue_id).statuses
            except (Absent, Corrupt):
                continue  # called again, or set aside
            if Status.TODO in statuses:
                raise AssertionError(f"{queue_id} is to be removed with recipients to do")
            fates = said.encode_fates(fates_of(statuses))
            if is_perhaps_long(self._queued.places.get(queue_id, UNPLACED)):
                self._long_ended.append(queue_id)
            self._memory.forget(queue_id)
            self._journal.call(New(said.FINISHED, queue_id, fates, len(statuses)))

    def hold(self, *queue_ids: QueueId) -> None:
        self._hold(queue_ids, said.HELD)

    def release(self, *queue_ids: QueueId) -> None:
        self._hold(queue_ids, said.RELEASED)

    def _hold(self, queue_ids: Sequence[QueueId], kind: bytes) -> None:
        lost: Absent | None = None
        for queue_id in queue_ids:
            if queue_id not in self._queued.places:
                lost = Absent(queue_id)
            elif self._queued.is_held(queue_id) != (kind == said.HELD):
                self._journal.call(New(kind, queue_id))
        if lost is not None:
            raise lost

    def is_held(self, queue_id: QueueId) -> bool:
        return self._queued.is_held(queue_id)

    def account(self) -> LedgerAccount:
        return said.account_of(self._queued.account, self._queued.facts)

    @gives_way
    def adopt(self, adopted: Sequence[Adopted], account: LedgerAccount | None = None) -> None:
        for each in adopted:
            queue_id = each.message.queue_id
            if queue_id in self._queued.places:
                continue
            with faults("adopted messages"):
                new = message.adopted_record(each, self._disk, self._layout)
            self._journal.publish(new)
            if (facts := said.adopted_facts(each)) is not None:
                self._journal.call(facts)
        if account is not None:
            for new in said.records_of(account, self._queued.account):
                self._journal.call(new)

    def clean_up(self) -> int:
        with faults("clean-up"):
            removed, _ = message.remove_drafts(self._disk, self._layout, self._aside)
            self._aside.recount()
        self._reader.again.look_again()
        return removed

    def totals(self) -> Totals:
        return self._queued.totals

    def corrupt_count(self) -> int:
        left = len(self._reader.again) + self._damaged.left_count
        return self._aside.count + left + sum(segment.is_pinned for _, segment in self._segments)

    def set_aside_files(self, most: int) -> list[SetAside]:
        with faults("corrupt"):
            return files.set_aside_files(self._disk, self._aside, most)

    def accepted_count(self) -> int:
        with faults("log"):
            return self._streams.waiting + len(self._reports)

    def free(self) -> tuple[int, int | None]:
        return self._disk.free(self._layout.log)

    def close(self) -> None:
        self._summaries.write_all()
        self._journal.close()
        self._streams.close()
        self._segments.close()
        self._disk.close(self._lock_fd)

    def _known(self, queue_id: QueueId) -> Opened:
        if (known := self._memory.known(queue_id)) is not None:
            return known
        with faults("message"):
            return self._memory.remember(self._reader.read(queue_id))
