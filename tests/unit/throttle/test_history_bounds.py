"""What bounds the throttle: memory, what is read of a file, and what a sender may do without the lock."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.spool.disk.durable import RealDisk, opened
from relay.throttle import admission
from relay.throttle.admission import Grant, Request
from relay.throttle.history_format import Ended, HistoryError
from relay.throttle.history_states import LARGEST_BYTES
from relay.throttle.slots import Slots
from relay.throttle.window import EXACT_SLOTS
from tests.fakes.clock import FakeClock
from tests.unit.throttle.limits import TRANSACTION_NS, granted, messages, throttle
from tests.unit.throttle.memory_disk import MemoryDisk

LIMITS = [messages(3, seconds=60)]


@pytest.mark.parametrize("is_running", [False, True])
def test_a_giant_file_is_refused_before_it_is_read(
    tmp_path: Path, clock: FakeClock, *, is_running: bool
) -> None:
    """A hole of a gigabyte costs nothing on the disk, and a gigabyte of memory to who reads it."""
    path, disk = tmp_path / "isp", RealDisk()
    account = throttle(path, disk, clock, LIMITS)
    granted(account, 1)
    whole = path.stat().st_size
    if not is_running:
        account.close()
    with opened(disk, disk.open_update(str(path))) as fd:
        disk.truncate(fd, LARGEST_BYTES * 4)

    for _ in range(2):
        with pytest.raises(HistoryError, match=f"{LARGEST_BYTES * 4} bytes are no history"):
            granted(account, 1)
    with opened(disk, disk.open_update(str(path))) as fd:
        disk.truncate(fd, whole)
    assert len(granted(account, 1, 1, 1)) == 2


class Lockless(MemoryDisk):
    """A disk that never gives a lock."""

    def lock(self, path: str, *, wait: bool) -> int | None:
        del path, wait
        return None


def test_without_the_lock_nothing_is_decided(clock: FakeClock) -> None:
    disk = Lockless()
    account = throttle(Path("/history/isp"), disk, clock, LIMITS)

    with pytest.raises(HistoryError, match="taken"):
        granted(account, 1)
    assert disk.read("/history/isp") is None
    assert "write" not in disk.operations


def test_memory_follows_what_is_in_flight_not_deadlines() -> None:
    """Transactions end in a second and could have taken half an hour."""
    slots = Slots()
    slots.judge_by([messages(10**6, seconds=1)], 0)
    for number in range(3 * EXACT_SLOTS):
        grant = slots.reserve(Request(1), TRANSACTION_NS, number)
        assert isinstance(grant, Grant)
        slots.settle(Ended(grant.reserved.id, number))
        slots.written(1)
    last = slots.reserve(Request(1), TRANSACTION_NS, 3 * EXACT_SLOTS)
    assert isinstance(last, Grant)

    assert len(slots._deadlines) <= 2 * (1 + EXACT_SLOTS) + 1
    # Who is still in flight was not forgotten with the rest.
    now_ns = last.reserved.deadline_ns + SECOND_NS - 1
    assert [usage.used for usage in slots.ask(admission.usage, now_ns)] == [1]
    # A limit of a million keeps its slots in buckets of 1/1024 of the period.
    assert [usage.used for usage in slots.ask(admission.usage, now_ns + SECOND_NS // 512)] == [0]
