"""What PostgreSQL promises to histories and pauses of accounts, in memory: takes `psycopg.connect`'s place.

Guarantees (READ COMMITTED): a statement sees what was committed before it and what its own transaction
wrote.  Who wants a row that another transaction locked or wrote waits until that is over, and goes by what
the row is then.  A transaction ends whole, by COMMIT, or leaves nothing: by ROLLBACK, an error, the end of
its connection, or IDLE_SECONDS without a statement.  A key is there once.  NOTIFY is heard behind COMMIT, or
never.  Faults are asked for: the server is away, or a connection is lost before or behind the effect of a
statement, so that nobody is told of a COMMIT; or it falls silent.

Assumes statements as relay/throttle/postgresql_history.py and relay/sender/account_row.py write them.
"""

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import psycopg
from psycopg.pq import ConnStatus

from relay.clock import SECOND_NS
from relay.spool.database.connection import IDLE_SECONDS, STATEMENT_SECONDS, VERSION

DELAYS_S = (0.0, 0.0002, 0.002, 0.04)
AGAIN_S = 0.02
"""How often one who waits for a row looks."""
Key = tuple[str, Any, Any]
Rows = list[tuple[Any, ...]]


class AccountStore:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rows: dict[Key, Any] = {}
        """What is committed: accounts, which are mappings, and the groups of histories."""
        self.holders: dict[Key, Session] = {}
        """Who locked a row, or wrote it, and has not ended."""
        self.sessions: list[Session] = []
        self.offset_ns = 0
        """By which the server's clock was stepped."""
        self.is_away = False
        """It takes no connection."""
        self.cut_after = {"statement": -1, "COMMIT": -1}
        """After so many of them the connection of the next one is lost."""

    # What a simulation does in its own way.

    def time_ns(self) -> int:
        """Return the time that nobody sets."""
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        """Let other threads do something meanwhile."""
        del seconds
        os.sched_yield()

    def new_descriptor(self) -> int:
        return -1

    def wake(self, descriptor: int) -> None:
        pass

    # The server.

    def connect(self, url: str, **parameters: object) -> "Session":
        del url, parameters
        self.sleep(self.rng.choice(DELAYS_S))
        if self.is_away:
            raise psycopg.OperationalError("connection refused")
        session = Session(self)
        self.sessions.append(session)
        return session

    def stop(self) -> None:
        """End every connection, and take none until `is_away` is false again."""
        self.is_away = True
        for session in list(self.sessions):
            session.lose()

    def is_cut(self, what: str) -> bool:
        self.cut_after[what] -= 1
        return self.cut_after[what] == -1

    def notify(self, channel: str) -> None:
        for session in self.sessions:
            if channel in session.channels and not session.is_cut_off:
                session.heard += 1
                self.wake(session.descriptor)


class Session:
    """`psycopg.Connection`, and its `pgconn`."""

    def __init__(self, store: AccountStore) -> None:
        self.store = store
        self.closed = self.autocommit = False
        self.is_cut_off = False
        """Neither side hears of the other any more, nor of the end of the other."""
        self.channels: set[str] = set()
        self.heard = 0
        self.descriptor = store.new_descriptor()
        self._writes: dict[Key, Any] = {}
        self._notified: list[str] = []
        self._is_begun = self._has_failed = False
        self._idle_since_ns: int | None = None

    @property
    def pgconn(self) -> "Session":
        return self

    def execute(self, statement: Any, values: tuple[Any, ...] = ()) -> "_Answer":
        text = statement.decode() if isinstance(statement, bytes) else statement
        does, found = _meaning(text)

        def executed() -> Rows:
            self._is_begun = True
            if self._has_failed:
                raise psycopg.errors.InFailedSqlTransaction("current transaction is aborted")
            try:
                return does(self, found, values)
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

    def remove_notice_handler(self, handler: object) -> None:
        pass

    def fileno(self) -> int:
        return self.descriptor

    def consume_input(self) -> None:
        if self.closed:
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    def notifies(self) -> object:
        self.heard, is_heard = max(0, self.heard - 1), self.heard > 0
        return "it" if is_heard else None

    @property
    def status(self) -> ConnStatus:
        return ConnStatus.BAD if self.closed else ConnStatus.OK

    def lose(self) -> None:
        """End the connection, as whichever side; what is not committed is gone."""
        if not self.closed:
            self.closed = True
            self._end(is_kept=False)
            self.store.sessions.remove(self)
            self.store.wake(self.descriptor)

    def is_left_alone(self) -> bool:
        now_ns, since_ns = self.store.time_ns(), self._idle_since_ns
        return since_ns is not None and now_ns - since_ns > IDLE_SECONDS * SECOND_NS

    def _asked(self, does: Callable[[], Any], what: str = "statement") -> Any:
        """Have the server do something; the time that it takes passes before that, or behind it."""
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
        store, writes, notified = self.store, self._writes, self._notified
        self._writes, self._notified = {}, []
        self._is_begun = self._has_failed = False
        self._idle_since_ns = None
        if is_kept:
            for key, value in writes.items():
                store.rows[key] = value
                if value is None:
                    del store.rows[key]
        for key in [key for key, holder in store.holders.items() if holder is self]:
            del store.holders[key]
        for channel in notified if is_kept else ():
            store.notify(channel)

    # Rows.

    def visible(self) -> dict[Key, Any]:
        return {key: value for key, value in {**self.store.rows, **self._writes}.items() if value is not None}

    def locked(self, key: Key) -> Any:
        """Lock a row and return it as it is then, or None."""
        store, began_ns = self.store, self.store.time_ns()
        while (holder := store.holders.setdefault(key, self)) is not self:
            if holder.is_left_alone():
                holder.lose()
                continue
            store.sleep(AGAIN_S)
            if self.closed:
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            if store.time_ns() - began_ns > STATEMENT_SECONDS * SECOND_NS:
                raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
        return self._writes.get(key, store.rows.get(key))

    def write(self, key: Key, value: Any) -> None:
        self.locked(key)
        self._writes[key] = value

    def notify(self, channel: str) -> None:
        self._notified.append(channel)


