"""Syncs that the kernel does beside each other: each has its own result, and nothing is taken for done."""

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from relay.spool.disk import batched_sync
from relay.spool.disk.batched_sync import KernelAio
from relay.spool.disk.durable import RealDisk
from tests.proofs.peers.demand import demand

KINDS = pytest.mark.parametrize("content_only", [False, True])


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


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the descriptors that are synced by a call of ours from now on."""
    synced: list[int] = []

    def noting(sync: Callable[[int], None]) -> Callable[[int], None]:
        def noted(fd: int) -> None:
            synced.append(fd)
            sync(fd)

        return noted

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))
    return synced


def why_missing() -> str | None:
    """Return why the kernel does no syncs for us here, or None."""
    return None if batched_sync._open() is not None else "io_submit(2) is not to be had here"


def numbers(results: Sequence[OSError | None]) -> list[int | None]:
    """Return the numbers of errors."""
    return [None if result is None else result.errno for result in results]


class Queue:
    """A kernel that takes so many at a time, and tells of them as the test wants."""

    def __init__(self, *told: int | BaseException, takes: int = 256) -> None:
        self._told = list(told)
        self._takes = takes
        self._in_flight: list[Sync] = []

    def submit(self, *syncs: "Sync") -> int:
        taken = syncs[: self._takes]
        self._in_flight += taken
        return len(taken)

    def process_events(self, _most: int, _least: int, _timeout: int) -> int:
        told = self._told.pop(0)
        if isinstance(told, BaseException):
            raise told
        for _ in range(told):
            self._in_flight.pop(0).is_told = True
        return told


class Sync:
    """A sync that comes to what the test wants, once that is told."""

    def __init__(self, result: Exception | None) -> None:
        self._result = result
        self.is_told = False

    def get_value(self) -> None:
        if not self.is_told:
            # As caio says it: an operation in flight has no value.
            raise RuntimeError("get_value() is not available while the operation is in flight")
        if self._result is not None:
            raise self._result


def handed_over(
    monkeypatch: pytest.MonkeyPatch, queue: Queue, *results: Exception | None
) -> list[int | None]:
    """Return the numbers of the errors that such syncs are said to have met."""

    class Operation:
        fsync = staticmethod(lambda fd: Sync(results[fd]))

    monkeypatch.setattr(batched_sync, "_open", lambda: (queue, Operation))
    return numbers(KernelAio().hand_over(range(len(results)), content_only=False))


@KINDS
def test_the_kernel_takes_a_whole_batch_and_we_sync_none_of_it(
    files: list[int], by_hand: list[int], *, content_only: bool
) -> None:
    demand(why_missing())
    assert RealDisk().sync_each(files, content_only=content_only) == [None] * 20
    assert by_hand == []


@KINDS
def test_what_the_kernel_does_not_take_we_sync_with_all_behind(
    files: list[int], by_hand: list[int], *, content_only: bool
) -> None:
    demand(why_missing())
    fds = [*files[:3], 9_999, *files[3:5]]

    results = RealDisk().sync_each(fds, content_only=content_only)

    assert numbers(results) == [None, None, None, errno.EBADF, None, None]
    assert by_hand == fds[3:]


def test_a_file_that_cannot_be_synced_has_the_error_of_fsync(files: list[int]) -> None:
    demand(why_missing())
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="Invalid") as alone:
        os.fsync(writing)

    assert numbers(RealDisk().sync_each([files[0], writing, files[1]], content_only=False)) == [
        None,
        alone.value.errno,
        None,
    ]
    os.close(reading)
    os.close(writing)


def test_more_than_the_kernel_takes_is_handed_over_in_turns(
    files: list[int], by_hand: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    demand(why_missing())
    monkeypatch.setattr(batched_sync, "ROOM", 1)

    # It rounds up to some for each processor (fs/aio.c, ioctx_alloc).
    many = files * (50 * (os.cpu_count() or 1))

    assert RealDisk().sync_each(many, content_only=True) == [None] * len(many)
    # What it was told of last, it may still count as taken.
    assert len(by_hand) < len(many) - 20


def test_each_thread_has_a_queue_of_its_own_which_ends_with_it(files: list[int]) -> None:
    demand(why_missing())
    disk = RealDisk()
    results: list[list[OSError | None]] = []
    before = sorted(Path("/proc/self/fd").iterdir())
    threads = [
        threading.Thread(target=lambda: results.append(disk.sync_each(files, content_only=False)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [[None] * 20] * 4
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_where_the_kernel_gives_no_queue_we_sync_all(
    files: list[int], by_hand: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_left(_room: int) -> Any:
        raise SystemError(errno.EAGAIN, "Resource temporarily unavailable")

    for absence in (None, type("module", (), {"Context": nothing_left, "Operation": None})):
        monkeypatch.setitem(sys.modules, "caio.linux_aio", absence)
        assert RealDisk().sync_each(files, content_only=True) == [None] * 20
        assert by_hand == files
        by_hand.clear()


def test_an_error_that_the_kernel_tells_of_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    # As caio tells it: by its text.
    room, damage = SystemError(os.strerror(errno.ENOSPC)), SystemError(os.strerror(errno.EIO))
    other = SystemError("no text of any error")

    assert handed_over(monkeypatch, Queue(4), None, room, damage, other) == [
        None,
        errno.ENOSPC,
        errno.EIO,
        errno.EIO,
    ]


def test_a_wait_that_a_signal_interrupts_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    signal = SystemError(errno.EINTR, "Interrupted system call")

    assert handed_over(monkeypatch, Queue(signal, 1, signal, 1), None, None) == [None, None]


def test_a_sync_whose_end_is_not_told_is_never_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = SystemError(errno.EINVAL, "Invalid argument")

    assert handed_over(monkeypatch, Queue(1, lost), None, None) == [None, errno.EIO]


def test_a_queue_that_lost_a_sync_is_given_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = SystemError(errno.EINVAL, "Invalid argument")

    # The rest is ours to sync: this queue would tell of the lost one in its place.
    assert handed_over(monkeypatch, Queue(1, lost, 1, takes=2), None, None, None) == [None, errno.EIO]


def test_what_a_batch_left_is_not_the_end_of_the_next_one(
    files: list[int], by_hand: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    demand(why_missing())
    opened, disk = batched_sync._open, RealDisk()
    interrupted = Queue(KeyboardInterrupt())
    monkeypatch.setattr(batched_sync, "_open", lambda: (interrupted, opened()[1]))  # type: ignore[index]  # there is one
    with pytest.raises(KeyboardInterrupt):
        disk.sync_each(files, content_only=True)

    monkeypatch.setattr(batched_sync, "_open", opened)

    assert disk.sync_each(files, content_only=True) == [None] * 20
    assert by_hand == []
