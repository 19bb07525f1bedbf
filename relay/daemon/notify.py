"""sd_notify(3): tells the relay's state to the service manager, if there is one."""

import asyncio
import contextlib
import os
import socket
import time

LONGEST_SECONDS = 0.1
"""Longest wait: a service manager that does not read must not stop mail, even if a message gets lost."""


def notify(*assignments: str) -> None:
    """Send assignments such as `READY=1`, if the manager reads them in time.  Never raises OSError."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading @ is an abstract socket (unix(7)).
    target = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        # Connect for the timeout: without a peer, poll(2) knows nothing of the receiver's queue.
        sender.connect(target)
        sender.settimeout(LONGEST_SECONDS)
        sender.send("\n".join(assignments).encode())


def reloading() -> None:
    """Tell that the configuration is being read again (systemd 253 and later need the time)."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


async def keep_watchdog() -> None:
    """Send WATCHDOG=1 twice in each period of WATCHDOG_USEC; return if that is not set."""
    period = os.environ.get("WATCHDOG_USEC", "")
    while period.isdigit():
        notify("WATCHDOG=1")
        await asyncio.sleep(int(period) / 2_000_000)
