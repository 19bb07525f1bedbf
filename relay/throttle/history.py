"""The history: one file for each account at an upstream, shared by every process that sends through it.

Guarantees: what `append` was given is durable when it returns.  `locked` is the one critical
section: in it the slots know everything that any process has recorded, and no other process
decides.  It holds flock on `PATH.lock`, which dies with its holder, and waits for nothing but the
disk.  `history_states` says what a look may find, and what becomes of it; every start is a recovery.
Reservations without an end stay occupied until their deadline + T, since their process may have died.

Names.  A process keeps the lock open as long as it uses the history.  In each critical section,
before it decides and after it wrote, it checks that both names still stand for the files it has.
A lock that was removed or replaced excludes no other process, so nothing is sent until the names
are put back, or the owner begins anew.  A process that finds the name of the lock gone leaves a
lock there with the high-water mark, so that a restart does not take the account for a new one.
Not noticed: both files removed and another relay started before the running one decides again.

Content.  Somebody may cut, overwrite, remove or put back the file while it is in use.  Before a
process adds to it, the end of what it knows must still stand there.  Otherwise, if its lock names no
group that the process does not know, memory is written to a new file; else nothing is sent.  A process
that knows less, or starts, finds a last group older than the lock says.  So no group is ever added to
a file that lacks one of those before it.  Not noticed: a file that is put back along with its lock, or
where that is damaged too or says less after a loss of power; another account's newer history, renamed
over it; what is done between a look and the write behind it.

Durability.  Another process may have died between its append and its sync, so its groups may be
in the page cache only.  After a failed sync of another process, the kernel takes those pages for clean.
Therefore, before the first append behind bytes that are not ours, those bytes are written again
and synced; so is the name of a file that we did not make, and at the start the names of the
folders.  Otherwise a power cut could leave our group whole behind a torn one, or lose the name.
After a failed sync of ours the group is cut off, memory is dropped, and the next append writes a
new file.

Time.  All instants are boottime of one boot, so a step of the wall clock never matters.  After a
reboot all instants move by one shift.  The last group says when it was written by both clocks:
since then as much time has passed as the wall clock is ahead of that group's mark, and none if it
is behind.  Ages up to that group are exact, and the rest can only be too small.  Reservations
without an end move along and keep their deadline: the upstream may still be counting what it read
before the power went.  More than LONGEST_BELIEVED_NS counts as none: a clock that starts in 2038
costs a wait, as one that starts in 1970 does.  Not noticed: a wall clock that is further ahead of
the truth after the reboot than ever before it, by less than that.

A file above `HistoryBounds.compact_above_bytes` and twice its worth is written anew.  `PATH.new` is a
rewrite that died, and the next rewrite removes it; a file of others there is renamed, never removed.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from relay.clock import SECOND_NS, Clock
from relay.spool.disk.durable import SECTOR_BYTES, Disk, opened, sync_above, why_a_strangers, write_with_room
from relay.spool.disk.replacing import InDoubt, put_in_place
from relay.throttle.bounds import HistoryBounds
from relay.throttle.history_format import (
    MARK_BYTES,
    ROOM,
    At,
    ClockReading,
    HistoryError,
    Record,
    group,
    header,
    is_begun,
    mark_line,
    read_mark,
    shifted,
)
from relay.throttle.history_states import (
    TABLE,
    Event,
    Examination,
    HistoryEffect,
    Known,
    Looker,
    Observation,
    disk_refusal,
    examine,
    missing,
    of_the_future,
    oversized,
    refusal,
)
from relay.throttle.slots import Slots

LONGEST_BELIEVED_NS = 30 * 86_400 * SECOND_NS
"""How long a host may have been off by its wall clock; longer is rather a clock without a battery."""


def shift_to_this_boot(last: At, now_ns: int, wall_ns: int) -> int:
    """Return by how much the instants of another boot move, whose last group is `last`."""
    passed_ns = max(0, wall_ns - last.mark_ns)
    return now_ns - (0 if passed_ns > LONGEST_BELIEVED_NS else passed_ns) - last.boottime_ns


def in_this_boot(examination: Examination, now_ns: int, wall_ns: int) -> list[Record]:
    """Return what another boot recorded, in the time of this one.

    Where the wall clock does not explain how long this host was off, what it says of that boot is not
    relied on: a calendar's period may have ended meanwhile, or not.
    """
    last = examination.last
    shift_ns = shift_to_this_boot(last, now_ns, wall_ns)
    records = [shifted(record, shift_ns) for record in examination.records]
    if not 0 <= wall_ns - last.mark_ns <= LONGEST_BELIEVED_NS:
        since_ns = last.boottime_ns + shift_ns
        records.append(ClockReading(since_ns, now_ns, last.wall_ns - since_ns, None))
    return records


def is_left_of_a_rewrite(disk: Disk, path: str) -> bool:
    """Return False for a file that cannot be read: it may be anybody's.  Never raises OSError."""
    try:
        with opened(disk, disk.open_read(path)) as fd:
            return is_begun(disk.pread(fd, SECTOR_BYTES, 0))
    except OSError:
        return False


