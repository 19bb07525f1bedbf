"""The history of an account in one file, shared by every relay on this host that sends through it.

A transaction holds flock on `PATH.lock`, which the kernel releases if its holder dies.  It finds the file in
one of five states:

| state | what is there | what the transaction does |
| --- | --- | --- |
| absent | no file, and no mark in the lock | the first commit creates the file |
| whole | whole groups, and only zeros behind them | it reads on from where this process was |
| torn | a part of a group behind whole groups; nothing was sent on that part | it cuts the part off |
| other boot | the instants are those of another boot | it writes the file anew, in this boot's time |
| damaged | anything else, or less than the mark in the lock says | **nothing is sent** |

Durability.  A commit is one group, synced.  A reader syncs what another process wrote, and the name of a file
that another process made: the writer may have died before its sync.  After a failed write or sync the group
is cut off.  After any failed call the next transaction reads the whole file and writes a new one, since a
failed sync is final.

Time.  Instants are boottime, so a step of the wall clock never matters.  After a reboot all instants move by
one shift: the time since the last group is what the wall clock is ahead of that group's mark, or zero if the
wall clock is behind.  Slots without an end move too, and keep their deadline.  A time above
LONGEST_BELIEVED_NS counts as zero: a clock that starts in 2038 costs a wait, as does one that starts in 1970.

Not noticed: the removal of both files while a relay runs, and a file that is put back with its lock.

`relay fsck`, `audit`, `plan` and `status` read the file without its lock (`read_file`), and change nothing.
To them a group that is being appended looks torn.  During a replacement they see the old or the new file.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from relay.clock import SECOND_NS, Clock
from relay.spool.disk.durable import Disk, opened, write_with_room
from relay.spool.disk.os_errors import is_lack_of_room
from relay.spool.disk.replacing import InDoubt, put_in_place
from relay.throttle.history import NOTHING_SENT, Event, HistoryError, moved
from relay.throttle.history_format import (
    MAKE_OURS,
    MARK_BYTES,
    At,
    Contents,
    DamagedHistory,
    group,
    header,
    mark_line,
    read_groups,
    read_header,
    read_mark,
)

LONGEST_BELIEVED_NS = 30 * 86_400 * SECOND_NS
"""The longest time off that a wall clock can prove; a longer one means a clock without a battery."""
CLOCK_SKEW_NS = SECOND_NS
"""The most by which the clocks of two CPUs differ; more means another time namespace."""
REPLACE_ABOVE_BYTES = 256 * 1024
"""A shorter history is never replaced."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What `fsck` found, for a person who has never seen the files."""

    path: str
    kind: str
    """A word for programs, such as `damaged_history`."""
    what: str
    becomes: str
    """What the relay does about it."""
    advice: str = ""
    """What an operator has to do; empty if nothing."""

    @property
    def is_damage(self) -> bool:
        """Whether an operator has to act."""
        return bool(self.advice)


def history_findings(path: Path, disk: Disk, clock: Clock) -> Iterator[Finding]:
    """Yield what a relay that starts now would find in a history file, and do about it.

    Raises PermissionError.
    """
    try:
        if read_file(path, disk, clock).is_torn:
            what = "its last group is incomplete; no mail was sent on that group"
            yield Finding(str(path), "torn_group", what, "the relay cuts the group off at its next use")
    except DamagedHistory as damage:
        yield Finding(str(path), "damaged_history", str(damage), NOTHING_SENT, damage.advice)


def read_file(path: Path, disk: Disk, clock: Clock) -> Contents:
    """Return the contents in the time of this boot; of no file and no mark in its lock, nothing.

    Raises PermissionError and DamagedHistory.
    """
    mark_ns = None
    # Read the mark before the history, which can only have grown by then.  Without a lock there is no mark.
    with contextlib.suppress(OSError), opened(disk, disk.open_read(f"{path}.lock")) as fd:
        mark_ns = read_mark(disk.pread(fd, MARK_BYTES, 0))
    try:
        with opened(disk, disk.open_read(str(path))) as fd:
            return _found_in(_content(disk, str(path), fd), mark_ns, clock)[0]
    except FileNotFoundError:
        _check_mark(None, mark_ns)
        return Contents([], None, 0, is_torn=False)
    except PermissionError:
        raise
    except OSError as error:
        raise DamagedHistory(f"cannot be read: {error.strerror or error}", "check the disk") from error


