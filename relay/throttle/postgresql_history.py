"""The history of an account in PostgreSQL, shared by relays on any number of hosts.

A transaction is a database transaction.  It locks the account's row, which excludes every other writer.  The
server ends it if it is idle too long (idle_in_transaction_session_timeout).  A commit is one group, in one
row.  A replacement is also one row, and takes the place of all rows before it.  So a failed statement leaves
all of its effect or none.  If COMMIT gets no reply, the news of the next transaction show what it did.

Time.  The history's clock is the server's clock plus an offset that is kept with the account.  It never goes
back.  A process compares it with its own boottime between two transactions.  If the server's clock was
stepped by more than SKEW_NS and drift, the offset undoes the step for all hosts.  Not noticed: a step while
no relay was running.

Lost commits.  A failover to a standby that lacks commits would shorten the past.  Each process knows how far
the history was, and each host keeps that in a file.  If the history is shorter, or another one has its name,
nothing is sent.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, LiteralString, NamedTuple

import psycopg

from relay.clock import SECOND_NS, Clock
from relay.spool.database import DatabaseError
from relay.spool.database.account import CLOCK_NS, SharedAccount
from relay.spool.database.connection import Connection, commit, in_words, one
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import replace_file
from relay.throttle.history import NOTHING_SENT, Event, HistoryError
from relay.throttle.history_format import DamagedHistory, events_in, words_of

SKEW_NS = SECOND_NS // 2
DRIFT = 5_000
"""Two clocks that nobody sets may drift apart by 1/DRIFT of the time that passes (200 ppm)."""
REPLACE_ABOVE_GROUPS = 4096
"""A shorter history is never replaced."""
ADVICE = (
    "stop the relays, wait for the longest period of the account's limits, remove each host's .mark, start"
)


# Other relays wait for the lock, so its holder sends few statements.
_CLOCK_AND_NEWS: LiteralString = (
    f"SELECT {CLOCK_NS}, ARRAY(SELECT events FROM relay.history"  # noqa: S608 - a constant
    " WHERE account_id = %s AND position > %s ORDER BY position)"
)
_WRITE = (
    "WITH added AS (INSERT INTO relay.history (account_id, position, events) VALUES (%s, %s, %s)),"
    " mark AS (INSERT INTO relay.mark (account_id, host) VALUES (%s, %s)"
    " ON CONFLICT (account_id, host) DO UPDATE SET at = excluded.at)"
    " UPDATE relay.account SET first_position = %s, last_position = %s, offset_ns = %s, now_ns = %s"
    " WHERE id = %s"
)


class RowState(NamedTuple):
    """The pause in the account's row, and when it was read."""

    version: int
    state: str
    boottime_ns: int
    now_ns: int
    """The history's clock at `boottime_ns`."""


class HighWaterMark:
    """How far this host knows a history: the identity of the account, and the position of a group.

    The file has one line of fixed length.  It is rewritten in place and not synced, so a crash may leave an
    older line or none.
    """

    def __init__(self, path: str, disk: Disk) -> None:
        self._path, self._disk = path, disk

    def load(self) -> tuple[str, int] | None:
        """Raise OSError."""
        if self._disk.inode(self._path) is None:
            return None
        with opened(self._disk, self._disk.open_read(self._path)) as fd:
            line, _, _ = self._disk.pread(fd, 128, 0).partition(b"\n")
        words = line.decode("ascii", "replace").split()
        return (words[0], int(words[1])) if len(words) == 2 and words[1].isdecimal() else None

    def save(self, identity: str, position: int) -> None:
        """Raise OSError."""
        line = f"{identity} {position:020}\n".encode()
        if self._disk.inode(self._path) is None:
            replace_file(self._disk, self._path, line)
            return
        with opened(self._disk, self._disk.open_update(self._path)) as fd:
            self._disk.write_at(fd, line, 0)


