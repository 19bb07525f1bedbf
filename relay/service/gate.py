"""The throttle of one upstream, off the event loop.

Guarantees: when `reserve` returned a reservation, it is on disk; several are decided in
one critical section of the history.  A history that fails lets nothing through: its
error goes to whoever asked.  Ends of transactions are known here at once and written
with the next decision, or soon after: losing one wastes a slot and nothing else.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from relay.clock import Clock
from relay.policy.model import Limit
from relay.throttle.record import HistoryError
from relay.throttle.slots import Usage, Wait
from relay.throttle.throttle import Request, Reservation, Settlement, Throttle

Returned = TypeVar("Returned")

FLUSH_SECONDS = 0.2
"""How long an end may wait to be written for others that share the history."""


class Gate:
    """Lets transactions through, no more than the limits allow."""

    def __init__(self, throttle: Throttle, clock: Clock, on_error: Callable[[HistoryError], None]) -> None:
        """`on_error` is told when an end could not be written."""
        self._throttle = throttle
        self._clock = clock
        self._on_error = on_error
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._flush: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Read the history, for `usage` and `opens_at_ns` to know the past.  Raises HistoryError."""
        await self._call(self._throttle.flush)

    async def reserve(self, recipients: Sequence[int]) -> list[Reservation | Wait]:
        """Decide for messages in their order, given how many recipients each wants.

        A reservation may be for fewer.  Raises HistoryError; then nothing may be sent.
        """
        requests = [Request(count) for count in recipients]
        return await self._call(lambda: self._throttle.reserve(requests))

    def opens_at_ns(self) -> int:
        """Return when a message may find room (boottime), as far as is known; cheap."""
        return self._throttle.opens_at(1)

    def room(self) -> int | None:
        """Return how many messages may find room now, as far as is known; None: as many as there are."""
        free = [max(0, usage.count - usage.used) for usage in self._throttle.usage()]
        return min(free) if free else None

    def usage(self) -> list[Usage]:
        """Return each limit and how much of it is occupied."""
        return self._throttle.usage()

    def ended(self, reservation: Reservation) -> None:
        """Tell that a transaction ended just now, however it ended."""
        self._throttle.settle([Settlement(reservation, self._clock.boottime_ns())])
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._start_flush)

    async def replan(self, limits: Sequence[Limit], guard_ns: int | None) -> None:
        """Judge the same history by other limits from now on."""
        await self._call(lambda: self._throttle.replan(limits, guard_ns))

    async def close(self) -> None:
        """Write what is not written yet and let go of the history."""
        if self._flush is not None:
            self._flush.cancel()
        try:
            await self._call(self._throttle.flush)
        except HistoryError as error:
            self._on_error(error)
        await self._call(self._throttle.close)
        self._thread.shutdown()

    async def _call(self, function: Callable[[], Returned]) -> Returned:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _start_flush(self) -> None:
        self._flush = None
        self._flushing = asyncio.get_running_loop().run_in_executor(self._thread, self._throttle.flush)
        self._flushing.add_done_callback(self._flushed)

    def _flushed(self, call: "asyncio.Future[None]") -> None:
        if not call.cancelled() and isinstance(error := call.exception(), HistoryError):
            self._on_error(error)
