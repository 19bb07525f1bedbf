"""The spool, and the throttle of one upstream, off the event loop: a thread makes all calls of each, in turn.

Guarantees: many messages are settled as one group, and `settle` returns only when the group is durable.
While the spool is full or unavailable, the settlement waits and is tried again, since its outcome did happen;
`change` raises instead.  Whatever is in memory is in the spool too.
A history that fails lets nothing through: its error goes to the caller.  The end of a transaction counts here
at once.  It is written with the next decision, or FLUSH_SECONDS later; losing it wastes a slot and nothing
else.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from relay.clock import SECOND_NS, Clock
from relay.mail.envelope import QueueId
from relay.sender.host import Batch, CallThread, Workers
from relay.spool.interface import Absent, Corrupt, Full, Message, Settlement, Spool, Unavailable
from relay.throttle.history import HistoryError
from relay.throttle.throttle import Reservation, Throttle, View

Returned = TypeVar("Returned")

UNREADABLE_RETRY_NS = 60 * SECOND_NS
"""The wait before an unreadable message is read again: each try may block the disk for seconds."""
AGAIN_SECONDS = 5.0
"""The wait before a failed settlement is tried again."""
GATHERS_SECONDS = 0.003
"""Between two groups of settlements; a busy sender saves a tenth of its CPU time for a message."""
FLUSH_SECONDS = 0.2
"""How long the end of a transaction may wait to be written for other hosts of the history."""
MOST_AT_HAND = 2048
MOST_BYTES_AT_HAND = 16 * 1024 * 1024


class SpoolThread:
    def __init__(
        self, spool: Spool, on_trouble: Callable[[Full | Unavailable], None], workers: Workers = CallThread
    ) -> None:
        """`on_trouble` is called with the error of the spool, once for all callers that wait."""
        self._spool, self.is_shared = spool, spool.is_shared
        self.unreadable_retry_ns = int(AGAIN_SECONDS * SECOND_NS) if spool.is_shared else UNREADABLE_RETRY_NS
        """Shorter for a database: once it is back, it gives all messages."""
        self._on_trouble = on_trouble
        self._thread = workers("spool")
        self._tells_again_at = 0.0
        """By the clock of the event loop."""
        self._settlements: Batch[Settlement, None] = Batch(spool.settle, self._thread, GATHERS_SECONDS)
        self._at_hand: dict[QueueId, Message] = {}
        """Whole messages that may go, so that none of them waits for the disk when it is sent."""
        self._bytes_at_hand = 0

    async def read(self, queue_ids: Sequence[QueueId]) -> list[Message | Absent | Corrupt | Unavailable]:
        at_hand = {queue_id: self._at_hand.get(queue_id) for queue_id in queue_ids}
        others = [queue_id for queue_id, message in at_hand.items() if message is None]
        # A message in memory need not wait for the thread, which mostly waits for the disk.
        found = await self._thread.call(lambda: self._spool.read(others)) if others else []
        read = dict(zip(others, found, strict=True))
        return [at_hand[queue_id] or read[queue_id] for queue_id in queue_ids]

    async def content(self, queue_id: QueueId) -> AsyncGenerator[bytes, None]:
        """Yield content that is not in memory, in chunks, as `Spool.content` says."""
        chunks = self._spool.content(queue_id)
        while (chunk := await self._thread.call(lambda: next(chunks, None))) is not None:
            # Other calls have their turn between two chunks that are only checked (empty ones).
            if chunk:
                yield chunk

    async def settle(self, settlement: Settlement) -> None:
        """Make an outcome durable, however long that takes.  Raises Absent, Corrupt."""
        while True:
            try:
                return await self.change(settlement)
            except (Full, Unavailable) as trouble:
                self.tell(trouble)
                await asyncio.sleep(AGAIN_SECONDS)

    async def change(self, settlement: Settlement) -> None:
        """Make a change durable.  Raises Full, Unavailable, Absent, Corrupt."""
        self.forget(settlement.queue_id)
        await self._settlements.submit(settlement)

    def cache(self, message: Message) -> None:
        """Keep a short message in memory, if there is room, until it is settled or forgotten."""
        has_room = len(self._at_hand) < MOST_AT_HAND and self._bytes_at_hand < MOST_BYTES_AT_HAND
        if message.content is not None and has_room and not self.is_shared:
            self._at_hand[message.queue_id] = message
            self._bytes_at_hand += len(message.content)

    def forget(self, queue_id: QueueId) -> None:
        """Drop a message from memory; `read` asks the spool for it from then on."""
        if (message := self._at_hand.pop(queue_id, None)) is not None:
            self._bytes_at_hand -= len(message.head)

    def tell(self, trouble: Full | Unavailable) -> None:
        """Report an error of the spool, once for all callers that meet it at the same time."""
        now = asyncio.get_running_loop().time()
        if now >= self._tells_again_at:
            self._tells_again_at = now + AGAIN_SECONDS
            self._on_trouble(trouble)

    async def call(self, function: Callable[[Spool], Returned]) -> Returned:
        """Call a function with the spool, in the thread and in turn.  Raises what the function raises."""
        return await self._thread.call(lambda: function(self._spool))

    def close(self) -> None:
        self._thread.close()
        self._spool.close()


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
