"""The maildir engine: one file a message, its folder is its state (table in `layout`).

For the one sender that holds the spool's lock, from one thread at a time.

Guarantees: a status byte, a note, a report, a hold is durable when its method returns.  The order is
notes, status bytes, report, its marks, ledger, removal: a crash between two leaves the earlier ones,
from which `recover` goes on.  Assumes: rename is one operation also across loss of power, as on POSIX
file systems with a log.  Does not: decide what becomes of a message, or build reports.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from relay.clock import Clock
from relay.mail.envelope import Envelope, QueueId
from relay.queue.sorting import Sorter
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_our_own_lack
from relay.spool.faults import faults
from relay.spool.identity import is_queue_id
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
    SpoolFull,
    Status,
    Totals,
    Unreadable,
)
from relay.spool.ledger import Fates, fates_of, plus
from relay.spool.maildir import notes_file, status_bytes
from relay.spool.maildir.adoption import adopt
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.into_queue import NewMail, Taker, Unread
from relay.spool.maildir.layout import READ_AGAIN, Layout, prepare
from relay.spool.maildir.ledger_file import LedgerFile
from relay.spool.maildir.recovery import FoundMessage, Walk, forget_removals, remove_abandoned_drafts
from relay.spool.message import files
from relay.spool.message.files import absence
from relay.spool.message.message_file import Opened
from relay.spool.message.recent import Recent
from relay.spool.root.headroom import gives_way
from relay.spool.root.lock import take_root

_Called = TypeVar("_Called")


class MaildirSpool:
    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        on_corrupt: Callable[[str, str], None] = lambda _n, _w: None,
    ) -> None:
        """Take the spool.  Raises SpoolBusy, OSError, and ValueError for one of another format.

        `on_corrupt` is told the name and the fault of each file that is set aside.
        """
        prepare(root, disk)
        self._layout = Layout(root)
        self._disk = disk
        self._lock_fd, self._aside, self._reserve = take_root(root, disk, on_corrupt)
        self._intake = MaildirIntake(root, disk, clock, headroom=False)
        self._ledger = LedgerFile(self._layout, disk)
        self._held: set[QueueId] = set()
        taker = Taker(disk, self._layout, self._aside, self._try_to_set_aside, disk.unlink)
        self._arrivals = NewMail(disk, self._layout, taker)
        self._left = Unread(disk, self._layout, self._aside, taker)
        self._out_of_sight: set[QueueId] = set()
        """Messages that cannot be read, or are in corrupt/, and count as queued in the account."""
        self._memory = Recent()
        self._walk: Walk | None = None
        """A start that is not at its end; one that was given up never is."""
        self._noted: set[str] = set()
        self._progress: dict[QueueId, Fates] = {}
        """Of messages of which some recipients are done."""
        self._queued_recipients = 0

    def commit(self) -> None:
        """Do nothing: each call made durable what it changed."""

    def recover(
        self, sorter: Sorter | None = None, on_step: Callable[[], None] = lambda: None
    ) -> Generator[list[Entry], None, Recovery]:
        walk = self._walk = Walk(self._disk, self._layout, self._ledger, self._aside, sorter, on_step=on_step)
        self._held.clear()
        self._progress.clear()
        self._out_of_sight.clear()
        self._queued_recipients = 0
        self._memory = Recent()
        walk.begin()
        self._noted = walk.noted
        is_first = True
        while (found := self._batch_of(walk, is_first=is_first)) is not None:
            is_first = False
            self._held.update(each.message.queue_id for each in found if each.is_held)
            for each in found:
                self._memory.keep(each.message)
                self._count_queued(each.message)
            yield [each.message.entry(is_held=each.is_held) for each in found]
        while (recovery := self._end_of(walk, is_first=is_first)) is None:
            yield []
        self._queued_recipients += recovery.corrupt_recipients
        out_of_sight = self._ledger.aside.union(self._aside.stuck) & self._ledger.open.keys()
        self._out_of_sight |= out_of_sight & walk.absent
        self._walk = None
        return recovery

    def unread_count(self) -> int:
        return 0 if self._walk is None else self._walk.ahead

    @gives_way
    def take(self, most: int, sorter: Sorter | None = None) -> list[Entry]:
        """Take fewer when we lack descriptors or memory: the rest is still there the next time."""
        self._reserve.keep()
        with faults("new"):
            ended = self._ledger.closed
            taken = self._arrivals.take(most, lambda: self._memory.has_room, ended, sorter)
            left = self._left.take(most - len(taken), ended, sorter)
        self._held.update(message.queue_id for message, is_held in left if is_held)
        taken += [message for message, _ in left]
        self._come_into_sight(taken)
        if self._walk is not None:
            self._walk.met(message.queue_id for message in taken)
        self._ledger.reopen([message.queue_id for message in taken if Status.TODO in message.statuses])
        # What is taken is in the queue, whether or not there is room to count it: `finish` counts again.
        with contextlib.suppress(SpoolFull), faults("ledger"):
            self._ledger.enter([(message.queue_id, len(message.statuses)) for message in taken])
        for message in taken:
            self._memory.keep(message)
            self._count_queued(message)
        return [message.entry(is_held=message.queue_id in self._held) for message in taken]

    def sort(self, queue_ids: Sequence[QueueId], sorter: Sorter) -> dict[QueueId, Entry]:
        sorted_anew = {}
        for queue_id in queue_ids:
            with contextlib.suppress(Corrupt, OSError):
                path = self._path(queue_id)
                opened_file = files.read(self._disk, path, queue_id, with_content=False, sorter=sorter)
                sorted_anew[queue_id] = opened_file.entry(is_held=queue_id in self._held)
        return sorted_anew

    def load(self, queue_id: QueueId) -> Message:
        if self._memory.whole(queue_id) is not None:
            # Who does not take what is at hand wants what is on the disk.
            self._memory.forget(queue_id)
        known = self._read_again(queue_id)
        message = known.message(is_held=queue_id in self._held)
        self._memory.remember(known)
        return message

    def at_hand(self, queue_id: QueueId) -> Message | None:
        known = self._memory.whole(queue_id)
        return None if known is None else known.message(is_held=queue_id in self._held)

    def content(self, queue_id: QueueId, *, is_checked: bool = True) -> Generator[bytes, None, None]:
        path = self._path(queue_id)
        try:
            with absence(queue_id):
                yield from files.stream(self._disk, path, queue_id, is_checked=is_checked)
        except Corrupt as fault:
            self._try_to_set_aside(path, str(fault))
            raise

    @gives_way
    def note(self, noted: Mapping[QueueId, Sequence[Note]]) -> None:
        self._noted.update(noted)
        with faults("bounce"):
            notes_file.append(self._disk, self._layout, self._not_ended(noted))

    def keep_replies(self, queue_id: QueueId, replies: Sequence[Note]) -> None:
        with contextlib.suppress(Absent, Corrupt, OSError):
            recipients = len(self._known(queue_id).statuses)
            self._noted.add(queue_id)
            notes_file.keep(self._disk, self._layout, queue_id, replies, recipients)

    def notes(self, queue_id: QueueId) -> list[Note]:
        with faults("bounce"):
            return notes_file.read(self._disk, self._layout, queue_id)

    @gives_way
    def mark(self, marks: Mapping[QueueId, Mapping[int, Status]]) -> None:
        fds: list[int] = []
        lost: Absent | Corrupt | None = None
        try:
            with faults("status bytes"):
                for queue_id, of_message in self._not_ended(marks).items():
                    try:
                        known = self._known(queue_id)
                        with self._faults_of(queue_id) as path:
                            fds.append(self._disk.open_update(path))
                            status_bytes.verify_marks(self._disk, fds[-1], known, of_message)
                    except (Absent, Corrupt) as loss:
                        self._memory.forget(queue_id)
                        lost = loss
                        continue
                    self._count(queue_id, status_bytes.write_marks(self._disk, fds[-1], known, of_message))
                # Crash here: some marks are durable, some are not; each that is not repeats its recipient.
                for error in self._disk.sync_each(fds, content_only=True):
                    if error is not None:
                        raise error
        finally:
            for fd in fds:
                self._disk.close(fd)
        if lost is not None:
            raise lost

    @gives_way
    def mark_warned(self, queue_id: QueueId) -> None:
        with faults("status bytes"):
            known = self._known(queue_id)
            with self._faults_of(queue_id) as path, opened(self._disk, self._disk.open_update(path)) as fd:
                status_bytes.write_warned(self._disk, fd, known)
                self._disk.sync_content(fd)

    def owed_report(self, queue_id: QueueId) -> OwedReport | None:
        if queue_id in self._ledger.closed:
            return None
        with faults("status bytes"):
            return self._known(queue_id).owed_report

    @gives_way
    def mark_reported(self, queue_id: QueueId, told: Sequence[int]) -> None:
        with faults("status bytes"):
            known = self._known(queue_id)
            with self._faults_of(queue_id) as path, opened(self._disk, self._disk.open_update(path)) as fd:
                status_bytes.mark_reported(self._disk, fd, known, told)

    def postpone(self, queue_id: QueueId, next_attempt_at_ns: int) -> None:
        # A file may change while it waits for hours: it is read whole again then.
        self._memory.forget(queue_id)
        with (
            contextlib.suppress(OSError),
            opened(self._disk, self._disk.open_update(self._path(queue_id))) as fd,
        ):
            self._disk.set_modified_at_ns(fd, next_attempt_at_ns)

    @gives_way
    def publish_report(self, queue_id: QueueId, envelope: Envelope, content: bytes) -> bool:
        if queue_id in self._ledger.closed:
            # Relayed already, while there was no room to end the message that it is about.
            return False
        with faults("report"):
            return self._intake.publish_once(queue_id, envelope, content)

    def make_room(self) -> bool:
        return self._reserve.spend()

    @gives_way
    def finish(self, queue_ids: Sequence[QueueId]) -> None:
        known = {}
        for queue_id in queue_ids:
            # Absent: this is the second call, after there was no room in the first.
            with contextlib.suppress(Absent, Corrupt):
                known[queue_id] = self._known(queue_id)
        for queue_id, message in known.items():
            if Status.TODO in message.statuses:
                raise AssertionError(f"{queue_id} is to be removed with recipients to do")
        with faults("ledger"):
            self._ledger.enter([(queue_id, len(message.statuses)) for queue_id, message in known.items()])
            self._ledger.leave({queue_id: message.statuses for queue_id, message in known.items()})
        with faults("removal"):
            paths = {queue_id: self._path(queue_id) for queue_id in known}
            reported = [q for q, message in known.items() if any(s.is_reported for s in message.statuses)]
            _remove_ended(self._disk, self._layout, paths, reported, self._noted)
        for queue_id in queue_ids:
            self._held.discard(queue_id)
            self._memory.forget(queue_id)
            self._progress.pop(queue_id, None)
            self._noted.discard(queue_id)
        if self._ledger.is_long and self._walk is None:
            # Not before all is read: what it forgot could not be told from what was never there.
            # Where there is no room for a short ledger, the long one goes on.
            with contextlib.suppress(SpoolFull), faults("ledger"):
                forget_removals(self._disk, self._layout, self._ledger, self._aside)

    @gives_way
    def hold(self, *queue_ids: QueueId) -> None:
        self._move([(q, self._layout.queued(q), self._layout.held(q)) for q in queue_ids])

    @gives_way
    def release(self, *queue_ids: QueueId) -> None:
        self._move([(q, self._layout.held(q), self._layout.queued(q)) for q in queue_ids])

    def is_held(self, queue_id: QueueId) -> bool:
        return queue_id in self._held

    def account(self) -> LedgerAccount:
        return self._ledger.account

    @gives_way
    def adopt(self, adopted: Sequence[Adopted], account: LedgerAccount | None = None) -> None:
        with faults("adopted messages"):
            new = set(adopt(self._disk, self._layout, adopted))
        messages = [each.message for each in adopted if each.message.queue_id in new]
        with faults("ledger"):
            self._ledger.enter([(message.queue_id, len(message.statuses)) for message in messages])
            if account is not None:
                self._ledger.go_on_with(account)
                self._queued_recipients += sum(account.aside.values())
                self._out_of_sight.update(account.aside)
        for message in messages:
            self._held.update([message.queue_id] if message.is_held else [])
            self._progress[message.queue_id] = fates_of(message.statuses)
            self._queued_recipients += message.statuses.count(Status.TODO)
        self._noted.update(each.message.queue_id for each in adopted if each.notes)

    def clean_up(self) -> int:
        with faults("clean-up"):
            removed = remove_abandoned_drafts(self._disk, self._layout, self._aside)
            self._aside.recount()
            self._left.look_again()
            return removed

    def totals(self) -> Totals:
        ended = self._ledger.totals
        before = (ended.relayed, ended.bounced, ended.expired, ended.deleted)
        relayed, bounced, expired, deleted = map(sum, zip(before, *self._progress.values(), strict=True))
        queued = self._queued_recipients
        if self._walk is not None:
            queued = ended.accepted - relayed - bounced - expired - deleted
        return Totals(ended.accepted, relayed, bounced, expired, deleted, queued)

    def corrupt_count(self) -> int:
        return self._aside.count

    def set_aside_files(self, most: int) -> list[SetAside]:
        with faults("corrupt"):
            return files.set_aside_files(self._disk, self._aside, most, READ_AGAIN)

    def accepted_count(self) -> int:
        with faults("new"):
            return sum(map(is_queue_id, self._disk.names(self._layout.folder("new"))))

    def free(self) -> tuple[int, int | None]:
        return self._intake.free()

    def close(self) -> None:
        self._ledger.close()
        self._disk.close(self._lock_fd)

    def _not_ended(self, called_for: Mapping[QueueId, _Called]) -> dict[QueueId, _Called]:
        """Leave out what was counted out: this is the second call, after `finish` met a full disk."""
        return {q: called for q, called in called_for.items() if q not in self._ledger.closed}

    @staticmethod
    def _batch_of(walk: Walk, *, is_first: bool) -> list[FoundMessage] | None:
        try:
            # The first ones whole: relaying begins, however long the disk takes for the others.
            return walk.batch(with_content=is_first)
        except OSError as error:
            if is_first or not is_our_own_lack(error):
                raise
            return []

    @staticmethod
    def _end_of(walk: Walk, *, is_first: bool) -> Recovery | None:
        try:
            return walk.end()
        except OSError as error:
            if is_first or not is_our_own_lack(error):
                raise
            return None

    def _count_queued(self, message: Opened) -> None:
        self._progress.pop(message.queue_id, None)
        if any(fates := fates_of(message.statuses)):
            self._progress[message.queue_id] = fates
        self._queued_recipients += message.statuses.count(Status.TODO)

    def _come_into_sight(self, taken: Sequence[Opened]) -> None:
        for queue_id in self._out_of_sight.intersection(message.queue_id for message in taken):
            self._out_of_sight.remove(queue_id)
            got = sum(self._progress.pop(queue_id, ()))
            self._queued_recipients -= self._ledger.open.get(queue_id, got) - got

    def _path(self, queue_id: QueueId) -> str:
        return self._layout.held(queue_id) if queue_id in self._held else self._layout.queued(queue_id)

    def _read(self, queue_id: QueueId, *, with_content: bool) -> Opened:
        with self._faults_of(queue_id) as path:
            return files.read(self._disk, path, queue_id, with_content=with_content)

    def _read_again(self, queue_id: QueueId) -> Opened:
        if (known := self._memory.known(queue_id)) is None:
            return self._read(queue_id, with_content=True)
        with self._faults_of(queue_id) as path:
            files.read_again(self._disk, path, known)
        return known

    @contextlib.contextmanager
    def _faults_of(self, queue_id: QueueId) -> Iterator[str]:
        path = self._path(queue_id)
        try:
            with absence(queue_id):
                yield path
        except Corrupt as fault:
            self._try_to_set_aside(path, str(fault))
            raise
        except Unreadable as error:
            self._aside.tell_unread(queue_id, error)
            raise

    def _known(self, queue_id: QueueId) -> Opened:
        known = self._memory.known(queue_id)
        return known or self._memory.remember(self._read(queue_id, with_content=False))

    def _count(self, queue_id: QueueId, fates: Iterable[Status]) -> None:
        """Add to the account what became of recipients, one by one: any write may be the last."""
        for fate in fates:
            one = fates_of([fate])
            before = self._progress.get(queue_id)
            self._progress[queue_id] = one if before is None else plus(before, one)
            self._queued_recipients -= 1

    def _move(self, moves: Sequence[tuple[QueueId, str, str]]) -> None:
        lost: Absent | None = None
        left: set[str] = set()
        entered: set[str] = set()
        with faults("hold"):
            for queue_id, source, target in moves:
                try:
                    # Where it is there already, this is the second call, after a sync without room.
                    if self._disk.inode(target) is None:
                        with absence(queue_id):
                            self._disk.rename(source, target)
                except Absent as absent:
                    lost = absent
                    continue
                # Where the file is counts from now on, whatever becomes of the syncs.
                (self._held.add if target == self._layout.held(queue_id) else self._held.discard)(queue_id)
                entered.add(target.rpartition("/")[0])
                left.add(source.rpartition("/")[0])
            # Crash here: some are held, some are not; nobody was told yet.
            # The new names first: where a rename is one operation, the second sync would do, see above;
            # where some file system lets go of the old name alone, only this order loses nothing.
            for folder in (*sorted(entered), *sorted(left)):
                self._disk.sync_directory(folder)
        if lost is not None:
            raise lost

    def _try_to_set_aside(self, path: str, fault: str) -> None:
        queue_id = QueueId(path.rpartition("/")[2])
        if queue_id in self._ledger.open:
            self._out_of_sight.add(queue_id)
        try:
            if not self._aside.move(path, fault):
                return
        except OSError as error:
            self._aside.leave(path, f"cannot be set aside: {error.strerror}", fault)
            return
        with contextlib.suppress(OSError):
            # For the account only; the next start sees it there, if nobody removed it meanwhile.
            self._ledger.put_aside(queue_id)


def _remove_ended(
    disk: Disk,
    layout: Layout,
    paths: Mapping[QueueId, str],
    reported: Collection[QueueId],
    noted: Collection[str],
) -> None:
    """Remove messages, durably those that were `reported`, and the notes of those that are `noted`.

    Raises OSError; what is gone already is no error.
    """
    for path in paths.values():
        # Crash here: counted and all done; the next start removes it, and counts it no more.
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)
    for folder in {paths[queue_id].rpartition("/")[0] for queue_id in reported}:
        # Its report may be relayed from now on: the message must not come back and report again.
        disk.sync_directory(folder)
    for queue_id in [queue_id for queue_id in paths if queue_id in noted]:
        # Also of one that was relayed in the end: its note may be of an attempt before a crash.
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(layout.notes(queue_id))
