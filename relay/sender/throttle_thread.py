"""The throttle of one upstream, off the event loop.

Guarantees: a reservation that `reserve` returned is on disk; several are decided in one critical section of
the history.  A history that fails lets nothing through: its error goes to the caller.  The end of a
transaction counts here at once.  It is written with the next decision, or FLUSH_SECONDS later; losing it
wastes a slot and nothing else.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from relay.clock import Clock
from relay.sender.host import CallThread, Workers
from relay.throttle.admission import Admission, Request
from relay.throttle.history import HistoryError
from relay.throttle.throttle import Reservation, Throttle, View

Returned = TypeVar("Returned")

FLUSH_SECONDS = 0.2
"""How long the end of a transaction may wait to be written for other hosts of the history."""


class ThrottleThread:
    def __init__(
        self,
        throttle: Throttle,
        clock: Clock,
        on_error: Callable[[HistoryError], object],
        workers: Workers = CallThread,
    ) -> None:
        """`on_error` is called if an end could not be written."""
        self.view: View = throttle
        """Answers from memory, without the thread."""
        self._throttle, self._clock = throttle, clock
        self._on_error = on_error
        self._thread = workers("history")
        self._flushing: asyncio.Task[None] | None = None

    async def reserve(self, requests: Sequence[Request]) -> list[Admission]:
        """Reserve slots for messages, in order; a reservation may be for fewer recipients than requested.

        Raises HistoryError; then nothing may be sent.
        """
        return await self.call(lambda throttle: throttle.reserve(requests))

    def ended(self, reservation: Reservation) -> None:
        self._throttle.settle(reservation, self._clock.boottime_ns())
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_soon())

    async def call(self, function: Callable[[Throttle], Returned]) -> Returned:
        """Call a function with the throttle, in the thread and in turn.  Raises HistoryError."""
        return await self._thread.call(lambda: function(self._throttle))

    async def close(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            await self._flush()
        await self.call(Throttle.close)
        self._thread.close()

    async def _flush_soon(self) -> None:
        await asyncio.sleep(FLUSH_SECONDS)
        self._flushing = None
        await self._flush()

    async def _flush(self) -> None:
        try:
            await self.call(Throttle.flush)
        except HistoryError as error:
            self._on_error(error)
