"""A model of PostgreSQL in memory that replaces `psycopg.connect`, for queue, histories and pauses.

It guarantees READ COMMITTED. A statement sees what was committed before it and what its own transaction
wrote. A statement that wants a row locked or written by another transaction waits until that transaction
ends, and then uses the row's new content; the result of a WITH stays as it was read. SKIP LOCKED skips such
rows. A transaction ends whole by COMMIT. It leaves nothing after a ROLLBACK, an error, the end of its
connection, or IDLE_SECONDS without a statement. NOTIFY arrives after COMMIT, or never.

A test can ask for faults: the server is away, or a connection is lost before or after the effect of a
statement (so the client does not learn the outcome of a COMMIT), or a connection falls silent.

SQLite checks statements, keys, NOT NULL and types on the tables of schema.sql; `_WORDS` translates
PostgreSQL's words for it. A word that it does not know raises AssertionError. The model does not check
foreign keys, detects no deadlock before a lock times out, and does not show who holds a lock.
"""

import asyncio
import functools
import itertools
import json
import os
import random
import re
import sqlite3
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NoReturn, Self

import psycopg

from relay.clock import SECOND_NS
from relay.spool.database.connection import IDLE_SECONDS, STATEMENT_SECONDS

DELAYS_S = (0.0, 0.0002, 0.002, 0.04)
AGAIN_S = 0.02
"""Interval in which a waiting statement checks whether its row is free."""
Key = tuple[Any, ...]
"""A table and the key of a row."""
Row = tuple[Any, ...]

_WORDS = (
    (r"relay\.(?=\w)", ""),
    (r"extract\(epoch FROM clock_timestamp\(\)\) \* 1000000000", "clock_timestamp()"),
    (r"(clock_timestamp\(\) [+-]) (?:interval )?(%\(\w+\)s|'[^']*')", r"\1 span(\2)"),
    (r"::\w+(\[\])?", ""),
    (r"= ANY\((%\(\w+\)s)\)", r"IN (SELECT value FROM json_each(\1))"),
    (
        r"unnest\((\S+), (\S+)\) AS its \((\w+), (\w+)\)",
        r"(SELECT a.value AS \3, b.value AS \4 FROM json_each(\1) AS a JOIN json_each(\2) AS b USING (key))",
    ),
    (r"unnest\((\S+)\) AS (\w+)", r"(SELECT value AS \2 FROM json_each(\1))"),
    (r"(FROM \w+) ON CONFLICT", r"\1 WHERE true ON CONFLICT"),
    (r"\bARRAY\((SELECT (\w+) FROM .*)\)$", r"(SELECT json_group_array(\2) FROM (\1)) AS news"),
    (r"wish !~ ' '", "instr(wish, ' ') = 0"),
    (r"wish ~ '\^\(hold\|bounce\|delete\)'", "substr(wish, 1, 4) IN ('hold', 'boun', 'dele')"),
    (r"string_to_array\(wish, ' '\) @> ARRAY\[(.*?)\]", r"instr(wish, ' ' || \1)"),
    (r"split_part\((\w+), ' ', 1\)", r"substr(\1, 1, instr(\1 || ' ', ' ') - 1)"),
    (r"= notes \|\| (%\(\w+\)s)", r"= joined(notes, \1)"),
    (r"SELECT FROM", "SELECT 1 FROM"),
    (r"IS DISTINCT FROM", "IS NOT"),
    (r"array_agg\(", "json_group_array("),
    (r"octet_length\(", "length("),
    (r"^WITH claims AS .*", "SELECT 1 WHERE false"),
    (r"%\((\w+)\)s", r":\1"),
)
_IN_THE_SCHEMA = (
    (r"--.*|CREATE SCHEMA.*|ALTER TABLE.*|REFERENCES \S+( ON DELETE CASCADE|(?=,))", ""),
    (r"relay\.", ""),
    (r"bigint GENERATED ALWAYS AS IDENTITY|\b(bigint|boolean|timestamptz)\b", "integer"),
    (r"\buuid\b", "text"),
    (r"\bbytea\b", "blob"),
    (r"(blob .*)''", r"\1x''"),
    (r'COLLATE "C"', ""),
    (r"DEFAULT (\w+\(\))", r"DEFAULT (\1)"),
    (r"\n\);", "\n) STRICT;"),
)
_TO_PYTHON: dict[str, Callable[[Any], Any]] = {
    "is_held": bool,
    "is_warned": bool,
    "json_group_array(queue_id)": json.loads,
    "news": json.loads,
}
_SETTINGS = {"fsync": "on"}
_SPANS = {"second": 1, "seconds": 1, "hour": 3600, "years": 31_557_600}


