"""The history of an account in one file, shared by every relay on this host that sends through it.

A line is the CRC-32 of a JSON array, and the array itself, so that `cat` shows it:

    5f3a9c01 ["relay-history", 7, "6e2f…c1"]
    1b2c3d4e [[8412345678901, 1760000000123456789], ["reserved", 17, …], ["ended", …]]

The first line has the version and the boot id.  Each further line is a group: one commit, valid as a whole
or not at all.  Zeros may follow the last group: room for later groups, so that the file need not grow with
each.  A group has BOOTTIME and MARK, the instant of its writing by both clocks, and its events:

    ["reserved", ID, START, DEADLINE, MESSAGES, RECIPIENTS, CONNECTIONS, BYTES, SHARE…]
                                               a transaction may be in flight from now on
    ["ended", ID, INSTANT]                     it ended
    ["charged", ID, START, END, MESSAGES, RECIPIENTS, CONNECTIONS, BYTES, SHARE…]
                                               it ended at END; or several did until END

A share is [FOR_EACH, KEY, MESSAGES, RECIPIENTS, BYTES]: the part of a slot for one sender, domain, client,
user or lane.  A slot has a share of its lane, and shares of the kinds of key that some limit of its writer
had.  All instants but MARK are boottime of the boot that the first line names.  MARK is the latest time that
the wall clock has ever implied for that instant: its high-water mark, carried forward by boottime.

A transaction holds flock on `PATH.lock`, which the kernel releases if its holder dies.  That file has one
line, `["relay-history-end", MARK]`, written in place, within one sector, after a group is durable.  It is not
synced, and has no mark without a whole line.  The transaction finds the history in one of five states:

| state | what is there | what the transaction does |
| --- | --- | --- |
| absent | no file, and no mark in the lock | the first commit creates the file |
| whole | whole groups, and only zeros behind them | it reads on from where this process was |
| torn | a part of a group behind whole groups; nothing was sent on that part | it cuts the part off |
| other boot | the instants are those of another boot | it writes the file anew, in this boot's time |
| damaged | anything else, or a last group with a lower mark than the lock has | **nothing is sent** |

Durability.  A commit is one group, synced.  A reader syncs what another process wrote, and the name of a file
that another process made: the writer may have died before its sync.  After a failed write or sync the group
is cut off.  After any failed call the next transaction reads the whole file and writes a new one, since a
failed sync is final.

Time.  Instants are boottime, so a step of the wall clock never matters.  After a reboot all instants move by
one shift: the time since the last group is what the wall clock is ahead of that group's mark, or zero if the
wall clock is behind.  Slots without an end move too, and keep their deadline.  A time above
LONGEST_BELIEVED_NS counts as zero: a clock that starts in 2038 costs a wait, as does one that starts in 1970.

Not noticed: the removal of both files while a relay runs, and a file that is put back with its lock.
"""

import contextlib
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relay.clock import SECOND_NS, Clock, shift_ns
from relay.spool.disk.durable import Disk, opened, write_with_room
from relay.spool.disk.replacing import put_in_place
from relay.throttle.history import NOTHING_SENT, Event, HistoryError, event_of, fields_of, moved

LONGEST_BELIEVED_NS = 30 * 86_400 * SECOND_NS
"""The longest time off that a wall clock can prove; a longer one means a clock without a battery."""
REPLACE_ABOVE_BYTES = 256 * 1024
"""A shorter history is never replaced."""
BEGIN_ANEW = (
    "stop the relay, wait for the longest period of the account's limits, "
    "move the history and its .lock away, start the relay"
)
"""How to repair a damaged history."""
_JSON = json.JSONEncoder(separators=(",", ":"))


class DamagedHistory(Exception):  # noqa: N818 - a state of the file
    """The text says what is wrong, and where."""


class At(NamedTuple):
    boottime_ns: int
    mark_ns: int


class Contents(NamedTuple):
    events: list[Event]
    at: At | None
    """When the last whole group was written; None without a group."""
    end: int
    """The offset behind the last whole group."""
    is_torn: bool
    """Something other than zeros follows the last whole group."""


