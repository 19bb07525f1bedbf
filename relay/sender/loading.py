"""Taken messages, read from the spool as their routes have them sent; what cannot be read is not sent."""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from relay.clock import SECOND_NS, Clock
from relay.mail.rewriting import FRONT_BYTES, Rewritten
from relay.mail.text import clean
from relay.queue.queued import Queued, WaitReason
from relay.sender.settling import AccountBacklog
from relay.spool.interface import Absent, Corrupt, Message, Unavailable

UNREADABLE_RETRY_NS = 60 * SECOND_NS
"""How long a message waits that the spool does not give."""


class Loaded(NamedTuple):
    queued: Queued
    message: Message
    rewritten: Rewritten | None
    """By the route that it goes by now."""


class Loading:
    def __init__(self, backlog: AccountBacklog, clock: Clock) -> None:
        self._line, self._spool_thread, self._settling, self._queue = backlog
        self._clock = clock

    async def load(self, taken: Sequence[Queued]) -> list[Loaded]:
        """Read messages; what is left of them goes, the others leave ACTIVE here."""
        loaded: list[Loaded] = []
        messages = await self._settling.load([queued.queue_id for queued in taken])
        for queued, message in zip(taken, messages, strict=True):
            if isinstance(message, Message) and not message.left:
                await self._settling.finish(message, queued)
            elif isinstance(message, Message) and not queued.part.left(message.left):
                # An edit divided the message just when these were settled.
                self._queue.end_part(queued)
            elif isinstance(message, Message):
                if (each := await self._rewrite(queued, message)) is not None:
                    loaded.append(each)
            elif message is not None:
                self.unreadable(queued, message)
        return loaded

    def unreadable(self, queued: Queued, error: Absent | Corrupt | Unavailable) -> None:
        """Do without a message that cannot be read; nothing of it was relayed."""
        if not isinstance(error, Unavailable):
            # It was set aside, and has been told of.
            self._settling.forget(queued.queue_id)
            return
        # As far as is known, it is as good as before.
        self._spool_thread.tell(error)
        due_at_ns = self._clock.boottime_ns() + UNREADABLE_RETRY_NS
        why = WaitReason(f"cannot be read now: {clean(str(error))}")
        self._line.postpone(queued, due_at_ns, queued.recipients_left, why)

    async def _rewrite(self, queued: Queued, message: Message) -> Loaded | None:
        """Return a message as its route has it sent; None where its content cannot be read now."""
        if (rewriting := queued.part.rewriting) is None:
            return Loaded(queued, message, None)
        front = message.content
        try:
            if front is None:
                async with contextlib.aclosing(self._spool_thread.content(queued.queue_id)) as chunks:
                    front = await anext(chunks, b"")
        except (Corrupt, Absent, Unavailable) as error:
            self.unreadable(queued, error)
            return None
        rewritten = rewriting.rewritten(message.envelope.reverse_path, front[:FRONT_BYTES])
        return Loaded(queued, message, rewritten)
