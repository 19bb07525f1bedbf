"""Taken messages, read from the spool as their routes have them sent; what cannot be read is not sent."""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from relay.clock import Clock
from relay.mail.rewriting import FRONT_BYTES, Rewritten
from relay.mail.text import clean
from relay.queue.queued import Queued, WaitReason
from relay.sender.settling import AccountBacklog
from relay.sender.spool_thread import UNREADABLE_RETRY_NS
from relay.spool.interface import Absent, Corrupt, Message, Unavailable


class Loaded(NamedTuple):
    queued: Queued
    message: Message
    rewritten: Rewritten | None
    """By the route that it goes by now."""


class Loading:
    def __init__(self, backlog: AccountBacklog, clock: Clock) -> None:
        _, self._line, self._spool_thread, self._settling, self._queue = backlog
        self._clock = clock

    async def load(self, taken: Sequence[Queued]) -> list[Loaded]:
        """Read messages; what is left of them goes, the others leave ACTIVE here."""
        loaded: list[Loaded] = []
        messages = await self._settling.load([queued.queue_id for queued in taken])
        for queued, message in zip(taken, messages, strict=True):
            if message is None:
                continue
            if isinstance(message, Unavailable):
                self.unreadable(queued, message)
            elif not message.left:
                await self._settling.finish(message, queued)
            elif not queued.part.left(message.left):
                # An edit divided the message just when these were settled.
                self._queue.end_part(queued)
            else:
                try:
                    loaded.append(Loaded(queued, message, await self._rewritten(queued, message)))
                except (Corrupt, Absent, Unavailable) as error:
                    self.unreadable(queued, error)
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

    async def _rewritten(self, queued: Queued, message: Message) -> Rewritten | None:
        """Return what a route has sent in another form.  Raises Corrupt, Absent, Unavailable."""
        if (rewriting := queued.part.rewriting) is None:
            return None
        front = message.content
        if front is None:
            async with contextlib.aclosing(self._spool_thread.content(queued.queue_id)) as chunks:
                front = await anext(chunks, b"")
        return rewriting.rewritten(message.envelope.reverse_path, front[:FRONT_BYTES])
