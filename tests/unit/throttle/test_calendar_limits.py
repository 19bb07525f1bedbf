"""Limits of a calendar, of bytes, with hours and with ramps, each by itself; `world` has them together."""

from dataclasses import replace
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.policy.zones.calendar import CalendarPeriod, OpenHours
from relay.throttle.admission import Request, TooLarge, Wait
from relay.throttle.history_check import audit_file
from relay.throttle.limit import Limit
from relay.throttle.throttle import Reservation, Throttle
from tests.fakes.clock import FakeClock
from tests.unit.throttle.limits import (
    PerPeriod,
    Rise,
    Ticks,
    granted,
    messages,
    settle,
    throttle,
    waiting,
)
from tests.unit.throttle.memory_disk import MemoryDisk

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


def test_a_transaction_over_midnight_counts_on_both_days(memory: MemoryDisk, noon: FakeClock) -> None:
    account = _account(memory, noon, A_DAY)
    noon.advance(12 * HOUR_NS - 10 * SECOND_NS)
    sent = granted(account, 1, 1)
    noon.advance(20 * SECOND_NS)
    settle(account, noon, *sent)

    assert _send(account, noon) == 0
    noon.advance(DAY_NS)
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


def test_each_group_of_the_file_says_what_the_clock_said(memory: MemoryDisk, noon: FakeClock) -> None:
    """It is noon; the clock said 23:00, and was right only while the second message went."""
    noon.step_wall(11 * HOUR_NS)
    account = _account(memory, noon, A_DAY)
    _send(account, noon)
    noon.step_wall(-11 * HOUR_NS)
    _send(account, noon)
    noon.step_wall(11 * HOUR_NS)
    restarted = _account(memory, noon, A_DAY)

    noon.advance(2 * HOUR_NS)
    assert _send(restarted, noon) == 0


@pytest.mark.parametrize("off_ns", [-HOUR_NS, -40 * DAY_NS, 40 * DAY_NS])
def test_a_reboot_by_a_clock_in_doubt_frees_nothing_early(
    off_ns: int, memory: MemoryDisk, noon: FakeClock
) -> None:
    account = _account(memory, noon, A_DAY)
    _send(account, noon, 2)
    noon.reboot(down_ns=60 * SECOND_NS)
    noon.step_wall(off_ns)
    account = _account(memory, noon, A_DAY)
    assert _send(account, noon) == 0
    # Whatever it says by now, it may be the same day for a whole day.
    noon.advance(DAY_NS - 120 * SECOND_NS)
    assert _send(account, noon) == 0
    noon.advance(120 * SECOND_NS)
    assert _send(account, noon, 3) == 2


def test_a_reboot_by_a_clock_that_goes_on_resets_at_midnight(memory: MemoryDisk, noon: FakeClock) -> None:
    _send(_account(memory, noon, A_DAY), noon, 2)
    noon.reboot(down_ns=60 * SECOND_NS)
    account = _account(memory, noon, A_DAY)

    assert _send(account, noon) == 0
    noon.advance(12 * HOUR_NS)
    assert _send(account, noon, 3) == 2


def test_an_edit_judges_the_same_past(memory: MemoryDisk, noon: FakeClock) -> None:
    account = _account(memory, noon, messages(2, seconds=60))
    _send(account, noon, 2)
    account.replan([A_DAY], 0)
    assert _send(account, noon) == 0
    noon.advance(12 * HOUR_NS)
    account.replan([replace(A_DAY, calendar=None)], 0)
    assert _send(account, noon) == 0
    account.replan([A_DAY], 0)
    assert _send(account, noon) == 1


def test_a_period_of_millions_needs_little_memory(memory: MemoryDisk, noon: FakeClock) -> None:
    account = _account(memory, noon, PerPeriod(10_000_000, DAY_NS, calendar=DAY))
    for _ in range(300):
        _send(account, noon, 3)
        noon.advance(SECOND_NS)

    assert len(account.limited(SECOND_NS)[0].shared) == 1


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


def test_bytes_of_each_sender_are_counted_apart(memory: MemoryDisk, noon: FakeClock) -> None:
    account = _account(memory, noon, PerPeriod(100, 60 * SECOND_NS, "bytes", "sender"))

    def ask(sender: str, size_bytes: int) -> bool:
        (answer,) = account.reserve([Request(1, sender=sender, size_bytes=size_bytes)])
        return isinstance(answer, Reservation)

    assert ask("a@x", 60)
    assert not ask("a@x", 60)
    assert ask("b@x", 60)
    assert ask("a@x", 40)


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


def test_a_ramp_says_when_n_is_large_enough(memory: MemoryDisk, noon: FakeClock) -> None:
    account = _account(memory, noon, PerPeriod(3, 10 * DAY_NS, rise=Rise(1, 3, 2 * DAY_NS)))

    _send(account, noon)
    assert waiting(account).until_ns - noon.boottime_ns() == DAY_NS


def test_below_what_is_in_flight_no_ramp_opens(memory: MemoryDisk, noon: FakeClock) -> None:
    account = _account(memory, noon, PerPeriod(3, HOUR_NS))
    granted(account, 1, 1, 1)
    account.replan([PerPeriod(2, HOUR_NS, rise=Rise(1, 2, 2 * DAY_NS))], 0)

    assert waiting(account).until_ns - noon.boottime_ns() == HOUR_NS


def test_a_dated_ramp_is_held_back_by_a_clock_in_doubt(memory: MemoryDisk, noon: FakeClock) -> None:
    ramp = Rise(1, 11, 10 * DAY_NS, since_ns=noon.wall_ns() - 5 * DAY_NS)
    account = _account(memory, noon, PerPeriod(11, SECOND_NS, rise=ramp))

    assert account.usage()[0].count == 6
    noon.step_wall(3 * DAY_NS)
    assert account.usage()[0].count == 6
    noon.advance(DAY_NS + SECOND_NS)
    assert account.usage()[0].count == 10


def test_the_audit_counts_by_the_days_of_the_clock(memory: MemoryDisk, noon: FakeClock) -> None:
    account = _account(memory, noon, A_DAY)
    noon.advance(12 * HOUR_NS - SECOND_NS)
    assert _send(account, noon, 2) == 2
    noon.advance(3 * SECOND_NS)
    assert _send(account, noon, 2) == 2

    (of_days,) = audit_file(PATH, [A_DAY], memory).findings
    (sliding,) = audit_file(PATH, [replace(A_DAY, calendar=None)], memory).findings

    assert (of_days.most, of_days.is_exceeded, of_days.is_proven) == (2, False, True)
    assert sliding.most == 4


def test_the_audit_finds_a_day_that_held_too_much(memory: MemoryDisk, noon: FakeClock) -> None:
    account = _account(memory, noon, messages(9, seconds=1))
    assert _send(account, noon, 3) == 3

    assert audit_file(PATH, [A_DAY], memory).findings[0].is_exceeded


def test_a_shorter_period_before_a_longer_one_frees_nothing_early(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    calendar = Ticks(100 * SECOND_NS, 40 * SECOND_NS)
    account = _account(memory, clock, PerPeriod(1, 100 * SECOND_NS, calendar=calendar))
    for _ in range(6):
        assert _send(account, clock, 2) == 1
        end_ns = calendar.after(clock.wall_ns()) - clock.wall_ns()
        # The clock is known to a part of a second.
        assert 0 <= waiting(account).until_ns - clock.boottime_ns() - end_ns < SECOND_NS
        # At the boundary itself a clock may say the one or the other.
        clock.advance(end_ns + SECOND_NS)
