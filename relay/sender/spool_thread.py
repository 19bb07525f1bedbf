"""The spool, off the event loop: one thread, and everything that waits for it in batches.

Guarantees: the spool's calls never overlap.  What came to pass is settled many messages at a time, as one
group, and `settle` returns only when that is durable: while the spool is full or unavailable the settlement
waits and is asked again, since it did happen.  `change` answers instead.  What is in memory is never the
only place of anything.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.sender.host import THREADS, Batch, Workers
from relay.spool.interface import (
    Absent,
    Corrupt,
    Full,
    Message,
    Settlement,
    Spool,
    Unavailable,
)

Returned = TypeVar("Returned")

UNREADABLE_RETRY_NS = 60 * SECOND_NS
"""How long a message waits that a disk does not give: each try may keep all others from it for seconds."""
AGAIN_SECONDS = 5.0
"""Until a settlement that was not done is asked again."""
GATHERS_SECONDS = 0.003
"""Between two groups of settlements; a busy sender saves a tenth of the processor time for a message."""
MOST_AT_HAND = 2048
MOST_BYTES_AT_HAND = 16 * 1024 * 1024


class SpoolThread:
    def __init__(
        self, spool: Spool, on_trouble: Callable[[Full | Unavailable], None], workers: Workers = THREADS
    ) -> None:
        """`on_trouble` is told, once for all that wait, why the spool does not do what it is asked."""
        self._spool, self.is_shared = spool, spool.is_shared
        self.unreadable_retry_ns = int(AGAIN_SECONDS * SECOND_NS) if spool.is_shared else UNREADABLE_RETRY_NS
        """A database that was away gives them all once it is back."""
        self._on_trouble = on_trouble
        self._thread = workers.one("spool")
        self._tells_again_at = 0.0
        """By the clock of the event loop."""
        self._settlements: Batch[Settlement, None] = Batch(spool.settle, self._thread, GATHERS_SECONDS)
        self._at_hand: dict[QueueId, Message] = {}
        """Messages that may go, whole, so that no sending of them waits for the disk."""
        self._bytes_at_hand = 0

    async def claim(self, most: int, sort: Callable[[Message], Returned]) -> list[tuple[Message, Returned]]:
        """Claim messages, each with what `sort` makes of it in the thread.  Raises Full, Unavailable."""
        return await self._thread.call(lambda: [(each, sort(each)) for each in self._spool.claim(most)])

    async def read(self, queue_ids: Sequence[QueueId]) -> list[Message | Absent | Corrupt | Unavailable]:
        at_hand = {queue_id: self._at_hand.get(queue_id) for queue_id in queue_ids}
        others = [queue_id for queue_id, message in at_hand.items() if message is None]
        # What is in memory does not wait for the thread, which mostly waits for the disk.
        found = await self._thread.call(lambda: self._spool.read(others)) if others else []
        read = dict(zip(others, found, strict=True))
        return [at_hand[queue_id] or read[queue_id] for queue_id in queue_ids]

    async def content(self, queue_id: QueueId) -> AsyncGenerator[bytes, None]:
        """Yield content that is not in memory, in chunks, as `Spool.content` says."""
        chunks = self._spool.content(queue_id)
        while (chunk := await self._thread.call(lambda: next(chunks, None))) is not None:
            # Between two chunks that are only checked, other calls have their turn too.
            if chunk:
                yield chunk

    async def settle(self, settlement: Settlement) -> None:
        """Write down what came to pass; on return it is durable.  Raises Absent, Corrupt."""
        while True:
            try:
                return await self.change(settlement)
            except (Full, Unavailable) as trouble:
                self.tell(trouble)
                await asyncio.sleep(AGAIN_SECONDS)

    async def change(self, settlement: Settlement) -> None:
        """Write down what is asked for, durably.  Raises Full, Unavailable, Absent, Corrupt."""
        self.forget(settlement.queue_id)
        await self._settlements.submit(settlement)

    def keep(self, message: Message) -> None:
        """Keep a short message at hand, if there is room, until it is settled or forgotten."""
        has_room = len(self._at_hand) < MOST_AT_HAND and self._bytes_at_hand < MOST_BYTES_AT_HAND
        if message.content is not None and has_room and not self.is_shared:
            self._at_hand[message.queue_id] = message
            self._bytes_at_hand += len(message.content)

    def forget(self, queue_id: QueueId) -> None:
        """Forget what is in memory of a message; it is read when it is asked for."""
        if (message := self._at_hand.pop(queue_id, None)) is not None:
            self._bytes_at_hand -= len(message.head)

    def tell(self, trouble: Full | Unavailable) -> None:
        """Tell once for all that meet it at the same time."""
        now = asyncio.get_running_loop().time()
        if now >= self._tells_again_at:
            self._tells_again_at = now + AGAIN_SECONDS
            self._on_trouble(trouble)

    async def call(self, function: Callable[[Spool], Returned]) -> Returned:
        """Have the spool asked something else, in its turn.  Raises what that raises."""
        return await self._thread.call(lambda: function(self._spool))

    def close(self) -> None:
        self._thread.close()
        self._spool.close()
