"""The system calls of the real disk: these calls, in this order, decide what survives a power cut."""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from caio.linux_aio import Context

from relay.spool.disk.durable import RealDisk
from relay.spool.disk.kernel_syncs import KernelSyncs
from tests.system import small_disk
from tests.system.demand import demand
from tests.system.small_disk import MEGABYTE, ext4, tmpfs

Call = tuple[str, str]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Return the list of calls made from now on, by name and path, in order. The calls are still executed."""
    seen: list[Call] = []
    sync, sync_content, mkdir, library = os.fsync, os.fdatasync, os.mkdir, ctypes.CDLL(None)

    def syncs(name: str, fd: int, sync: Callable[[int], Any]) -> Any:
        seen.append((name, str(Path(f"/proc/self/fd/{fd}").readlink())))
        return sync(fd)

    def makes(path: str, mode: int) -> None:
        seen.append(("mkdir", path))
        mkdir(path, mode)

    monkeypatch.setattr(os, "fsync", lambda fd: syncs("fsync", fd, sync))
    monkeypatch.setattr(os, "fdatasync", lambda fd: syncs("fdatasync", fd, sync_content))
    monkeypatch.setattr(os, "mkdir", makes)
    watched = SimpleNamespace(syncfs=lambda fd: syncs("syncfs", fd, library.syncfs))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: watched)
    return seen


def test_each_sync_asks_the_kernel_for_that_file_and_that_kind(tmp_path: Path, calls: list[Call]) -> None:
    disk, paths = RealDisk(), [str(tmp_path / name) for name in "ab"]
    fds = [disk.open_new(path) for path in paths]

    disk.sync(fds[0])
    disk.sync_content(fds[1])
    # A batch of several files goes to the kernel in another way.
    disk.sync_each(fds[:1], content_only=False)
    disk.sync_each(fds[1:], content_only=True)
    disk.sync_directory(str(tmp_path))
    disk.sync_all(str(tmp_path))

    synced = [("fsync", paths[0]), ("fdatasync", paths[1])]
    assert calls == [*synced, *synced, ("fsync", str(tmp_path)), ("syncfs", str(tmp_path))]
    for fd in fds:
        disk.close(fd)


@pytest.mark.parametrize("content_only", [False, True])
def test_a_batch_has_one_result_for_each_file(tmp_path: Path, *, content_only: bool) -> None:
    disk = RealDisk()
    fds = [disk.open_new(str(tmp_path / str(number))) for number in range(20)]
    for fd in fds:
        disk.write_all(fd, b"x")
    reading, pipe = os.pipe()
    for _ in range(2):
        assert disk.sync_each(fds, content_only=content_only) == [None] * 20
        results = disk.sync_each([*fds[:3], 9_999, fds[3], pipe, fds[4]], content_only=content_only)
        numbers = [result and result.errno for result in results]
        assert numbers == [None] * 3 + [errno.EBADF, None, errno.EINVAL, None]
    for fd in (*fds, reading, pipe):
        os.close(fd)


class Kernel:
    """The kernel's AIO queue with injected faults: short submissions, and errors when results are read."""

    def __init__(self, *faults: int, takes: int = 256) -> None:
        self._context, self._faults, self._takes = Context(256), list(faults), takes

    def submit(self, *syncs: Any) -> int:
        return self._context.submit(*syncs[: self._takes])

    def process_events(self, most: int, least: int, timeout: int) -> int:
        if self._faults:
            raise SystemError(self._faults.pop(0))
        return self._context.process_events(most, least, timeout)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (Kernel(errno.EINTR, errno.EINTR), [None] * 5),
        (Kernel(takes=2), [None] * 5),
        # No result arrives: the files may not be durable, although the kernel goes on syncing them.
        (Kernel(errno.EINVAL), [errno.EIO] * 5),
        (None, []),
    ],
    ids=["a signal comes", "two at a time", "nothing is told", "there is none"],
)
def test_a_sync_counts_only_if_the_kernel_reported_its_end(
    tmp_path: Path, kernel: Any, expected: list[int | None]
) -> None:
    disk = RealDisk()
    fds = [disk.open_new(str(tmp_path / str(number))) for number in range(5)]
    results = KernelSyncs(lambda: kernel).sync(fds, content_only=False)
    assert [result and result.errno for result in results] == expected
    for fd in fds:
        os.close(fd)


def test_each_failed_sync_of_a_batch_is_returned_with_its_error(tmp_path: Path) -> None:
    """On an ext4 whose backing store is full, writes fit into memory and only a sync meets the error."""
    demand(small_disk.why_missing())
    sparse = tmp_path / "sparse"
    with tmpfs(sparse, size_bytes=12 * MEGABYTE), ext4(sparse / "disk", size_bytes=64 * MEGABYTE) as disk:
        real = RealDisk()
        fds = [real.open_new(str(disk.path / str(number))) for number in range(5)]
        assert real.sync_each(fds, content_only=False) == [None] * 5
        for fd in fds[1:]:
            real.write_all(fd, os.urandom(8 * MEGABYTE))
        fine, *failed = real.sync_each(fds, content_only=True)
        for fd in fds:
            os.close(fd)
    assert fine is None
    numbers = {error and error.errno for error in failed}
    # The sync that first meets the full journal of the file system may report another error.
    assert errno.ENOSPC in numbers
    assert numbers <= {errno.ENOSPC, errno.EIO, errno.EROFS}


def test_a_new_folder_is_durable_with_its_parents(tmp_path: Path, calls: list[Call]) -> None:
    top, inner = str(tmp_path / "spool"), str(tmp_path / "spool" / "cur")

    RealDisk().make_directory(inner)

    assert calls == [("mkdir", top), ("fsync", str(tmp_path)), ("mkdir", inner), ("fsync", top)]
    calls.clear()
    RealDisk().make_directory(f"{inner}/")
    assert calls == []
