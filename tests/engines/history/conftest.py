"""Where a history may be kept: the same laws hold everywhere."""

from collections.abc import Callable
from pathlib import Path

import pytest

from relay.spool.disk.durable import Disk, RealDisk
from relay.throttle.file_history import FileHistory
from relay.throttle.history import History
from tests.engines.history.memory_history import Kept, MemoryHistory
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history" / "isp"


@pytest.fixture
def disk() -> Disk:
    return RealDisk()


@pytest.fixture
def memory() -> ModelDisk:
    return ModelDisk()


@pytest.fixture(params=["a file", "a database with a clock of its own"])
def opened(request: pytest.FixtureRequest, clock: FakeClock, path: Path) -> Callable[[], History]:
    """Return what opens the same history again and again, as processes do."""
    if request.param == "a file":
        return lambda: FileHistory(path, RealDisk(), clock, replace_above_bytes=0)
    kept = Kept(clock, ahead_ns=10**15, refuses_to_replace=False)
    return lambda: MemoryHistory(kept, replaces_above=4)
