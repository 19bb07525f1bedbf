"""The engine in PostgreSQL: held to the suite that every engine is held to, and what is its own."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.engines.spool.conformance import Conformance
from tests.engines.spool.postgresql_engine import PostgresqlEngine
from tests.fakes.postgresql import Server, missing, started
from tests.system.demand import demand


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    demand(missing())
    with started(tmp_path_factory.mktemp("postgresql")) as running:
        yield running


class TestOnAServer(Conformance):
    @pytest.fixture
    def engine(self, server: Server, tmp_path: Path) -> Iterator[PostgresqlEngine]:
        name = f"spool_{abs(hash(tmp_path))}"
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = server.url.rpartition("/")[0] + f"/{name}"
        with contextlib.ExitStack() as closing:
            yield PostgresqlEngine(str(tmp_path / "spool"), url, closing)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
