"""Where the kernel takes no batch: on a slow disk the syncs wait together; each file has its own result."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relay.spool.disk import batched_sync
from relay.spool.disk.durable import RealDisk
from relay.spool.disk.threads import started


@pytest.fixture(autouse=True)
def without_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no kernel that does syncs for us."""
    monkeypatch.setattr(batched_sync, "_open", lambda: None)


@pytest.mark.parametrize("slow_ns", [-1, 10**18])
@pytest.mark.parametrize("content_only", [False, True])
def test_a_batch_has_one_result_for_each_file_on_any_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, slow_ns: int, content_only: bool
) -> None:
    monkeypatch.setattr(batched_sync, "SLOW_SYNC_NS", slow_ns)
    disk = RealDisk()
    fds = [disk.open_new(str(tmp_path / str(number))) for number in range(20)]
    for fd in fds:
        disk.write_all(fd, b"x")
    gone = fds[13]
    disk.close(gone)

    results = disk.sync_each(fds, content_only=content_only)

    assert [result and result.errno for result in results] == [None] * 13 + [errno.EBADF] + [None] * 6
    for fd in fds:
        if fd != gone:
            disk.close(fd)


@pytest.mark.parametrize(("slow_ns", "at_once"), [(-1, 2), (10**18, 1)])
def test_on_a_slow_disk_the_rest_of_a_batch_waits_together(
    monkeypatch: pytest.MonkeyPatch, slow_ns: int, at_once: int
) -> None:
    monkeypatch.setattr(batched_sync, "SLOW_SYNC_NS", slow_ns)
    others = threading.Barrier(at_once, timeout=120)
    met: list[int] = []

    def fdatasync(fd: int) -> None:
        if fd > 0:
            # Of a slow disk no sync ends before another one has begun.
            others.wait()
        met.append(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)

    assert RealDisk().sync_each([0, 1, 2], content_only=True) == [None] * 3
    assert sorted(met) == [0, 1, 2]


def test_a_second_slow_batch_starts_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[ThreadPoolExecutor] = []

    def start(count: int, name: str) -> ThreadPoolExecutor:
        pools.append(started(count, name))
        return pools[-1]

    monkeypatch.setattr(batched_sync, "SLOW_SYNC_NS", -1)
    monkeypatch.setattr(batched_sync, "started", start)
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)
    disk = RealDisk()

    for _ in range(2):
        assert disk.sync_each([7, 8], content_only=True) == [None, None]

    assert len(pools) == 1


@pytest.mark.parametrize("content_only", [False, True])
def test_a_whole_batch_is_being_written_before_the_first_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, content_only: bool
) -> None:
    disk = RealDisk()
    fds = [disk.open_new(str(tmp_path / str(number))) for number in range(3)]
    seen: list[tuple[str, int]] = []
    name = "fdatasync" if content_only else "fsync"
    fadvise, sync = os.posix_fadvise, getattr(os, name)

    def begins(fd: int, offset: int, size: int, advice: int) -> None:
        seen.append(("begin", fd))
        fadvise(fd, offset, size, advice)

    def syncs(fd: int) -> None:
        seen.append(("sync", fd))
        sync(fd)

    monkeypatch.setattr(os, "posix_fadvise", begins)
    monkeypatch.setattr(os, name, syncs)
    monkeypatch.setattr(batched_sync, "SLOW_SYNC_NS", 10**18)

    assert disk.sync_each(fds, content_only=content_only) == [None] * 3
    assert seen == [*(("begin", fd) for fd in fds), *(("sync", fd) for fd in fds)]
    for fd in fds:
        disk.close(fd)


def test_a_file_whose_writing_cannot_begin_early_is_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    synced: list[int] = []

    def begins(fd: int, _offset: int, _size: int, _advice: int) -> None:
        raise OSError(errno.EINVAL, f"no advice about {fd}")

    monkeypatch.setattr(os, "posix_fadvise", begins)
    monkeypatch.setattr(os, "fdatasync", synced.append)

    assert RealDisk().sync_each([7, 8], content_only=True) == [None, None]
    assert synced == [7, 8]
