"""Group commit: what arrives while the disk is busy goes in one call when it is free again.

Guarantees: every submitted value gets its own result or exception; calls of one batcher
never overlap, and run in its own thread.  Under load one sync serves many messages; alone,
a message does not wait.  A caller that is cancelled does not take its value back: the call runs on.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")

MOST_AT_ONCE = 256
"""Values in one call, so that the last of a flood need not wait for all of it."""


class Batch(Generic[Value, Result]):
    """Collects values and gives them to `commit`, which returns a result or an error for each."""

    def __init__(
        self, commit: Callable[[Sequence[Value]], Sequence[Result | BaseException]], executor: Executor
    ) -> None:
        self._commit = commit
        self._executor = executor
        self._waiting: list[tuple[Value, asyncio.Future[Result]]] = []
        self._is_running = False
        self._calls: set[asyncio.Future[Sequence[Result | BaseException]]] = set()

    def submit(self, value: Value) -> "asyncio.Future[Result]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((value, done))
        if not self._is_running:
            self._is_running = True
            # Not at once: what else arrives in this turn of the loop goes along.
            loop.call_soon(self._start)
        return done

    def _start(self) -> None:
        batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
        if not batch:
            self._is_running = False
            return
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._executor, self._commit, [value for value, _ in batch])
        self._calls.add(call)
        call.add_done_callback(lambda ended: self._end(batch, ended))

    def _end(
        self,
        batch: list[tuple[Value, "asyncio.Future[Result]"]],
        call: "asyncio.Future[Sequence[Result | BaseException]]",
    ) -> None:
        self._calls.discard(call)
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        results = [error] * len(batch) if error is not None else call.result()
        for (_, done), result in zip(batch, results, strict=True):
            if done.done():
                continue  # its caller is gone; what was stored stays stored
            if isinstance(result, BaseException):
                done.set_exception(result)
            else:
                done.set_result(result)
        self._start()
