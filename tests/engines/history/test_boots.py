"""Time: what a reboot, and a clock that cannot be trusted, do to the history."""

import errno
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.throttle.history import LONGEST_BELIEVED_NS
from relay.throttle.history_format import HistoryError
from relay.throttle.throttle import Throttle
from tests.engines.history.limits import (
    TRANSACTION_NS,
    ask,
    granted,
    messages,
    openings_ns,
    settle,
    throttle,
    waiting,
)
from tests.engines.history.memory_disk import MemoryDisk
from tests.fakes.clock import FakeClock

PATH = Path("/history/isp")
LIMITS = [messages(3, seconds=60)]


def _sent_three(memory: MemoryDisk, clock: FakeClock) -> Throttle:
    """Three messages 10 s apart, the last of them still in flight 5 s later."""
    account = throttle(PATH, memory, clock, LIMITS)
    for _ in range(2):
        settle(account, clock, *granted(account, 1))
        account.flush()
        clock.advance(10 * SECOND_NS)
    granted(account, 1)
    account.close()
    return throttle(PATH, memory, clock, LIMITS)


def _openings_s(account: Throttle, clock: FakeClock) -> list[float]:
    account.flush()
    return [(each - clock.boottime_ns()) / SECOND_NS for each in openings_ns(account, clock)]


def test_a_step_of_the_wall_clock_within_a_boot_moves_nothing(memory: MemoryDisk, clock: FakeClock) -> None:
    account = _sent_three(memory, clock)
    for step_ns in (10**18, -2 * 10**18, 10**15):
        clock.step_wall(step_ns)
        assert _openings_s(account, clock) == [40, 50]
        assert _openings_s(throttle(PATH, memory, clock, LIMITS), clock) == [40, 50]


def test_after_a_reboot_time_has_passed_as_the_wall_clock_says(memory: MemoryDisk, clock: FakeClock) -> None:
    account = _sent_three(memory, clock)
    clock.reboot(down_ns=10 * SECOND_NS, boottime_ns=5 * SECOND_NS)

    assert _openings_s(account, clock) == [25, 35]
    clock.advance(TRANSACTION_NS - 15 * SECOND_NS)
    # The one in flight at the reboot counts as ended at its deadline, as if only its sender had died.
    assert _openings_s(account, clock) == [60]


def test_a_wall_clock_that_went_back_over_a_reboot_lets_no_time_pass(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = _sent_three(memory, clock)
    clock.reboot(down_ns=30 * SECOND_NS)
    clock.step_wall(-3600 * SECOND_NS)

    assert _openings_s(account, clock) == [40, 50]


def test_a_step_back_before_the_reboot_is_no_time_that_passed(memory: MemoryDisk, clock: FakeClock) -> None:
    account = _sent_three(memory, clock)
    # The wall clock falls back, a group is written by it, and is right again after the reboot.
    clock.step_wall(-3600 * SECOND_NS)
    settle(account, clock, *granted(account, 1))
    account.replan([messages(10, seconds=60)], 0)
    settle(account, clock, *granted(account, 1))
    account.flush()
    clock.step_wall(3600 * SECOND_NS)
    clock.reboot(down_ns=10 * SECOND_NS, boottime_ns=5 * SECOND_NS)

    assert _openings_s(throttle(PATH, memory, clock, LIMITS), clock) == [25, 35, 45]


def test_the_high_water_mark_survives_a_boot_with_a_wrong_clock(memory: MemoryDisk, clock: FakeClock) -> None:
    _sent_three(memory, clock)
    clock.reboot()
    clock.step_wall(-(10**17))
    throttle(PATH, memory, clock, LIMITS).flush()
    clock.reboot(down_ns=10 * SECOND_NS, boottime_ns=0)
    clock.step_wall(10**17 - 3600 * SECOND_NS)

    # An hour behind the truth, years ahead of the boot before: still behind the mark.
    assert _openings_s(throttle(PATH, memory, clock, LIMITS), clock) == [40, 50]


def test_a_history_of_this_boots_future_stops_sending(memory: MemoryDisk, clock: FakeClock) -> None:
    granted(throttle(PATH, memory, clock, LIMITS), 1)
    behind = FakeClock(clock.boottime_ns() - 2 * SECOND_NS)
    a_little_behind = FakeClock(clock.boottime_ns() - SECOND_NS)

    with pytest.raises(HistoryError, match="time namespaces"):
        ask(throttle(PATH, memory, behind, LIMITS), 1)
    assert len(granted(throttle(PATH, memory, a_little_behind, LIMITS), 1, 1, 1)) == 2


@pytest.mark.parametrize("writes", [False, True], ids=["it only read", "it wrote"])
def test_a_history_that_another_host_took_over_stops_sending(
    writes: bool, memory: MemoryDisk, clock: FakeClock
) -> None:
    granted(throttle(PATH, memory, clock, LIMITS), 1)
    account = throttle(PATH, memory, clock, LIMITS)
    account.flush()
    if writes:
        granted(account, 1)
    other_host = FakeClock()
    other_host.reboot()
    granted(throttle(PATH, memory, other_host, LIMITS), 1)

    for _ in range(2):
        with pytest.raises(HistoryError, match="another host"):
            ask(account, 1)


def test_a_reboot_that_cannot_be_written_changes_nothing(memory: MemoryDisk, clock: FakeClock) -> None:
    granted(throttle(PATH, memory, clock, LIMITS), 1)
    clock.reboot()
    before = memory.read(str(PATH))
    account = throttle(PATH, memory, clock, LIMITS)

    for operation in ("open_new", "write", "sync", "rename"):
        memory.fail(operation, errno.ENOSPC)
        with pytest.raises(HistoryError, match="cannot read or recover"):
            ask(account, 1)
        assert memory.read(str(PATH)) == before

    assert len(granted(account, 1, 1, 1)) == 2
    waiting(account)


@pytest.mark.parametrize("year", [1970, 2038, 2106])
def test_a_clock_without_a_battery_frees_no_slot_over_a_reboot(
    year: int, memory: MemoryDisk, clock: FakeClock
) -> None:
    account = _sent_three(memory, clock)
    clock.reboot(down_ns=SECOND_NS, boottime_ns=SECOND_NS)
    clock.step_wall((year - 1970) * 365 * 86_400 * SECOND_NS - clock.wall_ns())

    assert _openings_s(account, clock) == [40, 50]
    # It is put right, and the host starts again: what is known stays known.
    clock.step_wall(1_760_000_100 * SECOND_NS - clock.wall_ns())
    granted(throttle(PATH, memory, clock, LIMITS), 1)
    clock.reboot(down_ns=SECOND_NS, boottime_ns=0)
    assert all(opens_s >= 40 - 4 for opens_s in _openings_s(throttle(PATH, memory, clock, LIMITS), clock))


def test_a_host_off_for_longer_than_believed_waits_in_full(memory: MemoryDisk, clock: FakeClock) -> None:
    account = _sent_three(memory, clock)
    clock.reboot(down_ns=LONGEST_BELIEVED_NS + 60 * SECOND_NS)

    assert _openings_s(account, clock) == [40, 50]
