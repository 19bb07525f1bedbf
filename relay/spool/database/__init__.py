"""Access to PostgreSQL, for the queue (relay/spool/postgresql) and for histories.

connection      connections: checked, bounded in time, with errors in words
account         the row of an account, which its histories and its pause share
schema          the tables (schema.sql): creates, upgrades and checks them

All need the extra `relay-smarthost[postgresql]`, and are imported only if a policy names a database.
"""

from relay.spool.interface import Full, Unavailable


class DatabaseError(Unavailable):
    """The text says what is wrong, and what to do.  Whether a COMMIT took effect is unknown."""

    def __str__(self) -> str:
        return f"the database: {super().__str__()}"


class DatabaseFull(DatabaseError, Full):  # noqa: N818 - a state of the server
    """The server has no room."""
