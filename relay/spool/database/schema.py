"""Creates, upgrades and checks the tables in PostgreSQL (`relay database`)."""

from collections.abc import Iterator
from importlib import resources
from typing import LiteralString

from psycopg import sql

from relay.spool.database import DatabaseError
from relay.spool.database.connection import VERSION, Connection, Database, once, one

UPGRADES: tuple[bytes, ...] = ()
"""SQL from each version of the tables to the next; the first entry leads from 1 to 2."""
_GRANT: LiteralString = """
    GRANT USAGE ON SCHEMA relay TO {0};
    GRANT SELECT ON relay.schema_version TO {0};
    GRANT SELECT, INSERT, UPDATE, DELETE
        ON relay.account, relay.history, relay.mark, relay.owner, relay.message, relay.chunk, relay.answer
        TO {0}
"""
_HOSTS = """
    WITH claims AS (
        SELECT host, sum(claimed)::bigint AS claimed,
            extract(epoch FROM greatest(max(until) - clock_timestamp(), interval '0')) AS lease
        FROM relay.owner, LATERAL (
            SELECT count(*) AS claimed FROM relay.message WHERE message.owner = identity AND corrupt IS NULL
        ) AS its GROUP BY host
    ), marks AS (
        SELECT host, jsonb_object_agg(name, extract(epoch FROM clock_timestamp() - at)) AS ages
        FROM relay.mark JOIN relay.account ON account.id = account_id GROUP BY host
    )
    SELECT host, coalesce(claimed, 0), lease::float8, coalesce(ages, '{}')
    FROM claims FULL JOIN marks USING (host) ORDER BY host
"""


def hosts_of(connection: Connection) -> list[tuple[str, int, float | None, dict[str, float]]]:
    """Return for each host its name, the number of its messages, seconds of its lease, ages of its accounts.

    A lease of 0 is over: other hosts may take its messages.  It is None for a host without a queue here.  The
    age of an account is the time in seconds since the host's last commit to its history.
    """
    return [(host, claimed, lease, ages) for host, claimed, lease, ages in connection.execute(_HOSTS)]


def make(database: Database, role: str = "") -> None:
    """Create the tables, and grant a role their use.  Raises DatabaseError."""
    with once(database, is_checked=False) as connection:
        connection.execute(resources.files(__package__).joinpath("schema.sql").read_bytes())
        if role:
            connection.execute(sql.SQL(_GRANT).format(sql.Identifier(role)))


def upgrade(database: Database) -> int:
    """Bring the tables to VERSION, in one transaction; return their former version.  Raises DatabaseError."""
    with once(database, is_checked=False) as connection:
        (found,) = one(connection, "SELECT version FROM relay.schema_version FOR UPDATE")
        if found > VERSION:
            raise DatabaseError(f"its tables have version {found}, this relay supports up to {VERSION}")
        for step in UPGRADES[found - 1 :]:
            connection.execute(step)
        connection.execute("UPDATE relay.schema_version SET version = %s", (VERSION,))
        return int(found)


def described(database: Database) -> Iterator[str]:
    """Yield lines on a database and its users.  Raises DatabaseError if a relay would refuse it."""
    with once(database) as connection:
        server, role = connection.info.parameter_status("server_version"), connection.info.user
        yield f"PostgreSQL {server}, as {role}, tables of version {VERSION}"
        (standbys,) = one(connection, "SHOW synchronous_standby_names")
        none = "none: if the server's disk is lost, its last commits are lost"
        yield f"synchronous standbys: {standbys or none}"
        (lacks,) = one(
            connection,
            "SELECT string_agg(DISTINCT tablename, ', ')"
            " FROM pg_tables, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed"
            " WHERE schemaname = 'relay' AND tablename <> 'schema_version'"
            " AND NOT has_table_privilege('relay.' || tablename, needed)",
        )
        if lacks is not None:
            raise DatabaseError(f"the role {role} lacks rights on {lacks}: relay database init --as")
        for name, commits, kept in connection.execute(
            "SELECT name, last_position, last_position - greatest(first_position, 1) + 1"
            " FROM relay.account ORDER BY name"
        ):
            yield f"account {name}: {commits} commits, {max(0, kept)} of them kept"
        for host, claimed, lease_seconds, ages in hosts_of(connection):
            if lease_seconds is not None:
                lapsed = "" if lease_seconds else "; its lease is over: any host may take them"
                yield f"host {host}: {claimed} messages{lapsed}"
            for name, age in ages.items():
                yield f"host {host}: used account {name} {age:.0f} s ago"
        free, aside = one(
            connection,
            "SELECT count(*) FILTER (WHERE owner IS NULL AND corrupt IS NULL),"
            " count(*) FILTER (WHERE corrupt IS NOT NULL) FROM relay.message",
        )
        yield f"unclaimed: {free} messages; set aside: {aside} messages"
