"""Limits of bytes, of a calendar, with hours and with ramps, each by itself; `world` has them together."""

from dataclasses import replace
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.policy.zones.calendar import CalendarPeriod, OpenHours
from relay.throttle.admission import Request, TooLarge, Wait
from relay.throttle.limit import Limit
from relay.throttle.throttle import Reservation, Throttle
from tests.engines.history.limits import (
    PerPeriod,
    Rise,
    granted,
    messages,
    settle,
    throttle,
    waiting,
)
from tests.engines.history.memory_disk import MemoryDisk
from tests.fakes.clock import FakeClock

PATH = Path("/history/isp")
HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
DAY = CalendarPeriod("day")
A_DAY = PerPeriod(2, DAY_NS, calendar=DAY)


@pytest.fixture
def noon(clock: FakeClock) -> FakeClock:
    """Return a clock at noon of a day in UTC."""
    clock.advance(DAY.after(clock.wall_ns()) - clock.wall_ns() + 12 * HOUR_NS)
    return clock


def _account(disk: MemoryDisk, clock: FakeClock, *limits: Limit, guard_ns: int = 0) -> Throttle:
    return throttle(PATH, disk, clock, limits, guard_ns=guard_ns)


def _send(account: Throttle, clock: FakeClock, count: int = 1) -> int:
    sent = granted(account, *[1] * count)
    settle(account, clock, *sent)
    account.flush()
    return len(sent)


def test_a_day_begins_anew_at_midnight(memory: MemoryDisk, noon: FakeClock) -> None:
    account = _account(memory, noon, A_DAY, guard_ns=SECOND_NS)

    assert _send(account, noon, 3) == 2
    assert waiting(account).until_ns - noon.boottime_ns() == 12 * HOUR_NS + SECOND_NS
    noon.advance(12 * HOUR_NS + SECOND_NS - 1)
    assert _send(account, noon) == 0
    noon.advance(1)
    assert _send(account, noon, 3) == 2


@pytest.mark.parametrize("step_ns", [-13 * HOUR_NS, -HOUR_NS, 13 * HOUR_NS, 40 * DAY_NS])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_step_counts_for_both_sides(
    step_ns: int, restarts: bool, memory: MemoryDisk, noon: FakeClock
) -> None:
    account = _account(memory, noon, A_DAY, messages(100, seconds=1))
    assert _send(account, noon, 3) == 2
    noon.step_wall(step_ns)
    waiting(account)
    if restarts:
        account = _account(memory, noon, A_DAY)
    noon.step_wall(-step_ns)

    # By one clock or the other it is still that day; a whole day later it is not, by any.
    noon.advance(12 * HOUR_NS - SECOND_NS)
    assert _send(account, noon) == 0
    noon.advance(12 * HOUR_NS + 2 * SECOND_NS)
    assert _send(account, noon, 3) == 2


def test_bytes_wait_for_room_and_no_smaller_message_overtakes(memory: MemoryDisk, noon: FakeClock) -> None:
    account = _account(memory, noon, PerPeriod(100, 60 * SECOND_NS, "bytes"))
    first, large, small = account.reserve([Request(1, size_bytes=size) for size in (60, 41, 1)])

    assert isinstance(first, Reservation)
    assert isinstance(large, Wait)
    assert isinstance(small, Wait)
    settle(account, noon, first)
    noon.advance(60 * SECOND_NS)
    assert isinstance(account.reserve([Request(1, size_bytes=100)])[0], Reservation)


def test_a_message_larger_than_n_bytes_keeps_back_none(memory: MemoryDisk, noon: FakeClock) -> None:
    account = _account(memory, noon, PerPeriod(100, 60 * SECOND_NS, "bytes"))
    large, small = account.reserve([Request(1, size_bytes=101), Request(1, size_bytes=100)])

    assert large == TooLarge("100 bytes per 60s", 100)
    assert isinstance(small, Reservation)


def test_outside_its_hours_nothing_starts(memory: MemoryDisk, noon: FakeClock) -> None:
    hours = OpenHours("Mon-Sun 08:00-18:00")
    account = _account(memory, noon, PerPeriod(5, SECOND_NS, open_hours=hours))

    assert _send(account, noon) == 1
    noon.advance(6 * HOUR_NS)
    assert _send(account, noon) == 0
    assert account.usage()[0].is_closed
    assert waiting(account).until_ns - noon.boottime_ns() == 14 * HOUR_NS
    # They are the owner's: a clock that is put right is believed at once.
    noon.step_wall(14 * HOUR_NS)
    assert account.room() == 5
    assert _send(account, noon) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_a_ramp_goes_on_from_the_first_slot(restarts: bool, memory: MemoryDisk, noon: FakeClock) -> None:
    limit = PerPeriod(20, HOUR_NS, rise=Rise(10, 20, 10 * DAY_NS))
    account = _account(memory, noon, limit)

    assert _send(account, noon, 30) == 10
    noon.advance(5 * DAY_NS - HOUR_NS)
    if restarts:
        noon.reboot(down_ns=0)
        account = _account(memory, noon, limit)
    assert _send(account, noon, 30) == 14
    noon.advance(DAY_NS)
    account.replan([replace(limit, rise=Rise(10, 20, 20 * DAY_NS))], 0)
    assert _send(account, noon, 30) == 12
    noon.advance(30 * DAY_NS)
    assert _send(account, noon, 30) == 20
