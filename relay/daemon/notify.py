"""sd_notify(3) in a few lines: tells the service manager the relay's state, if there is a manager."""

import contextlib
import os
import socket
import time

STOP_SECONDS = 90
"""What a stop asks for: the grace of the transactions in flight, and writing down what they came to."""
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


def stopping(in_flight: int) -> None:
    notify(
        "STOPPING=1",
        f"EXTEND_TIMEOUT_USEC={STOP_SECONDS * 1_000_000}",
        f"STATUS=stopping: {in_flight} transactions in flight",
    )


def watchdog_seconds() -> float | None:
    """How often the service manager wants a sign of life; None: never."""
    period = os.environ.get("WATCHDOG_USEC", "")
    return int(period) / 2_000_000 if period.isdigit() else None
