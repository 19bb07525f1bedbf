"""How long the event loop serves nothing else, while something is done.

A watchdog prints, beside how long it took, how late a timer of the loop came at worst, and how much
processor time its thread took meanwhile, which other programs of a busy machine do not lengthen.  The
collector of garbage is watched too.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

TICK_SECONDS = 0.001


class _Watchdog:
    """Knows by how much a timer of the loop was late at worst, and the most that its thread did meanwhile."""

    def __init__(self) -> None:
        self.longest_seconds = self.busiest_seconds = 0.0
        self.collected_seconds = 0.0
        self._began = 0.0
        gc.callbacks.append(self._collects)

    async def watch(self) -> None:
        while True:
            due, worked = time.monotonic() + TICK_SECONDS, time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - due)
            self.busiest_seconds = max(self.busiest_seconds, time.thread_time() - worked)

    def _collects(self, phase: str, _about: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.monotonic()
        else:
            self.collected_seconds = max(self.collected_seconds, time.monotonic() - self._began)

    def end(self) -> None:
        gc.callbacks.remove(self._collects)


async def measured(name: str, asked: Callable[[], Awaitable[Any]]) -> None:
    dog = _Watchdog()
    watching = asyncio.create_task(dog.watch())
    await asyncio.sleep(2 * TICK_SECONDS)
    began = time.monotonic()
    told = await asked()
    took_seconds = time.monotonic() - began
    # What the loop still does because of it counts too.
    await asyncio.sleep(0.2)
    watching.cancel()
    dog.end()
    stalls = (dog.longest_seconds, dog.busiest_seconds, dog.collected_seconds)
    longest, busiest, collected = (f"{1000 * seconds:.1f} ms" for seconds in stalls)
    sys.stdout.write(
        f"  {name:48} {took_seconds:8.2f} s, longest stall {longest:>9}, of work {busiest:>9}, "
        f"collector {collected:>9}{f', {told}' if isinstance(told, str) else ''}\n"
    )
    sys.stdout.flush()
