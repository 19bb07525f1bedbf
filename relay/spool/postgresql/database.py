"""Connections to PostgreSQL, as both engines use them.

Guarantees of each connection: TLS is verified, unless the server is on loopback or behind a Unix socket;
what is committed is on the server's disk (`synchronous_commit` at least `on`); the server can be written to
and has our tables, in a version that we know; no statement and no wait for a lock takes longer than
STATEMENT_SECONDS; and the server ends a transaction that is left alone for IDLE_SECONDS, so that a host that
was stopped in one keeps nobody waiting.
Errors are DatabaseError, with words for an operator.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

VERSION = 1
CONNECT_SECONDS = 5
STATEMENT_SECONDS = 20
IDLE_SECONDS = 10
DURABLE = frozenset({"on", "remote_write", "remote_apply"})
"""Values of synchronous_commit (`on`: flushed here, and by the synchronous standbys if there are any)."""

Connection = psycopg.Connection[tuple[Any, ...]]


class DatabaseError(Exception):
    """What is wrong, and what to do; the connection is not used again."""


@dataclass(frozen=True, slots=True)
class Database:
    url: str
    """`postgresql://USER@HOST:PORT/NAME`, without a password."""
    password: Callable[[], str | None] = lambda: None
    """Asked for each connection."""

    def connect(self) -> Connection:
        """Raises DatabaseError."""
        try:
            connection = psycopg.connect(self.url, **self._parameters())
        except psycopg.Error as error:
            raise DatabaseError(f"cannot connect: {in_words(error)}") from error
        try:
            self._check(connection)
            connection.commit()
        except psycopg.Error as error:
            connection.close()
            raise DatabaseError(in_words(error)) from error
        except DatabaseError:
            connection.close()
            raise
        return connection

    def make(self) -> None:
        """Make the tables.  Raises DatabaseError, also where they are there."""
        schema = resources.files(__package__).joinpath("schema.sql").read_text()
        try:
            with psycopg.connect(self.url, **self._parameters()) as connection:
                connection.execute(schema)
        except psycopg.Error as error:
            raise DatabaseError(in_words(error)) from error

    def _parameters(self) -> dict[str, Any]:
        stated = conninfo_to_dict(self.url)
        timeouts = {
            "statement_timeout": STATEMENT_SECONDS,
            "lock_timeout": STATEMENT_SECONDS,
            "idle_in_transaction_session_timeout": IDLE_SECONDS,
        }
        parameters: dict[str, Any] = {
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "relay",
            # A peer that is gone is noticed.
            "tcp_user_timeout": STATEMENT_SECONDS * 1000,
            "options": " ".join(f"-c {name}={seconds}s" for name, seconds in timeouts.items()),
        }
        if not all(map(_is_near, str(stated.get("host") or "").split(","))):
            parameters["sslmode"] = "verify-full"
        if (password := self.password()) is not None:
            parameters["password"] = password
        return parameters

    def _check(self, connection: Connection) -> None:
        settings = connection.execute(
            "SELECT current_setting('transaction_read_only'), current_setting('synchronous_commit'),"
            " to_regclass('relay.schema_version') IS NOT NULL"
        ).fetchone()
        assert settings is not None
        read_only, durable, is_made = settings
        if read_only != "off":
            raise DatabaseError("it is read-only, a standby: name the server that takes writes")
        if durable not in DURABLE:
            raise DatabaseError(f"synchronous_commit is {durable}: set it to on for the role of the relay")
        if not is_made:
            raise DatabaseError("it has no tables of the relay: relay database init")
        row = connection.execute("SELECT version FROM relay.schema_version").fetchone()
        if row is None or row[0] != VERSION:
            found = row and row[0]
            raise DatabaseError(
                f"its tables are of version {found}, this relay knows {VERSION}: relay database upgrade"
            )


def in_words(error: psycopg.Error) -> str:
    """Return what an error says, on one line."""
    return " ".join((error.diag.message_primary or str(error) or type(error).__name__).split())


def _is_near(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