class ModelDatabase:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.holders: dict[Key, Session] = {}
        """The session that locked or wrote the row, until its transaction ends."""
        self.sessions: list[Session] = []
        self.offset_ns = 0
        """The step of the server's clock."""
        self.is_away = False
        """If true, the server refuses connections."""
        self.cut_after = {"statement": -1, "COMMIT": -1}
        """The connection is lost at the next statement or COMMIT after this many; -1: never."""
        self.tables = _Tables(self)

    # The simulation overrides these.

    def time_ns(self) -> int:
        """Return the time without steps."""
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        """Let other threads run."""
        del seconds
        os.sched_yield()

    # The server.

    def connect(self, url: str, **parameters: object) -> "Session":
        del url
        self.sleep(self.rng.choice(DELAYS_S))
        if self.is_away:
            raise psycopg.OperationalError("connection refused")
        session = Session(self, autocommit=bool(parameters.get("autocommit")))
        self.sessions.append(session)
        return session

    async def connect_later(self, url: str, **parameters: object) -> "Listener":
        """Do as `psycopg.AsyncConnection.connect`."""
        return Listener(await asyncio.to_thread(self.connect, url, **parameters))

    def stop(self) -> None:
        """End every connection, and refuse new ones until `is_away` is false."""
        self.is_away = True
        for session in list(self.sessions):
            session.lose()

    def is_taken(self, key: Key) -> bool:
        """Return whether a transaction holds the row."""
        holder = self.holders.get(key)
        if holder is not None and holder.is_left_alone():
            holder.lose()
        return key in self.holders

    def is_cut(self, what: str) -> bool:
        self.cut_after[what] -= 1
        return self.cut_after[what] == -1

    def notify(self, channel: str) -> None:
        for session in self.sessions:
            if channel in session.channels and not session.is_cut_off:
                session.heard += 1
                session.wake()


class Session:
    """`psycopg.Connection`."""

    def __init__(self, store: ModelDatabase, *, autocommit: bool) -> None:
        self.store = store
        self.closed, self.autocommit = False, autocommit
        self.is_cut_off = False
        """Neither side receives anything from the other, not even the end of the connection."""
        self.channels: set[str] = set()
        self.heard = 0
        """Notifications that nobody has seen yet."""
        self.wake: Callable[[], None] = lambda: None
        """Called when there is something to hear."""
        self.writes: dict[Key, Row | None] = {}
        self.notified: list[str] = []
        self._is_begun = self._has_failed = False
        self._idle_since_ns: int | None = None

    def execute(self, statement: Any, values: Any = (), *, binary: bool = False) -> "_Answer":
        del binary
        text = statement.decode() if isinstance(statement, bytes) else statement

        def executed() -> list[Row]:
            self._is_begun = True
            if self._has_failed:
                raise psycopg.errors.InFailedSqlTransaction("current transaction is aborted")
            if "CREATE SCHEMA" in text:
                raise psycopg.errors.DuplicateSchema('schema "relay" already exists')
            if text.startswith("LISTEN "):
                self.channels.add(text.split()[1])
                return []
            try:
                return self.store.tables.execute(self, text, values)
            except psycopg.Error:
                self._has_failed = True
                raise
            finally:
                if self.autocommit:
                    self._end(is_kept=not self._has_failed)

        return _Answer(self._asked(executed))

    def commit(self) -> None:
        if self._is_begun:
            self._asked(lambda: self._end(is_kept=not self._has_failed), "COMMIT")

    def rollback(self) -> None:
        if self._is_begun:
            self._asked(lambda: self._end(is_kept=False))

    def close(self) -> None:
        if not self.is_cut_off:
            self.lose()

    def add_notice_handler(self, handler: object) -> None:
        pass

    def lose(self) -> None:
        """End the connection from either side; uncommitted changes are gone."""
        if not self.closed:
            self.closed = True
            self._end(is_kept=False)
            self.store.sessions.remove(self)
            self.wake()

    def is_left_alone(self) -> bool:
        now_ns, since_ns = self.store.time_ns(), self._idle_since_ns
        return since_ns is not None and now_ns - since_ns > IDLE_SECONDS * SECOND_NS

    def wait_for(self, key: Key, until_ns: int) -> None:
        """Wait until no transaction holds the row. Raises LockNotAvailable after `until_ns`."""
        store = self.store
        while store.is_taken(key):
            store.sleep(AGAIN_S)
            if self.closed:
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            if store.time_ns() > until_ns:
                raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    def _asked(self, does: Callable[[], Any], what: str = "statement") -> Any:
        """Let the server execute something. Its time passes before the effect or after it."""
        store = self.store
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        is_cut, is_late = store.is_cut(what), store.rng.random() < 0.5
        if not is_late or self.is_cut_off:
            self._pass_time(is_lost=is_cut)
        if self.is_left_alone():
            self._fail("terminating connection due to idle-in-transaction timeout")
        self._idle_since_ns = None
        try:
            value = does()
        finally:
            self._idle_since_ns = store.time_ns() if self._is_begun else None
        if is_late or self.is_cut_off:
            self._pass_time(is_lost=is_cut)
        return value

    def _pass_time(self, *, is_lost: bool) -> None:
        if not self.is_cut_off:
            self.store.sleep(self.store.rng.choice(DELAYS_S))
        if self.is_cut_off:
            self.store.sleep(STATEMENT_SECONDS)
            self._fail("could not receive data from server")
        if is_lost or self.closed:
            self._fail("server closed the connection unexpectedly")

    def _fail(self, words: str) -> NoReturn:
        self.lose()
        raise psycopg.OperationalError(words)

    def _end(self, *, is_kept: bool) -> None:
        store, writes, notified = self.store, self.writes, self.notified
        self.writes, self.notified = {}, []
        self._is_begun = self._has_failed = False
        self._idle_since_ns = None
        if is_kept:
            store.tables.keep(writes)
        for key in [key for key, holder in store.holders.items() if holder is self]:
            del store.holders[key]
        for channel in notified if is_kept else ():
            store.notify(channel)


