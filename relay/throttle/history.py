"""The history: one file for each account at an upstream, shared by every process that sends through it.

Guarantees: what `append` was given is durable when it returns.  `locked` is the one
critical section: in it the slots know everything that any process has recorded, and no
other process decides.  It holds flock on `PATH.lock`, which dies with its holder, and
nothing in it waits for anything but the disk.

What a start, which is always a recovery, may find, and what becomes of it:

| found                                | done                                                     |
| ------------------------------------ | -------------------------------------------------------- |
| no file, nor a lock that knows it    | created whole (fsync, rename, fsync of the folder)       |
| gone or cut, and we know all of it   | written again from memory: deleting it frees nothing     |
| its lock gone or another, in use     | HistoryError: others may have sent what we do not know   |
| last group not whole                 | cut: it was never durable, so nothing was sent on it     |
| less than its lock says (`reached`)  | HistoryError: groups are lost that were durable          |
| reservations without an end          | occupied until deadline + T: their process may have died |
| `PATH.new`                           | a rewrite that died; removed by the next                 |
| `PATH.new` of others                 | renamed to `PATH.new.1`, or the next that is free        |
| another boot's id                    | rewritten in this boot's time, see below                 |
| version 1                            | read; the next append writes all of it as version 2      |
| damage before whole groups           | HistoryError: nothing is sent                            |
| another file, another version, empty | HistoryError: a history gets its name with its content   |
| read-only, full, unreadable, EIO     | HistoryError; memory is not trusted, next use re-reads   |
| wrong owner, others may write it     | HistoryError: somebody else may have emptied it          |
| records from the future of this boot | HistoryError: another time namespace, or clock           |

Who uses a history keeps its lock open, and looks in each critical section, before it decides and
after it wrote, whether the names still stand for the files that it has.  A lock that was
removed or replaced excludes nobody any more, and says nothing of what others sent: so nothing
is sent until the names are put back, or the owner begins anew.  Whoever finds the name of the
lock gone, at a decision or at its own end, leaves a lock there that says how far the history reached,
so that a restart does not take the account for a new one.  Not to be noticed: both removed, and another relay
started, before one that runs decides again.

What others appended may be in the page cache only: they may have been killed before
their sync, or by then have died of one that failed, after which the kernel takes those
pages for clean.  So before the first append behind bytes that are not ours, those bytes
are written again and synced, as is the name of a file we did not make, and at the start
the names of the folders.  Otherwise power loss could leave our group whole behind a torn
one, or take the name back from under it.

After a failed sync the disk may hold what the page cache does not show.  The group is cut
off again, memory is dropped, and the next append writes a new file instead of this one.

Time.  All instants are boottime of one boot, so a step of the wall clock never matters.
After a reboot they all move by one shift: the last group tells when it was written by both
clocks, so since then as much time has passed as the wall clock is ahead of the *latest* it
ever implied for that group (its mark), and none if it is behind.  Ages up to that group
are exact, and the rest can only be too small.  Reservations that had not ended move along
and keep their deadline: the upstream may still be counting what it read before the
power went.  More than LONGEST_BELIEVED_NS is not believed, and counts as none: a clock that
starts in 2038 costs a wait, as one that starts in 1970 does.  Not to be detected: a wall
clock that is further ahead of the truth after the reboot than it ever was before it, by
less than that.

A file that outgrew COMPACT_ABOVE_BYTES, and its worth twice, is written anew.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from relay.clock import SECOND_NS, Clock
from relay.spool.durable import SECTOR_BYTES, Disk, opened, sync_above, why_a_strangers
from relay.throttle import high_water, repair
from relay.throttle.history_format import (
    At,
    HistoryError,
    Record,
    group,
    header,
    is_begun,
    is_current,
    read_groups,
    read_header,
    shifted,
)
from relay.throttle.slots import Slots

COMPACT_ABOVE_BYTES = 256 * 1024
LONGEST_RECORD_BYTES = 72
"""A line with two instants of a year and six-digit weights, and some to spare; apart from its shares."""
LARGEST_BYTES = 256 * 1024 * 1024
"""No history of ours is a tenth of this; reading more would be a memory bomb."""
LONGEST_BELIEVED_NS = 30 * 86_400 * SECOND_NS
"""How long a host may have been off by its wall clock; longer is rather a clock without a battery."""
CLOCK_SKEW_NS = SECOND_NS
"""How far the clocks of two CPUs may differ; more is another time namespace."""


def is_left_of_a_rewrite(disk: Disk, path: str) -> bool:
    """Return whether a file may be what a rewrite that died left; never raises OSError.

    What cannot be read may be anybody's.
    """
    try:
        with opened(disk, disk.open_read(path)) as fd:
            return is_begun(disk.pread(fd, SECTOR_BYTES, 0))
    except OSError:
        return False


class History:
    """One history file, as one process sees it.  One thread at a time."""

    def __init__(self, path: Path, disk: Disk, clock: Clock, slots: Slots) -> None:
        self._path = str(path)
        self._folder = str(path.parent)
        self._disk = disk
        self._clock = clock
        self._slots = slots
        self._fd: int | None = None
        self._inode: int | None = None
        self._offset = 0
        """How much of the file is known; always the end of a group."""
        self._at: At | None = None
        """When the last known group was written."""
        self._lock_path = f"{path}.lock"
        self._lock_fd = -1
        self._kept_lock: int | None = None
        """The lock that was used first, open for as long as the history is in use."""
        self._known_ns: int | None = None
        """The mark of the last group that this process ever knew."""
        self._reached_ns: int | None = None
        """The mark of a group that was durable, by the lock."""
        self._is_ours = False
        """The file has been in this boot's time before."""
        self._is_trusted = False
        """Memory knows what the file says up to `_offset`."""
        self._is_rewrite_due = False
        self._compacts_above_bytes = 0
        """Where there was no room for a shorter file, it is tried again only when this one is longer."""
        self._was_refused = False
        """The last append failed: that the file can be read says nothing of the next."""
        self._others = b""
        """What somebody else wrote of the known bytes, up to `_offset`: it need not be durable yet."""
        self._is_content_unsynced = False
        self._is_name_unsynced = False
        """Somebody else wrote or cut something, or made the file: the same holds for that."""
        self._is_folder_unsynced = True
        """The same of the folder and those above it."""

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
            self._slots.time_is(now_ns)
            with self._failing_closed("read or recover"):
                self._read_lock(lock_fd)
                self._catch_up(now_ns)
            if self._at is not None and self._at.boottime_ns > now_ns + CLOCK_SKEW_NS:
                raise HistoryError(
                    f"{self._path}: written in the future of this boot ({self._at.boottime_ns} ns, "
                    f"now {now_ns}): a history cannot be shared between time namespaces"
                )
            yield now_ns
        finally:
            self._disk.close(lock_fd)

    def _keep_lock(self, lock_fd: int) -> None:
        """Have the lock open beyond the critical section; refuse one that is not the first.

        It may have been removed or replaced while we waited for it.
        """
        if self._kept_lock is None:
            self._kept_lock = self._disk.open_read(self._lock_path)
        elif self._disk.leads_to(self._lock_path, lock_fd):
            self._refuse_another_lock()
            return
        if not self._disk.leads_to(self._lock_path, lock_fd):
            raise HistoryError(f"{self._lock_path}: removed or replaced just now")

    def _refuse_another_lock(self) -> None:
        """Raise HistoryError if the name of the lock does not stand for the lock that we use."""
        if self._kept_lock is None or self._disk.leads_to(self._lock_path, self._kept_lock):
            return
        self._is_trusted = False
        self._leave_a_lock()
        raise HistoryError(
            f"{self._lock_path}: removed or replaced while in use; nothing is sent. "
            f"To repair: put it and the history back, or {repair.ANEW}"
        )

    def _leave_a_lock(self) -> None:
        """Where there is no lock, leave one that says how far the history reached."""
        if self._known_ns is None:
            return
        # What is there by now is somebody's; without the folder there is no place for it.
        with contextlib.suppress(OSError):
            fd = self._disk.open_new(self._lock_path)
            # Crash here: a lock that says nothing, and the next start begins anew.
            with opened(self._disk, fd):
                self._disk.write_all(fd, high_water.line(self._known_ns))

    def _leave_a_folder(self) -> None:
        """Make a folder that is gone anew; while we ran, that would be in the way of who puts it back."""
        if self._known_ns is not None and self._disk.inode(str(Path(self._folder).parent)) is not None:
            self._disk.make_directory(self._folder)

    def _read_lock(self, lock_fd: int) -> None:
        self._lock_fd = lock_fd
        try:
            self._reached_ns = high_water.read(self._disk.pread(lock_fd, high_water.LENGTH, 0))
        except HistoryError as error:
            raise HistoryError(
                f"{self._lock_path}: {error}; nothing is sent. To repair: stop, move it away, start"
            ) from error

    def _make_folder(self) -> None:
        self._disk.make_directory(self._folder)
        if self._is_folder_unsynced:
            sync_above(self._disk, self._folder)
            self._is_folder_unsynced = False

    @property
    def is_doubtful(self) -> bool:
        """Whether nothing may be sent before an append was seen to succeed."""
        return self._was_refused

    def append(self, now_ns: int, records: list[Record]) -> bool:
        """Make records durable that the slots know already; within `locked`.  Return whether there were none.

        Raises HistoryError, and then they may be on the disk or not: nothing may be sent on them.
        """
        worth_bytes = LONGEST_RECORD_BYTES * (self._slots.kept + len(records)) + self._slots.shares_bytes
        is_long = self._offset > max(COMPACT_ABOVE_BYTES, 2 * worth_bytes, self._compacts_above_bytes)
        self._is_trusted, self._was_refused, is_first = False, True, self._at is None
        with self._failing_closed("write"):
            if self._fd is None or self._is_rewrite_due:
                self._rewrite(now_ns)
            elif not (is_long and self._has_compacted(now_ns)):
                self._add_group(self._fd, now_ns, records)
        self._is_trusted, self._was_refused = True, False
        return is_first

    def close(self) -> None:
        """Let go of the file and of its lock; where that is gone, leave one, so that no start begins anew."""
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
        self._is_trusted = False

    def _catch_up(self, now_ns: int) -> None:
        """Learn what is in the file and not yet in memory."""
        inode = self._disk.inode(self._path)
        length = self._disk.length(self._path)
        if inode is None or length is None or (inode == self._inode and length < self._offset):
            # The next append creates it, or writes it again from memory.
            self._is_rewrite_due = True
            if self._at is not None and self._reached_ns is None:
                with self._naming_the_file():
                    raise HistoryError("it is gone or cut, and its lock does not say how far it reached")
            self._refuse_lost_groups(self._at)
            return
        if not self._is_trusted or inode != self._inode or self._fd is None:
            self._load(inode, now_ns)
        elif length > self._offset:
            self._refuse_giant(length)
            content = self._disk.pread(self._fd, length - self._offset, self._offset)
            records, _ = self._whole_groups(self._fd, content, 0, self._offset)
            self._slots.learn(records)
        else:
            self._refuse_lost_groups(self._at)

    def _refuse_lost_groups(self, last: At | None) -> None:
        """Raise HistoryError if there were groups behind the last one that is there, as far as is known."""
        marks = [mark for mark in (self._reached_ns, self._known_ns) if mark is not None]
        with self._naming_the_file():
            high_water.compare(last and last.mark_ns, max(marks, default=None))

    def _load(self, inode: int, now_ns: int) -> None:
        """Forget memory and read the whole file."""
        self._close_file()
        self._inode, self._offset = inode, 0
        self._fd = fd = self._disk.open_update(self._path)
        if (why := why_a_strangers(self._disk, fd, self._path)) is not None:
            raise HistoryError(f"{self._path}: {why}; nothing is sent. If it is right: chown, chmod 600")
        length = self._disk.size(fd)
        self._refuse_giant(length)
        content = self._disk.pread(fd, length, 0)
        with self._naming_the_file():
            boot_id, start = read_header(content)
        # A group of ours would not be read by who wrote the first line: it gets a new file.
        self._is_rewrite_due = self._is_rewrite_due or not is_current(content)
        if boot_id != self._clock.boot_id() and self._is_ours:
            raise HistoryError(f"{self._path}: in use by another host (boot {boot_id}) while we use it")
        records, last = self._whole_groups(fd, content, start, 0)
        if boot_id == self._clock.boot_id():
            self._slots.reset(records)
        else:
            self._move_to_this_boot(records, last, now_ns)
        self._is_ours = self._is_trusted = True

    def _refuse_giant(self, length: int) -> None:
        """Raise HistoryError before a file is read that no relay wrote."""
        with self._naming_the_file():
            if length > LARGEST_BYTES:
                raise HistoryError(f"{length} bytes are no history")

    def _whole_groups(self, fd: int, content: bytes, start: int, origin: int) -> tuple[list[Record], At]:
        """Read groups and cut what was torn behind them; move `_offset` and `_at` along."""
        with self._naming_the_file():
            contents = read_groups(content, start, origin)
            at = contents.at or (self._at if origin else None)
            if at is None:
                # A file gets its name when its first group is durable: that one cannot be torn.
                raise HistoryError(f"byte {start}: its first group is damaged")
        self._refuse_lost_groups(at)
        end = origin + contents.end
        if contents.end < len(content):
            # Not yet durable: a crash leaves the torn end, and it is cut again.  The next group
            # waits for it, as for all that others wrote.
            self._disk.truncate(fd, end)
        self._offset = end
        self._at = at
        self._known_ns = at.mark_ns
        self._others = (self._others if origin else b"") + content[: contents.end]
        self._is_content_unsynced = True
        self._is_name_unsynced = self._is_name_unsynced or origin == 0
        return contents.records, at

    def _move_to_this_boot(self, records: list[Record], last: At, now_ns: int) -> None:
        """Tell another boot's records, the last of them written at `last`, in this boot's time."""
        passed_ns = max(0, self._clock.wall_ns() - last.mark_ns)
        if passed_ns > LONGEST_BELIEVED_NS:
            passed_ns = 0
        shift_ns = now_ns - passed_ns - last.boottime_ns
        self._slots.reset(shifted(record, shift_ns) for record in records)
        # The same two instants as seen from here, so that the mark goes on from them.
        self._at = At(now_ns - passed_ns, last.wall_ns, last.mark_ns)
        self._rewrite(now_ns)

    def _add_group(self, fd: int, now_ns: int, records: list[Record]) -> None:
        self._sync_what_others_wrote(fd)
        at = self._at_now(now_ns)
        content = group(at, records)
        try:
            self._disk.write_at(fd, content, self._offset)
            # Crash here: the group may be whole, torn or gone; nobody was told of it yet.
            self._sync_content(fd)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.truncate(fd, self._offset)
            raise
        self._offset += len(content)
        self._at = at
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
            self._is_rewrite_due = True
            raise

    def _has_compacted(self, now_ns: int) -> bool:
        """Put a shorter file in place; return False where the long one has to do, as on a full disk."""
        try:
            self._rewrite(now_ns)
        except OSError:
            if self._is_rewrite_due:
                raise
            self._compacts_above_bytes = self._offset + COMPACT_ABOVE_BYTES
            return False
        self._compacts_above_bytes = 0
        return True

    def _rewrite(self, now_ns: int) -> None:
        """Put a new file with all that the slots know in the place of the old."""
        at = self._at_now(now_ns)
        content = header(self._clock.boot_id()) + group(at, self._slots.records(now_ns))
        new_path = f"{self._path}.new"
        if self._disk.inode(new_path) is not None:
            self._clear_the_way(new_path)
        fd = self._disk.open_new(new_path)
        try:
            self._disk.write_all(fd, content)
            self._disk.sync(fd)
            inode = self._disk.inode(new_path)
            # Stays set until all of it is done: a failure from here on calls for another new file.
            self._is_rewrite_due = True
            # Crash here: the old file is in force, and nobody was told of the new one.
            self._disk.rename(new_path, self._path)
            # Crash here: either file may be in force; who finds the new one syncs its name.
            self._disk.sync_directory(self._folder)
        except OSError:
            self._disk.close(fd)
            with contextlib.suppress(OSError):
                self._disk.unlink(new_path)
            raise
        self._close_file()
        self._fd, self._inode, self._offset, self._at = fd, inode, len(content), at
        self._others = b""
        self._is_rewrite_due = self._is_content_unsynced = self._is_name_unsynced = False
        self._is_ours = True
        self._note_end(at)

    def _note_end(self, last: At) -> None:
        """Say in the lock how far the file is durable by now, once both still have their names."""
        self._known_ns = last.mark_ns
        self._refuse_another_lock()
        if self._fd is None or not self._disk.leads_to(self._path, self._fd):
            raise HistoryError(f"{self._path}: removed or replaced while it was written; nothing is sent")
        # Crash here: the lock says less than the file has, which is no harm.
        self._disk.write_at(self._lock_fd, high_water.line(last.mark_ns), 0)

    def _clear_the_way(self, new_path: str) -> None:
        """Remove what a rewrite that died left; what others put there is moved aside, and kept."""
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
        # Marks ascend, also where the clocks of two CPUs differ: by them `reached` tells groups apart.
        passed_ns = max(0, now_ns - self._at.boottime_ns)
        return At(now_ns, wall_ns, max(wall_ns, self._at.mark_ns + passed_ns))

    @contextlib.contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """Say in an error which file it is and what to do, and forget what we knew of it."""
        try:
            yield
        except HistoryError as error:
            self._is_trusted = False
            raise HistoryError(f"{self._path}: {error}; nothing is sent. To repair: {repair.ANEW}") from error

    @contextlib.contextmanager
    def _failing_closed(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._is_trusted = False
            raise HistoryError(f"{self._path}: cannot {doing}: {repair.told(error)}") from error
