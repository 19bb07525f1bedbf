"""Relays as on several hosts: a folder, a port and a spool for each, and one PostgreSQL for their account."""

from pathlib import Path
from typing import Any

from tests.fakes.cut_line import CutLine
from tests.system.warm import WarmRelay


def host(folder: Path, name: str, isp: dict[str, Any], url: str, **policy: Any) -> WarmRelay:
    """Return a relay that is not started; its history is in the database."""
    (folder / name).mkdir()
    return WarmRelay(folder / name, {"isp": {**isp, "history": url}}, **policy)


def make_tables(relay: WarmRelay) -> None:
    ran = relay.command("database", "init")
    assert ran.returncode == 0, ran.stderr


def through(line: CutLine, url: str) -> str:
    """Return the URL of a database by way of a line that can be cut."""
    head, _, tail = url.rpartition(":")
    return f"{head}:{line.port}/{tail.partition('/')[2]}"
