"""Which event loop everything runs on: uvloop where it is available, else asyncio's own."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

Returned = TypeVar("Returned")


GARBAGE_THRESHOLD = 20_000
"""New objects before the collector looks for cycles: we make few, and a long queue is many objects."""


def run(main: Coroutine[Any, Any, Returned]) -> Returned:
    """Run a program's one coroutine to its end."""
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 50)
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - optional where it has no wheel
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