def read_events(path: Path, disk: Disk, clock: Clock) -> list[Event]:
    """Return the events that a start would find, in the time of this boot; changes nothing.

    Takes no lock: a group that is being appended looks torn, and a file that is being replaced is the old or
    the new one.  Raises PermissionError and DamagedHistory.
    """
    mark_ns = None
    # Read the mark before the history, which can only have grown by then.  Without a lock there is no mark.
    with contextlib.suppress(OSError), opened(disk, disk.open_read(f"{path}.lock")) as fd:
        mark_ns = _mark_in(disk, fd)
    try:
        with opened(disk, disk.open_read(str(path))) as fd:
            return _found_in(disk.pread(fd, disk.size(fd), 0), mark_ns, clock)[0].events
    except FileNotFoundError:
        _check_mark(None, mark_ns)
        return []
    except PermissionError:
        raise
    except OSError as error:
        raise DamagedHistory(f"cannot be read: {error.strerror or error}; check the disk") from error


def refusal(path: str, damage: DamagedHistory) -> HistoryError:
    return HistoryError(f"{path}: {damage}; {NOTHING_SENT}.  To repair: {BEGIN_ANEW}")


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
        self._end = self._first_end = 0
        """The first group is what the last replacement wrote."""
        self._at: At | None = None
        self._must_write_anew = False
        """A call failed: what a crash would leave, or which file has the name, may be unknown."""
        # State of the present transaction.
        self._lock_fd = -1
        self.now_ns = 0
        self.news: Sequence[Event] = ()
        self.is_whole = False

    @contextlib.contextmanager
    def transaction(self) -> "Iterator[FileHistory]":
        try:
            if self._fd is None:
                # The creator of the folders may have died before its sync.
                self._disk.make_directory(self._folder)
                self._disk.sync_all(self._folder)
            if (lock_fd := self._disk.lock(self._lock_path, wait=True)) is None:
                raise HistoryError(f"{self._lock_path}: locked by another process")
            with opened(self._disk, lock_fd) as self._lock_fd:
                self.now_ns = self._clock.boottime_ns()
                self._look()
                yield self
        except (OSError, DamagedHistory) as error:
            with contextlib.suppress(OSError):
                self.close()
            if isinstance(error, DamagedHistory):
                raise refusal(self._path, error) from error
            self._must_write_anew = True
            raise HistoryError(f"{self._path}: {error.strerror or error}") from error

    @property
    def is_long(self) -> bool:
        return self._end > max(self._replace_above_bytes, 2 * self._first_end)

    def commit(self, events: Sequence[Event]) -> None:
        if (fd := self._fd) is None:
            self._write_anew(events)
            return
        at = self._at_now()
        content = _line([at, *map(fields_of, events)])
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

    def replace(self, events: Sequence[Event]) -> None:
        self._write_anew(events)

    def _write_anew(self, events: Sequence[Event]) -> None:
        at = self._at_now()
        content = _line(["relay-history", 7, self._clock.boot_id()]) + _line([at, *map(fields_of, events)])
        fd = put_in_place(self._disk, self._path, content)
        self.close()
        self._fd, self._end, self._first_end = fd, len(content), len(content)
        self._must_write_anew = False
        self._note(at)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)

    def _look(self) -> None:
        """Learn the news.  Raises OSError and DamagedHistory."""
        mark_ns = _mark_in(self._disk, self._lock_fd)
        self.news, self.is_whole, fd = (), False, self._fd
        if fd is None or not self._disk.leads_to(self._path, fd):
            self.is_whole = True
            self._read_all(mark_ns)
        elif self._disk.pread(fd, 1, self._end) not in (b"", b"\0"):
            behind = self._disk.pread(fd, self._disk.size(fd) - self._end, self._end)
            found = _groups_in(behind, self._end)
            _check_mark(found.at or self._at, mark_ns)
            self._know(fd, found)
        _check_mark(self._at, mark_ns)

    def _read_all(self, mark_ns: int | None) -> None:
        self.close()
        self._at, self._end, self._first_end = None, 0, 0
        if self._disk.inode(self._path) is None:
            return
        fd = self._fd = self._disk.open_update(self._path)
        content = self._disk.pread(fd, self._disk.size(fd), 0)
        found, is_of_this_boot = _found_in(content, mark_ns, self._clock)
        if is_of_this_boot and not self._must_write_anew:
            self._know(fd, found)
            self._disk.sync_directory(self._folder)
            self._first_end = content.index(b"\n", content.index(b"\n") + 1)
        else:
            self.news, self._at = found.events, found.at
            self._write_anew(found.events)

    def _know(self, fd: int, found: Contents) -> None:
        """Learn the groups from `_end` on, and sync them before a group is added behind them."""
        if found.is_torn:
            self._disk.truncate(fd, found.end)
        self._disk.sync_content(fd)
        self.news, self._at, self._end = found.events, found.at or self._at, found.end

    def _note(self, at: At) -> None:
        self._at = at
        # Crash here: the mark in the lock is behind the file, which does no harm.
        self._disk.write_at(self._lock_fd, _line(["relay-history-end", at.mark_ns]), 0)

    def _at_now(self) -> At:
        wall_ns = self._clock.wall_ns()
        if self._at is None:
            return At(self.now_ns, wall_ns)
        # Each group is later than the one before, even if the clock shows the same instant.  If two had the
        # same mark, the loss of the second would not be noticed.
        boottime_ns = max(self.now_ns, self._at.boottime_ns + 1)
        passed_ns = boottime_ns - self._at.boottime_ns
        return At(boottime_ns, max(wall_ns, self._at.mark_ns + passed_ns))


