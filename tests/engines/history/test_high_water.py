"""A history that has less than was durable once: nothing is sent, and its lock is how that is known."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.spool.disk.durable import Disk, opened
from relay.throttle.history_check import audit_file
from relay.throttle.history_format import HistoryError, mark_line, read_mark
from tests.engines.history.limits import ask, granted, messages, settle, throttle
from tests.engines.history.memory_disk import MemoryDisk
from tests.fakes.clock import FakeClock

PATH = Path("/history/isp")
LOCK = f"{PATH}.lock"
LIMITS = [messages(5, seconds=3600)]
LOST = r"isp: its end is gone or damaged: .*To repair: stop, wait .*move the file and its \.lock away"


def used(path: Path, disk: Disk, clock: FakeClock, times: int = 3) -> list[int]:
    """Send some, and return how long the file was after each group, less the room behind it."""
    account, lengths = throttle(path, disk, clock, LIMITS), []
    for _ in range(times):
        reservations = granted(account, 1)
        clock.advance(SECOND_NS)
        for ended in ((), reservations):
            settle(account, clock, *ended)
            account.flush()
            with opened(disk, disk.open_read(str(path))) as fd:
                lengths.append(len(disk.pread(fd, disk.size(fd), 0).rstrip(b"\0")))
        clock.advance(SECOND_NS)
    account.close()
    return lengths


def cut(path: Path, disk: Disk, length: int) -> None:
    fd = disk.open_update(str(path))
    disk.truncate(fd, length)
    disk.close(fd)


def test_a_history_cut_at_any_group_at_rest_sends_nothing(path: Path, disk: Disk, clock: FakeClock) -> None:
    *lengths, whole = used(path, disk, clock)
    for length in reversed([each + more for each in lengths for more in (0, 40)]):
        cut(path, disk, min(length, whole - 1))
        account = throttle(path, disk, clock, LIMITS)
        for _ in range(2):
            with pytest.raises(HistoryError, match=LOST):
                ask(account, 1)
        account.close()
        assert disk.length(str(path)) == min(length, whole - 1)


def test_a_removed_history_sends_nothing_until_its_lock_goes(
    path: Path, disk: Disk, clock: FakeClock
) -> None:
    used(path, disk, clock)
    disk.unlink(str(path))
    account = throttle(path, disk, clock, LIMITS)

    with pytest.raises(HistoryError, match=r"it is gone, and was in use.*and its \.lock away"):
        ask(account, 1)
    with pytest.raises(HistoryError, match="it is gone, and was in use"):
        audit_file(path, LIMITS, disk)
    account.close()
    disk.unlink(f"{path}.lock")
    assert len(granted(throttle(path, disk, clock, LIMITS), *[1] * 6)) == 5


def test_relays_whose_history_is_removed_in_use_send_nothing_nor_does_a_start(
    path: Path, disk: Disk, clock: FakeClock
) -> None:
    relays = [throttle(path, disk, clock, LIMITS) for _ in range(2)]
    for relay in relays:
        assert len(granted(relay, 1, 1)) == 2
    for suffix in ("", ".lock"):
        disk.unlink(f"{path}{suffix}")

    for relay in (*relays, *relays):
        with pytest.raises(HistoryError, match=r"isp\.lock: removed or replaced while in use"):
            ask(relay, 1)
        with pytest.raises(HistoryError, match=r"isp\.lock: removed or replaced while in use"):
            relay.reserve_connection(1)
    with pytest.raises(HistoryError, match="it is gone, and was in use"):
        ask(throttle(path, disk, clock, LIMITS), 1)


def test_one_put_back_from_a_copy_sends_nothing(memory: MemoryDisk, clock: FakeClock) -> None:
    used(PATH, memory, clock, times=1)
    copy = memory.read(str(PATH)) or b""
    used(PATH, memory, clock, times=1)
    memory.put(str(PATH), copy)

    with pytest.raises(HistoryError, match=LOST):
        ask(throttle(PATH, memory, clock, LIMITS), 1)


def test_a_cut_is_noticed_over_a_reboot(memory: MemoryDisk, clock: FakeClock) -> None:
    lengths = used(PATH, memory, clock)
    cut(PATH, memory, lengths[2])
    clock.reboot(down_ns=SECOND_NS, boottime_ns=SECOND_NS)
    for step_ns in (0, -(10**18), 3 * 10**18):
        clock.step_wall(step_ns)
        with pytest.raises(HistoryError, match=LOST):
            ask(throttle(PATH, memory, clock, LIMITS), 1)


def test_a_running_relay_writes_again_what_it_knows_and_refuses_what_it_does_not(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    granted(account, 1)
    clock.advance(SECOND_NS)
    granted(account, 1)
    cut(PATH, memory, 10)
    assert len(granted(account, 1)) == 1

    known = memory.length(str(PATH)) or 0
    clock.advance(SECOND_NS)
    assert len(granted(throttle(PATH, memory, clock, LIMITS), *[1] * 9)) == 2
    cut(PATH, memory, known)
    with pytest.raises(HistoryError, match=LOST):
        ask(account, 1)


@pytest.mark.parametrize("said", [b"", bytes(53), mark_line(7)[:30], mark_line(7)[:-3] + b"00\n"])
def test_a_lock_without_a_mark_stops_nothing_and_gets_one(
    said: bytes, memory: MemoryDisk, clock: FakeClock
) -> None:
    used(PATH, memory, clock, times=1)
    memory.put(LOCK, said)

    assert len(granted(throttle(PATH, memory, clock, LIMITS), 1)) == 1
    assert read_mark(memory.read(LOCK) or b"") == clock.wall_ns()
