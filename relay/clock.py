"""The wall clock and boottime, in integer nanoseconds.  Nothing here waits.

The two clocks are never mixed.  `wall_ns` (CLOCK_REALTIME) is for what people and other hosts read: arrival
times, `Received:`, reports, and ages across a reboot.  `boottime_ns` (CLOCK_BOOTTIME) is for comparisons: it
never steps, and it counts suspend, which CLOCK_MONOTONIC does not (clock_gettime(2)).  A boottime instant
means nothing after a reboot; `boot_id` tells one boot from another.

Tests replace `SystemClock` by a clock that they move by hand.
"""

import time
from pathlib import Path
from typing import Protocol

SECOND_NS = 1_000_000_000
LONGEST_DURATION_NS = 366 * 86_400 * SECOND_NS
"""The longest duration that a policy may hold."""


class Clock(Protocol):
    def wall_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC; may step either way."""
        ...

    def boottime_ns(self) -> int:
        """Return nanoseconds since this boot, suspend included; never steps."""
        ...

    def boot_id(self) -> str:
        """Return a text that is the same within a boot and never seen in another."""
        ...


class SystemClock:
    def __init__(self) -> None:
        # random(4): boot_id is generated once at boot and constant until the next.
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()

    def wall_ns(self) -> int:
        return time.time_ns()

    def boottime_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        return self._boot_id


def shift_ns(written_at_ns: int, written_wall_ns: int, now_ns: int, wall_ns: int) -> int:
    """Return the number that converts a boottime instant of another boot to this boot, when added.

    The wall clock showed `written_wall_ns` at `written_at_ns`, and shows `wall_ns` at `now_ns`.  If it was
    set back in between, no time counts as passed.
    """
    return now_ns - max(0, wall_ns - written_wall_ns) - written_at_ns
