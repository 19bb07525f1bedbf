"""Relays as on several hosts: a folder, a port and a spool for each, and one PostgreSQL for their account."""

from pathlib import Path
from typing import Any

from tests.fakes.cut_line import CutLine
from tests.system.warm import WarmRelay

OF_B = 1_000_000
"""The first number of what is handed to the second host."""


def host(folder: Path, name: str, isp: dict[str, Any], url: str) -> WarmRelay:
    """Return a relay that is not started; its history is in the database."""
    (folder / name).mkdir()
    return WarmRelay(folder / name, {"isp": isp | {"history": url}}, hostname=f"{name}.test")


def of_one_queue(folder: Path, name: str, isp: dict[str, Any], url: str) -> WarmRelay:
    """Return a relay that is not started; its queue is in the database."""
    (folder / name).mkdir()
    spool = {"path": "./spool", "postgresql": url}
    reports = {"per_hour": None}
    return WarmRelay(folder / name, {"isp": isp}, spool=spool, hostname=f"{name}.test", reports=reports)


def send(relay: WarmRelay, number: int = 0) -> None:
    relay.send(f"r{number}.0@list.test", content=f"Subject: {number}\r\n\r\nhello\r\n")


def make_tables(relay: WarmRelay) -> None:
    ran = relay.command("database", "init")
    assert ran.returncode == 0, ran.stderr


def through(line: CutLine, url: str) -> str:
    """Return the URL of a database by way of a line that can be cut."""
    head, _, tail = url.rpartition(":")
    return f"{head}:{line.port}/{tail.partition('/')[2]}"
