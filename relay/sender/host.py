"""What a relay asks of the host it runs on, as ports: time, the disk, threads, and how it is woken.

The network is the running event loop's.  A simulation has a loop and ports of its own: calls that take
drawn time and run in the loop's own thread, in turn.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from relay.clock import SECOND_NS, Clock
from relay.sender.group_commit import CallThread, Worker
from relay.spool.disk.durable import Disk
from relay.spool.disk.threads import started
from relay.spool.root.trigger import Trigger, TriggerPort


class Workers(Protocol):
    def one(self, name: str) -> Worker: ...

    def several(self, count: int, name: str) -> Executor:
        """Return an executor for calls that may overlap, `count` at most."""
        ...


class Threads:
    """Threads that run from the start.  Both raise RuntimeError where the kernel gives none."""

    def one(self, name: str) -> Worker:
        return CallThread(name)

    def several(self, count: int, name: str) -> Executor:
        return started(count, name)


THREADS = Threads()


@dataclass(frozen=True, slots=True)
class Host:
    clock: Clock
    disk: Disk
    workers: Workers = THREADS
    trigger: Callable[[str, Disk], TriggerPort] = Trigger
    """Of the spool's folder."""
    look_seconds: float = 1.0
    """At least between two looks at the clock, the spool, free space and secrets, and for late mail.

    So old may be what a snapshot shows of the spool.
    """


def seconds(span_ns: int) -> float:
    """Return a span in seconds, never negative, for the event loop's timers."""
    return max(0, span_ns) / SECOND_NS


async def woken(wake: asyncio.Event, until_ns: int | None, clock: Clock) -> None:
    """Return once the event is set, or at an instant (boottime); None: there is no such instant."""
    left_ns = None if until_ns is None else until_ns - clock.boottime_ns()
    if left_ns is not None and left_ns <= 0:
        await asyncio.sleep(0)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None if left_ns is None else seconds(left_ns)):
            await wake.wait()