class PostgresqlHistory:
    def __init__(
        self,
        account: SharedAccount,
        mark: HighWaterMark,
        clock: Clock,
        *,
        on_state: Callable[[RowState], None] = lambda _: None,
        replace_above_groups: int = REPLACE_ABOVE_GROUPS,
    ) -> None:
        """Connect to nothing yet.

        Each transaction calls `on_state` with the account's pause, behind the lock and before any grant.
        """
        self._account, self._mark, self._clock = account, mark, clock
        self._on_state = on_state
        self._replace_above = replace_above_groups
        self._connection: Connection | None = None
        self._cursor: int | None = None
        """The position of the last group that is known here."""
        self._seen: tuple[int, int, int] | None = None
        """The history's time at the last transaction, and boottime just before and just after it was read."""
        # State of the present transaction.
        self._id = self._first_position = self._last_position = self._offset_ns = 0
        self._identity = ""
        self._is_open = self._was_stepped = False
        self.now_ns = self.ahead_ns = 0
        self.news: Sequence[Event] = ()
        self.is_whole = self.is_empty = False

    @contextlib.contextmanager
    def transaction(self) -> "Iterator[PostgresqlHistory]":
        with self._failing_closed():
            if self._connection is None or self._connection.closed:
                self._connection, self._cursor = self._account.database.connect(), None
            connection, self._is_open = self._connection, True
            self._lock(connection)
        try:
            yield self
        finally:
            if self._is_open:
                self._end(connection)

    @property
    def is_long(self) -> bool:
        return self._last_position - self._first_position > self._replace_above

    def commit(self, events: Sequence[Event]) -> None:
        self._commit(events, self._first_position or 1)

    def replace(self, events: Sequence[Event]) -> bool:
        with self._failing_closed():
            self._locked().execute("DELETE FROM relay.history WHERE account_id = %s", (self._id,))
        self._commit(events, self._last_position + 1)
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._cursor = None

    def _locked(self) -> Connection:
        """Return the connection that has the lock, never a new connection."""
        if self._connection is None or not self._is_open:
            raise DatabaseError("the transaction is over")
        return self._connection

    def _lock(self, connection: Connection) -> None:
        row = self._account.locked(connection)
        self._id, self._identity, self._first_position, self._last_position = row[:4]
        self._offset_ns, self.now_ns = row.offset_ns, row.now_ns
        if (mark := self._mark.load()) is not None:
            identity, position = mark
            if identity != self._identity:
                why = "the database has another history under this account's name"
                raise DamagedHistory(f"{why}; {NOTHING_SENT}.  To repair: {ADVICE}")
            if position > self._last_position:
                lost = f"it lost {position - self._last_position} commits"
                raise DamagedHistory(f"{lost}; {NOTHING_SENT}.  To repair: {ADVICE}")
        self._learn(connection)
        if row.state is not None:
            self._on_state(RowState(row.state_version, row.state, self.now_ns - self.ahead_ns, self.now_ns))

    def _learn(self, connection: Connection) -> None:
        """Read clock and news behind the lock, so that instants ascend and no group is missed."""
        self.is_empty = self._last_position == 0
        self.is_whole = self._cursor is None or self._cursor < self._first_position
        since = self._first_position - 1 if self.is_whole else self._cursor
        before_ns = self._clock.boottime_ns()
        clock_ns, groups = one(connection, _CLOCK_AND_NEWS, (self._id, since))
        self._tell_time(before_ns, clock_ns + self._offset_ns, self._clock.boottime_ns())
        self.news = [event for text in groups for event in events_in(json.loads(text))]
        self._cursor = self._last_position

    def _tell_time(self, before_ns: int, now_ns: int, after_ns: int) -> None:
        if self._seen is not None:
            then_ns, then_before_ns, then_after_ns = self._seen
            least_ns, most_ns = before_ns - then_after_ns, after_ns - then_before_ns
            step_ns = now_ns - then_ns - max(least_ns, min(most_ns, now_ns - then_ns))
            self._was_stepped = abs(step_ns) > SKEW_NS + most_ns // DRIFT
            if self._was_stepped:
                self._offset_ns -= step_ns
                now_ns -= step_ns
        self.now_ns = max(self.now_ns, now_ns)
        self.ahead_ns = self.now_ns - before_ns
        self._seen = self.now_ns, before_ns, after_ns

    def _end(self, connection: Connection) -> None:
        """End a transaction that committed nothing; keep a new offset of the clock for the other hosts."""
        self._is_open = False
        with contextlib.suppress(psycopg.Error, DatabaseError):
            if self._was_stepped:
                connection.execute(
                    "UPDATE relay.account SET offset_ns = %s, now_ns = %s WHERE id = %s",
                    (self._offset_ns, self.now_ns, self._id),
                )
                commit(connection)
            else:
                connection.rollback()

    def _commit(self, events: Sequence[Event], first_position: int) -> None:
        position = self._last_position + 1
        group: list[Any] = [words_of(event) for event in events]
        with self._failing_closed():
            connection = self._locked()
            text = json.dumps(group, separators=(",", ":"))
            mark = self._id, self._account.host
            row = first_position, position, self._offset_ns, self.now_ns
            connection.execute(_WRITE, (self._id, position, text, *mark, *row, self._id))
            commit(connection)
        self._is_open = False
        self._cursor, self._last_position, self._first_position = position, position, first_position
        # Crash here: the mark is behind the history, which does no harm.
        with self._failing_closed():
            self._mark.save(self._identity, position)

    @contextlib.contextmanager
    def _failing_closed(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, DatabaseError, DamagedHistory, OSError, ValueError, TypeError) as error:
            self.close()
            raise HistoryError(
                f"the history of {self._account.name} in the database: {in_words(error)}"
            ) from error
