"""The event loop of a process (uvloop where available), its threads, and their priority."""

import asyncio
import contextlib
import gc
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from relay.mail.formats import described
from relay.spool.disk.os_errors import is_lack_of_means
from relay.spool.disk.threads import started
from relay.telemetry.events import Events

Returned = TypeVar("Returned")


STEPS = 10
"""Of niceness (nice(2)); each lowers the share of a contended processor by a fifth."""
_LEAST_PRIORITY = 19
GARBAGE_THRESHOLD = 20_000
"""New objects before the collector looks for cycles: we make few, and a long queue is many objects."""


def run(main: Coroutine[Any, Any, Returned]) -> Returned:
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 50)
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - optional where it has no wheel
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


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
