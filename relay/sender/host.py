"""The host's ports: clock, disk, threads, and the trigger that wakes the sender; and group commit.

Calls that wait for the disk have a thread of their own, in which they never overlap.  Group commit
(`Batch`) makes one call for many values, and each value gets its own result or exception.  Under load one
sync serves many messages; a single message does not wait.  If a caller is cancelled, its value is committed
all the same.
The network is the running event loop's.  A simulation has its own loop and ports: calls take drawn time and
run in the loop's own thread, in turn.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from relay.clock import SECOND_NS, Clock
from relay.spool.disk.durable import Disk
from relay.spool.root.trigger import Trigger, TriggerPort

Value = TypeVar("Value")
Result = TypeVar("Result")

MOST_AT_ONCE = 256
"""Limit of values in one call, so that the first of a flood need not wait for all of it."""


class Worker(Protocol):
    """Makes one call after the other, in the order they were asked for."""

    def call(self, function: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Queue a call; it is not made if its future is cancelled before its turn.

        Raises RuntimeError once the worker is closed.
        """
        ...

    def close(self) -> None:
        """Return when all queued calls are done."""
        ...


def started(count: int, name: str) -> ThreadPoolExecutor:
    """Return an executor whose threads all run.  Raises RuntimeError if the kernel gives fewer.

    An executor would start its threads with the first calls.  A call for which the kernel gives no thread
    raises RuntimeError and yet stays queued: nobody knows whether it is made, or on which descriptor.
    """
    threads = ThreadPoolExecutor(count, thread_name_prefix=name)
    # Each thread waits in one call until all have started, so that none takes two.
    all_there = threading.Barrier(count + 1)
    try:
        for _ in range(count):
            threads.submit(all_there.wait)
        all_there.wait()
    except RuntimeError:
        all_there.abort()
        threads.shutdown(cancel_futures=True)
        raise
    return threads


Workers = Callable[[str], Worker]
"""Returns a worker of that name.  Raises RuntimeError if the kernel gives no thread."""


class CallThread:
    """A `Worker`.  An executor of one thread needs twice the CPU time for a call."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Result]) -> "asyncio.Future[Result]":
        if self._is_closed:
            raise RuntimeError("the thread is closed")
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._calls.put((done, function))
        return done

    def close(self) -> None:
        self._is_closed = True
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            done, function = call
            if done.cancelled():
                continue
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                result = error
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                done.get_loop().call_soon_threadsafe(_end, done, result)


def _end(done: "asyncio.Future[Any]", result: Any) -> None:
    """End a call with its result, or with the error in place of one."""
    if done.done():
        return  # its caller was cancelled; what was stored stays stored
    if isinstance(result, BaseException):
        done.set_exception(result)
    else:
        done.set_result(result)


class Batch(Generic[Value, Result]):
    """Collects values and gives them to `commit`, which returns a result or an error for each."""

    def __init__(
        self,
        commit: Callable[[Sequence[Value]], Sequence[Result | BaseException]],
        thread: Worker,
        gathers_s: float = 0.0,
    ) -> None:
        """After a call with several values the batch collects more for `gathers_s` seconds.

        A call costs the same for one value as for many, and takes the interpreter from the loop's thread.
        """
        self._commit, self._thread, self._gathers_s = commit, thread, gathers_s
        self._waiting: list[tuple[Value, asyncio.Future[Result]]] = []
        self._running: asyncio.Task[None] | None = None

    def submit(self, value: Value) -> "asyncio.Future[Result]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((value, done))
        if self._running is None:
            # The task starts in the next turn of the loop: values submitted in this turn share its call.
            self._running = loop.create_task(self._run())
        return done

    async def _run(self) -> None:
        try:
            while self._waiting:
                # What other connections have ready by now shares the call.
                await asyncio.sleep(0)
                batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
                results: Sequence[Result | BaseException]
                try:
                    results = await self._thread.call(partial(self._commit, [value for value, _ in batch]))
                except BaseException as error:  # noqa: BLE001 - the callers get it
                    results = [error] * len(batch)
                for (_, done), result in zip(batch, results, strict=True):
                    _end(done, result)
                if self._gathers_s and len(batch) > 1:
                    await asyncio.sleep(self._gathers_s)
        finally:
            self._running = None


@dataclass(frozen=True, slots=True)
class Host:
    clock: Clock
    disk: Disk
    workers: Workers = CallThread
    trigger: Callable[[str, Disk], TriggerPort] = Trigger
    """Makes the trigger in the spool's folder."""
    look_seconds: float = 1.0
    """Least time between two looks at the clock, the spool, free space and secrets, and for late mail.

    What a snapshot shows of the spool may be this old.
    """


def seconds(span_ns: int) -> float:
    """Return a span in seconds, never negative, for the event loop's timers."""
    return max(0, span_ns) / SECOND_NS


async def woken(wake: asyncio.Event, until_ns: int | None, clock: Clock) -> None:
    """Return when the event is set, or at `until_ns` (boottime) if that is not None."""
    left_ns = None if until_ns is None else until_ns - clock.boottime_ns()
    if left_ns is not None and left_ns <= 0:
        await asyncio.sleep(0)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None if left_ns is None else seconds(left_ns)):
            await wake.wait()
