"""The event loop of a process (uvloop where available), its threads, their priority, and what stops it.

The collector of garbage stops the loop for some 0.35 microseconds an object that it looks at, and a queued
message is one object.  A million of them, looked at together, are 0.36 s.
"""

import asyncio
import contextlib
import gc
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from relay.mail.formats import described
from relay.spool.disk.os_errors import is_lack_of_means
from relay.spool.disk.threads import started
from relay.telemetry.events import Events

Returned = TypeVar("Returned")


STEPS = 10
"""Of niceness (nice(2)); each lowers the share of a contended processor by a fifth."""
_LEAST_PRIORITY = 19
GARBAGE_THRESHOLDS = (20_000, 2, 50)
"""New objects before the collector looks for cycles among them: we make few, and a long queue is many
objects.  Each third time it looks at all that are new since it last did so, 60,000 and some 20 ms; each
150th time at all but what is frozen."""
SPARED_AT_ONCE = 20_000
"""Messages by which the queue grows before the collector is kept off them."""
SPARE_SECONDS = 1.0
"""Between two looks: a start reads some 10,000 messages meanwhile."""


def run(main: Coroutine[Any, Any, Returned]) -> Returned:
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - optional where it has no wheel
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


async def spare_queue(queued: Callable[[], int]) -> None:
    """Keep the collector of garbage off a long queue, for ever: what a start reads, and what comes in later.

    All objects of the process are frozen (`gc.freeze`) each time the queue has grown.  Messages are in no
    cycle, so a frozen one goes when it leaves the queue, as any other; but a cycle among frozen objects
    (a connection that ends later, an error with its traceback) is not found before all are thawed.  That is
    when the queue is short again, and the collector quick.  So what is lost meanwhile is bounded by what
    was under way each time that the queue grew.

    Does not see mail that takes the place of other mail: in a queue that is as long as before, but another,
    the collector looks at what is new.  It does so once in three million objects that came and stayed.
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
            # asyncio could not accept, tries again in a second, and says so for each try.
            events.shortage(where="the event loop", error=described(error))
        else:
            events.fault(where="the event loop", error=error)

    asyncio.get_running_loop().set_exception_handler(tell)


def give_way() -> None:
    """Have this thread, and the threads and programs that it starts, give way to others.

    Only the superuser may undo it.  Where it is not permitted, nothing changes.

    A client and its connection wait while a message is accepted, but nobody waits for the sender.
    So the sender yields to listener processes; against one that is always busy it keeps a tenth
    of its processor.
    """
    with contextlib.suppress(OSError):
        # Of a thread, though POSIX says process (setpriority(2), "C library/kernel differences").
        now = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, min(now + STEPS, _LEAST_PRIORITY))
