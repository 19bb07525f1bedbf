"""Histories, wherever a policy keeps them: opened to be written, or read by who only looks."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from relay.clock import Clock
from relay.policy.model import HistoryPlace
from relay.spool.disk.durable import Disk
from relay.throttle.book import Book
from relay.throttle.events import moved
from relay.throttle.file_history import FileHistory
from relay.throttle.history import History
from relay.throttle.history_check import book_in_file
from relay.throttle.limit import Limit

if TYPE_CHECKING:
    from relay.throttle.postgresql_history import Told


def open_history(
    place: HistoryPlace, disk: Disk, clock: Clock, on_state: "Callable[[Told], None]" = lambda _: None
) -> History:
    """Touch neither disk nor network yet; `on_state` is for a database."""
    if place.database is None:
        return FileHistory(place.path, disk, clock)
    from relay.spool.database.account import account_of  # noqa: PLC0415 - it needs an extra
    from relay.throttle.postgresql_history import HighWaterMark, PostgresqlHistory  # noqa: PLC0415 - as above

    account = account_of(place.database, place.account, place.host)
    return PostgresqlHistory(account, HighWaterMark(f"{place.path}.mark", disk), clock, on_state=on_state)


def recorded_book(
    place: HistoryPlace, limits: Sequence[Limit], guard_ns: int | None, disk: Disk, clock: Clock
) -> Book:
    """Return what a start would know of the account's past, in boottime.  Changes nothing.

    Raises PermissionError, and HistoryError where a start would send nothing.
    """
    if place.database is None:
        return book_in_file(place.path, limits, guard_ns, disk, clock)
    book, history = Book(), open_history(place, disk, clock)
    book.judge_by(limits, guard_ns)
    try:
        with history.transaction() as found:
            book.reset([moved(event, -found.ahead_ns) for event in found.news], found.now_ns - found.ahead_ns)
    finally:
        history.close()
    return book
