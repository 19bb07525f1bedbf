"""`relay database`: the tables in PostgreSQL, made, brought up to date, and looked at."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from relay.cli.locate import found_policy
from relay.cli.options import Where, printable, where_options
from relay.policy.database import DatabaseLogin

if TYPE_CHECKING:
    from relay.spool.database.connection import Database


class NoDatabase(click.ClickException):
    exit_code = os.EX_CONFIG


class DatabaseFails(click.ClickException):
    exit_code = os.EX_UNAVAILABLE


@click.group()
def database() -> None:
    """Make, upgrade and check the tables in each PostgreSQL database that the policy names."""


AS = click.option("--as", "url", metavar="URL", help="Log in by this URL, as who owns the tables.")


@database.command()
@where_options
@AS
def init(where: Where, *, url: str | None) -> None:
    """Make the tables.

    With --as by another role, which then owns them: that of the policy may use them, and nothing else.  The
    password of that role is what libpq finds (PGPASSWORD, ~/.pgpass).
    """

    def make_one(login: DatabaseLogin) -> str:
        from relay.spool.database.connection import database_of  # noqa: PLC0415 - it needs an extra
        from relay.spool.database.schema import make  # noqa: PLC0415 - it needs an extra

        make(_by(login, url), "" if url is None else database_of(login).role)
        return "its tables are made"

    _each(where, make_one)


@database.command()
@where_options
@AS
def upgrade(where: Where, *, url: str | None) -> None:
    """Bring the tables to the version of this relay; stop all relays that use them first."""

    def upgrade_one(login: DatabaseLogin) -> str:
        from relay.spool.database.connection import VERSION  # noqa: PLC0415 - it needs an extra
        from relay.spool.database.schema import upgrade  # noqa: PLC0415 - it needs an extra

        found = upgrade(_by(login, url))
        return f"its tables were of version {found}, and are of version {VERSION}"

    _each(where, upgrade_one)


@database.command()
@where_options
def check(where: Where) -> None:
    """Look whether a relay can use them, and tell which hosts and accounts do."""

    def check_one(login: DatabaseLogin) -> str:
        from relay.spool.database.connection import database_of  # noqa: PLC0415 - it needs an extra
        from relay.spool.database.schema import looked_at  # noqa: PLC0415 - it needs an extra

        return "\n  ".join(["good", *looked_at(database_of(login))])

    _each(where, check_one)


def _by(login: DatabaseLogin, url: str | None) -> "Database":
    from relay.spool.database.connection import Database, database_of  # noqa: PLC0415 - it needs an extra

    return database_of(login) if url is None else Database(url, ca_file=database_of(login).ca_file)


def _each(where: Where, do: Callable[[DatabaseLogin], str]) -> None:
    """Do it once for each database, and print what comes of it."""
    policy = found_policy(where)
    histories = (policy.history_of(name).database for name in policy.upstreams)
    logins = {each.postgresql: each for each in (policy.storage, *histories) if each and each.postgresql}
    if not logins:
        raise NoDatabase("the policy names no database: docs/several-hosts.md")
    from relay.spool.database.connection import DatabaseError  # noqa: PLC0415 - it needs an extra

    for url, login in logins.items():
        try:
            done = do(login)
        except DatabaseError as error:
            raise DatabaseFails(printable(f"{url}: {error}")) from error
        for line in done.split("\n"):
            click.echo(printable(line if line.startswith("  ") else f"{url}: {line}"))
