"""Starting is recovering: what a maildir holds after any crash, made whole again, some files at a time.

Guarantees: whatever files a crash left, nothing acknowledged is dropped and nothing is sent twice
that was durably marked.  Running it twice, or being killed in the middle, changes nothing of this.
What a batch returns is durable: a killed sender leaves names and status bytes that every process sees and
the disk does not have.  No queue content stops it.  Raises OSError when the disk cannot be read: an
unreadable folder is never taken for an empty one.
Between two batches everything may be done with the messages of earlier ones, and new mail be taken.
Assumes: the caller ends the messages with nothing left to do, as soon as there is room for that; and
calls `met` with each message that comes into the queue by another way meanwhile.

The names of all files are read first, which is cheap; then the files, by id, which is by age.  What must
be done before anything is sent is done before the first batch (`begin`), or, where it is about one
message alone, before the batch with that message (`batch`); each place says why.  What compares the
ledger with the whole disk comes last (`end`).
"""

import contextlib
import enum
import heapq
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.queue.sorting import Sorter
from relay.spool.disk.durable import Disk
from relay.spool.disk.os_errors import is_our_own_lack
from relay.spool.identity import is_queue_id
from relay.spool.interface import Recovery, Status
from relay.spool.maildir import crash_remains, status_bytes
from relay.spool.maildir.into_queue import Taker
from relay.spool.maildir.layout import Layout
from relay.spool.maildir.ledger_file import LedgerFile
from relay.spool.message import arriving
from relay.spool.message.message_file import Opened
from relay.spool.root import foreign, quarantine
from relay.spool.root.foreign import NOT_OUR_NAME

BATCH = 128
"""Files that are read between two other calls of the spool: some 15 ms where they are in the page cache."""
_MARKED_AT_ONCE = 64


class FoundMessage(NamedTuple):
    message: Opened
    is_held: bool


