"""The pause state of an account in its database row, shared by all hosts that use the account.

An event on this host is applied to the row's present state; one transaction reads and writes the row.
Other hosts learn of it at once (NOTIFY), at the latest behind the lock of their next reservation: a host
begins nothing that it reserves after the commit of a pause.  A fault of a host's history is its own, and
lost at a restart.  While the database is away, events count on this host alone.  They are written later,
and lost if the host stops before that.
"""

import asyncio
import contextlib
from collections.abc import Callable

import psycopg

from relay.clock import Clock
from relay.policy.named_file import SecretError
from relay.sender.pausing import AccountStore, parse, render
from relay.spool.database import DatabaseError
from relay.spool.database.account import CLOCK_NS, RowState, SharedAccount
from relay.spool.database.connection import Connection, once, one
from relay.verdicts.account import AccountState, Event, EventKind, PauseRecord, lapsed, step

LISTENS_AGAIN_SECONDS = 1.0
_OF_ANOTHER_BOOT = "of the database"
"""No host's boot id, so `state_at` converts instants by the wall clock, which is the history's clock."""


class AccountRow(AccountStore):
    def __init__(self, account: SharedAccount, clock: Clock) -> None:
        self._account, self._clock = account, clock
        self._pending: list[Event] = []
        """Events that are not in the row yet."""
        self._row = RowState(-1, "", 0, 0)
        """The newest version of the row that was read."""
        self._version = -1
        """The version of the row by which this host goes."""

    def note_row(self, row: RowState) -> None:
        self._row = max(self._row, row)

    def look(self) -> AccountState:
        return self._parsed(self._read())

    def news(self) -> AccountState | None:
        row = self._row
        if row.version <= self._version:
            return None
        self._version = row.version
        return self._after_all(row, self._pending)

    def record(self, event: Event) -> None:
        if event.kind not in (EventKind.FAULT, EventKind.SOUND):  # these concern this host alone
            self._pending.append(event)

    def save(self, state: AccountState) -> None:
        """Apply the recorded events to the row, whose state may be another than this host's."""
        del state
        if not (events := list(self._pending)):
            return
        with once(self._account.database) as connection:
            row = self._read_row(connection)
            after = self._after_all(row, events)
            record = PauseRecord(_OF_ANOTHER_BOOT, row.boottime_ns, row.now_ns, after)
            written = row._replace(version=row.version + 1, state=render(record).decode())
            connection.execute(
                "WITH kept AS (UPDATE relay.account SET state = %s, state_version = %s WHERE name = %s)"
                " SELECT pg_notify('relay_account', '')",
                (written.state, written.version, self._account.name),
            )
        del self._pending[: len(events)]
        if row.version == self._version:
            # No other host changed the row, so this host has its state already.
            self._version = written.version
        self.note_row(written)

    async def listen(self, on_news: Callable[[], None]) -> None:
        database = self._account.database
        while True:
            # The history reports these errors; a lack of threads or descriptors ends.
            with contextlib.suppress(psycopg.Error, DatabaseError, SecretError, OSError, RuntimeError):
                parameters = await asyncio.to_thread(database.parameters)
                connecting = psycopg.AsyncConnection.connect(database.url, autocommit=True, **parameters)
                async with (
                    await connecting as connection,
                    # Closed first: it holds the connection's lock between two notifications.
                    contextlib.aclosing(connection.notifies()) as notifications,
                ):
                    await connection.execute("LISTEN relay_account")
                    while True:  # the first time, because the row may have changed before LISTEN
                        await asyncio.to_thread(self._read)
                        on_news()
                        await anext(notifications)
            await asyncio.sleep(LISTENS_AGAIN_SECONDS)

    def _read(self) -> RowState:
        with once(self._account.database) as connection:
            return self._read_row(connection)

    def _read_row(self, connection: Connection) -> RowState:
        """Lock the row, and return its content; a newer version becomes news."""
        row = self._account.locked(connection)
        boottime_ns = self._clock.boottime_ns()
        (clock_ns,) = one(connection, f"SELECT {CLOCK_NS}")
        now_ns = max(row.now_ns, clock_ns + row.offset_ns)
        found = RowState(row.state_version, row.state, boottime_ns, now_ns)
        self.note_row(found)
        return found

    def _parsed(self, row: RowState) -> AccountState:
        """Return the row's state in the time of this boot.  Raises ValueError."""
        if not row.version:
            return AccountState()
        record = parse(row.state.encode(), f"account {self._account.name}")
        return record.state_at(self._clock.boot_id(), row.boottime_ns, row.now_ns)

    def _after_all(self, row: RowState, events: list[Event]) -> AccountState:
        state = AccountState()
        with contextlib.suppress(ValueError):  # `look` reports it
            state = self._parsed(row)
        for event in events:
            state = step(lapsed(state, event.at_ns), event)
        return lapsed(state, self._clock.boottime_ns())
