"""Relays as on several hosts, each with its own folder and port; PostgreSQL holds their account or queue."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fakes.cut_line import CutLine
from tests.fakes.postgresql import Server
from tests.system.relay import RelayProcess

OF_B = 1_000_000
"""The number of the first letter for the second host."""


def host(folder: Path, name: str, isp: dict[str, Any], url: str) -> RelayProcess:
    """Return a relay that is not started; its history is in the database."""
    (folder / name).mkdir()
    return RelayProcess(folder / name, {"isp": isp | {"history": url}}, hostname=f"{name}.test")


def of_one_queue(folder: Path, name: str, isp: dict[str, Any], url: str) -> RelayProcess:
    """Return a relay that is not started; its queue is in the database."""
    (folder / name).mkdir()
    spool = {"path": "./spool", "postgresql": url}
    reports = {"per_hour": None}
    return RelayProcess(folder / name, {"isp": isp}, spool=spool, hostname=f"{name}.test", reports=reports)


def send(relay: RelayProcess, number: int = 0) -> None:
    relay.send(f"r{number}.0@list.test", content=f"Subject: {number}\r\n\r\nhello\r\n")


def make_tables(relay: RelayProcess, *options: str) -> None:
    ran = relay.command("database", "init", *options)
    assert ran.returncode == 0, ran.stderr


def through(line: CutLine, url: str) -> str:
    """Return the URL of a database by way of a line that can be cut."""
    head, _, tail = url.rpartition(":")
    return f"{head}:{line.port}/{tail.partition('/')[2]}"


FAILURES: dict[str, tuple[Callable[[Server], None], Callable[[Server], None], str]] = {
    "stopped": (Server.stop, Server.start, "Connection refused"),
    "stopped at once": (lambda server: server.stop("immediate"), Server.start, "Connection refused"),
    "killed": (Server.kill, Server.start, "Connection refused"),
    "read-only": (
        lambda server: server.execute("ALTER ROLE relay SET default_transaction_read_only = on", DISCONNECT),
        lambda server: server.execute("ALTER ROLE relay RESET ALL"),
        "session is read-only",
    ),
    "with tables of another version": (
        lambda server: server.execute(VERSION.format(2), DISCONNECT, database="mail"),
        lambda server: server.execute(VERSION.format(1), database="mail"),
        "its tables have version 2, this relay needs 1",
    ),
    "with no connection left": (
        lambda server: server.execute("ALTER ROLE relay CONNECTION LIMIT 0", DISCONNECT),
        lambda server: server.execute("ALTER ROLE relay CONNECTION LIMIT -1"),
        'too many connections for role "relay"',
    ),
    "without rights": (
        lambda server: server.execute("REVOKE UPDATE ON relay.account FROM relay", database="mail"),
        lambda server: server.execute("GRANT UPDATE ON relay.account TO relay", database="mail"),
        "permission denied for table account",
    ),
}
VERSION = "UPDATE relay.schema_version SET version = {}"
DISCONNECT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay'"