class Walk:
    """One start: `begin`, `batch` until it returns None, `end`."""

    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        ledger: LedgerFile,
        aside: quarantine.Quarantine,
        sorter: Sorter | None = None,
        *,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_step` is called for each file."""
        self._disk = disk
        self._layout = layout
        self._ledger = ledger
        self._aside = aside
        self._sorter = sorter
        self._on_step = on_step
        self._taker = Taker(disk, layout, aside, aside.move, self._remove)
        self.noted: set[str] = set()
        """Messages that have notes, as of the beginning."""
        self.absent: set[str] = set()
        """Ids that the ledger or notes tell of, and of which no message came into the queue so far."""
        self.ahead = 0
        """How many names are yet to be looked at."""
        self._ahead: Iterator[_Ahead] = iter(())
        self._next: _Ahead | None = None
        """What is yet to be looked at, by id."""
        self._found: list[FoundMessage] = []
        """What was read and not returned yet."""
        self._newest = ""
        """The last that came into the queue by this walk: a second name that failed is looked at again."""
        self._new: set[str] = set()
        """What was in new/ at the beginning, and is not in the queue yet."""
        self._met: set[str] = set()
        """Messages that came into the queue by another way."""
        self._removed_from: set[str] = set()
        self._abandoned = self._taken = self._held = self._resumed = self._finished = 0
        self._is_all_entered = True
        """Every message is counted in: the ledger may be written anew."""

    def begin(self) -> None:
        """Read the names of all files, and do what must come before any message is sent."""
        aside = self._aside
        aside.stuck.clear()
        # First: it makes what is in new/ durable, and a draft's lock tells of a listener that lives.
        self._abandoned = remove_abandoned_drafts(self._disk, self._layout, aside, self._on_step)
        # What stands where our own files belong would stop the first settlement.
        quarantine.clear_the_way(self._disk, self._layout.root, aside, crash_remains.NEEDED)
        # The whole ledger: what was counted out must not be queued again, and of a report that was relayed
        # it alone says that it was published.
        self._ledger.read()
        # A killed sender may have left lines in memory only: what a batch removes because of them would be
        # missed after a loss of power.
        self._ledger.go_on()
        # Who held or released a message may have been killed before that was durable, and now it is seen.
        self._disk.sync_directory(self._layout.folder("hold"))
        self._list()

    def batch(self, *, with_content: bool = False) -> list[FoundMessage] | None:
        """Read the next files; None when there are no more.

        What it returns is whole: in its home, its marks durable, those set that the existence of a report
        implies, its notes ours.  Each is about one message, so it need not come before the messages ahead.
        """
        try:
            while self._next is not None and len(self._found) < BATCH:
                self._look_at(self._next[0], with_content=with_content)
        except OSError as error:
            # What was read is in the queue; where that is nothing, there is nothing to tell.
            if not (self._found and is_our_own_lack(error)):
                raise
        if not (found := self._found):
            return None
        marked = [(self._home(each), each.message) for each in found if _has_marks(each)]
        for start in range(0, len(marked), _MARKED_AT_ONCE):
            status_bytes.write_marks_again(self._disk, marked[start : start + _MARKED_AT_ONCE])
        queue_ids = [each.message.queue_id for each in found]
        self._ledger.reopen(queue_ids)
        try:
            self._ledger.enter([(each.message.queue_id, len(each.message.statuses)) for each in found])
        except OSError as error:
            # Who ends a message counts it in again.
            if not is_our_own_lack(error):
                raise
            self._is_all_entered = False
        # Not before here: what failed above for lack of descriptors is done again by the next call.
        self._found = []
        return found

    def met(self, queue_ids: Iterable[QueueId]) -> None:
        """Hear of messages that came into the queue by another way: they are not to be found again."""
        for queue_id in queue_ids:
            self._met.add(queue_id)
            self._taken += queue_id in self._new
            self._is_in_the_queue(queue_id)

    def end(self) -> Recovery:
        """Compare the ledger with what was found, write it anew, and say what there was.

        Raises OSError; where that is for lack of descriptors or memory it may be called again.
        """
        disk, layout, ledger, aside = self._disk, self._layout, self._ledger, self._aside
        accepted = {QueueId(name) for name in disk.names(layout.folder("new"))} - aside.stuck.keys()
        in_corrupt = {quarantine.subject_name(name) for name in aside.recount()}
        set_aside = in_corrupt | aside.stuck.keys()
        # Seen in corrupt/ by the last start and gone since: somebody decided about it, by hand.
        removed = ledger.forget((ledger.aside & self.absent) - accepted - set_aside)
        # A message that came into the queue and ended since then is not open, nor is it absent.
        elsewhere = {QueueId(name) for name in self.absent if name in ledger.open} - accepted
        missing = sum(ledger.open[queue_id] for queue_id in elsewhere - set_aside)
        # Not what is stuck: nobody decides about it, and if it is gone the next time it is missed.
        ledger.aside = (ledger.aside - self.absent) | (elsewhere & in_corrupt)
        self._shorten_ledger()
        for name in (self.noted & self.absent) - accepted - set_aside:
            self._on_step()
            self._remove_orphaned_notes(layout.notes(QueueId(name)))
        return Recovery(
            aside.count,
            self._abandoned,
            missing,
            sum(ledger.open[queue_id] for queue_id in elsewhere & set_aside),
            accepted=self._taken + len(self._new & accepted),
            held=self._held,
            resumed=self._resumed,
            finished=self._finished,
            set_aside=aside.moved,
            removed_recipients=removed,
            damaged_lines=ledger.damaged_lines,
        )

    def _list(self) -> None:
        disk, layout = self._disk, self._layout
        # What a million names leave in between goes to nobody else: each is in memory once, as the ledger's.
        known: dict[str, str] = {queue_id: queue_id for queue_id in self._ledger.open}

        def names_in(folder: str) -> list[str]:
            return [known.get(name, name) for name in disk.names(folder)]

        lists = [_Names(FoundIn.HELD, layout.folder("hold"), names_in(layout.folder("hold")))]
        for folder in layout.queued_folders():
            names = names_in(folder)
            home = [n for n in names if is_queue_id(n) and layout.queued_folder(QueueId(n)) == folder]
            lists.append(_Names(FoundIn.HOME, folder, home))
            if len(home) < len(names):
                lists.append(_Names(FoundIn.ELSEWHERE, folder, list(set(names).difference(home))))
            self._on_step()
        new = disk.names(layout.folder("new"))
        self._new.update(filter(is_queue_id, new))
        for name in disk.names(layout.folder("bounce")):
            if is_queue_id(name):
                self.noted.add(name)
            else:
                self._aside.move(layout.notes(QueueId(name)), NOT_OUR_NAME, "bounce-")
        self.absent = self.noted.union(self._ledger.open)
        doubled: set[str] = set()
        for each in lists:
            doubled |= self._new.intersection(each.names)
            self.absent.difference_update(each.names)
        self.absent -= self._new
        lists.append(_Names(FoundIn.NEW, layout.folder("new"), new))
        self.ahead = sum(len(each.names) for each in lists)
        for name in self.absent & self.noted:
            self._clear_notes(name)
        # Before new mail is taken: which of two files of one id is the message must not depend on whether
        # the other one was read by then.
        first = sorted(ahead for each in lists if doubled for ahead in each.of(doubled))
        self._ahead = chain(first, heapq.merge(*(each.in_order(doubled) for each in lists)))
        self._next = next(self._ahead, None)

    def _look_at(self, name: str, *, with_content: bool) -> None:
        """Look at every place of one name, the held one first: what an operator stopped stays stopped."""
        if name in self.noted:
            # Before anything is noted: others' lines must not become the reasons of a report.
            self._clear_notes(name)
        while self._next is not None and self._next[0] == name:
            _, place, path = self._next
            self._on_step()
            if name not in self._met:
                seen = self._taker.take(
                    path, self._ledger.closed, with_content=with_content, sorter=self._sorter
                )
                if seen.queued is not None:
                    seen.queued.queue_id = QueueId(name)  # the same text, in memory once
                    self._taken += place is FoundIn.NEW
                    self._enter(FoundMessage(seen.queued, place is FoundIn.HELD))
            self._next = next(self._ahead, None)
            self.ahead -= 1
        if is_queue_id(name) and name not in self._met and name != self._newest:
            self.absent.add(name)

    def _enter(self, each: FoundMessage) -> None:
        statuses = each.message.statuses
        left = statuses.count(Status.TODO)
        self._held += each.is_held
        self._resumed += 0 < left < len(statuses)
        self._finished += left == 0
        self._newest = each.message.queue_id
        self._is_in_the_queue(each.message.queue_id)
        self._found.append(each)

    def _is_in_the_queue(self, queue_id: QueueId) -> None:
        self.absent.discard(queue_id)
        self._new.discard(queue_id)
        self._ledger.aside.discard(queue_id)

    def _home(self, found: FoundMessage) -> str:
        queue_id = found.message.queue_id
        return self._layout.held(queue_id) if found.is_held else self._layout.queued(queue_id)

    def _remove(self, path: str) -> None:
        self._disk.unlink(path)
        self._removed_from.add(path.rpartition("/")[0])

    def _clear_notes(self, name: str) -> None:
        path = self._layout.notes(QueueId(name))
        try:
            why = foreign.why_not_ours(self._disk, path, crash_remains.is_notes, self._disk.open_update)
        except OSError as error:
            self._aside.move_unusable(path, error, "bounce-")
            return
        if why is not None:
            # Its name must not be taken for that of a message that is set aside.
            self._aside.move(path, why, "bounce-")

    def _shorten_ledger(self) -> None:
        """Write a short ledger; on a full disk go on with the long one."""
        if not self._is_all_entered:
            return
        try:
            if self._ledger.closed:
                # A message that was counted out must not come back when the new ledger has forgotten it.
                homes = {self._layout.queued_folder(queue_id) for queue_id in self._ledger.closed}
                _sync_all(self._disk, self._layout, homes | self._removed_from, self._on_step)
            self._ledger.rewrite(still_there=_unread(self._ledger, self._aside))
        except OSError as error:
            if not is_our_own_lack(error):
                raise

    def _remove_orphaned_notes(self, path: str) -> None:
        """Remove notes whose message is gone; others' files go to corrupt/."""
        with contextlib.suppress(OSError):
            why = foreign.why_not_ours(self._disk, path, crash_remains.is_notes_only, self._disk.open_read)
            if why is None:
                self._disk.unlink(path)
            else:
                self._aside.move(path, f"among notes: {why}", "bounce-")


class FoundIn(enum.IntEnum):
    """Where a file is: of two files of one id the first one goes before the other."""

    HELD = enum.auto()
    HOME = enum.auto()
    ELSEWHERE = enum.auto()
    """In cur/, where it does not belong."""
    NEW = enum.auto()


_Ahead = tuple[str, FoundIn, str]
"""A name, its place, and its path."""


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of one folder.  Never all in one list, whose sorting would keep other threads waiting."""

    place: FoundIn
    folder: str
    names: list[str]

    def of(self, names: Container[str]) -> Iterator[_Ahead]:
        return ((name, self.place, f"{self.folder}/{name}") for name in self.names if name in names)

    def in_order(self, but: Container[str]) -> Iterator[_Ahead]:
        """Yield by name, and let go of each: a million are in memory only while they are ahead."""
        self.names.sort(reverse=True)
        while self.names:
            if (name := self.names.pop()) not in but:
                yield name, self.place, f"{self.folder}/{name}"


def _has_marks(found: FoundMessage) -> bool:
    return found.message.statuses.count(Status.TODO) < len(found.message.statuses)


def forget_removals(disk: Disk, layout: Layout, ledger: LedgerFile, aside: quarantine.Quarantine) -> None:
    """Rewrite the ledger while the queue is in use.  Raises OSError."""
    _sync_all(disk, layout, set(layout.queued_folders()))
    ledger.rewrite(still_there=_unread(ledger, aside))


def _unread(ledger: LedgerFile, aside: quarantine.Quarantine) -> set[QueueId]:
    """Return what was counted out and cannot be read now: it may be there, and must not count twice."""
    return ledger.closed & aside.stuck.keys()


def remove_abandoned_drafts(
    disk: Disk, layout: Layout, aside: quarantine.Quarantine, on_step: Callable[[], None] = lambda: None
) -> int:
    """Remove drafts whose writer is dead; return how many.  Also run now and then."""
    # One that was published has this name too, the sign that its other name may not be durable yet.
    disk.sync_directory(layout.folder("new"))
    removed, folder = 0, layout.folder("tmp")
    for name in arriving.unlocked(disk, folder, aside, _draft_of, on_step):
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(f"{folder}/{name}")
            removed += 1
    return removed


def _draft_of(name: str) -> QueueId | None:
    return QueueId(name) if is_queue_id(name) else None


def _sync_all(
    disk: Disk, layout: Layout, queued_folders: set[str], on_step: Callable[[], None] = lambda: None
) -> None:
    for folder in (layout.folder("new"), layout.folder("hold"), *sorted(queued_folders)):
        disk.sync_directory(folder)
        on_step()
