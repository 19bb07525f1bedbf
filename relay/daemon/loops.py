"""The event loop of a process (uvloop where available), its threads, its garbage, and what it logs."""

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
"""New objects before the collector of garbage looks for cycles among them: we make few, and a long queue is
many objects, 0.36 s for a million messages.  Each third time it looks at all that are new since it last did
so, and each 150th time at all, unless few of them are new."""


def run(main: Coroutine[Any, Any, Returned]) -> Returned:
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - optional where it has no wheel
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def start_threads() -> None:
    """Start as many threads as the loop would by and by: later perhaps none is to be had."""
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
