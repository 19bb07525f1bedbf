"""Connections to PostgreSQL, as queue and histories use them.

Guarantees of each connection:
- TLS is verified, unless the URL names a Unix socket or a loopback address.
- A committed transaction is on the server's disk, and on its synchronous standbys if it has any.
- The server is writable, and has our tables in a version that we know.
- No statement and no wait for a lock takes longer than STATEMENT_SECONDS.
- The server ends a transaction that is idle for IDLE_SECONDS, so that a suspended host blocks no other.
Errors are psycopg's, and DatabaseError with a text for operators; no error contains a password.
"""

import contextlib
import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic

from relay.policy.database import DatabaseLogin
from relay.policy.named_file import SecretError
from relay.policy.secrets import database_password
from relay.spool.database import DatabaseError

VERSION = 1
"""Version of our tables."""
CONNECT_SECONDS = 5
STATEMENT_SECONDS = 20
IDLE_SECONDS = 4
SILENT_SECONDS = 10
"""Silence of the server before TCP keepalive probes it."""
DURABLE = frozenset({"on", "remote_apply"})
"""Values of synchronous_commit by which the server and its synchronous standbys flush a commit."""

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Database:
    url: str
    """Without a password."""
    password: Callable[[], str] = lambda: ""
    """Called for each connection; returns an empty string for none.  Raises SecretError."""
    ca_file: str = ""
    """Empty: trust the certificates of this system."""

    def connect(self, *, is_checked: bool = True) -> Connection:
        """Return a connection without a transaction.  Raises DatabaseError.

        With `is_checked` False, the server's settings and tables are not checked.
        """
        try:
            connection = psycopg.connect(self.url, **self._parameters())
        except (psycopg.Error, SecretError) as error:
            raise DatabaseError(f"cannot connect: {in_words(error)}") from error
        try:
            if is_checked:
                _check(connection)
            connection.commit()
        except (psycopg.Error, DatabaseError) as error:
            connection.close()
            raise DatabaseError(in_words(error)) from error
        return connection

    @property
    def role(self) -> str:
        """Return the user in the URL, or an empty string."""
        return str(conninfo_to_dict(self.url).get("user") or "")

    def _parameters(self) -> dict[str, Any]:
        timeouts = {
            "statement_timeout": STATEMENT_SECONDS,
            "lock_timeout": STATEMENT_SECONDS,
            "idle_in_transaction_session_timeout": IDLE_SECONDS,
        }
        parameters: dict[str, Any] = {
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "relay",
            # These detect a server that is gone.
            "tcp_user_timeout": STATEMENT_SECONDS * 1000,
            "keepalives_idle": SILENT_SECONDS,
            "keepalives_interval": CONNECT_SECONDS,
            "keepalives_count": 3,
            "options": " ".join(f"-c {name}={seconds}s" for name, seconds in timeouts.items()),
        }
        # Without a host, libpq uses a Unix socket, where it does no TLS, or the host of the environment.
        if not all(map(_is_near, str(conninfo_to_dict(self.url).get("host") or "-").split(","))):
            parameters |= {"sslmode": "verify-full", "sslrootcert": self.ca_file or "system"}
        if password := self.password():
            parameters["password"] = password
        return parameters


def database_of(login: DatabaseLogin) -> Database:
    ca_file = "" if login.ca_file is None else str(login.ca_file)
    return Database(login.postgresql or "", lambda: database_password(login), ca_file)


class LastingConnection:
    """One connection, opened at first use, and again after an error.  For one thread at a time."""

    def __init__(self, database: Database, *, is_checked: bool = True) -> None:
        self._database, self._is_checked = database, is_checked
        self._connection: Connection | None = None

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        """Commit at the end; after an error close the connection.  Raises DatabaseError."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._database.connect(is_checked=self._is_checked)
            yield self._connection
            commit(self._connection)
        except psycopg.Error as error:
            self.close()
            told = DatabaseError(in_words(error))
            told.is_full = isinstance(error, psycopg.errors.DiskFull)
            raise told from error
        except BaseException:
            self.close()
            raise

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


def commit(connection: Connection) -> None:
    """Raise DatabaseError and psycopg.Error: then it is unknown whether, and where, it is committed."""
    warnings: list[str] = []

    def warned(told: Diagnostic) -> None:
        # A COMMIT whose wait for the standbys was cancelled succeeds with only a warning.
        warnings.append(str(told.message_primary))

    connection.add_notice_handler(warned)
    try:
        connection.commit()
    finally:
        connection.remove_notice_handler(warned)
    if warnings:
        connection.close()
        raise DatabaseError("; ".join(warnings))


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
    read_only, durable, synced, is_made = one(
        connection,
        "SELECT current_setting('transaction_read_only'), current_setting('synchronous_commit'),"
        " current_setting('fsync'), to_regclass('relay.schema_version') IS NOT NULL",
    )
    if read_only != "off":
        raise DatabaseError("it is read-only, as a standby is: name the server that takes writes")
    if durable not in DURABLE:
        raise DatabaseError(f"synchronous_commit is {durable}: set it to on for the role of the relay")
    if synced != "on":
        raise DatabaseError("fsync is off: what it commits does not survive a crash")
    if not is_made:
        raise DatabaseError("it has no tables of the relay, or its role has no rights: relay database init")
    (version,) = one(connection, "SELECT version FROM relay.schema_version")
    if version != VERSION:
        what = "run relay database upgrade" if version < VERSION else "install a newer relay"
        raise DatabaseError(f"its tables have version {version}, this relay needs {VERSION}: {what}")


def _is_near(host: str) -> bool:
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
