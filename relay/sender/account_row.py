"""The pause state of an account in its database row, shared by all hosts that use the account.

An event on this host is applied to the row's present state; one transaction reads and writes the row.
Other hosts learn of it at once (NOTIFY), at the latest behind the lock of their next reservation: a host
begins nothing that it reserves after the commit of a pause.  A fault of a host's history, and when a host
sent nothing, are its own: its file has them (`state_file`).  While the database is away, events count on
this host alone and are written later.

Threads: `note_row` and `look` may be called from any; the rest belongs to one event loop.
"""

import asyncio
import contextlib
from collections.abc import Callable

import psycopg
from psycopg.pq import ConnStatus

from relay.clock import SECOND_NS, Clock
from relay.mail.text import clean
from relay.sender.host import seconds
from relay.sender.state_file import parse, render
from relay.spool.database import DatabaseError
from relay.spool.database.account import CLOCK_NS, AccountColumns, SharedAccount
from relay.spool.database.connection import Connection, once, one
from relay.throttle.postgresql_history import RowState
from relay.verdicts.account import AccountState, Event, Happening, PauseRecord, lapsed, step

OWN = frozenset({Happening.FAULT, Happening.SOUND})
"""Events that concern one host alone; the row does not record them."""
LISTENS_AGAIN_NS = SECOND_NS
_OF_ANOTHER_BOOT = "of the database"
"""No host's boot id, so `moved` converts instants by the wall clock, which is the history's clock."""


class AccountRow:
    def __init__(
        self, account: SharedAccount, clock: Clock, on_error: Callable[[str], None] = lambda _: None
    ) -> None:
        """`on_error` gets the text of each failed write, and of a row that cannot be parsed."""
        self._account, self._clock, self._on_error = account, clock, on_error
        self._named = f"{account.name} in the database"
        self.pending: list[Event] = []
        """Events that are not in the row yet."""
        self._version = 0
        """The version of the row that this host knows."""
        self._newer_row: RowState | None = None
        self._writing: asyncio.Task[str] | None = None

    def note_row(self, told: RowState) -> None:
        if told.version > self._version and (
            self._newer_row is None or told.version > self._newer_row.version
        ):
            self._newer_row = told

    def look(self) -> str:
        """Read the row; return the error, empty if there is none."""
        try:
            with once(self._account.database) as connection:
                self._read_row(connection, self._account.locked(connection))
        except DatabaseError as error:
            return clean(str(error))
        return ""

    def news(self) -> AccountState | None:
        """Return the state that another host wrote, with the pending events applied; None if none is new."""
        told, self._newer_row = self._newer_row, None
        if told is None or told.version <= self._version:
            return None
        self._version = told.version
        return self._after_all(told, self.pending)

    def record(self, event: Event) -> None:
        """Record an event in the row soon, unless it concerns this host alone."""
        if event.happening not in OWN:
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
        """Read the row each time another host changed it, for ever."""
        while True:
            with contextlib.suppress(psycopg.Error, DatabaseError):  # the history reports them
                connection = await asyncio.to_thread(self._listening)
                try:
                    await self._follow(connection, on_news)
                finally:
                    connection.close()
            await asyncio.sleep(seconds(LISTENS_AGAIN_NS))

    def apply(self, event: Event) -> None:
        """Apply an event to the row while no relay runs.  Raises DatabaseError."""
        self._change([event])

    async def _write(self) -> str:
        while events := list(self.pending):
            try:
                await asyncio.to_thread(self._change, events)
            except DatabaseError as failed:
                error = clean(f"{self._named}: {failed}")
                self._on_error(error)
                return error
            del self.pending[: len(events)]
        return ""

    def _change(self, events: list[Event]) -> None:
        with once(self._account.database) as connection:
            row = self._account.locked(connection)
            told = self._read_row(connection, row)
            after = self._after_all(told, events)
            record = PauseRecord(_OF_ANOTHER_BOOT, told.boottime_ns, told.now_ns, after)
            written = told._replace(version=told.version + 1, state=render(record).decode())
            connection.execute(
                "WITH kept AS (UPDATE relay.account SET state = %s, state_version = %s WHERE id = %s)"
                " SELECT pg_notify(%s, '')",
                (written.state, written.version, row.id, row.channel),
            )
        if told.version == self._version:
            # No other host changed the row, so this host has its state already.
            self._version = written.version
        else:
            self._newer_row = written

    def _read_row(self, connection: Connection, row: AccountColumns) -> RowState:
        """Return the content of the locked row; a newer version becomes news."""
        before_ns = self._clock.boottime_ns()
        (clock_ns,) = one(connection, f"SELECT {CLOCK_NS}")
        now_ns = max(row.now_ns, clock_ns + row.offset_ns)
        told = RowState(row.state_version, row.state or "", before_ns, now_ns)
        if row.state is not None:
            self.note_row(told)
        return told

    def _after_all(self, told: RowState, events: list[Event]) -> AccountState:
        state = AccountState()
        if told.state:
            try:
                record = parse(told.state.encode())
            except ValueError as error:
                self._on_error(clean(f"{self._named}: {error}"))
            else:
                state = record.moved(self._clock.boot_id(), told.boottime_ns, told.now_ns).state
        for event in events:
            state = step(lapsed(state, event.at_ns), event)
        return lapsed(state, self._clock.boottime_ns())

    def _listening(self) -> Connection:
        connection = self._account.database.connect()
        try:
            channel = self._account.locked(connection).channel
            connection.commit()
            connection.autocommit = True
            connection.execute(f"LISTEN {channel}".encode())
        except psycopg.Error:
            connection.close()
            raise
        return connection

    async def _follow(self, connection: Connection, on_news: Callable[[], None]) -> None:
        """Read the row at each notification; return when the connection is lost."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        pgconn, fd = connection.pgconn, connection.fileno()
        came.set()  # the row may have changed before LISTEN

        def read() -> None:
            try:
                pgconn.consume_input()
            except psycopg.Error:
                loop.remove_reader(fd)
            came.set()

        loop.add_reader(fd, read)
        try:
            while pgconn.status == ConnStatus.OK:
                await came.wait()
                came.clear()
                while pgconn.notifies() is not None:
                    pass
                await asyncio.to_thread(self.look)
                on_news()
        finally:
            loop.remove_reader(fd)
