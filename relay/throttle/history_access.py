"""Opens the history of an account for a relay, or reads its past for a command.

`relay fsck`, `audit`, `plan` and `status` read a history file without its lock, and change nothing.  To them
a group that is being appended looks torn.  During a replacement they see the old file or the new one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from relay.clock import Clock
from relay.policy.model import HistoryPlace
from relay.spool.disk.durable import Disk, opened
from relay.throttle.book import Book
from relay.throttle.file_history import FileHistory, check_mark, found_in, refusal
from relay.throttle.history import NOTHING_SENT, Event, History, HistoryError, moved
from relay.throttle.history_format import MAKE_OURS, MARK_BYTES, Contents, DamagedHistory, read_mark
from relay.throttle.limit import Limit

if TYPE_CHECKING:
    from relay.spool.database.account import RowState


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


def open_history(
    place: HistoryPlace, disk: Disk, clock: Clock, on_state: "Callable[[RowState], None]" = lambda _: None
) -> History:
    """Touch neither disk nor network yet.  Only a database calls `on_state`."""
    if place.database is None:
        return FileHistory(place.path, disk, clock)
    from relay.spool.database.account import account_of  # noqa: PLC0415 - it needs an extra
    from relay.throttle.postgresql_history import HighWaterMark, PostgresqlHistory  # noqa: PLC0415 - as above

    account = account_of(place.database, place.account, place.host)
    return PostgresqlHistory(account, HighWaterMark(f"{place.path}.mark", disk), clock, on_state=on_state)


def recorded_book(
    place: HistoryPlace, limits: Sequence[Limit], guard_ns: int | None, disk: Disk, clock: Clock
) -> Book:
    """Return what a relay that starts now would know of the account's past, in boottime.

    Raises PermissionError, and HistoryError if such a relay would send nothing.
    """
    if place.database is None:
        return book_in_file(place.path, limits, guard_ns, disk, clock)
    history = open_history(place, disk, clock)
    try:
        with history.transaction() as found:
            events = [moved(event, -found.ahead_ns) for event in found.news]
            return _book_of(events, found.now_ns - found.ahead_ns, limits, guard_ns)
    finally:
        history.close()


def book_in_file(path: Path, limits: Sequence[Limit], guard_ns: int | None, disk: Disk, clock: Clock) -> Book:
    """Do as `recorded_book`, for a file.  Without a file or a mark in its lock the past is empty."""
    try:
        events = _read(path, disk, clock).events
    except PermissionError:
        raise
    except DamagedHistory as damage:
        raise refusal(str(path), damage) from damage
    except OSError as error:
        raise HistoryError(f"{path}: cannot read it: {error.strerror or error}") from error
    return _book_of(events, clock.boottime_ns(), limits, guard_ns)


def history_findings(path: Path, disk: Disk, clock: Clock) -> Iterator[Finding]:
    """Yield what a relay that starts now would find in a history file, and do about it."""
    try:
        if _read(path, disk, clock).is_torn:
            what = "its last group is incomplete; no mail was sent on that group"
            yield Finding(str(path), "torn_group", what, "the relay cuts the group off at its next use")
    except DamagedHistory as damage:
        yield Finding(str(path), "damaged_history", str(damage), NOTHING_SENT, damage.advice)
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        yield Finding(str(path), "damaged_history", what, NOTHING_SENT, "check the disk")


def _book_of(events: Iterable[Event], now_ns: int, limits: Sequence[Limit], guard_ns: int | None) -> Book:
    book = Book()
    book.judge_by(limits, guard_ns)
    book.reset(events, now_ns)
    return book


def _read(path: Path, disk: Disk, clock: Clock) -> Contents:
    """Raise OSError and DamagedHistory."""
    mark_ns = None
    try:
        # Read before the history, which can only have grown by then.
        with opened(disk, disk.open_read(f"{path}.lock")) as fd:
            mark_ns = read_mark(disk.pread(fd, MARK_BYTES, 0))
    except OSError:
        pass  # without a lock there is no mark
    try:
        with opened(disk, disk.open_read(str(path))) as fd:
            if (why := disk.why_others_may_write(str(path))) is not None:
                raise DamagedHistory(why, MAKE_OURS)
            content = disk.pread(fd, disk.size(fd), 0)
    except FileNotFoundError:
        check_mark(None, mark_ns)
        return Contents([], None, 0, is_torn=False)
    return found_in(content, mark_ns, clock)[0]
