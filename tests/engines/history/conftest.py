"""Fixtures that open a history of each kind. The same tests hold for all kinds."""

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import psycopg
import pytest

from relay.spool.database.account import SharedAccount
from relay.spool.database.connection import Database
from relay.spool.database.schema import make
from relay.spool.disk.durable import RealDisk
from relay.throttle.file_history import FileHistory
from relay.throttle.history import History
from relay.throttle.postgresql_history import HighWaterMark, PostgresqlHistory
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk
from tests.fakes.model_database import ModelDatabase
from tests.fakes.postgresql import Server


@dataclass
class Running:
    """The clock of a test, which also goes on with real time, as the clock of a server does."""

    clock: FakeClock
    began_ns: int = field(default_factory=time.monotonic_ns)

    def wall_ns(self) -> int:
        return self.clock.wall_ns()

    def boottime_ns(self) -> int:
        return self.clock.boottime_ns() + time.monotonic_ns() - self.began_ns

    def boot_id(self) -> str:
        return self.clock.boot_id()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history" / "isp"


@pytest.fixture
def memory() -> ModelDisk:
    return ModelDisk()


@pytest.fixture
def mark(tmp_path: Path) -> Callable[[], HighWaterMark]:
    """Return a factory; each call makes the high-water mark of one more host."""
    numbers = itertools.count()
    return lambda: HighWaterMark(str(tmp_path / f"{next(numbers)}.mark"), RealDisk())


@pytest.fixture(scope="module")
def server(server: Server) -> Server:
    """Return a server whose database has the relay's tables."""
    make(Database(server.url))
    return server


@pytest.fixture(
    params=[
        "a file",
        "what the simulation has of it",
        pytest.param("PostgreSQL", marks=pytest.mark.full),
    ]
)
def opened(request: pytest.FixtureRequest, clock: FakeClock, path: Path) -> Iterator[Callable[[], History]]:
    """Return a function that opens the same history each time, as several processes do."""
    opens: Callable[[], History]
    patched: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if request.param == "a file":
        opens = partial(FileHistory, path, RealDisk(), clock, replace_above_bytes=0)
    else:
        url = "postgresql://"
        if request.param == "PostgreSQL":
            server: Server = request.getfixturevalue("server")
            url = server.url
        else:
            patched = patch.object(psycopg, "connect", ModelDatabase(random.Random(0)).connect)
        account = SharedAccount(Database(url), str(path))
        mark: Callable[[], HighWaterMark] = request.getfixturevalue("mark")
        running = Running(clock)
        opens = lambda: PostgresqlHistory(account, mark(), running, replace_above_groups=4)  # noqa: E731 - a mark for each
    with patched, contextlib.ExitStack() as closing:

        def opened() -> History:
            history = opens()
            closing.callback(history.close)
            return history

        yield opened