class Listener:
    """`psycopg.AsyncConnection` of one who listens."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._session.close()

    async def execute(self, statement: str) -> None:
        await asyncio.to_thread(self._session.execute, statement)

    async def notifies(self) -> AsyncIterator[None]:
        session, loop = self._session, asyncio.get_running_loop()
        while not session.closed:
            while session.heard:
                session.heard -= 1
                yield
            woken = loop.create_future()
            session.wake = lambda woken=woken: woken.done() or woken.set_result(None)  # type: ignore[misc]  # bound now
            await woken
        raise psycopg.OperationalError("server closed the connection unexpectedly")


class _Answer:
    description = ("rows",)
    """A statement without rows answers that it has none."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def fetchone(self) -> Row | None:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Row]:
        return self._rows

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)


class _Tables:
    """The rows, in SQLite. It holds committed rows; a session's writes are applied only while it asks."""

    def __init__(self, store: ModelDatabase) -> None:
        self._store = store
        self._turn = threading.Lock()
        self._session: Session | None = None
        """The session that asks now."""
        self._wanted: Key | None = None
        """The row of another transaction that the statement met."""
        self._written: dict[Key, None] = {}
        self._sql = sql = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        functions: dict[str, Callable[..., Any]] = {
            "take": self._take,
            "wrote": self._wrote,
            "pg_notify": self._notify,
            "clock_timestamp": lambda: store.time_ns() + store.offset_ns,
            "span": lambda text: int(text.split()[0]) * _SPANS[text.split()[1]] * SECOND_NS,
            "gen_random_uuid": lambda: str(uuid.UUID(int=store.rng.getrandbits(128))),
            "current_setting": _SETTINGS.__getitem__,
            "joined": lambda one, other: one + other,
        }
        for name, function in functions.items():
            sql.create_function(name, -1, function)
        schema = resources.files("relay.spool.database").joinpath("schema.sql").read_text()
        sql.executescript(_spelt(schema, _IN_THE_SCHEMA))
        names = [name for (name,) in sql.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        self._keys = {
            table: [row[1] for row in sql.execute(f"PRAGMA table_info({table})") if row[-1]]
            for table in names
        }
        for table, event in itertools.product(self._keys, ("INSERT", "UPDATE", "DELETE")):
            row = self._key_of(table, "old." if event == "DELETE" else "new.")
            does = f"AFTER {event} ON {table} BEGIN SELECT wrote({row}); END"
            sql.execute(f"CREATE TRIGGER {event}_{table} {does}")
        cascade = "BEGIN DELETE FROM chunk WHERE queue_id = old.queue_id; END"
        sql.execute(f"CREATE TRIGGER cascade AFTER DELETE ON message {cascade}")
        # Without ORDER BY, rows may come in any order.
        sql.execute("PRAGMA reverse_unordered_selects = true")

    def count(self, table: str) -> int:
        """Return the number of committed rows."""
        (number,) = self._sql.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(number)

    def execute(self, session: Session, text: str, values: Any) -> list[Row]:
        until_ns = self._store.time_ns() + STATEMENT_SECONDS * SECOND_NS
        named = values if isinstance(values, Mapping) else {f"p{at}": each for at, each in enumerate(values)}
        given = {name: _given(value) for name, value in named.items()}
        found: dict[str, str] = {}
        columns: list[str] = []
        rows: list[Row] = []
        for name, part in _parts(text):
            used = [
                f"{each} AS ({rows_of})" for each, rows_of in found.items() if re.search(rf"\b{each}\b", part)
            ]
            sql = self._locking(f"WITH {', '.join(used)} {part}" if used else part)
            while (answer := self._ask(session, sql, given)) is None:
                assert self._wanted is not None
                session.wait_for(self._wanted, until_ns)
            columns, rows = answer
            if name:
                given[f"rows_of_{name}"] = json.dumps(rows)
                each = ", ".join(f"json_extract(value, '$[{at}]') AS {it}" for at, it in enumerate(columns))
                found[name] = f"SELECT {each or 'NULL'} FROM json_each(:rows_of_{name})"
        shown = [_TO_PYTHON.get(column, lambda value: value) for column in columns]
        return [tuple(show(value) for show, value in zip(shown, row, strict=True)) for row in rows]

    def keep(self, writes: Mapping[Key, Row | None]) -> None:
        with self._turn:
            self._apply(writes)

    def _ask(
        self, session: Session, sql: str, values: Mapping[str, Any]
    ) -> tuple[list[str], list[Row]] | None:
        """Return columns and rows; None, without any change, if another transaction holds a wanted row."""
        with self._turn:
            self._sql.execute("SAVEPOINT asked")
            try:
                self._apply(session.writes)
                self._session, self._wanted, self._written = session, None, {}
                answer = self._sql.execute(sql, values)
                rows = answer.fetchall()
                self._session = None
                session.writes |= {key: self._row(key) for key in self._written}
                return [column for column, *_ in answer.description or ()], rows
            except sqlite3.Error as error:
                if self._wanted is not None:
                    return None
                if "UNIQUE" in str(error):
                    raise psycopg.errors.UniqueViolation(str(error)) from error
                raise AssertionError(f"{error}: {sql}") from error
            finally:
                self._session = None
                self._sql.execute("ROLLBACK TO asked")
                self._sql.execute("RELEASE asked")

    def _apply(self, writes: Mapping[Key, Row | None]) -> None:
        for (table, *key), row in writes.items():
            if row is None:
                self._sql.execute(f"DELETE FROM {table} WHERE {self._is_key(table)}", key)
            else:
                self._sql.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def _row(self, key: Key) -> Row | None:
        table, *own = key
        found = self._sql.execute(f"SELECT * FROM {table} WHERE {self._is_key(table)}", own).fetchall()
        return found[0] if found else None

    def _is_key(self, table: str) -> str:
        return " AND ".join(f"{each} = ?" for each in self._keys[table])

    def _key_of(self, table: str, before: str = "") -> str:
        return ", ".join((f"'{table}'", *(before + each for each in self._keys[table])))

    def _locking(self, sql: str) -> str:
        """Return the statement so that it locks the rows of its FOR UPDATE, and only those."""
        while found := re.search(r" FOR UPDATE( SKIP LOCKED)?", sql):
            begin, depth = found.start(), 0
            while begin and depth >= 0:
                begin -= 1
                depth += {")": 1, "(": -1}.get(sql[begin], 0)
            shape = r"(.*?FROM (\w+) WHERE )(.*?)((?: ORDER BY \w+)?(?: LIMIT \S+)?)"
            select = re.fullmatch(shape, sql[begin : found.start()])
            assert select is not None
            selects, table, where, rest = select.groups()
            takes = f"take({bool(found[1])}, {self._key_of(table)})"
            sql = f"{sql[:begin]}{selects}CASE WHEN {where} THEN {takes} END{rest}{sql[found.end() :]}"
        return sql

    def _take(self, skips: int, *key: Any) -> bool:
        assert self._session is not None
        if not self._store.is_taken(key):
            self._store.holders[key] = self._session
        if self._store.holders[key] is self._session:
            return True
        if not skips:
            self._wanted = key
            raise LookupError(key)
        return False

    def _wrote(self, *key: Any) -> None:
        if self._session is not None:
            self._take(False, *key)
            self._written[key] = None

    def _notify(self, channel: str, _: str) -> None:
        assert self._session is not None
        self._session.notified.append(channel)


def _spelt(text: str, words: Sequence[tuple[str, str]]) -> str:
    for theirs, ours in words:
        text = re.sub(theirs, ours, text)
    return text


@functools.cache
def _parts(text: str) -> list[tuple[str, str]]:
    """Return the parts of a statement in order, each with its name in the WITH; the last has no name."""
    numbers = itertools.count()
    text = re.sub("%s", lambda _: f"%(p{next(numbers)})s", " ".join(text.split()))
    text, parts = _spelt(text, _WORDS), []
    while begun := re.match(r"(?:WITH|,) (\w+) AS \(", text):
        depths = itertools.accumulate({"(": 1, ")": -1}.get(each, 0) for each in text[begun.end() - 1 :])
        end = begun.end() + next(at for at, depth in enumerate(depths) if depth == 0)
        parts.append((begun[1], text[begun.end() : end - 1].strip()))
        text = text[end:].strip()
    return [*parts, ("", text)]


def _given(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    return json.dumps(value) if isinstance(value, list) else value
