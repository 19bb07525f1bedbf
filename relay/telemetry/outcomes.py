"""An SQLite database of recent outcomes: what became of messages, for `relay find`.

Guarantees: nothing here raises into a caller or blocks the event loop.  While the disk keeps up, a thread
writes each outcome within GATHER_SECONDS.  Outcomes that cannot be written are dropped; the log says so once,
and again only after a write succeeded.  A damaged database is removed.  The database has at most
`most_bytes`, and its journal is empty between writes.  Outcomes older than `keep_ns` by the wall clock go
with the next write, or after TIDY_SECONDS.  The headroom of new mail stays free.  A kill loses only what was
not written.
Assumes: one event loop; one writer, the holder of the spool's lock; any number of readers.  Nothing depends
on the database, so nothing is synced, and a loss of power may damage it.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from relay.mail.address import matches
from relay.mail.formats import Value
from relay.mail.text import clean
from relay.spool.disk.durable import Disk
from relay.spool.root.headroom import leave_headroom
from relay.telemetry.events import Subject
from relay.telemetry.metrics import Telemetry
from relay.verdicts.decision import FINAL

if TYPE_CHECKING:
    # `relay find` reads a database, and needs nothing that checks a policy.
    from relay.policy.model import RecentSettings

GATHER_SECONDS = 0.2
"""Between two writes; outcomes of this time are written together."""
TIDY_SECONDS = 600.0
"""Between two deletions of old outcomes, while no message ends."""
MOST_PENDING = 20_000
"""How many outcomes may wait in memory, so that a disk that does not answer cannot fill it."""
LONGEST_TEXT = 1000
"""How many characters of a reply or an address are kept."""
_AT_ONCE = 500
"""Rows of one transaction, which then fits SQLite's cache, and rows of one query."""
_ROW_BYTES = 1024
"""The size of a row, at most, about."""
_BUSY_SECONDS = 10.0
_TEXTS = ("queue_id", "reverse_path", "recipient", "status", "upstream", "relay", "dsn", "text")
"""The fields of an event that are kept, in the order of `PastOutcome`."""


class PastOutcome(NamedTuple):
    at_ns: int
    """Wall clock."""
    queue_id: str
    reverse_path: str
    recipient: str
    became: str
    """relayed, bounced, expired or deleted."""
    upstream: str = ""
    """Its name in the policy; empty if no upstream was asked."""
    relay: str = ""
    """`host[address]:port`, or `none`."""
    dsn: str = ""
    reply: str = ""
    """The upstream's reply, or the reason if there was none."""
    message_id: str | None = None
    subject: str = ""
    client_queue_id: str = ""
    """These three are the fields of `relay.mail.header.Names`."""
    client: str = ""
    lane: str = ""
    size_bytes: int = 0
    """Of the content."""


