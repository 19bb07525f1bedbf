"""What the real disk asks of the kernel: that, and in that order, is what survives loss of power."""

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
    """Return what is asked of the kernel from now on, by name and path, in its order; it does it, too."""
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


def test_each_sync_is_one_of_that_very_file_and_kind(tmp_path: Path, calls: list[Call]) -> None:
    disk, paths = RealDisk(), [str(tmp_path / name) for name in "ab"]
    fds = [disk.open_new(path) for path in paths]

    disk.sync(fds[0])
    disk.sync_content(fds[1])
    # Those of several files the kernel is given otherwise.
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
    """The kernel's own queue, behind faults in what it takes and in what it tells."""

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
        # It tells of none: they may not be durable, though the kernel goes on with them.
        (Kernel(errno.EINVAL), [errno.EIO] * 5),
        (None, []),
    ],
    ids=["a signal comes", "two at a time", "nothing is told", "there is none"],
)
def test_a_sync_counts_only_where_the_kernel_told_of_its_end(
    tmp_path: Path, kernel: Any, expected: list[int | None]
) -> None:
    disk = RealDisk()
    fds = [disk.open_new(str(tmp_path / str(number))) for number in range(5)]
    results = KernelSyncs(lambda: kernel).sync(fds, content_only=False)
    assert [result and result.errno for result in results] == expected
    for fd in fds:
        os.close(fd)


def test_each_sync_that_the_disk_fails_is_told_with_its_error(tmp_path: Path) -> None:
    """Of an ext4 whose disk has no room: what is written fits into memory, and only a sync meets it."""
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
    # What meets the log of the file system first may have another one.
    assert errno.ENOSPC in numbers
    assert numbers <= {errno.ENOSPC, errno.EIO, errno.EROFS}


def test_a_folder_that_was_made_is_durable_with_its_parents(tmp_path: Path, calls: list[Call]) -> None:
    top, inner = str(tmp_path / "spool"), str(tmp_path / "spool" / "cur")

    RealDisk().make_directory(inner)

    assert calls == [("mkdir", top), ("fsync", str(tmp_path)), ("mkdir", inner), ("fsync", top)]
    calls.clear()
    RealDisk().make_directory(f"{inner}/")
    assert calls == []
