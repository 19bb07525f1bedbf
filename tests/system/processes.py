"""Halts, counts and measures processes by their pid, as /proc shows them (proc(5))."""

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.waiting import wait_until

GONE = (FileNotFoundError, ProcessLookupError)
"""Raised by a read below /proc if the process ended before its file was opened, or after."""


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, oldest first; empty if it is gone."""
    found: list[int] = []
    with contextlib.suppress(*GONE):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(*GONE):  # a thread may end at any time
                found += map(int, (task / "children").read_text().split())
    return sorted(found)


def command_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if it is gone."""
    with contextlib.suppress(*GONE):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    return []


def is_alive(pid: int) -> bool:
    """Return whether a process of that pid exists and has not ended."""
    try:
        return _state(pid) not in ("Z", "X")
    except GONE:
        return False


@contextmanager
def halted(pid: int) -> Iterator[None]:
    """Keep a process from running while the context lasts (SIGSTOP)."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _state(pid) == "T")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def most_resident_bytes(pid: int) -> int:
    """Return the most memory that a process ever had resident (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    (kilobytes,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(kilobytes) * 1024


def _state(pid: int) -> str:
    # The name in brackets may hold any character, also brackets.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
