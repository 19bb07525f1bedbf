"""Creates, upgrades and checks the tables in PostgreSQL (`relay database`)."""

from collections.abc import Iterator
from importlib import resources
from typing import LiteralString, NamedTuple

from psycopg import sql

from relay.spool.database import DatabaseError
from relay.spool.database.connection import VERSION, Connection, Database, once, one

UPGRADES: tuple[bytes, ...] = ()
"""Statements from each version to the next; the first leads from 1 to 2."""
RIGHTS: tuple[LiteralString, ...] = (
    "USAGE ON SCHEMA relay",
    "SELECT ON relay.schema_version",
    "SELECT, INSERT, UPDATE, DELETE ON relay.account, relay.history, relay.mark",
    "SELECT, INSERT, UPDATE, DELETE ON relay.owner, relay.message, relay.chunk, relay.answer",
)
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


class HostRow(NamedTuple):
    host: str
    claimed: int
    lease_seconds: float | None
    """0: other hosts may take its messages; None: the host has no queue here."""
    ages: dict[str, float]
    """Seconds since its last commit to the history of each account."""


def hosts_of(connection: Connection) -> list[HostRow]:
    return [HostRow(*row) for row in connection.execute(_HOSTS)]


def make(database: Database, role: str = "") -> None:
    """Create the tables, and grant a role what a relay needs, and no more.  Raises DatabaseError."""
    with once(database, is_checked=False) as connection:
        (is_made,) = one(connection, "SELECT to_regnamespace('relay') IS NOT NULL")
        if is_made:
            raise DatabaseError("it has the schema `relay` already: relay database check, or upgrade")
        connection.execute(resources.files(__package__).joinpath("schema.sql").read_bytes())
        for grant in RIGHTS if role else ():
            connection.execute(sql.SQL("GRANT {} TO {}").format(sql.SQL(grant), sql.Identifier(role)))


def upgrade(database: Database) -> int:
    """Bring the tables to VERSION, in one transaction; return their old version.  Raises DatabaseError."""
    with once(database, is_checked=False) as connection:
        (found,) = one(connection, "SELECT version FROM relay.schema_version FOR UPDATE")
        if found > VERSION:
            what = f"this relay supports up to {VERSION}: install a newer relay"
            raise DatabaseError(f"its tables have version {found}, {what}")
        for step in UPGRADES[found - 1 :]:
            connection.execute(step)
        connection.execute("UPDATE relay.schema_version SET version = %s", (VERSION,))
        return int(found)


def described(database: Database) -> Iterator[str]:
    """Yield lines on a database and its users.  Raises DatabaseError if a relay would refuse it."""
    with once(database) as connection:
        server, role, standbys = one(
            connection,
            "SELECT current_setting('server_version'), current_user,"
            " current_setting('synchronous_standby_names')",
        )
        yield f"PostgreSQL {server}, as {role}, tables of version {VERSION}"
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
        for each in hosts_of(connection):
            if each.lease_seconds is not None:
                lapsed = "" if each.lease_seconds else "; its lease is over: any host may take them"
                yield f"host {each.host}: {each.claimed} messages{lapsed}"
            for name, age in each.ages.items():
                yield f"host {each.host}: used account {name} {age:.0f} s ago"
        free, aside = one(
            connection,
            "SELECT count(*) FILTER (WHERE owner IS NULL AND corrupt IS NULL),"
            " count(*) FILTER (WHERE corrupt IS NOT NULL) FROM relay.message",
        )
        yield f"unclaimed: {free} messages; set aside: {aside} messages"
