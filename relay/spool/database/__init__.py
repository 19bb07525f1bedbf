"""PostgreSQL, as the relay sees it: for the queue (relay/spool/postgresql) and for histories.

connection      connections: checked, bounded, and with errors in words
account         the row of an account, which its histories and its pause share
schema          the tables (schema.sql): made, brought up to date, looked at

All of them need the extra `relay-smarthost[postgresql]`: they are imported where a policy names a database.
"""


class DatabaseError(Exception):
    """What is wrong, and what to do.  Whether a COMMIT took effect is unknown."""

    is_full = False
