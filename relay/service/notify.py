"""Telling systemd how we are: sd_notify(3) in a few lines, and nothing where nobody listens."""

import contextlib
import os
import socket
import time


def notify(*assignments: str) -> None:
    """Send assignments such as `READY=1` to the service manager.  Never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading @ is an abstract socket (unix(7)).
    target = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto("\n".join(assignments).encode(), target)


def reloading() -> None:
    """Tell that the configuration is being read again (systemd 253 and later need the time)."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def watchdog_seconds() -> float | None:
    """Return how often the service manager wants a sign of life, or None."""
    period = os.environ.get("WATCHDOG_USEC", "")
    return int(period) / 2_000_000 if period.isdigit() else None