def _content(disk: Disk, path: str, fd: int) -> bytes:
    """Raise OSError, and DamagedHistory if others may write to the file."""
    if (why := disk.why_others_may_write(path)) is not None:
        raise DamagedHistory(why, MAKE_OURS)
    return disk.pread(fd, disk.size(fd), 0)


def _found_in(content: bytes, mark_ns: int | None, clock: Clock) -> tuple[Contents, bool]:
    """Return the contents of a history file in the time of this boot, and whether this boot wrote it.

    `mark_ns` is the mark in its lock.  Raises DamagedHistory.
    """
    boot_id, start = read_header(content)
    contents = read_groups(content, start)
    if (last := contents.at) is None:
        # A file gets its name when its first group is durable, so a crash cannot have torn that group.
        raise DamagedHistory(f"byte {start}: its first group is damaged")
    _check_mark(last, mark_ns)
    now_ns = clock.boottime_ns()
    if boot_id == clock.boot_id():
        if last.boottime_ns > now_ns + CLOCK_SKEW_NS:
            raise DamagedHistory("its last instant lies in the future: another time namespace wrote it")
        return contents, True
    passed_ns = max(0, clock.wall_ns() - last.mark_ns)
    shift_ns = now_ns - (0 if passed_ns > LONGEST_BELIEVED_NS else passed_ns) - last.boottime_ns
    events = [moved(event, shift_ns) for event in contents.events]
    at = last._replace(boottime_ns=last.boottime_ns + shift_ns)
    return contents._replace(events=events, at=at), False


def _check_mark(last: At | None, mark_ns: int | None) -> None:
    """Raise DamagedHistory if a history that ends at `last` lacks groups that its lock knows."""
    if mark_ns is None or (last is not None and last.mark_ns >= mark_ns):
        return
    if last is None:
        raise DamagedHistory("the file is missing, but its .lock shows that it was in use")
    lost_s = (mark_ns - last.mark_ns) / SECOND_NS
    raise DamagedHistory(f"its last groups are missing or damaged: the .lock shows {lost_s:.3f} s more")


def refusal(path: str, damage: DamagedHistory) -> HistoryError:
    return HistoryError(f"{path}: {damage}; {NOTHING_SENT}.  To repair: {damage.advice}")


