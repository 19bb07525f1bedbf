"""`relay database`: creates and checks the tables in PostgreSQL."""

import os

import click
from psycopg.conninfo import conninfo_to_dict

from relay.cli.options import Failed, Where, found_policy, say, where_options
from relay.spool.database.connection import Database, database_of
from relay.spool.database.schema import described, make
from relay.status.hosts import databases_of


@click.group()
def database() -> None:
    """Make and check the tables in each PostgreSQL database that the policy names."""


@database.command()
@where_options
@click.option("--as", "url", metavar="URL", help="Log in by this URL, as who owns the tables.")
def init(where: Where, *, url: str | None) -> None:
    """Make the tables.

    With --as by another role, which then owns them: that of the policy may use them, and nothing else.  The
    password of that role is what libpq finds (PGPASSWORD, ~/.pgpass).
    """
    for each in _databases(where):
        if url is None:
            make(each)
        else:
            role = conninfo_to_dict(each.url).get("user")
            make(Database(url, ca_file=each.ca_file), str(role or ""))
        say(f"{each.url}: its tables are made")


@database.command()
@where_options
def check(where: Where) -> None:
    """Look whether a relay can use them, and tell which hosts and accounts do."""
    for each in _databases(where):
        for line in (f"{each.url}: good", *(f"  {line}" for line in described(each))):
            say(line)


def _databases(where: Where) -> list[Database]:
    if not (logins := databases_of(found_policy(where))):
        raise Failed("the policy names no database: docs/several-hosts.md", os.EX_CONFIG)
    return [database_of(login) for login in logins.values()]
