"""`relay database`: creates, upgrades and checks the tables in PostgreSQL."""

import os

import click
from psycopg.conninfo import conninfo_to_dict

from relay.cli.options import Failed, Target, found_policy, say, target_options
from relay.spool.database.connection import VERSION, Database, database_of
from relay.spool.database.schema import described, make
from relay.spool.database.schema import upgrade as upgrade_tables
from relay.status.status_view import databases_of

AS = click.option("--as", "url", metavar="URL", help="Log in with this URL, as the tables' owner.")


@click.group()
def database() -> None:
    """Make, upgrade and check the tables in each PostgreSQL database that the policy names."""


@database.command()
@target_options
@AS
def init(target: Target, *, url: str | None) -> None:
    """Make the tables.

    With --as, the role of that URL makes and owns them; the policy's role may only use them.  libpq finds
    the password of the role of --as (PGPASSWORD, ~/.pgpass).
    """
    for each in _databases(target):
        make(_by(each, url), "" if url is None else str(conninfo_to_dict(each.url).get("user") or ""))
        say(f"{each.url}: its tables are made")


@database.command()
@target_options
@AS
def upgrade(target: Target, *, url: str | None) -> None:
    """Bring the tables to the version of this relay; stop all relays that use them first."""
    for each in _databases(target):
        found = upgrade_tables(_by(each, url))
        say(f"{each.url}: its tables had version {found}, and have version {VERSION}")


@database.command()
@target_options
def check(target: Target) -> None:
    """Check that a relay can use the tables; list their hosts and accounts."""
    for each in _databases(target):
        for line in (f"{each.url}: good", *(f"  {line}" for line in described(each))):
            say(line)


def _databases(target: Target) -> list[Database]:
    if not (logins := databases_of(found_policy(target))):
        raise Failed("the policy names no database: docs/several-hosts.md", os.EX_CONFIG)
    return [database_of(login) for login in logins.values()]


def _by(each: Database, url: str | None) -> Database:
    return each if url is None else Database(url, ca_file=each.ca_file)