class FileHistory:
    def __init__(
        self, path: Path, disk: Disk, clock: Clock, *, replace_above_bytes: int = REPLACE_ABOVE_BYTES
    ) -> None:
        """Touch no disk yet."""
        self._path, self._folder, self._lock_path = str(path), str(path.parent), f"{path}.lock"
        self._disk, self._clock = disk, clock
        self._replace_above_bytes = replace_above_bytes
        self._fd: int | None = None
        """The file, known up to `_end`, the end of a whole group; None: to be read from its beginning."""
        self._end = self._worth_bytes = 0
        self._at: At | None = None
        self._must_write_anew = False
        """A call failed: what a crash would leave, or which file has the name, may be unknown."""
        # State of the present transaction.
        self._lock_fd = -1
        self.now_ns = self.ahead_ns = 0
        self.news: Sequence[Event] = ()
        self.is_whole = False

    @contextlib.contextmanager
    def transaction(self) -> "Iterator[FileHistory]":
        with self._failing_closed("lock"):
            if self._fd is None:
                # The creator of the folders may have died before its sync.
                self._disk.make_directory(self._folder)
                self._disk.sync_all(self._folder)
            if (fd := self._disk.lock(self._lock_path, wait=True)) is None:
                raise HistoryError(f"{self._lock_path}: locked by another process")
            self._lock_fd = fd
        try:
            with self._failing_closed("read"):
                # Read under the lock, so that instants ascend in the file.
                self.now_ns = self._clock.boottime_ns()
                self._look()
            yield self
        finally:
            self._disk.close(self._lock_fd)

    @property
    def is_long(self) -> bool:
        return self._end > max(self._replace_above_bytes, 2 * self._worth_bytes)

    def commit(self, events: Sequence[Event]) -> None:
        with self._failing_closed("write"):
            if self._fd is None:
                self._put(events)
            else:
                self._append(self._fd, events)

    def replace(self, events: Sequence[Event]) -> bool:
        with self._failing_closed("replace"):
            try:
                self._put(events)
            except OSError as error:
                if isinstance(error, InDoubt) or not is_lack_of_room(error):
                    raise
                self._worth_bytes = self._end  # no new attempt before the file is twice as long
                return False
        return True

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)

    def _look(self) -> None:
        """Learn the news.  Raises OSError and DamagedHistory."""
        mark_ns = read_mark(self._disk.pread(self._lock_fd, MARK_BYTES, 0))
        self.news, self.is_whole, fd = (), False, self._fd
        if fd is None or not self._disk.leads_to(self._path, fd):
            self.is_whole = True
            self._read_all(mark_ns)
        elif self._disk.pread(fd, 1, self._end) not in (b"", b"\0"):
            found = read_groups(
                self._disk.pread(fd, self._disk.size(fd) - self._end, self._end), 0, self._end
            )
            _check_mark(found.at or self._at, mark_ns)
            self._know(fd, found)
        _check_mark(self._at, mark_ns)

    def _read_all(self, mark_ns: int | None) -> None:
        self.close()
        self._at, self._end, self._worth_bytes = None, 0, 0
        if self._disk.inode(self._path) is None:
            return
        fd = self._fd = self._disk.open_update(self._path)
        content = _content(self._disk, self._path, fd)
        found, is_of_this_boot = _found_in(content, mark_ns, self._clock)
        if is_of_this_boot and not self._must_write_anew:
            self._know(fd, found)
            self._disk.sync_directory(self._folder)
            # The last replacement wrote the first group.
            self._worth_bytes = content.index(b"\n", content.index(b"\n") + 1)
        else:
            self.news, self._at = found.events, found.at
            self._put(found.events)

    def _know(self, fd: int, found: Contents) -> None:
        """Learn the groups from `_end` on, and sync them before a group is added behind them."""
        if found.is_torn:
            self._disk.truncate(fd, self._end + found.end)
        self._disk.sync_content(fd)
        self.news, self._at, self._end = found.events, found.at or self._at, self._end + found.end

    def _put(self, events: Sequence[Event]) -> None:
        at = self._at_now()
        content = header(self._clock.boot_id()) + group(at, events)
        fd = put_in_place(self._disk, self._path, content)
        self.close()
        self._fd, self._end, self._worth_bytes = fd, len(content), len(content)
        self._must_write_anew = False
        self._note(at)

    def _append(self, fd: int, events: Sequence[Event]) -> None:
        at = self._at_now()
        content = group(at, events)
        try:
            write_with_room(self._disk, fd, content, self._end, folder=self._folder)
            # Crash here: the group may be whole, torn or gone; none of its grants was given yet.
            self._disk.sync_content(fd)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.truncate(fd, self._end)
            raise
        self._end += len(content)
        self._note(at)

    def _note(self, at: At) -> None:
        self._at = at
        # Crash here: the mark in the lock is behind the file, which does no harm.
        self._disk.write_at(self._lock_fd, mark_line(at.mark_ns), 0)

    def _at_now(self) -> At:
        wall_ns = self._clock.wall_ns()
        if self._at is None:
            return At(self.now_ns, wall_ns)
        # Each group is later than the one before, even if the clock shows the same instant.  If two had the
        # same mark, the loss of the second would not be noticed.
        boottime_ns = max(self.now_ns, self._at.boottime_ns + 1)
        passed_ns = boottime_ns - self._at.boottime_ns
        return At(boottime_ns, max(wall_ns, self._at.mark_ns + passed_ns))

    @contextlib.contextmanager
    def _failing_closed(self, doing: str) -> Iterator[None]:
        """Raise HistoryError, and have the next transaction read the whole file and write a new one."""
        try:
            yield
        except (OSError, DamagedHistory) as error:
            with contextlib.suppress(OSError):
                self.close()
            if isinstance(error, DamagedHistory):
                raise refusal(self._path, error) from error
            self._must_write_anew = True
            raise HistoryError(f"{self._path}: cannot {doing} it: {error.strerror or error}") from error
