"""The history of an account in PostgreSQL, shared by relays on any number of hosts.

A transaction is a database transaction.  It locks the account's row, which excludes every other writer.  The
server ends it if it is idle too long (idle_in_transaction_session_timeout).  A commit is one group, in one
row.  A replacement is also one row, and takes the place of all rows before it.  So a failed statement leaves
all of its effect or none.  If COMMIT gets no reply, the news of the next transaction show what it did.

Time.  The history's clock is the server's clock plus an offset that is kept with the account.  It never goes
back.  A process compares it with its own boottime between two transactions.  If the server's clock was
stepped by more than SKEW_NS and drift, the offset undoes the step for all hosts.  Not noticed: a step while
no relay was running.  Rows have instants of the history's clock.  It was read at some instant of the round
trip to the server; an event is converted, both ways, to the latest instant that this allows.  If boottime
has gained SKEW_NS on the history's clock since all events were converted, all are read again.

Lost commits.  A failover to a standby that lacks commits would shorten the past.  Each process knows how far
the history was, and each host keeps that in a file.  If the history is shorter, or another one has its name,
nothing is sent.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import LiteralString

from relay.clock import SECOND_NS, Clock
from relay.spool.database import DatabaseError
from relay.spool.database.account import CLOCK_NS, AccountColumns, RowState, SharedAccount
from relay.spool.database.connection import Connection, LastingConnection, in_words, one
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import replace_file
from relay.throttle.history import NOTHING_SENT, Event, HistoryError, event_of, fields_of, moved

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
    "WITH added AS (INSERT INTO relay.history (account_id, position, events)"
    " VALUES (%(id)s, %(position)s, %(events)s)),"
    " mark AS (INSERT INTO relay.mark (account_id, host) VALUES (%(id)s, %(host)s)"
    " ON CONFLICT (account_id, host) DO UPDATE SET at = excluded.at)"
    " UPDATE relay.account SET first_position = %(first)s, last_position = %(position)s,"
    " offset_ns = %(offset_ns)s, now_ns = %(now_ns)s WHERE id = %(id)s"
)


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
            words = self._disk.pread(fd, 128, 0).decode("ascii", "replace").split()
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
        """Each transaction gives `on_state` the account's pause, behind the lock and before any grant."""
        self._account, self._mark, self._clock = account, mark, clock
        self._on_state = on_state
        self._replace_above = replace_above_groups
        self._lasting = LastingConnection(account.database)
        self._cursor: int | None = None
        """The position of the last group that is known here; None if memory must begin anew."""
        self._seen: tuple[int, int, int] | None = None
        """The history's clock at the last transaction, and boottime just before and after it was read."""
        self._whole_to_boottime_ns = 0
        """What converted instants of the history's clock to boottime, when all events were read last."""
        # State of the present transaction.
        self._connection: Connection
        self._row: AccountColumns
        self._clock_ns = 0
        """The history's clock at `now_ns`, or a little later."""
        self.now_ns = 0
        self.news: Sequence[Event] = ()
        self.is_whole = False

    @contextlib.contextmanager
    def transaction(self) -> "Iterator[PostgresqlHistory]":
        cursor, self._cursor = self._cursor, None  # it stays None after an error
        try:
            with self._lasting.begin() as self._connection:
                row = self._row = self._account.locked(self._connection)
                self._check_mark()
                self._learn(cursor)
                self._on_state(RowState(row.state_version, row.state, self.now_ns, self._clock_ns))
                yield self
                if self._row is row:
                    # Nothing was written.  A COMMIT would wait for the disk and keep the lock meanwhile.
                    self._connection.rollback()
        except (DatabaseError, OSError) as error:
            raise HistoryError(f"the history of {self._account.name}: {in_words(error)}") from error
        if self.now_ns - self._clock_ns <= self._whole_to_boottime_ns + SKEW_NS:
            self._cursor = self._row.last_position

    @property
    def is_long(self) -> bool:
        return self._row.last_position - self._row.first_position > self._replace_above

    def commit(self, events: Sequence[Event]) -> None:
        self._commit(events, self._row.first_position or 1)

    def replace(self, events: Sequence[Event]) -> None:
        self._connection.execute("DELETE FROM relay.history WHERE account_id = %s", (self._row.id,))
        self._commit(events, self._row.last_position + 1)

    def close(self) -> None:
        self._lasting.close()
        self._cursor = None

    def _check_mark(self) -> None:
        """Raise HistoryError if this is not the history that this host knows, or less of it."""
        identity, position = self._mark.load() or (self._row.identity, 0)
        what = "the database has another history under this account's name"
        if identity == self._row.identity:
            if position <= self._row.last_position:
                return
            what = f"it lost {position - self._row.last_position} commits"
        where = f"the history of {self._account.name}"
        raise HistoryError(f"{where}: {what}; {NOTHING_SENT}.  To repair: {ADVICE}")

    def _learn(self, cursor: int | None) -> None:
        """Read clock and news behind the lock, so that instants ascend and no group is missed."""
        row = self._row
        self.is_whole = cursor is None or cursor < row.first_position
        since = row.first_position - 1 if self.is_whole else cursor
        before_ns = self._clock.boottime_ns()
        clock_ns, groups = one(self._connection, _CLOCK_AND_NEWS, (row.id, since))
        after_ns = self._clock.boottime_ns()
        self._tell_time(before_ns, clock_ns + row.offset_ns, after_ns)
        to_boottime_ns = after_ns - self._clock_ns
        if self.is_whole:
            self._whole_to_boottime_ns = to_boottime_ns
        self.news = [
            moved(event_of(fields), to_boottime_ns) for text in groups for fields in json.loads(text)
        ]

    def _tell_time(self, before_ns: int, clock_ns: int, after_ns: int) -> None:
        if self._seen is not None:
            then_ns, then_before_ns, then_after_ns = self._seen
            least_ns, most_ns = before_ns - then_after_ns, after_ns - then_before_ns
            step_ns = clock_ns - then_ns - max(least_ns, min(most_ns, clock_ns - then_ns))
            if abs(step_ns) > SKEW_NS + most_ns // DRIFT:
                clock_ns -= step_ns
                # Written now, for the other hosts: this transaction may commit nothing else.
                self._row = self._row._replace(offset_ns=self._row.offset_ns - step_ns)
                update = "UPDATE relay.account SET offset_ns = %s WHERE id = %s"
                self._connection.execute(update, (self._row.offset_ns, self._row.id))
        self.now_ns, self._clock_ns = before_ns, max(self._row.now_ns, clock_ns)
        self._seen = self._clock_ns, before_ns, after_ns

    def _commit(self, events: Sequence[Event], first: int) -> None:
        row, position = self._row, self._row.last_position + 1
        values = {"id": row.id, "position": position, "first": first, "host": self._account.host}
        values |= {"offset_ns": row.offset_ns, "now_ns": self._clock_ns}
        later_ns = self._clock_ns - self.now_ns
        stored = [fields_of(moved(event, later_ns)) for event in events]
        values["events"] = json.dumps(stored, separators=(",", ":"))
        self._connection.execute(_WRITE, values)
        self._lasting.commit(self._connection)
        self._row = row._replace(last_position=position)
        # Crash here: the mark is behind the history, which does no harm.
        self._mark.save(row.identity, position)
