"""Time, as a port: instants in integer nanoseconds, and nothing that waits.

Two clocks, never mixed.  `wall_ns` (CLOCK_REALTIME) is for what people and other
hosts read: arrival times, `Received:`, reports, and ages across a reboot.
`boottime_ns` (CLOCK_BOOTTIME) is for everything that is compared: it never steps,
and it counts suspend, which CLOCK_MONOTONIC does not (clock_gettime(2)).  A
boottime instant means nothing after a reboot; `boot_id` tells one boot from
another.

Tests replace `SystemClock` by one that they move by hand.
"""

import time
from pathlib import Path
from typing import Protocol

SECOND_NS = 1_000_000_000


class Clock(Protocol):
    """What the time is.  Every instant is an integer number of nanoseconds."""

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
    """The kernel's clocks."""

    def __init__(self) -> None:
        # random(4): boot_id is generated once at boot and constant until the next.
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC; may step either way."""
        return time.time_ns()

    def boottime_ns(self) -> int:
        """Return nanoseconds since this boot, suspend included; never steps."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        """Return a text that is the same within a boot and never seen in another."""
        return self._boot_id
