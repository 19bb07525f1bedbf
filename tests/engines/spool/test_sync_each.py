"""The syncs of a batch wait together, by the kernel's queue or in threads; each file has its own result."""

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from relay.spool.disk import batched_sync
from relay.spool.disk.durable import RealDisk
from relay.spool.disk.threads import started


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    """Return descriptors of twenty files with something to sync."""
    disk = RealDisk()
    fds = [disk.open_new(str(tmp_path / str(number))) for number in range(20)]
    for fd in fds:
        disk.write_all(fd, b"x")
    yield fds
    for fd in fds:
        disk.close(fd)


@pytest.fixture(params=["the kernel's queue", "threads"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RealDisk:
    if request.param != "the kernel's queue":
        monkeypatch.setitem(sys.modules, "caio.linux_aio", None)
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


@pytest.mark.parametrize("content_only", [False, True])
def test_where_there_is_no_queue_each_file_is_synced_once_by_us(
    files: list[int], monkeypatch: pytest.MonkeyPatch, *, content_only: bool
) -> None:
    monkeypatch.setitem(sys.modules, "caio.linux_aio", None)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync" if content_only else "fsync", synced.append)

    assert RealDisk().sync_each(files, content_only=content_only) == [None] * 20
    assert sorted(synced) == sorted(files)


class Queue:
    """A kernel that takes all, and tells of so many at a time or raises; each sync comes to `result`."""

    def __init__(self, *told: int | SystemError) -> None:
        self._told = list(told)
        self._in_flight: list[Sync] = []

    def submit(self, *syncs: "Sync") -> int:
        self._in_flight += syncs
        return len(syncs)

    def process_events(self, _most: int, _least: int, _timeout: int) -> int:
        told = self._told.pop(0)
        if isinstance(told, SystemError):
            raise told
        for _ in range(told):
            self._in_flight.pop(0).is_told = True
        return told


class Sync:
    def __init__(self, result: str | None) -> None:
        self._result, self.is_told = result, False

    def get_value(self) -> None:
        if not self.is_told:
            raise RuntimeError("get_value() is not available while the operation is in flight")
        if self._result is not None:
            raise SystemError(self._result)


INTERRUPTED, LOST = SystemError(errno.EINTR, "Interrupted"), SystemError(errno.EINVAL, "Invalid")


@pytest.mark.parametrize(
    ("queue", "results", "known"),
    [
        # As caio tells it: by its text.
        (
            Queue(3),
            [None, os.strerror(errno.ENOSPC), "no text of any error"],
            [None, errno.ENOSPC, errno.EIO],
        ),
        (Queue(INTERRUPTED, 1, INTERRUPTED, 1), [None, None], [None, None]),
        (Queue(1, LOST), [None, None], [None, errno.EIO]),
    ],
)
def test_a_sync_is_done_only_if_the_kernel_says_so(
    monkeypatch: pytest.MonkeyPatch, queue: Queue, results: list[str | None], known: list[int | None]
) -> None:
    operation = type("Operation", (), {"fsync": staticmethod(lambda fd: Sync(results[fd]))})
    monkeypatch.setattr(batched_sync, "_open", lambda: (queue, operation))

    assert numbers(RealDisk().sync_each(range(len(results)), content_only=False)) == known


def test_an_executor_has_all_its_threads_from_the_start_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = started(3, "some")
    assert threads.submit(lambda: "done").result() == "done"
    threads.shutdown()

    def refuse(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        started(3, "some")
