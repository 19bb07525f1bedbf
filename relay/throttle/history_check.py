"""Reads a history file without its lock, for `relay fsck`, `audit`, `plan` and `status`.  Changes nothing.

A group that is just being appended looks like one that a crash tore; a replacing shows the old file or
the new one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from relay.clock import Clock
from relay.spool.disk.durable import Disk, opened
from relay.throttle.book import Book
from relay.throttle.file_history import check_mark, found_in, refusal
from relay.throttle.history import NOTHING_SENT, HistoryError
from relay.throttle.history_format import MAKE_OURS, MARK_BYTES, Contents, DamagedHistory, read_mark
from relay.throttle.limit import Limit


@dataclass(frozen=True, slots=True)
class Finding:
    """What `fsck` found, for a person who has never seen the files."""

    path: str
    kind: str
    """A word for programs, such as `damaged_history`."""
    what: str
    becomes: str
    """What the relay does with it."""
    advice: str = ""
    """What an operator can do; empty where nobody need do anything."""

    @property
    def is_damage(self) -> bool:
        """Whether somebody has to look at it."""
        return bool(self.advice)


def history_findings(path: Path, disk: Disk, clock: Clock) -> Iterator[Finding]:
    """Tell what a relay that starts now would do."""

    def damaged(what: str, advice: str) -> Finding:
        return Finding(str(path), "damaged_history", what, NOTHING_SENT, advice)

    try:
        if _read(path, disk, clock).is_torn:
            what = "its last group is not whole; nothing was sent on it"
            yield Finding(str(path), "torn_group", what, "cut at the next use")
    except DamagedHistory as damage:
        yield damaged(str(damage), damage.advice)
    except OSError as error:
        yield damaged(f"cannot be read: {error.strerror}", "see to the disk")


def book_in_file(path: Path, limits: Sequence[Limit], guard_ns: int | None, disk: Disk, clock: Clock) -> Book:
    """Return what a start would know of the account's past; no file: no past.

    Raises PermissionError, and HistoryError where a start would send nothing.
    """
    book = Book()
    book.judge_by(limits, guard_ns)
    try:
        book.reset(_read(path, disk, clock).events, clock.boottime_ns())
    except PermissionError:
        raise
    except DamagedHistory as damage:
        raise refusal(str(path), damage) from damage
    except OSError as error:
        raise HistoryError(f"{path}: cannot read it: {error.strerror or error}") from error
    return book


def _read(path: Path, disk: Disk, clock: Clock) -> Contents:
    """Raise OSError and DamagedHistory."""
    mark_ns = None
    try:
        # Ahead of the history, which can only have more by then.
        with opened(disk, disk.open_read(f"{path}.lock")) as fd:
            mark_ns = read_mark(disk.pread(fd, MARK_BYTES, 0))
    except OSError:
        pass  # it says nothing
    try:
        with opened(disk, disk.open_read(str(path))) as fd:
            if (why := disk.why_not_ours(str(path))) is not None:
                raise DamagedHistory(why, MAKE_OURS)
            content = disk.pread(fd, disk.size(fd), 0)
    except FileNotFoundError:
        check_mark(None, mark_ns)
        return Contents([], None, 0, is_torn=False)
    return found_in(content, mark_ns, clock)[0]
