"""Fixtures: an empty database, and an upstream whose limit no test reaches."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.postgresql import Server
from tests.system.strict_smarthost import StrictSmarthost


@pytest.fixture
def url(server: Server) -> str:
    return server.make_database("mail")


@pytest.fixture
def relays_url(server: Server, url: str) -> Iterator[str]:
    """Return the URL of the same database for a role of the relay's own, which has no rights yet."""
    server.execute("CREATE ROLE relay LOGIN")
    yield url.replace("postgres@", "relay@")
    server.execute("DROP OWNED BY relay", "DROP ROLE relay", database="mail")


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[StrictSmarthost]:
    """Return an upstream that allows 1000 messages a second: more than any test here sends."""
    with StrictSmarthost(tmp_path, {"messages": 1000, "per": "1s"}, seed=1) as host:
        yield host
