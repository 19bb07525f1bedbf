"""The syncs of a batch wait together; each file has its own result."""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from relay.spool.disk.durable import RealDisk


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    disk = RealDisk()
    fds = [disk.open_new(str(tmp_path / str(number))) for number in range(20)]
    for fd in fds:
        disk.write_all(fd, b"x")
    yield fds
    for fd in fds:
        disk.close(fd)


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


def numbers(results: Sequence[OSError | None]) -> list[int | None]:
    return [None if result is None else result.errno for result in results]


@pytest.mark.parametrize("content_only", [False, True])
def test_a_batch_has_one_result_for_each_file(
    disk: RealDisk, files: list[int], *, content_only: bool
) -> None:
    reading, pipe = os.pipe()
    with pytest.raises(OSError, match="Invalid") as alone:
        os.fsync(pipe)

    for _ in range(2):
        assert disk.sync_each(files, content_only=content_only) == [None] * 20
        results = disk.sync_each([*files[:3], 9_999, files[3], pipe, files[4]], content_only=content_only)
        assert numbers(results) == [None] * 3 + [errno.EBADF, None, alone.value.errno, None]
    os.close(reading)
    os.close(pipe)
