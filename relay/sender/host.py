"""What a relay asks of the host it runs on, as ports: time, the disk, threads, and how it is woken.

Calls that wait for the disk have a thread of their own, in which they never overlap; group commit makes many
values one call.  Every submitted value gets its own result or exception.  Under load one sync serves many
messages; alone, a message does not wait.  A caller that is cancelled does not take its value back: the call
runs on.
The network is the running event loop's.  A simulation has a loop and ports of its own: calls that take
drawn time and run in the loop's own thread, in turn.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from relay.clock import SECOND_NS, Clock
from relay.spool.disk.durable import Disk
from relay.spool.root.trigger import Trigger, TriggerPort

Value = TypeVar("Value")
Result = TypeVar("Result")

MOST_AT_ONCE = 256
"""Values in one call, so that the last of a flood need not wait for all of it."""


class Worker(Protocol):
    """Makes one call after the other, in the order they were asked for."""

    def call(self, function: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Have a function called; one whose future is cancelled before its turn is not.

        Raises RuntimeError once the worker is closed.
        """
        ...

    def close(self) -> None:
        """Return once everything asked for so far was done."""
        ...


class Workers(Protocol):
    """Both raise RuntimeError where the kernel gives no thread."""

    def one(self, name: str) -> Worker: ...

    def several(self, count: int, name: str) -> Executor:
        """Return an executor for calls that may overlap, `count` at most."""
        ...


def started(count: int, name: str) -> ThreadPoolExecutor:
    """Return an executor whose threads all run.  Raises RuntimeError where the kernel gives fewer.

    Else they start with the first calls.  A call for which the kernel gives no thread raises RuntimeError and
    yet stays in line: nobody knows whether, or on which descriptor, it is made.
    """
    threads = ThreadPoolExecutor(count, thread_name_prefix=name)
    # Each takes one call and keeps it until all are there, so that none takes two.
    all_there = threading.Barrier(count + 1)
    try:
        for _ in range(count):
            threads.submit(_be_there, all_there)
        all_there.wait()
    except RuntimeError:
        all_there.abort()
        threads.shutdown(cancel_futures=True)
        raise
    return threads


def _be_there(all_there: threading.Barrier) -> None:
    all_there.wait()


class CallThread:
    """One thread, which runs from the start."""

    def __init__(self, name: str) -> None:
        self._thread = started(1, name)

    def call(self, function: Callable[[], Result]) -> "asyncio.Future[Result]":
        return asyncio.get_running_loop().run_in_executor(self._thread, function)

    def close(self) -> None:
        self._thread.shutdown()


class Batch(Generic[Value, Result]):
    """Collects values and gives them to `commit`, which returns a result or an error for each."""

    def __init__(
        self,
        commit: Callable[[Sequence[Value]], Sequence[Result | BaseException]],
        thread: Worker,
        gathers_s: float = 0.0,
    ) -> None:
        """`gathers_s` is how long after a call of several values more are collected.

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
            # It begins in the next turn of the loop: what else arrives in this one goes along.
            self._running = loop.create_task(self._run())
        return done

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
                results = await self._results([value for value, _ in batch])
                for (_, done), result in zip(batch, results, strict=True):
                    if done.done():
                        continue  # its caller was cancelled; what was stored stays stored
                    if isinstance(result, BaseException):
                        done.set_exception(result)
                    else:
                        done.set_result(result)
                if self._gathers_s and len(batch) > 1:
                    await asyncio.sleep(self._gathers_s)
        finally:
            self._running = None

    async def _results(self, values: Sequence[Value]) -> Sequence[Result | BaseException]:
        try:
            return await self._thread.call(lambda: self._commit(values))
        except BaseException as error:  # noqa: BLE001 - it is the callers'
            return [error] * len(values)


class Threads:
    def one(self, name: str) -> Worker:
        return CallThread(name)

    def several(self, count: int, name: str) -> Executor:
        return started(count, name)


THREADS = Threads()


@dataclass(frozen=True, slots=True)
class Host:
    clock: Clock
    disk: Disk
    workers: Workers = THREADS
    trigger: Callable[[str, Disk], TriggerPort] = Trigger
    """Of the spool's folder."""
    look_seconds: float = 1.0
    """At least between two looks at the clock, the spool, free space and secrets, and for late mail.

    So old may be what a snapshot shows of the spool.
    """


def seconds(span_ns: int) -> float:
    """Return a span in seconds, never negative, for the event loop's timers."""
    return max(0, span_ns) / SECOND_NS


async def woken(wake: asyncio.Event, until_ns: int | None, clock: Clock) -> None:
    """Return once the event is set, or at an instant (boottime); None: there is no such instant."""
    left_ns = None if until_ns is None else until_ns - clock.boottime_ns()
    if left_ns is not None and left_ns <= 0:
        await asyncio.sleep(0)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None if left_ns is None else seconds(left_ns)):
            await wake.wait()
