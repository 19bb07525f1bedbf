"""The event loop of a process (uvloop where available), its threads, its garbage, and what it logs."""

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from relay.mail.formats import described
from relay.spool.disk.os_errors import is_lack_of_means
from relay.spool.disk.threads import started
from relay.telemetry.events import Events

Returned = TypeVar("Returned")

GARBAGE_THRESHOLDS = (20_000, 2, 50)
"""New objects before the collector of garbage looks for cycles among them: we make few, and a long queue is
many objects.  It stops the loop for some 0.35 microseconds an object.  Each third time it looks at all that
are new since it last did so, 60,000 and some 20 ms; each 150th time at all but what is frozen."""
SPARED_AT_ONCE = 20_000
"""Messages by which the queue grows before the collector is kept off them."""
SPARE_SECONDS = 1.0


def run(main: Coroutine[Any, Any, Returned]) -> Returned:
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - optional where it has no wheel
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


async def spare_queue(queued: Callable[[], int]) -> None:
    """Keep the collector of garbage off a long queue, for ever: freeze all objects each time it has grown.

    A message is in no cycle, so a frozen one goes when it leaves the queue; a frozen cycle waits until the
    queue is short.
    """
    spared = 0
    while True:
        now = queued()
        if now >= spared + SPARED_AT_ONCE:
            gc.freeze()
            spared = now
        elif spared and now < SPARED_AT_ONCE // 2:
            gc.unfreeze()
            spared = 0
        else:
            # What comes in behind what left is new.
            spared = min(spared, now)
        await asyncio.sleep(SPARE_SECONDS)


def start_threads() -> None:
    """Start all threads now: later perhaps none is to be had."""
    # As many as the loop would start by and by.
    asyncio.get_running_loop().set_default_executor(started(min(32, (os.cpu_count() or 1) + 4), "loop"))


def tell_unhandled(events: Events) -> None:
    """Log what the loop catches as events, without a traceback each."""

    def tell(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context.get("message"))
        if is_lack_of_means(error):
            events.shortage(where="the event loop", error=described(error))
        else:
            events.fault(where="the event loop", error=error)

    asyncio.get_running_loop().set_exception_handler(tell)
