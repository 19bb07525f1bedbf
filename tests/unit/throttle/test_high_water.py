"""A history that has less than was durable once: nothing is sent, and its lock is how that is known."""

import contextlib
import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.spool.disk.durable import Disk, opened
from relay.throttle.history_format import MARK_BYTES, HistoryError, mark_line, read_mark
from tests.fakes.clock import FakeClock
from tests.unit.throttle.limits import ask, granted, messages, settle, throttle
from tests.unit.throttle.memory_disk import Killed, MemoryDisk

PATH = Path("/history/isp")
LOCK = f"{PATH}.lock"
LIMITS = [messages(5, seconds=3600)]
LOST = r"isp: its end is gone or damaged: .*To repair: stop, wait .*move the file and its \.lock away"


def used(path: Path, disk: Disk, clock: FakeClock, times: int = 3) -> list[int]:
    """Send some, and return how long the file was after each group."""
    account, lengths = throttle(path, disk, clock, LIMITS), []
    for _ in range(times):
        reservations = granted(account, 1)
        lengths.append(written(path, disk))
        clock.advance(SECOND_NS)
        settle(account, clock, *reservations)
        account.flush()
        lengths.append(written(path, disk))
        clock.advance(SECOND_NS)
    account.close()
    return lengths


def written(path: Path, disk: Disk) -> int:
    """Return how long a file is, less the room behind its groups."""
    with opened(disk, disk.open_read(str(path))) as fd:
        return len(disk.pread(fd, disk.size(fd), 0).rstrip(b"\0"))


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


def test_a_last_group_that_is_damaged_is_no_torn_one(memory: MemoryDisk, clock: FakeClock) -> None:
    used(PATH, memory, clock)
    whole = (memory.read(str(PATH)) or b"").rstrip(b"\0")
    for n in range(whole.rindex(b"group "), len(whole)):
        memory.put(str(PATH), whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :])
        with pytest.raises(HistoryError):
            ask(throttle(PATH, memory, clock, LIMITS), 1)


def test_a_removed_history_sends_nothing_until_its_lock_goes(
    path: Path, disk: Disk, clock: FakeClock
) -> None:
    used(path, disk, clock)
    disk.unlink(str(path))
    account = throttle(path, disk, clock, LIMITS)

    with pytest.raises(HistoryError, match=r"it is gone, and was in use.*and its \.lock away"):
        ask(account, 1)
    account.close()
    disk.unlink(f"{path}.lock")
    assert len(granted(throttle(path, disk, clock, LIMITS), *[1] * 6)) == 5


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


def test_a_running_sender_refuses_a_cut_it_cannot_mend(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    granted(account, 1)
    known = memory.length(str(PATH)) or 0
    clock.advance(SECOND_NS)
    granted(throttle(PATH, memory, clock, LIMITS), 1, 1)

    cut(PATH, memory, known)
    with pytest.raises(HistoryError, match=LOST):
        ask(account, 1)
    memory.unlink(str(PATH))
    with pytest.raises(HistoryError, match=LOST):
        ask(account, 1)


def test_a_running_sender_that_knows_all_that_was_cut_writes_it_again(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    granted(account, 1)
    clock.advance(SECOND_NS)
    granted(account, 1)
    cut(PATH, memory, 10)

    assert len(granted(account, 1)) == 1
    assert len(granted(throttle(PATH, memory, clock, LIMITS), *[1] * 9)) == 2


@pytest.mark.parametrize("seed", range(30))
def test_no_loss_of_power_is_taken_for_a_cut(seed: int, memory: MemoryDisk, clock: FakeClock) -> None:
    random = Random(seed)
    for _ in range(20):
        account = throttle(PATH, memory, clock, [messages(1000, seconds=60)])
        memory.kill_at(random.randint(1, 8), random)
        with contextlib.suppress(Killed):
            for _ in range(8):
                settle(account, clock, *granted(account, 1))
                clock.advance(random.randint(1, SECOND_NS))
        memory.bury()
        if random.random() < 0.5:
            memory.cut_power(random)
            clock.reboot()


@pytest.mark.parametrize("said", [b"", bytes(53), mark_line(7)[:30], mark_line(7)[:-3] + b"00\n"])
def test_a_lock_without_a_mark_stops_nothing_and_gets_one(
    said: bytes, memory: MemoryDisk, clock: FakeClock
) -> None:
    used(PATH, memory, clock, times=1)
    memory.put(LOCK, said)

    assert len(granted(throttle(PATH, memory, clock, LIMITS), 1)) == 1
    assert read_mark(memory.read(LOCK) or b"") == clock.wall_ns()


@pytest.mark.parametrize("mine", [b"1234\n", b"relay-history of mine"])
def test_a_foreign_lock_stops_the_account_and_is_kept(
    mine: bytes, memory: MemoryDisk, clock: FakeClock
) -> None:
    memory.put(LOCK, mine)

    with pytest.raises(HistoryError, match=r"isp\.lock: not the lock of a history.*To repair"):
        ask(throttle(PATH, memory, clock, LIMITS), 1)
    assert memory.read(LOCK) == mine


def test_a_lock_that_cannot_be_written_grants_nothing(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    granted(account, 1)
    memory.fail("note", errno.ENOSPC)

    with pytest.raises(HistoryError, match=r"cannot write: No space left on device\. To repair: make room"):
        ask(account, 1)


@given(st.integers(-(10**24) + 1, 10**24 - 1))
def test_a_line_of_any_mark_is_as_long_and_says_it(mark_ns: int) -> None:
    assert len(mark_line(mark_ns)) == MARK_BYTES
    assert read_mark(mark_line(mark_ns)) == mark_ns


@pytest.mark.parametrize("n", range(MARK_BYTES))
def test_a_damaged_line_names_no_mark(n: int) -> None:
    line = mark_line(1_760_000_000_123_456_789)
    damaged = line[:n] + bytes([line[n] ^ 1]) + line[n + 1 :]
    try:
        assert read_mark(damaged) is None
    except HistoryError:
        assert n < len("relay-history-end ")
