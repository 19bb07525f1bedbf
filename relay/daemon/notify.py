"""sd_notify(3) in a few lines: tells the service manager the relay's state, if there is a manager."""

import asyncio
import contextlib
import os
import socket
import time

LONGEST_SECONDS = 0.1
"""A service manager that does not read must not stop mail; a sign of life may get lost."""


def notify(*assignments: str) -> None:
    """Send such as `READY=1` to the service manager, if it takes them in time.  Never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading @ is an abstract socket (unix(7)).
    target = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        # Connected: only then poll(2), by which the time is kept, knows of the receiver's queue.
        sender.connect(target)
        sender.settimeout(LONGEST_SECONDS)
        sender.send("\n".join(assignments).encode())


def reloading() -> None:
    """Tell that the configuration is being read again (systemd 253 and later need the time)."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


async def keep_watchdog() -> None:
    """Give the signs of life that the service manager wants, if any."""
    period = os.environ.get("WATCHDOG_USEC", "")
    while period.isdigit():
        notify("WATCHDOG=1")
        await asyncio.sleep(int(period) / 2_000_000)