class History:
    """One thread at a time."""

    def __init__(self, path: Path, disk: Disk, clock: Clock, slots: Slots, bounds: HistoryBounds) -> None:
        self._path = str(path)
        self._folder = str(path.parent)
        self._lock_path = f"{path}.lock"
        self._disk = disk
        self._clock = clock
        self._slots = slots
        self._bounds = bounds
        self._known = Known.UNREAD
        self._fd: int | None = None
        self._inode: int | None = None
        self._offset = 0
        """How much of the file is known; always the end of a group."""
        self._tail = b""
        """What stands before that: a sector, or all if that is less."""
        self._at: At | None = None
        self._lock_fd = -1
        self._kept_lock: int | None = None
        """Open for as long as the history is in use."""
        self._own_mark_ns: int | None = None
        """Of the last group that this process ever knew."""
        self._lock_mark_ns: int | None = None
        """The mark of a durable group, by the lock."""
        self._has_used_it = False
        """The file has been in this boot's time before."""
        self._compacts_above_bytes = 0
        """Where there was no room for a shorter file, it is tried again only when this one is longer."""
        self.is_doubtful = False
        """The last append failed.  Nothing may be sent before one succeeds, even if the file can be read."""
        self._others = b""
        """What another process wrote of the known bytes, up to `_offset`: it need not be durable yet."""
        self._is_content_unsynced = False
        """Another process wrote or cut something: sync it before appending."""
        self._is_name_unsynced = False
        """Another process made the file: sync its name before appending."""
        self._is_folder_unsynced = True

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock; the slots know all that is recorded.  Yields the present instant.

        Raises HistoryError; then nothing may be sent.
        """
        with self._failing_closed("lock"):
            if self._kept_lock is None:
                self._make_folder()
            else:
                self._refuse_another_lock()
            lock_fd = self._disk.lock(self._lock_path, wait=True)
        if lock_fd is None:
            raise HistoryError(f"{self._lock_path}: taken")
        try:
            with self._failing_closed("lock"):
                self._keep_lock(lock_fd)
            # The clock is read under the lock, so that instants ascend in the file.
            now_ns = self._clock.boottime_ns()
            self._slots.time_is(now_ns, self._clock.wall_ns())
            with self._failing_closed("read or recover"):
                self._read_lock(lock_fd)
                self._look(now_ns)
            if self._at is not None and (found := of_the_future(self._at, now_ns)) is not None:
                raise self._refusal(found)
            yield now_ns
        finally:
            self._disk.close(lock_fd)

    def _step(self, found: Observation) -> HistoryEffect:
        """Return what to do.  Raises HistoryError where nothing may be sent."""
        effect = TABLE[found.event][self._known].effect
        if effect is HistoryEffect.REFUSE:
            raise self._refusal(found)
        self._note(found.event)
        return effect

    def _refusal(self, found: Observation, path: str = "") -> HistoryError:
        self._note(found.event)
        return refusal(path or self._path, *found)

    def _note(self, event: Event) -> None:
        self._known = TABLE[event][self._known].next

    def _keep_lock(self, lock_fd: int) -> None:
        """Refuse a lock that is not the first: it may have been replaced while this process waited for it."""
        if self._kept_lock is None:
            self._kept_lock = self._disk.open_read(self._lock_path)
        elif self._disk.leads_to(self._lock_path, lock_fd):
            self._refuse_another_lock()
            return
        if not self._disk.leads_to(self._lock_path, lock_fd):
            raise self._refusal(
                Observation(Event.LOCK_REPLACED, "removed or replaced just now"), self._lock_path
            )

    def _refuse_another_lock(self) -> None:
        if self._kept_lock is None or self._disk.leads_to(self._lock_path, self._kept_lock):
            return
        self._leave_a_lock()
        raise self._refusal(
            Observation(Event.LOCK_REPLACED, "removed or replaced while in use"), self._lock_path
        )

    def _leave_a_lock(self) -> None:
        if self._own_mark_ns is None:
            return
        # What is there by now is another's; without the folder there is no place for it.
        with contextlib.suppress(OSError):
            fd = self._disk.open_new(self._lock_path)
            # Crash here: a lock that says nothing, and the next start begins anew.
            with opened(self._disk, fd):
                self._disk.write_all(fd, mark_line(self._own_mark_ns))

    def _leave_a_folder(self) -> None:
        """Make a lost folder anew, at the end only: earlier it would be in the way of one put back."""
        if self._own_mark_ns is not None and self._disk.inode(str(Path(self._folder).parent)) is not None:
            self._disk.make_directory(self._folder)

    def _read_lock(self, lock_fd: int) -> None:
        self._lock_fd = lock_fd
        try:
            self._lock_mark_ns = read_mark(self._disk.pread(lock_fd, MARK_BYTES, 0))
        except HistoryError as error:
            raise self._refusal(Observation(Event.LOCK_FOREIGN, str(error)), self._lock_path) from error

    def _make_folder(self) -> None:
        self._disk.make_directory(self._folder)
        if self._is_folder_unsynced:
            sync_above(self._disk, self._folder)
            self._is_folder_unsynced = False

    def append(self, now_ns: int, records: list[Record]) -> bool:
        """Make records durable that the slots know already; within `locked`.  Return whether there were none.

        After HistoryError they may be on the disk or not: nothing may be sent on them.
        """
        is_first, self.is_doubtful = self._at is None, True
        effect = self._step(Observation(Event.APPEND))
        with self._failing_closed("write"):
            if self._fd is None or effect is HistoryEffect.WRITE_ANEW:
                self._rewrite(now_ns)
            elif not (self._is_long(len(records)) and self._has_compacted(now_ns)):
                self._add_group(self._fd, now_ns, records)
        self.is_doubtful = False
        return is_first

    def _is_long(self, more_records: int) -> bool:
        worth_bytes = self._bounds.record_bytes * (self._slots.kept + more_records) + self._slots.shares_bytes
        return self._offset > max(
            self._bounds.compact_above_bytes, 2 * worth_bytes, self._compacts_above_bytes
        )

    def close(self) -> None:
        """Leave a lock where it is gone, so that no start begins anew."""
        self._close_file()
        if self._kept_lock is not None:
            kept_fd, self._kept_lock = self._kept_lock, None
            with contextlib.suppress(OSError), opened(self._disk, kept_fd):
                if not self._disk.leads_to(self._lock_path, kept_fd):
                    self._leave_a_folder()
                    self._leave_a_lock()

    def _close_file(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._disk.close(fd)

    def _look(self, now_ns: int) -> None:
        inode = self._disk.inode(self._path)
        length = self._disk.length(self._path)
        looker = self._looker(now_ns)
        behind = b"" if inode is None or inode != self._inode else self._behind_what_is_known()
        if inode is None or length is None or behind is None:
            self._step(self._found_without_it(looker))
            return
        effect = self._step(Observation(Event.LOOK))
        if inode != self._inode or self._fd is None:
            effect = self._step(Observation(Event.OTHER_FILE))
        if effect is HistoryEffect.READ_ALL or self._at is None or self._fd is None:
            self._load(inode, looker)
        elif (found := oversized(length)) is not None:
            raise self._refusal(found)
        elif behind not in (b"", ROOM):
            content = self._disk.pread(self._fd, length - self._offset, self._offset)
            examination = examine(content, looker, self._offset, self._at)
            self._take(self._fd, content, examination, self._offset)
            self._slots.learn(examination.records)
        elif (found := missing(self._at.mark_ns, looker.mark_ns)) is not None:
            raise self._refusal(found)

    def _behind_what_is_known(self) -> bytes | None:
        """Return the next byte, if there is one; None for a file that was cut, or overwritten.

        Nothing may be added to that.
        """
        if self._fd is None:
            return b""
        found = self._disk.pread(self._fd, len(self._tail) + 1, self._offset - len(self._tail))
        return found[len(self._tail) :] if found.startswith(self._tail) else None

    def _looker(self, now_ns: int) -> Looker:
        marks = [mark for mark in (self._lock_mark_ns, self._own_mark_ns) if mark is not None]
        return Looker(
            self._clock.boot_id(), now_ns, max(marks, default=None), self._has_used_it, self._bounds.alike_ns
        )

    def _found_without_it(self, looker: Looker) -> Observation:
        if self._at is None:
            return missing(None, looker.mark_ns) or Observation(Event.ABSENT)
        if self._lock_mark_ns is None:
            return Observation(
                Event.UNMARKED, "it is gone, cut or overwritten, and its lock does not say how far it reached"
            )
        return missing(self._at.mark_ns, looker.mark_ns) or Observation(Event.GONE)

    def _load(self, inode: int, looker: Looker) -> None:
        self._close_file()
        self._inode, self._offset, self._tail = inode, 0, b""
        self._fd = fd = self._disk.open_update(self._path)
        if (why := why_a_strangers(self._disk, fd, self._path)) is not None:
            raise self._refusal(Observation(Event.OWNER, why))
        length = self._disk.size(fd)
        if (found := oversized(length)) is not None:
            raise self._refusal(found)
        content = self._disk.pread(fd, length, 0)
        examination = examine(content, looker)
        self._take(fd, content, examination, 0)
        if examination.is_of_this_boot:
            self._slots.reset(examination.records)
        else:
            self._move_to_this_boot(examination, looker.now_ns)
        self._has_used_it = True

    def _take(self, fd: int, content: bytes, examination: Examination, origin: int) -> None:
        found, _, last, end, _ = examination
        for each in found:
            if self._step(each) is HistoryEffect.CUT:
                # Not yet durable: a crash leaves the torn end, and it is cut again.  The next group
                # waits for it, as for all that others wrote.
                self._disk.truncate(fd, origin + end)
        self._at, self._own_mark_ns = last, last.mark_ns
        self._know(content[:end])
        self._others = (self._others if origin else b"") + content[:end]
        self._is_content_unsynced = True
        self._is_name_unsynced = self._is_name_unsynced or origin == 0

    def _know(self, added: bytes) -> None:
        self._offset += len(added)
        self._tail = (self._tail + added[-SECTOR_BYTES:])[-SECTOR_BYTES:]

    def _move_to_this_boot(self, examination: Examination, now_ns: int) -> None:
        last, wall_ns = examination.last, self._clock.wall_ns()
        shift_ns = shift_to_this_boot(last, now_ns, wall_ns)
        self._slots.reset(in_this_boot(examination, now_ns, wall_ns))
        # The same two instants as seen from here, so that the mark goes on from them; a nanosecond
        # before, so that what is written now need be no later than now.
        self._at = At(last.boottime_ns + shift_ns - 1, last.wall_ns, last.mark_ns - 1)
        self._rewrite(now_ns)

    def _add_group(self, fd: int, now_ns: int, records: list[Record]) -> None:
        self._sync_what_others_wrote(fd)
        at = self._at_now(now_ns)
        content = group(at, records)
        try:
            write_with_room(self._disk, fd, content, self._offset, folder=self._folder)
            # Crash here: the group may be whole, torn or gone, and so may the room behind it; no grant of
            # it was given yet.
            self._sync_content(fd)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.truncate(fd, self._offset)
            raise
        self._know(content)
        self._at = at
        self._note(Event.WRITTEN)
        self._note_end(at)

    def _sync_what_others_wrote(self, fd: int) -> None:
        if self._is_content_unsynced:
            # Over themselves, so that it does not matter where a crash tears them.
            self._disk.write_at(fd, self._others, self._offset - len(self._others))
            self._sync_content(fd)
            self._others, self._is_content_unsynced = b"", False
        if self._is_name_unsynced:
            self._disk.sync_directory(self._folder)
            self._is_name_unsynced = False

    def _sync_content(self, fd: int) -> None:
        try:
            self._disk.sync_content(fd)
        except OSError:
            self._note(Event.UNSYNCED)
            raise

    def _has_compacted(self, now_ns: int) -> bool:
        """Return False where the long file has to do, as on a full disk."""
        try:
            self._rewrite(now_ns)
        except OSError:
            if self._known is Known.DOUBTED:
                raise
            self._compacts_above_bytes = self._offset + self._bounds.compact_above_bytes
            return False
        self._compacts_above_bytes = 0
        return True

    def _rewrite(self, now_ns: int) -> None:
        at = self._at_now(now_ns)
        content = header(self._clock.boot_id()) + group(at, self._slots.records(now_ns))
        try:
            fd = put_in_place(self._disk, self._path, content, clear_the_way=self._clear_the_way)
        except InDoubt:
            self._note(Event.UNSYNCED)
            raise
        self._close_file()
        self._fd, self._offset, self._tail, self._at = fd, 0, b"", at
        self._know(content)
        self._others = b""
        self._is_content_unsynced = self._is_name_unsynced = False
        self._has_used_it = True
        self._note(Event.WRITTEN)
        self._inode = self._disk.inode(self._path)
        self._note_end(at)

    def _note_end(self, last: At) -> None:
        """Write the mark into the lock, once both files still have their names."""
        self._own_mark_ns = last.mark_ns
        self._refuse_another_lock()
        if self._fd is None or not self._disk.leads_to(self._path, self._fd):
            raise self._refusal(Observation(Event.NAME_REPLACED, "removed or replaced while it was written"))
        # Crash here: the lock says less than the file has, which is no harm.
        self._disk.write_at(self._lock_fd, mark_line(last.mark_ns), 0)

    def _clear_the_way(self, new_path: str) -> None:
        """Remove what a rewrite that died left; a file of others is renamed, and kept."""
        if is_left_of_a_rewrite(self._disk, new_path):
            self._disk.unlink(new_path)
            return
        number = 1
        while self._disk.inode(f"{new_path}.{number}") is not None:
            number += 1
        # Crash here: it is found again by the next rewrite.
        self._disk.rename(new_path, f"{new_path}.{number}")

    def _at_now(self, now_ns: int) -> At:
        wall_ns = self._clock.wall_ns()
        if self._at is None:
            return At(now_ns, wall_ns, wall_ns)
        # Each group is later than the one before, also where the clock says the same instant, or on
        # another CPU an earlier one: of two with one mark the second could be lost, and nobody would
        # notice.  It is none of the future, since its sync takes longer than that.
        boottime_ns = max(now_ns, self._at.boottime_ns + 1)
        passed_ns = boottime_ns - self._at.boottime_ns
        return At(boottime_ns, wall_ns, max(wall_ns, self._at.mark_ns + passed_ns))

    @contextlib.contextmanager
    def _failing_closed(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._note(Event.DISK_ERROR)
            raise disk_refusal(self._path, doing, error) from error
