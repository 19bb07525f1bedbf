"""The log engine: the sender's side.

For the one sender that holds the spool's lock, from one thread at a time.
Guarantees: what was called is seen by every read at once, and durable, in order and as one group, when
`commit` returned.  Assumes: nobody adds to the sender's stream but the holder of the lock.
Does not: decide what becomes of a message, or build reports.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from relay.clock import Clock
from relay.mail.envelope import Envelope, QueueId
from relay.queue.sorting import Sorter
from relay.spool import quarantine
from relay.spool.durable import Disk
from relay.spool.headroom import Reserve, gives_way
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
from relay.spool.lock import take_lock
from relay.spool.log import content, message, recovery, summary
from relay.spool.log import facts as said
from relay.spool.log.cleaning import Cleaner
from relay.spool.log.index import UNPLACED, LogIndex
from relay.spool.log.journal import Journal
from relay.spool.log.layout import LogLayout, prepare
from relay.spool.log.message import Messages
from relay.spool.log.record import INLINE, MESSAGE, New, Record
from relay.spool.log.segments import Segments, handle_of, is_senders, length_of, offset_of, place_of
from relay.spool.log.stream_reader import Damage
from relay.spool.log.stream_writer import StreamWriter
from relay.spool.log.streams import Streams
from relay.spool.log.summaries import Summaries
from relay.spool.log.summary import Row, Summary, Told
from relay.spool.maildir import files, notes
from relay.spool.maildir.files import absence
from relay.spool.maildir.message_file import Opened, checksum
from relay.spool.maildir.recent import Recent
from relay.spool.os_errors import faults, is_not_now, is_our_own_lack
from relay.spool.quarantine import Quarantine, make_trigger

RECOVERED_AT_ONCE = 500


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
        self._lock_fd = take_lock(root, disk)
        self._aside = Quarantine(disk, root, on_corrupt)
        try:
            make_trigger(disk, root, self._aside)
        except BaseException:
            disk.close(self._lock_fd)
            raise
        self._reserve = Reserve(root, disk)
        self._reserve.keep()
        self._long = content.LongContent(disk, self._layout)
        self._messages = Messages(disk, self._layout)
        self._begin()

    def _begin(self, writer: StreamWriter | None = None) -> None:
        """Know nothing yet of what is on the disk, but which segment we write."""
        self._segments = Segments(self._disk, self._layout)
        self._queued = LogIndex(self._segments)
        self._journal = Journal(self._disk, self._layout, self._segments, self._queued, writer)
        self._summaries = Summaries(self._disk, self._layout, self._segments, self._queued)
        self._streams = Streams(
            self._disk,
            self._layout,
            self._segments,
            self._queued,
            aside=self._aside,
            summaries=self._summaries,
            on_damage=self._meet_damage,
        )
        self._cleaner = Cleaner(self._segments, self._queued, self._journal, self._streams)
        self._memory = Recent()
        self._reports: list[QueueId] = []
        """Queued by us and not taken yet."""
        self._unread: list[QueueId] = []
        """Messages that the disk did not give us, and that are asked for again now."""
        self._unread_for_now: list[QueueId] = []
        self._not_aside: set[QueueId] = set()
        """Damaged messages that could not be put into corrupt/."""
        self._long_ended: list[QueueId] = []
        self._said_of: set[QueueId] = set()
        """Messages of which something was called since the last commit."""
        self._damages = 0
        self._ahead = 0
        """Messages that `recover` has yet to read."""
        self._suspects: dict[QueueId, int] = {}
        """Messages whose records are damaged, and how many recipients they had."""

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
        drafts, whole = content.unlocked(self._disk, self._layout, self._aside)
        abandoned = content.remove_drafts(self._disk, self._layout, drafts)
        self._streams.drain(on_step)
        own = self._journal.end
        numbers = self._streams.senders
        self._queued.keeps_unknown = not self._streams.are_read
        end = recovery.replay(
            self._segments, self._queued, numbers, on_damage=self._meet_damage, on_step=on_step, own=own
        )
        self._journal.go_on(*end, max(numbers, default=0))
        self._queued.keeps_unknown = False
        if not self._is_all_read:
            # What ended would come again as soon as it can be read.
            for _, segment in self._segments:
                segment.is_kept = is_senders(segment.name)
        abandoned += self._remove_orphans(
            whole, is_all_there=self._damages == 0 and self._aside.moved == moved
        )
        self._end_suspects()
        removed = self._forget_what_was_removed()
        held = resumed = finished = 0
        try:
            for batch in self._read_all(sorter, on_step):
                entries = [each.entry(is_held=self._queued.is_held(each.queue_id)) for each in batch]
                held += sum(entry.is_held for entry in entries)
                finished += sum(entry.recipients_left == 0 for entry in entries)
                resumed += sum(
                    0 < entry.recipients_left < len(each.statuses)
                    for entry, each in zip(entries, batch, strict=True)
                )
                yield entries
        finally:
            self._ahead = 0
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
            damaged_lines=self._damages,
        )

    def unread_count(self) -> int:
        return self._ahead

    def _read_all(self, sorter: Sorter | None, on_step: Callable[[], None]) -> Iterator[list[Opened]]:
        """Read what is queued, a segment after the other, the oldest first; set aside what is damaged.

        An empty batch: we lack descriptors or memory now.  Before the first one that is an error.
        """
        is_first = True
        of_segment: dict[int, list[QueueId]] = {}
        for queue_id, place in self._queued.places.items():
            of_segment.setdefault(handle_of(place), []).append(queue_id)
        self._ahead = len(self._queued.places)
        for handle, queue_ids in sorted(of_segment.items(), key=lambda each: min(each[1])):
            ahead = set(queue_ids)
            # The segment may be gone, if all that lived in it was copied forward meanwhile.
            if handle in self._segments and (found := self._summaries.read(handle)) is not None:
                for batch in self._told(handle, found, ahead, sorter, on_step):
                    is_first = False
                    yield batch
            # Those that no summary tells of; and what was copied forward since this start began.
            rest = deque(sorted(ahead))
            while rest:
                on_step()
                try:
                    batch = self._read_some(rest, sorter)
                except OSError as error:
                    if is_first or not is_our_own_lack(error):
                        raise
                    yield []
                    continue
                if batch:
                    is_first = False
                    yield batch

    def _read_some(self, rest: deque[QueueId], sorter: Sorter | None) -> list[Opened]:
        """Read the next ones.  Raises OSError where that is none, for lack of descriptors or memory."""
        batch: list[Opened] = []
        for _ in range(min(len(rest), RECOVERED_AT_ONCE)):
            try:
                opened = self._read_if_it_can_be(rest[0], sorter)
            except OSError as error:
                if batch and is_our_own_lack(error):
                    break
                raise
            rest.popleft()
            self._ahead -= 1
            batch += [] if opened is None else [opened]
        return batch

    def _told(
        self,
        handle: int,
        found: Summary,
        ahead: set[QueueId],
        sorter: Sorter | None,
        on_step: Callable[[], None],
    ) -> Iterator[list[Opened]]:
        """Yield messages as a summary tells of them, and take them out of what is ahead.

        Their records are compared when they are loaded.
        """
        batch: list[Opened] = []
        for row, told in zip(found.rows, found.told(), strict=True):
            place = place_of(handle, row.at, row.record_bytes)
            if row.queue_id not in ahead or self._queued.places.get(row.queue_id) != place:
                continue
            if (opened := self._told_message(row, told, sorter)) is None:
                continue  # it is read with the rest
            ahead.remove(row.queue_id)
            self._ahead -= 1
            batch.append(opened)
            if len(batch) == RECOVERED_AT_ONCE:
                on_step()
                yield batch
                batch = []
        if batch:
            yield batch

    def _told_message(self, row: Row, told: Told, sorter: Sorter | None) -> Opened | None:
        """Return None where its record has to be read."""
        try:
            opened = self._laid_over(summary.opened(row.queue_id, told))
        except Corrupt:
            # The summary does not say, or its record shows what is wrong with it, and is set aside then.
            return None
        if sorter is not None:
            opened.sorted = sorter.sort(opened.envelope, lambda: self._front_of(row.queue_id))
        self._mark_what_was_reported(opened)
        return opened

    def _front_of(self, queue_id: QueueId) -> bytes:
        with contextlib.suppress(Absent, Corrupt, OSError):
            return message.front_of(self._record(queue_id).payload)
        return b""

    def _read_if_it_can_be(self, queue_id: QueueId, sorter: Sorter | None) -> Opened | None:
        try:
            opened = self._read(queue_id, sorter=sorter)
        except (Absent, Corrupt):
            return None
        except Unreadable:
            self._unread_for_now.append(queue_id)
            return None
        self._mark_what_was_reported(opened)
        return opened

    def _mark_what_was_reported(self, opened: Opened) -> None:
        """Remember that a report is there which a crash left without its marks.

        Another recipient that joined those that it tells of would change the id of their report.
        """
        if Status.TODO not in opened.statuses or (owed := opened.owed_report) is None:
            return
        own = owed.report_id
        if own in self._queued.places or self._queued.has_ended(own):
            self._call(New(said.TOLD, opened.queue_id, said.encode_told(owed.indices)))
            opened.reported.update(owed.indices)

    @property
    def _is_all_read(self) -> bool:
        """Whether no part of a stream is there that could not be read when this start came to it."""
        return self._streams.are_read and not any(segment.is_pinned for _, segment in self._segments)

    def _remove_orphans(self, whole: Sequence[QueueId], *, is_all_there: bool) -> int:
        """Remove long content without a record: nobody was promised it, or its message ended."""
        if self._aside.stuck or not self._is_all_read:
            return 0  # its record may be what cannot be read now; the next start looks again
        removed = 0
        for queue_id in whole:
            if queue_id in self._queued.places:
                continue
            path = self._layout.content(queue_id)
            if not is_all_there:
                # Its record may be what is damaged, or was set aside with its segment.
                self._aside.move(path, "content whose record is not there")
                continue
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
                removed += 1
        return removed

    def _forget_what_was_removed(self) -> int:
        """Count as deleted what somebody removed from corrupt/; return how many recipients."""
        there = {quarantine.subject_name(name) for name in self._aside.recount()}
        aside = self._queued.account.aside
        removed = 0
        for queue_id in [each for each in aside if each not in there]:
            removed += aside[queue_id]
            self._call(New(said.REMOVED, queue_id))
        return removed

    @gives_way
    def commit(self) -> None:
        for queue_id in self._queued.crowded(self._said_of):
            with faults("notes"):
                self._journal.call(self._cleaner.said_anew(queue_id))
        self._said_of.clear()
        if not self._journal.has_pending:
            return
        self._journal.commit()
        for queue_id in self._long_ended:
            self._long.remove(queue_id)
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
                for waiting in (self._reports, self._unread):
                    while waiting and len(taken) < most:
                        opened = self._read_if_it_can_be(waiting[0], sorter)
                        del waiting[0]
                        taken += [] if opened is None else [opened]
                records = self._streams.take(most - len(taken))
        except SpoolFull:
            if not taken:
                raise
            records = []
        self._end_suspects()
        taken += self._opened(records, sorter)
        for opened in taken:
            self._memory.keep(opened)
        self._summaries.write_some()
        return [opened.entry(is_held=self._queued.is_held(opened.queue_id)) for opened in taken]

    def _opened(self, records: Sequence[Record], sorter: Sorter | None) -> list[Opened]:
        taken = []
        for found in records:
            try:
                taken.append(self._laid_over(self._messages.of(found, sorter=sorter)))
            except (Corrupt, Absent) as fault:
                self._set_aside(found.queue_id, str(fault), found.payload, found.number)
            except OSError as error:
                if not (isinstance(error, Unreadable) or is_our_own_lack(error)):
                    raise SpoolFault(f"log: {error.strerror}") from error
                self._unread_for_now.append(found.queue_id)
        return taken

    def sort(self, queue_ids: Sequence[QueueId], sorter: Sorter) -> dict[QueueId, Entry]:
        sorted_anew = {}
        for queue_id in queue_ids:
            with contextlib.suppress(Absent, Corrupt, OSError):
                opened = self._read(queue_id, sorter=sorter)
                sorted_anew[queue_id] = opened.entry(is_held=self._queued.is_held(queue_id))
        return sorted_anew

    def at_hand(self, queue_id: QueueId) -> Message | None:
        known = self._memory.whole(queue_id)
        return None if known is None else known.message(is_held=self._queued.is_held(queue_id))

    def load(self, queue_id: QueueId) -> Message:
        self._memory.forget(queue_id)
        opened = self._read(queue_id)
        loaded = opened.message(is_held=self._queued.is_held(queue_id))
        self._memory.remember(opened)
        return loaded

    def content(self, queue_id: QueueId) -> Generator[bytes, None, None]:
        found = self._record(queue_id)
        if found.kind in INLINE:
            opened = message.decode(queue_id, found.payload)
            yield opened.content or b""
            return
        path = self._layout.content(queue_id)
        try:
            with absence(queue_id):
                yield from files.stream(self._disk, path, queue_id)
        except Corrupt as fault:
            self._set_aside(queue_id, str(fault), b"", found.number)
            raise

    def note(self, noted: Mapping[QueueId, Sequence[Note]]) -> None:
        for queue_id, its in noted.items():
            if queue_id in self._queued.places:
                self._call(New(said.NOTES, queue_id, notes.encode(its)))

    def keep_replies(self, queue_id: QueueId, replies: Sequence[Note]) -> None:
        if queue_id in self._queued.places:
            self._call(New(said.NOTES, queue_id, notes.encode(notes.cut_short(replies))))

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
                self._call(New(said.MARKS, queue_id, said.encode_marks(new)))
                self._laid_over(known)
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
        self._call(New(said.WARNED, queue_id))
        self._laid_over(known)

    def owed_report(self, queue_id: QueueId) -> OwedReport | None:
        if self._queued.has_ended(queue_id):
            return None
        return self._known(queue_id).owed_report

    def mark_reported(self, queue_id: QueueId, told: Sequence[int]) -> None:
        known = self._known(queue_id)
        self._call(New(said.TOLD, queue_id, said.encode_told(told)))
        self._laid_over(known)

    def postpone(self, queue_id: QueueId, next_attempt_at_ns: int) -> None:
        # What waits for hours need not be in memory.
        self._memory.forget(queue_id)
        if queue_id in self._queued.places:
            self._call(New(said.POSTPONED, queue_id, said.encode_instant(next_attempt_at_ns)))

    def publish_report(self, queue_id: QueueId, envelope: Envelope, content: bytes) -> bool:
        if queue_id in self._queued.places or self._queued.has_ended(queue_id):
            return False
        header, tail = message.encode(
            queue_id, envelope, len(content), checksum(content), self._clock, eight_bit=not content.isascii()
        )
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
                self._call(New(kind, queue_id))
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
                new = content.adopted_record(each, self._disk, self._long)
            self._journal.publish(new)
            if (facts := said.adopted_facts(each)) is not None:
                self._journal.call(facts)
        if account is not None:
            for new in said.records_of(account, self._queued.account):
                self._journal.call(new)

    def clean_up(self) -> int:
        with faults("clean-up"):
            drafts, _ = content.unlocked(self._disk, self._layout, self._aside)
            removed = content.remove_drafts(self._disk, self._layout, drafts)
            self._aside.recount()
        self._unread, self._unread_for_now = self._unread + self._unread_for_now, []
        return removed

    def totals(self) -> Totals:
        return self._queued.totals

    def corrupt_count(self) -> int:
        left = len(self._unread) + len(self._unread_for_now) + len(self._not_aside)
        return self._aside.count + left + sum(segment.is_pinned for _, segment in self._segments)

    def set_aside_files(self, most: int) -> list[SetAside]:
        with faults("corrupt"):
            left = self._aside.left(most, ())
            return left + [files.listed(self._disk, path) for path in self._aside.paths(most - len(left))]

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

    def _call(self, new: New) -> None:
        self._said_of.add(QueueId(new.queue_id))
        self._journal.call(new)

    def _laid_over(self, opened: Opened) -> Opened:
        facts = self._queued.facts.get(opened.queue_id)
        return opened if facts is None else facts.laid_over(opened)

    def _known(self, queue_id: QueueId) -> Opened:
        if (known := self._memory.known(queue_id)) is not None:
            return known
        with faults("message"):
            return self._memory.remember(self._read(queue_id))

    def _read(self, queue_id: QueueId, *, sorter: Sorter | None = None) -> Opened:
        """Read a message as it is now.  Raises Absent, Unreadable, and Corrupt after setting it aside."""
        found = self._record(queue_id)
        try:
            return self._laid_over(self._messages.of(found, sorter=sorter))
        except Corrupt as fault:
            self._set_aside(queue_id, str(fault), found.payload, found.number)
            raise
        except Unreadable as error:
            self._aside.tell_once(queue_id, f"cannot be read, and is left: {error.strerror}")
            raise

    def _record(self, queue_id: QueueId) -> Record:
        if (place := self._queued.places.get(queue_id)) is None:
            raise Absent(queue_id)
        if place == UNPLACED:
            self.commit()
            place = self._queued.places[queue_id]
        handle = handle_of(place)
        try:
            raw = self._segments.pread(handle, length_of(place), offset_of(place))
        except OSError as error:
            if not is_not_now(error):
                raise
            self._aside.tell_once(queue_id, f"cannot be read, and is left: {error.strerror}")
            raise Unreadable(error.errno, error.strerror) from error
        try:
            return message.sound_record(raw, self._segments[handle].mark, queue_id, offset_of(place))
        except Corrupt as fault:
            recipients = message.recipients_of(raw, self._segments[handle].mark)
            self._set_aside(queue_id, str(fault), message.payload_of(raw, queue_id), recipients)
            raise

    def _set_aside(self, queue_id: QueueId, fault: str, payload: bytes, recipients: int) -> None:
        """Put what there is of a damaged message where people find it, and end it here."""
        try:
            if payload:
                self._aside.keep(queue_id, payload, fault)
            elif not self._aside.move(self._layout.content(queue_id), fault):
                return
        except OSError as error:
            self._aside.tell_once(queue_id, f"{fault}; cannot be set aside: {error.strerror}")
            self._not_aside.add(queue_id)
            return
        self._not_aside.discard(queue_id)
        self._memory.forget(queue_id)
        self._end_aside(queue_id, recipients)

    def _end_aside(self, queue_id: QueueId, recipients: int) -> None:
        statuses = list(self._queued.statuses(queue_id).values())
        left = max(0, recipients - len(statuses))
        self._journal.call(New(said.ASIDE, queue_id, said.encode_fates(fates_of(statuses)), left))

    def _end_suspects(self) -> None:
        """End messages whose damaged records were set aside, unless they ended before."""
        for queue_id, recipients in self._suspects.items():
            if queue_id in self._queued.places:
                self._end_aside(queue_id, recipients)
        self._suspects.clear()

    def _meet_damage(self, handle: int, damage: Damage) -> None:
        """Set aside what is no sound record, and is none that a crash leaves."""
        self._damages += 1
        segment = self._segments[handle]
        raw = self._segments.pread(handle, damage.end - damage.at, damage.at)
        name = f"{segment.name.stream}.{segment.name.number:010d}-{damage.at}"
        if damage.queue_id and damage.kind in INLINE:
            name = damage.queue_id
            raw = message.payload_of(raw, damage.queue_id)
            # What became of it says the sender's stream, which is read later.
            place = place_of(handle, damage.at, damage.end - damage.at)
            if self._queued.come(damage.queue_id, damage.number, place):
                self._suspects[damage.queue_id] = damage.number
        try:
            self._aside.keep(name, raw, f"{damage.end - damage.at} bytes of a segment are damaged")
        except OSError as error:
            # There is no other copy: the segment stays, and the next start does it.
            segment.is_pinned = True
            self._suspects.pop(QueueId(name), None)
            self._aside.tell_once(name, f"is damaged, and cannot be set aside: {error.strerror}")
