"""Sets up the event loop of a process: uvloop if available, threads, garbage collection, logged errors."""

import asyncio
import gc
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from relay.mail.formats import described
from relay.sender.host import started
from relay.spool.disk.os_errors import is_lack_of_means
from relay.telemetry.events import Events

Returned = TypeVar("Returned")

GARBAGE_THRESHOLDS = (20_000, 2, 50)
"""For gc.set_threshold.  The relay makes few cycles, but a full collection takes 0.36 s for a million queued
messages.  So the youngest generation is collected after 20 000 new objects, the middle one each third time,
and all objects each 150th time, unless few of them are new."""


def run(main: Coroutine[Any, Any, Returned]) -> Returned:
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - optional where it has no wheel
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def start_threads() -> None:
    """Start all threads that the loop may need: later the kernel may refuse them.  Raises RuntimeError."""
    asyncio.get_running_loop().set_default_executor(started(min(32, (os.cpu_count() or 1) + 4), "loop"))


def tell_unhandled(events: Events) -> None:
    """Log errors that the loop catches as events of one line, without a traceback."""

    def tell(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context.get("message"))
        if is_lack_of_means(error):
            events.shortage(where="the event loop", error=described(error))
        else:
            events.fault(where="the event loop", error=error)

    asyncio.get_running_loop().set_exception_handler(tell)
