"""What tests with a PostgreSQL share: an empty database, and an upstream that is never full."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.postgresql import Server
from tests.system.strict_smarthost import StrictSmarthost


@pytest.fixture
def url(server: Server) -> str:
    return server.make_database("mail")


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[StrictSmarthost]:
    """Return one that allows more than any test here sends."""
    with StrictSmarthost(tmp_path, {"messages": 1000, "per": "1s"}, seed=1) as host:
        yield host
