"""The two disks that the same laws hold on."""

from pathlib import Path

import pytest

from relay.spool.disk.durable import Disk, RealDisk
from tests.engines.history.memory_disk import MemoryDisk
from tests.fakes.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history" / "isp"


@pytest.fixture(params=["memory", "real"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return MemoryDisk() if request.param == "memory" else RealDisk()


@pytest.fixture
def memory() -> MemoryDisk:
    return MemoryDisk()
