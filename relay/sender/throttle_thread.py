"""The throttle of one upstream, off the event loop.

Guarantees: a reservation that `reserve` returned is on disk; several are decided in one critical
section of the history.  A history that fails lets nothing through: its error goes to the caller.  Ends
of transactions are known here at once and written with the next decision, or FLUSH_SECONDS later:
losing one wastes a slot and nothing else.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from relay.clock import Clock
from relay.sender.host import THREADS, Workers
from relay.throttle.admission import Admission, Request
from relay.throttle.history import HistoryError
from relay.throttle.throttle import Reservation, Throttle, View

Returned = TypeVar("Returned")

FLUSH_SECONDS = 0.2
"""How long an end may wait to be written for others that share the history."""


class ThrottleThread:
    def __init__(
        self,
        throttle: Throttle,
        clock: Clock,
        on_error: Callable[[HistoryError], object],
        on_begun: Callable[[], None] = lambda: None,
        workers: Workers = THREADS,
    ) -> None:
        """`on_error` is told when an end could not be written, `on_begun` when an empty history was begun."""
        self.view: View = throttle
        """What can be asked without waiting for the thread."""
        self._throttle, self._clock = throttle, clock
        self._on_error, self._on_begun = on_error, on_begun
        self._thread = workers.one("history")
        self._flushing: asyncio.Task[None] | None = None
        """What writes ends soon."""

    async def reserve(self, requests: Sequence[Request]) -> list[Admission]:
        """Decide for messages in their order.

        A reservation may be for fewer recipients.  Raises HistoryError; then nothing may be sent.
        """
        return await self.call(lambda throttle: throttle.reserve(requests))

    def ended(self, reservation: Reservation) -> None:
        self._throttle.settle(reservation, self._clock.boottime_ns())
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_soon())

    async def call(self, function: Callable[[Throttle], Returned]) -> Returned:
        """Have the throttle asked something else, in its turn.  Raises HistoryError."""
        returned = await self._thread.call(lambda: function(self._throttle))
        if self._throttle.has_begun():
            self._on_begun()
        return returned

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
