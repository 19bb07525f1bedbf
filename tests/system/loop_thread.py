"""A peer on an event loop in a thread of its own, since waiting for a relay would stop the test's."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")


class LoopThread:
    """A context manager: in it, the peer is there.  It says what it `begin`s and `end`s with, on its loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    async def begin(self) -> None: ...

    async def end(self) -> None: ...

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result()

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.begin())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.end())
            self.run(_cancel_all())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
