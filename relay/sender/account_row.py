"""The pause state of an account in its database row, shared by all hosts that use the account.

An event on this host is applied to the row's present state; one transaction reads and writes the row.
Other hosts learn of it at once (NOTIFY), at the latest behind the lock of their next reservation: a host
begins nothing that it reserves after the commit of a pause.  A fault of a host's history, and when a host
sent nothing, are its own: its file has them (`pausing`).  While the database is away, events count on
this host alone and are written later.

Threads: `note_row` and `look` may be called from any; the rest belongs to one event loop.
"""

import asyncio
import contextlib
from collections.abc import Callable

import psycopg

from relay.clock import Clock
from relay.mail.text import clean
from relay.policy.named_file import SecretError
from relay.sender.pausing import parse, render
from relay.spool.database import DatabaseError
from relay.spool.database.account import CLOCK_NS, RowState, SharedAccount
from relay.spool.database.connection import Connection, once, one
from relay.verdicts.account import AccountState, Event, EventKind, PauseRecord, lapsed, step

OWN = frozenset({EventKind.FAULT, EventKind.SOUND})
"""Events that concern one host alone; the row does not record them."""
LISTENS_AGAIN_SECONDS = 1.0
_OF_ANOTHER_BOOT = "of the database"
"""No host's boot id, so `moved` converts instants by the wall clock, which is the history's clock."""


class AccountRow:
    def __init__(
        self, account: SharedAccount, clock: Clock, on_error: Callable[[str], None] = lambda _: None
    ) -> None:
        """`on_error` gets the text of each failed write, and of a row that cannot be parsed."""
        self._account, self._clock, self._on_error = account, clock, on_error
        self.pending: list[Event] = []
        """Events that are not in the row yet."""
        self._row = RowState(0, "", 0, 0)
        """The newest version of the row that was read."""
        self._version = 0
        """The version of the row by which this host goes."""
        self._writing: asyncio.Task[str] | None = None

    def note_row(self, row: RowState) -> None:
        self._row = max(self._row, row)

    def look(self) -> str:
        """Read the row; return the error, empty if there is none."""
        try:
            with once(self._account.database) as connection:
                self._read_row(connection)
        except DatabaseError as error:
            return clean(str(error))
        return ""

    def news(self) -> AccountState | None:
        """Return the state that another host wrote, with the pending events applied; None if none is new."""
        row = self._row
        if row.version <= self._version:
            return None
        self._version = row.version
        return self._after_all(row, self.pending)

    def record(self, event: Event) -> None:
        """Record an event in the row soon, unless it concerns this host alone."""
        if event.kind not in OWN:
            self.pending.append(event)
            self.write()

    def write(self) -> None:
        """Start writing the pending events, unless a write is under way."""
        if self.pending and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write())

    async def written(self) -> str:
        """Wait until the row has all events; return the error, empty if there is none."""
        return "" if self._writing is None else await asyncio.shield(self._writing)

    async def listen(self, on_news: Callable[[], None]) -> None:
        """Read the row each time another host changed one, for ever."""
        database = self._account.database
        while True:
            # The history reports these errors; a lack of threads or descriptors ends.
            with contextlib.suppress(psycopg.Error, SecretError, OSError, RuntimeError):
                parameters = await asyncio.to_thread(database.parameters)
                connecting = psycopg.AsyncConnection.connect(database.url, autocommit=True, **parameters)
                async with (
                    await connecting as connection,
                    # Closed first: it holds the connection's lock between two notifications.
                    contextlib.aclosing(connection.notifies()) as notifications,
                ):
                    await connection.execute("LISTEN relay_account")
                    while True:  # the first time, because the row may have changed before LISTEN
                        await asyncio.to_thread(self.look)
                        on_news()
                        await anext(notifications)
            await asyncio.sleep(LISTENS_AGAIN_SECONDS)

    async def _write(self) -> str:
        while events := list(self.pending):
            try:
                await asyncio.to_thread(self.apply, events)
            except DatabaseError as failed:
                error = clean(f"{self._account.name}: {failed}")
                self._on_error(error)
                return error
            del self.pending[: len(events)]
        return ""

    def apply(self, events: list[Event]) -> None:
        """Apply events to the row; call it while no relay runs.  Raises DatabaseError."""
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
        if row.version == self._version:
            # No other host changed the row, so this host has its state already.
            self._version = written.version
        self.note_row(written)

    def _read_row(self, connection: Connection) -> RowState:
        """Lock the row, and return its content; a newer version becomes news."""
        row = self._account.locked(connection)
        boottime_ns = self._clock.boottime_ns()
        (clock_ns,) = one(connection, f"SELECT {CLOCK_NS}")
        now_ns = max(row.now_ns, clock_ns + row.offset_ns)
        found = RowState(row.state_version, row.state, boottime_ns, now_ns)
        self.note_row(found)
        return found

    def _after_all(self, row: RowState, events: list[Event]) -> AccountState:
        state = AccountState()
        if row.version:
            try:
                record = parse(row.state.encode())
            except ValueError as error:
                self._on_error(clean(f"{self._account.name}: the database: {error}"))
            else:
                state = record.moved(self._clock.boot_id(), row.boottime_ns, row.now_ns).state
        for event in events:
            state = step(lapsed(state, event.at_ns), event)
        return lapsed(state, self._clock.boottime_ns())