class _Answer:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> Rows:
        return self._rows

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)


_Does = Callable[[Session, "re.Match[str]", tuple[Any, ...]], Rows]


def _meaning(text: str) -> tuple[_Does, "re.Match[str]"]:
    for pattern, does in _STATEMENTS:
        if found := re.fullmatch(pattern, text):
            return does, found
    raise AssertionError(f"not simulated: {text}")


def _of_account(session: Session, column: str, value: Any) -> Key | None:
    rows = session.visible().items()
    return next((key for key, row in rows if key[0] == "account" and row[column] == value), None)


def _account(session: Session, found: "re.Match[str]", values: tuple[Any, ...]) -> Rows:
    key = _of_account(session, "name", values[0])
    if key is None:
        return []
    row = session.locked(key) if found["lock"] else session.visible()[key]
    return [tuple(row[column.split("::")[0]] for column in found["columns"].split(", "))]


def _new_account(session: Session, _found: "re.Match[str]", values: tuple[Any, ...]) -> Rows:
    key = "account", values[0], None
    if session.locked(key) is None:
        number = len(session.visible()) + 1
        row = dict.fromkeys(("position", "replaced", "offset_ns", "now_ns", "state_version"), 0)
        made = {"id": number, "name": values[0], "identity": f"identity-{number}", "state": None}
        session.write(key, row | made)
    return []


def _update(session: Session, found: "re.Match[str]", values: tuple[Any, ...]) -> Rows:
    key = _of_account(session, found["key"], values[-1])
    assert key is not None
    columns = [each.removesuffix(" = %s") for each in found["columns"].split(", ")]
    session.write(key, session.locked(key) | dict(zip(columns, values[:-1], strict=True)))
    return []


def _clock_and_groups(session: Session, found: "re.Match[str]", values: tuple[Any, ...]) -> Rows:
    account, least = values[0], values[1] + (found["than"] == ">")
    rows = session.visible().items()
    groups = [(key[2], row) for key, row in rows if key[:2] == ("group", account) and key[2] >= least]
    # Without an order any may come first.
    groups.sort(reverse=not found["order"])
    return [(*_clock(session, found, ())[0], [text for _, text in groups])]


def _new_group(session: Session, found: "re.Match[str]", values: tuple[Any, ...]) -> Rows:
    key = "group", values[0], values[1]
    if session.locked(key) is not None:
        raise psycopg.errors.UniqueViolation("duplicate key value violates unique constraint")
    session.write(key, values[2])
    return _update(session, found, values[5:])  # when each host was here is only shown


def _no_groups(session: Session, _found: "re.Match[str]", values: tuple[Any, ...]) -> Rows:
    for key in session.visible():
        if key[:2] == ("group", values[0]):
            session.write(key, None)
    return []


def _clock(session: Session, _found: "re.Match[str]", _values: tuple[Any, ...]) -> Rows:
    return [(session.store.time_ns() + session.store.offset_ns,)]


def _notify(session: Session, found: "re.Match[str]", values: tuple[Any, ...]) -> Rows:
    session.notify(values[-1])
    return _update(session, found, values[:-1])


def _listen(session: Session, found: "re.Match[str]", _values: tuple[Any, ...]) -> Rows:
    session.channels.add(found["channel"])
    return []


_STATEMENTS: tuple[tuple[str, _Does], ...] = (
    (r"SELECT (?P<columns>[\w:, ]+) FROM relay\.account WHERE name = %s(?P<lock> FOR UPDATE)?", _account),
    (r"INSERT INTO relay\.account \(name\) VALUES \(%s\) ON CONFLICT DO NOTHING", _new_account),
    (r"UPDATE relay\.account SET (?P<columns>[^()]+) WHERE (?P<key>\w+) = %s", _update),
    (
        r"SELECT \(extract.*, ARRAY\(SELECT .* account_id = %s AND position (?P<than>\S+) %s(?P<order>.*)\)",
        _clock_and_groups,
    ),
    (
        r"WITH added AS .* UPDATE relay\.account SET (?P<columns>.+) WHERE (?P<key>\w+) = %s",
        _new_group,
    ),
    (r"DELETE FROM relay\.history WHERE account_id = %s", _no_groups),
    (r"SELECT \(extract\(epoch FROM clock_timestamp.*", _clock),
    (
        r"WITH kept AS \(UPDATE relay\.account SET (?P<columns>.+) WHERE (?P<key>\w+) = %s\) SELECT .*",
        _notify,
    ),
    (r"LISTEN (?P<channel>\w+)", _listen),
    (r"SELECT current_setting\('transaction_read_only.*", lambda *_: [("off", "on", "on", True)]),
    (r"(?s)\s*WITH claims AS .*", lambda *_: []),  # who holds what is only shown
    (r"SELECT version FROM relay\.schema_version", lambda *_: [(VERSION,)]),
)
