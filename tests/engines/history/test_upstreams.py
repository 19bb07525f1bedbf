"""Upstreams that count in every way there is, and none ever sees more than N."""

import heapq
from bisect import bisect_left, bisect_right
from pathlib import Path
from random import Random

import pytest

from relay.clock import SECOND_NS
from relay.throttle.admission import Wait
from relay.throttle.throttle import Request, Reservation, Throttle
from tests.engines.history.limits import PerPeriod
from tests.engines.history.memory_disk import MemoryDisk
from tests.fakes.clock import FakeClock

PATH = Path("/history/isp")
COUNT = 10


def _send(
    period_ns: int, guard_ns: int | None, mean_ns: int, random: Random, *, count: int = 150
) -> tuple[list[int], int, int]:
    """Send as fast as it is let; return when each was counted, the time all took, and their mean length."""
    clock = FakeClock()
    limit = PerPeriod(COUNT, period_ns)
    account = Throttle(PATH, [limit], guard_ns, MemoryDisk(), clock, transaction_ns=10 * mean_ns + 1)
    flying: list[tuple[int, int, Reservation]] = []
    counted_at_ns: list[int] = []
    lengths_ns: list[int] = []
    began_ns = clock.boottime_ns()
    while len(counted_at_ns) < count:
        (answer,) = account.reserve([Request(1)])
        if isinstance(answer, Reservation):
            now_ns, length_ns = clock.boottime_ns(), min(int(random.expovariate(1 / mean_ns)), 10 * mean_ns)
            # Anywhere in it: at its beginning, at its end, or in between.
            counted_at_ns.append(now_ns + random.choice([0, length_ns, random.randint(0, length_ns)]))
            lengths_ns.append(length_ns)
            heapq.heappush(flying, (now_ns + length_ns, answer.id, answer))
            continue
        assert isinstance(answer, Wait)
        next_ns = min(answer.until_ns, flying[0][0]) if flying else answer.until_ns
        clock.advance(next_ns - clock.boottime_ns())
        while flying and flying[0][0] <= clock.boottime_ns():
            ended_at_ns, _, reservation = heapq.heappop(flying)
            account.settle(reservation, ended_at_ns)
    took_ns = clock.boottime_ns() - began_ns
    return sorted(counted_at_ns), took_ns, sum(lengths_ns) // len(lengths_ns)


def _sliding(counted: list[int], period: int, *, is_inclusive: bool = False) -> int:
    """Return the most that an upstream finds when it looks back at each arrival, in its own units of time."""
    side = bisect_left if is_inclusive else bisect_right
    return max(bisect_right(counted, at) - side(counted, at - period) for at in counted)


def _fixed(counted: list[int], period: int, phase: int) -> int:
    windows = [(at - phase) // period for at in counted]
    return max(windows.count(window) for window in set(windows))


@pytest.mark.parametrize("mean_ns", [1, SECOND_NS // 10, 20 * SECOND_NS], ids=["instant", "quick", "slow"])
@pytest.mark.parametrize("period_s", [2, 100])
@pytest.mark.parametrize("guard_ns", [None, SECOND_NS], ids=["default", "guard 1s"])
def test_no_way_of_counting_ever_sees_more_than_the_limit(
    period_s: int, mean_ns: int, guard_ns: int | None
) -> None:
    random = Random(f"{period_s} {mean_ns} {guard_ns}")
    period_ns = period_s * SECOND_NS
    counted, _, _ = _send(period_ns, guard_ns, mean_ns, random)

    assert _sliding(counted, period_ns) <= COUNT
    for _ in range(20):
        phase_ns = random.randrange(period_ns)
        assert _fixed(counted, period_ns, phase_ns) <= COUNT
        # A clock that only knows whole seconds, which begin whenever they do.
        truncated = [(at + phase_ns) // SECOND_NS for at in counted]
        assert _sliding(truncated, period_s) <= COUNT
        assert _fixed(truncated, period_s, phase_ns // SECOND_NS) <= COUNT
        if guard_ns == SECOND_NS or period_s >= 100:
            # One that takes what is exactly T old for not yet T old: what the guard is for.
            assert _sliding(truncated, period_s, is_inclusive=True) <= COUNT


def test_without_a_guard_a_clock_of_whole_seconds_sees_too_many() -> None:
    random = Random(1)
    counted, _, _ = _send(60 * SECOND_NS, 0, SECOND_NS // 10, random)

    assert _sliding(counted, 60 * SECOND_NS) <= COUNT
    assert any(
        _sliding([(at + phase) // SECOND_NS for at in counted], 60, is_inclusive=True) > COUNT
        for phase in range(0, SECOND_NS, SECOND_NS // 20)
    )


@pytest.mark.parametrize("mean_ns", [SECOND_NS // 10, 3 * SECOND_NS])
def test_hardly_a_slot_is_wasted(mean_ns: int) -> None:
    period_ns = 60 * SECOND_NS
    _, took_ns, mean_length_ns = _send(period_ns, None, mean_ns, Random(7), count=400)

    # The first N go at once; from then on each slot is used once in a period, its guard and a transaction.
    round_ns = period_ns + period_ns // 100 + mean_length_ns
    assert took_ns * COUNT <= (400 - COUNT) * round_ns / 0.98
