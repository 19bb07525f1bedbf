"""Connections to PostgreSQL, as queue and histories use them.

Guarantees of each connection:
- TLS is verified, unless the URL names a Unix socket or this host.
- A committed transaction is on the server's disk, and on its synchronous standbys if it has any.
- The server is writable, and has our tables in a version that we know.
- No statement takes longer than STATEMENT_SECONDS, including its wait for locks.
- The server ends a transaction that is idle for IDLE_SECONDS, so that a suspended host blocks no other.
Errors are DatabaseError, with a text for operators; no error contains a password.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict

from relay.policy.named_file import SecretError
from relay.policy.secrets import secret_of
from relay.policy.units import PASSWORDS, DatabaseLogin
from relay.spool.database import DatabaseError, DatabaseFull

VERSION = 1
"""Version of our tables."""
CONNECT_SECONDS = 5
STATEMENT_SECONDS = 20
IDLE_SECONDS = 4
SILENT_SECONDS = 10
"""Silence of the server before TCP keepalive probes it."""

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Database:
    url: str
    """Without a password."""
    password: Callable[[], str] = lambda: ""
    """Called for each connection; returns an empty string for none.  Raises SecretError."""
    ca_file: str = ""
    """Empty: trust the certificates of this system."""

    def parameters(self) -> dict[str, Any]:
        """Return the arguments of psycopg's `connect` beside the URL.  Raises SecretError."""
        settings = {
            "statement_timeout": f"{STATEMENT_SECONDS}s",
            "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
            # A role may have a weaker setting.
            "synchronous_commit": "on",
        }
        parameters: dict[str, Any] = {
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "relay",
            # This refuses a standby.
            "target_session_attrs": "read-write",
            # These detect a server that is gone.
            "tcp_user_timeout": STATEMENT_SECONDS * 1000,
            "keepalives_idle": SILENT_SECONDS,
            "keepalives_interval": CONNECT_SECONDS,
            "keepalives_count": 3,
            "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
        }
        # Without a host, libpq uses a Unix socket, where it does no TLS, or the host of the environment.
        hosts = str(conninfo_to_dict(self.url).get("host") or "-").split(",")
        if not all(
            host.startswith(("/", "@")) or host in ("localhost", "127.0.0.1", "::1") for host in hosts
        ):
            parameters |= {"sslmode": "verify-full", "sslrootcert": self.ca_file or "system"}
        if password := self.password():
            parameters["password"] = password
        return parameters


def database_of(login: DatabaseLogin) -> Database:
    ca_file = "" if login.ca_file is None else str(login.ca_file)
    return Database(login.postgresql or "", lambda: secret_of(login, *PASSWORDS), ca_file)


class LastingConnection:
    """One connection, opened at first use, and again after an error.  For one thread at a time."""

    def __init__(self, database: Database, *, is_checked: bool = True) -> None:
        """With `is_checked` False, the server's settings and tables are not checked."""
        self._database, self._is_checked = database, is_checked
        self._connection: Connection | None = None
        self._is_begun = False
        self._warnings: list[str] = []

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        """Commit at the end; after an error close the connection.  Raises DatabaseError.

        Within another `begin` this is a part of its transaction.
        """
        if self._is_begun and self._connection is not None:
            yield self._connection
            return
        self._is_begun = True
        try:
            if self._connection is None or self._connection.closed:
                try:
                    self._connection = psycopg.connect(self._database.url, **self._database.parameters())
                except OSError as error:  # psycopg waits by a selector, which needs a descriptor
                    raise DatabaseError(in_words(error)) from error
                self._connection.add_notice_handler(
                    lambda told: self._warnings.append(str(told.message_primary))
                )
                if self._is_checked:
                    _check(self._connection)
            yield self._connection
            self.commit(self._connection)
        except BaseException as error:
            self.close()
            if isinstance(error, psycopg.Error | SecretError):
                kind = DatabaseFull if isinstance(error, psycopg.errors.DiskFull) else DatabaseError
                raise kind(in_words(error)) from error
            raise
        finally:
            self._is_begun = False

    def commit(self, connection: Connection) -> None:
        """Commit within `begin`.  After an error it is unknown whether, and where, it is committed."""
        self._warnings.clear()
        connection.commit()
        # A COMMIT whose wait for the standbys was cancelled succeeds with only a warning.
        if self._warnings:
            raise DatabaseError("; ".join(self._warnings))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextlib.contextmanager
def once(database: Database, *, is_checked: bool = True) -> Iterator[Connection]:
    """Begin one transaction on a connection of its own.  Raises DatabaseError."""
    lasting = LastingConnection(database, is_checked=is_checked)
    with contextlib.closing(lasting), lasting.begin() as connection:
        yield connection


def one(connection: Connection, statement: LiteralString, values: Any = ()) -> tuple[Any, ...]:
    """Return the first row.  Raises DatabaseError if there is none."""
    if (row := connection.execute(statement, values).fetchone()) is None:
        raise DatabaseError("a row of the relay's tables is missing: run relay database check")
    return row


def in_words(error: Exception) -> str:
    """Return the text of an error, on one line."""
    text = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return " ".join((text or str(error) or type(error).__name__).split())


def _check(connection: Connection) -> None:
    try:
        synced, version = one(
            connection, "SELECT current_setting('fsync'), version FROM relay.schema_version"
        )
    except psycopg.errors.UndefinedTable as error:
        raise DatabaseError("it has no tables of the relay: run relay database init") from error
    if synced != "on":
        raise DatabaseError("fsync is off: what it commits does not survive a crash")
    if version != VERSION:
        what = "run relay database upgrade" if version < VERSION else "install a newer relay"
        raise DatabaseError(f"its tables have version {version}, this relay needs {VERSION}: {what}")
