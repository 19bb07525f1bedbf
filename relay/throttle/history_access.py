"""Opens the history of an account for a relay, or reads its past for a command.

`relay fsck`, `audit`, `plan` and `status` read a history file without its lock, and change nothing.  To them
a group that is being appended looks torn.  During a replacement they see the old file or the new one.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from relay.clock import Clock
from relay.policy.model import HistoryPlace
from relay.spool.disk.durable import Disk, opened
from relay.throttle.book import Book, book_of
from relay.throttle.file_history import FileHistory, check_mark, found_in, refusal
from relay.throttle.history import NOTHING_SENT, History, moved
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


def recorded_book(place: HistoryPlace, limits: Sequence[Limit], disk: Disk, clock: Clock) -> Book:
    """Return what a relay that starts now would know of the account's past, in boottime.

    Without a history file and without a mark in its lock the past is empty.  Raises PermissionError, and
    HistoryError if such a relay would send nothing.
    """
    if place.database is not None:
        with contextlib.closing(open_history(place, disk, clock)) as history, history.transaction() as found:
            events = [moved(event, -found.ahead_ns) for event in found.news]
            return book_of(events, found.now_ns - found.ahead_ns, limits)
    try:
        return book_of(_read(place.path, disk, clock).events, clock.boottime_ns(), limits)
    except DamagedHistory as damage:
        raise refusal(str(place.path), damage) from damage


def history_findings(path: Path, disk: Disk, clock: Clock) -> Iterator[Finding]:
    """Yield what a relay that starts now would find in a history file, and do about it.

    Raises PermissionError.
    """
    try:
        if _read(path, disk, clock).is_torn:
            what = "its last group is incomplete; no mail was sent on that group"
            yield Finding(str(path), "torn_group", what, "the relay cuts the group off at its next use")
    except DamagedHistory as damage:
        yield Finding(str(path), "damaged_history", str(damage), NOTHING_SENT, damage.advice)


def _read(path: Path, disk: Disk, clock: Clock) -> Contents:
    """Raise PermissionError and DamagedHistory."""
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
    except PermissionError:
        raise
    except OSError as error:
        raise DamagedHistory(f"cannot be read: {error.strerror or error}", "check the disk") from error
    return found_in(content, mark_ns, clock)[0]