def _found_in(content: bytes, mark_ns: int | None, clock: Clock) -> tuple[Contents, bool]:
    """Return the contents of a file in the time of this boot, and whether this boot wrote it.

    `mark_ns` is the mark in its lock.  Raises DamagedHistory.
    """
    start = content.find(b"\n") + 1
    match _value_in(content[:start]):
        case ["relay-history", 7, str() as boot_id]:
            found = _groups_in(content[start:], start)
        case ["relay-history", int(version), *_]:
            raise DamagedHistory(f"its format is version {version}; this relay reads version 7")
        case _:
            raise DamagedHistory("byte 0: not a history, or its first line is damaged")
    if (last := found.at) is None:
        # A file gets its name when its first group is durable, so a crash cannot have torn that group.
        raise DamagedHistory(f"byte {start}: its first group is damaged")
    _check_mark(last, mark_ns)
    if boot_id == clock.boot_id():
        return found, True
    wall_ns = clock.wall_ns()
    if wall_ns - last.mark_ns > LONGEST_BELIEVED_NS:
        wall_ns = last.mark_ns
    by_ns = shift_ns(*last, clock.boottime_ns(), wall_ns)
    events = [moved(event, by_ns) for event in found.events]
    return found._replace(events=events, at=last._replace(boottime_ns=last.boottime_ns + by_ns)), False


def _groups_in(content: bytes, origin: int) -> Contents:
    """Read the groups in `content`, which begins at the offset `origin` of its file.

    Each group is durable before the next begins, so a crash can tear only the last.  A bad group with a whole
    group behind it is damage.  Raises DamagedHistory.
    """
    events: list[Event] = []
    at: At | None = None
    end = 0
    while end < len(content):
        behind = content.find(b"\n", end) + 1
        if (group := _value_in(content[end:behind])) is None:
            if behind and any(_value_in(line + b"\n") for line in content[behind:].split(b"\n")):
                raise DamagedHistory(f"byte {origin + end}: a damaged group, followed by whole groups")
            break
        at = At(*group[0])
        events += map(event_of, group[1:])
        end = behind
    return Contents(events, at, origin + end, is_torn=content[end:].strip(b"\0") != b"")


def _check_mark(last: At | None, mark_ns: int | None) -> None:
    """Raise DamagedHistory if a history that ends at `last` lacks groups that its lock knows."""
    if mark_ns is None or (last is not None and last.mark_ns >= mark_ns):
        return
    if last is None:
        raise DamagedHistory("the file is missing, but its .lock shows that it was in use")
    lost_s = (mark_ns - last.mark_ns) / SECOND_NS
    raise DamagedHistory(f"its last groups are missing or damaged: the .lock shows {lost_s:.3f} s more")


def _mark_in(disk: Disk, lock_fd: int) -> int | None:
    """Return the mark in a lock file, or None."""
    line, newline, _ = disk.pread(lock_fd, 64, 0).partition(b"\n")
    match _value_in(line + newline):
        case ["relay-history-end", int(mark_ns)]:
            return mark_ns
    return None


def _line(value: Any) -> bytes:
    text = _JSON.encode(value).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _value_in(line: bytes) -> Any:
    """Return the value in a line; None if the line is not whole."""
    text = line[9:-1]
    is_whole = text and line[:9] + line[-1:] == b"%08x \n" % zlib.crc32(text)
    return json.loads(text) if is_whole else None
