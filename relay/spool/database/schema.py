"""The tables in PostgreSQL: made, brought up to date, and looked at (`relay database`)."""

from collections.abc import Iterator
from importlib import resources
from typing import LiteralString

from psycopg import sql

from relay.spool.database import DatabaseError
from relay.spool.database.connection import VERSION, Database, once, one

UPGRADES: tuple[bytes, ...] = ()
"""What leads from each version to the next, beginning with that from 1 to 2."""
RIGHTS: tuple[LiteralString, ...] = (
    "USAGE ON SCHEMA relay",
    "SELECT ON relay.schema_version",
    "SELECT, INSERT, UPDATE, DELETE ON relay.account, relay.history, relay.owner, relay.message, relay.chunk",
)


def make(database: Database, role: str = "") -> None:
    """Make the tables, and let a role use them: what a relay needs, and no more.  Raises DatabaseError."""
    with once(database, is_checked=False) as connection:
        (is_made,) = one(connection, "SELECT to_regnamespace('relay') IS NOT NULL")
        if is_made:
            raise DatabaseError("it has the schema `relay` already: relay database check, or upgrade")
        connection.execute(resources.files(__package__).joinpath("schema.sql").read_bytes())
        for grant in RIGHTS if role else ():
            connection.execute(sql.SQL("GRANT {} TO {}").format(sql.SQL(grant), sql.Identifier(role)))


def upgrade(database: Database) -> int:
    """Bring the tables to VERSION, in one transaction; return of which they were.  Raises DatabaseError."""
    with once(database, is_checked=False) as connection:
        (found,) = one(connection, "SELECT version FROM relay.schema_version FOR UPDATE")
        if found > VERSION:
            raise DatabaseError(f"its tables are of version {found}, and this relay knows {VERSION}")
        for step in UPGRADES[found - 1 :]:
            connection.execute(step)
        connection.execute("UPDATE relay.schema_version SET version = %s", (VERSION,))
        return int(found)


def looked_at(database: Database) -> Iterator[str]:
    """Tell how a database is set up, and who uses it.  Raises DatabaseError where a relay would refuse it."""
    with once(database) as connection:
        server, role, standbys = one(
            connection,
            "SELECT current_setting('server_version'), current_user,"
            " current_setting('synchronous_standby_names')",
        )
        yield f"PostgreSQL {server}, as {role}, tables of version {VERSION}"
        yield f"synchronous standbys: {standbys or 'none, so what it committed last is lost with its disk'}"
        (lacks,) = one(
            connection,
            "SELECT string_agg(DISTINCT name, ', ')"
            " FROM unnest(ARRAY['account', 'history', 'owner', 'message', 'chunk']) AS name,"
            " unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed"
            " WHERE NOT has_table_privilege('relay.' || name, needed)",
        )
        if lacks is not None:
            raise DatabaseError(f"the role {role} lacks rights on {lacks}: relay database init --as")
        for name, commits, kept in connection.execute(
            "SELECT name, position, position - greatest(replaced, 1) + 1 FROM relay.account ORDER BY name"
        ):
            yield f"account {name}: {commits} commits, {max(0, kept)} of them kept"
        for host, is_live, count in connection.execute(
            "SELECT host, until > clock_timestamp(), (SELECT count(*) FROM relay.message"
            " WHERE message.owner = owner.identity AND corrupt IS NULL) FROM relay.owner ORDER BY host"
        ):
            yield f"host {host}: {count} messages{'' if is_live else ', for any other host to take over'}"
        free, aside = one(
            connection,
            "SELECT count(*) FILTER (WHERE owner IS NULL AND corrupt IS NULL),"
            " count(*) FILTER (WHERE corrupt IS NOT NULL) FROM relay.message",
        )
        yield f"no host yet: {free} messages; set aside: {aside}"