_COLUMNS = ", ".join(PastOutcome._fields)
# No write-ahead log: SQLite maps its index into memory.  If a full disk leaves a hole in that file, a bus
# error ends the process.
_SCHEMA = f"""
PRAGMA journal_mode = TRUNCATE;
PRAGMA auto_vacuum = FULL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS outcome ({_COLUMNS});
CREATE INDEX IF NOT EXISTS outcome_at ON outcome (at_ns);
"""
_INSERT = f"INSERT INTO outcome ({_COLUMNS}) VALUES ({', '.join('?' * len(PastOutcome._fields))})"  # noqa: S608 - names of ours
_USED = (
    "SELECT (page_count - freelist_count) * page_size"
    " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)
_DROP_OLDEST = (
    "DELETE FROM outcome WHERE rowid <= (SELECT min(rowid) + (max(rowid) - min(rowid)) / 8 FROM outcome)"
)


def outcomes_folder(spool: str) -> str:
    return f"{spool}.recent"


class OutcomeStore:
    def __init__(self, spool: str, bounds: "RecentSettings | None", disk: Disk, telemetry: Telemetry) -> None:
        """Watch outcomes from now on.  If `bounds` is None, keep none, and remove the database."""
        self._folder, self._bounds, self._disk = outcomes_folder(spool), bounds, disk
        self._events, self._clock = telemetry.events, telemetry.clock
        self._pending: list[PastOutcome] = []
        self._wake, self._is_closing = asyncio.Event(), False
        self._running: asyncio.Task[None] | None = None
        self._is_unrecorded = False
        self._events.watch(self._on_event, ("delivery", "recipient_deleted"))

    def start(self) -> None:
        self._wake.set()
        self._running = asyncio.get_running_loop().create_task(self._run())

    def use(self, bounds: "RecentSettings | None") -> None:
        self._bounds = bounds
        self._wake.set()

    async def close(self) -> None:
        if self._running is not None:
            self._is_closing = True
            self._wake.set()
            await self._running

    def _on_event(self, name: str, fields: Mapping[str, Value], subject: Subject | None) -> None:
        # This runs on the loop for each recipient: few calls.
        is_over = name == "recipient_deleted" or fields["status"] in FINAL
        if subject is None or self._bounds is None or not is_over:
            return
        self._wake.set()
        if len(self._pending) >= MOST_PENDING:
            return
        texts = [str(fields.get(each) or "")[:LONGEST_TEXT] for each in _TEXTS]
        texts[3] = texts[3] or "deleted"
        # Not the message itself, which may hold content in memory.
        envelope, shape = subject.message.envelope, subject.message.shape
        about = *subject.names, envelope.client, subject.lane, shape.size_bytes
        self._pending.append(PastOutcome._make((self._clock.wall_ns(), *texts, *about)))

    async def _run(self) -> None:
        while not self._is_closing:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), TIDY_SECONDS)
            await asyncio.sleep(GATHER_SECONDS)
            self._wake.clear()
            await self._write()
        await self._write()

    async def _write(self) -> None:
        outcomes, self._pending = self._pending, []
        error = "the disk is too slow" if len(outcomes) >= MOST_PENDING else ""
        try:
            await asyncio.to_thread(self._keep, outcomes, self._bounds)
        except Exception as failed:  # noqa: BLE001 - whatever it is, mail and the next outcome go on
            error = f"{clean(str(failed))}; outcomes dropped: {len(outcomes)}"
        if error and not self._is_unrecorded:
            self._events.tell("recent_unrecorded", error=error)
        self._is_unrecorded = error != ""

    def _keep(self, outcomes: Sequence[PastOutcome], bounds: "RecentSettings | None") -> None:
        if bounds is None:
            self._remove()
            return
        now_ns = self._clock.wall_ns()
        try:
            # Mode 0700: the files in it need no mode of their own.
            self._disk.make_directory(self._folder)
            database_path = f"{self._folder}/outcomes"
            with contextlib.closing(sqlite3.connect(database_path, timeout=_BUSY_SECONDS)) as database:
                if outcomes:
                    leave_headroom(self._disk.free(self._folder), len(outcomes) * _ROW_BYTES)
                database.executescript(_SCHEMA)
                for start in range(0, max(1, len(outcomes)), _AT_ONCE):
                    with database:
                        database.executemany(_INSERT, outcomes[start : start + _AT_ONCE])
                        # A clock that was ahead wrote rows of the future, which would stay too long.
                        times = (now_ns - bounds.keep_ns, now_ns + bounds.keep_ns)
                        database.execute("DELETE FROM outcome WHERE at_ns < ? OR at_ns > ?", times)
                        while database.execute(_USED).fetchone()[0] > bounds.most_bytes:
                            if not database.execute(_DROP_OLDEST).rowcount:
                                break
        except sqlite3.OperationalError:
            raise  # no damage: no room, no answer, or no permission
        except sqlite3.DatabaseError:
            self._remove()
            raise

    def _remove(self) -> None:
        for name in ("outcomes", "outcomes-journal"):
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(f"{self._folder}/{name}")


@contextlib.contextmanager
def past_outcomes(spool: str) -> Iterator[sqlite3.Connection]:
    """Open the outcomes, to read while the relay writes; empty if none.  Raises OSError and sqlite3.Error."""
    path, uri = Path(outcomes_folder(spool), "outcomes").absolute(), ":memory:"
    with contextlib.suppress(FileNotFoundError):
        path.stat()
        # Not `ro`: the reader has to roll back what a killed relay left half written.
        uri = f"file:{quote(str(path))}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, _BUSY_SECONDS, uri=True)) as database:
        # There is no database, or the relay is creating it.
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'outcome'").fetchone():
            database.execute(f"CREATE TEMP TABLE outcome ({_COLUMNS})")
        yield database


def oldest_ns(past: sqlite3.Connection) -> int | None:
    """Return the time of the oldest outcome, by the wall clock; None if there is no outcome."""
    at_ns: int | None = past.execute("SELECT min(at_ns) FROM outcome").fetchone()[0]
    return at_ns


def found(past: sqlite3.Connection, wanted: str, since_ns: int) -> Iterator[PastOutcome]:
    def is_wanted(*words: str) -> bool:
        return matches(wanted, words[:4], words[4:])

    past.create_function("is_wanted", 6, is_wanted, deterministic=True)
    query = (
        f"SELECT rowid, {_COLUMNS} FROM outcome WHERE rowid < ? AND at_ns >= ? AND"  # noqa: S608 - our names
        " is_wanted(queue_id, message_id, subject, client_queue_id, reverse_path, recipient)"
        " ORDER BY rowid DESC LIMIT ?"
    )
    before = (1 << 63) - 1
    # Each query is read to its end: the lock of an open query would make the writer wait.
    while rows := past.execute(query, (before, since_ns, _AT_ONCE)).fetchall():
        before = rows[-1][0]
        yield from (PastOutcome._make(row[1:]) for row in rows)
