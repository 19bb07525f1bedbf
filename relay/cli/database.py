"""`relay database`: the tables in PostgreSQL, made, brought up to date, and looked at."""

import os
from collections.abc import Iterator

import click

from relay.cli.options import Failed, Where, found_policy, say, where_options
from relay.policy.database import DatabaseLogin
from relay.spool.database.connection import VERSION, Database, database_of
from relay.spool.database.schema import described, make
from relay.spool.database.schema import upgrade as upgrade_tables
from relay.status.hosts import databases_of

AS = click.option("--as", "url", metavar="URL", help="Log in by this URL, as who owns the tables.")


@click.group()
def database() -> None:
    """Make, upgrade and check the tables in each PostgreSQL database that the policy names."""


@database.command()
@where_options
@AS
def init(where: Where, *, url: str | None) -> None:
    """Make the tables.

    With --as by another role, which then owns them: that of the policy may use them, and nothing else.  The
    password of that role is what libpq finds (PGPASSWORD, ~/.pgpass).
    """
    for login in _databases(where):
        make(_by(login, url), "" if url is None else database_of(login).role)
        say(f"{login.postgresql}: its tables are made")


@database.command()
@where_options
@AS
def upgrade(where: Where, *, url: str | None) -> None:
    """Bring the tables to the version of this relay; stop all relays that use them first."""
    for login in _databases(where):
        found = upgrade_tables(_by(login, url))
        words = f"its tables had version {found}, and have version {VERSION}"
        say(f"{login.postgresql}: {words}")


@database.command()
@where_options
def check(where: Where) -> None:
    """Look whether a relay can use them, and tell which hosts and accounts do."""
    for login in _databases(where):
        lines = list(described(database_of(login)))
        say(f"{login.postgresql}: good")
        for line in lines:
            say(f"  {line}")


def _databases(where: Where) -> Iterator[DatabaseLogin]:
    """Give each database once."""
    if not (logins := databases_of(found_policy(where))):
        raise Failed("the policy names no database: docs/several-hosts.md", os.EX_CONFIG)
    yield from logins.values()


def _by(login: DatabaseLogin, url: str | None) -> Database:
    return database_of(login) if url is None else Database(url, ca_file=database_of(login).ca_file)
