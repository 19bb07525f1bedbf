"""The row of an account: the lock for its writers on all hosts, its clock and its pause."""

import os
from dataclasses import dataclass
from typing import LiteralString, NamedTuple

from relay.policy.units import DatabaseLogin
from relay.spool.database.connection import Connection, Database, database_of

CLOCK_NS: LiteralString = "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"
"""The server's clock.  Read it under the row's lock, so that instants ascend from holder to holder."""
_LOCK: LiteralString = (
    "SELECT id, identity::text, first_position, last_position, offset_ns, now_ns, state, state_version"
    " FROM relay.account WHERE name = %s FOR UPDATE"
)


class AccountColumns(NamedTuple):
    id: int
    identity: str
    first_position: int
    last_position: int
    offset_ns: int
    now_ns: int
    state: str
    state_version: int


class RowState(NamedTuple):
    """The pause in the account's row, and when it was read."""

    version: int
    """0: the account has no state yet."""
    state: str
    boottime_ns: int
    now_ns: int
    """The history's clock at `boottime_ns`."""


@dataclass(frozen=True, slots=True)
class SharedAccount:
    database: Database
    name: str
    host: str = ""

    def locked(self, connection: Connection) -> AccountColumns:
        """Return the row, created if missing, and lock it until the end of the transaction."""
        while (row := connection.execute(_LOCK, (self.name,)).fetchone()) is None:
            insert = "INSERT INTO relay.account (name) VALUES (%s) ON CONFLICT DO NOTHING"
            connection.execute(insert, (self.name,))
        return AccountColumns(*row)


def account_of(login: DatabaseLogin, name: str, host: str) -> SharedAccount:
    return SharedAccount(database_of(login), name, host or os.uname().nodename)
