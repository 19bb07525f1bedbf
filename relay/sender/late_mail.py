"""Senders of messages that wait for long are warned, once each.

This looks now and then at all that waits: for room in a window, the end of a pause or of a back-off.  Late
counts from acceptance, with pauses.  A held message is its operator's matter.

Guarantees: a message is warned of at most once, over restarts too, and none from `<>` or without a recipient
left of whose delay its sender wants to be told (NOTIFY, RFC 3461).
Does not: promise that no sender is told of a message that goes a moment later.
"""

import asyncio
from collections.abc import Callable, Sequence

from relay.clock import SECOND_NS
from relay.mail.dsn import Notify
from relay.queue.queued import Queued, State
from relay.queue.queues import Queues
from relay.queue.upstream_queue import SLICE
from relay.sender.host import Host, seconds
from relay.sender.pausing import Pausing
from relay.sender.settling import Settling
from relay.spool.interface import Message, Note
from relay.verdicts.decision import UNKNOWN_STATUS

LOOK_NS = 60 * SECOND_NS
"""Between two looks; a look at 200,000 messages takes 0.2 s, in slices."""
CONGESTED = "4.4.5"
"""RFC 3463, 3.5: X.4.5 is mail system congestion, which is what a full window is."""


class LateMail:
    def __init__(
        self, queue: Queues, settling: Settling, host: Host, pausing: Callable[[str], Pausing | None]
    ) -> None:
        self._queue, self._settling, self._pausing = queue, settling, pausing
        self._clock, self._look_seconds = host.clock, host.look_seconds

    async def run(self) -> None:
        while True:
            await self.look()
            period_ns = min(LOOK_NS, (self._settling.terms.warn_after_ns or 4 * LOOK_NS) // 4)
            await asyncio.sleep(max(self._look_seconds, seconds(period_ns)))

    async def look(self) -> int:
        """Warn of late messages, in slices between turns of the loop; return how many were warned."""
        warned = 0
        for number, queue_id in enumerate(self._queue.ids()):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            queued = self._queue.get(queue_id)
            if queued is None or not self._is_late(queued):
                continue
            (message,) = await self._settling.load([queued.queue_id])
            if not (isinstance(message, Message) and self._is_late(queued)):
                continue
            notes, until_at_ns = self._told(queued, message)
            if not notes:
                # Recipients that are done by now were to be told of: it need not be looked at again.
                self._queue.warned(queued.queue_id)
            elif await self._settling.warn(message, notes, until_at_ns):
                warned += 1
            else:
                break  # no slot for it, and so for none behind it
        return warned

    def _is_late(self, queued: Queued) -> bool:
        after_ns = self._settling.terms.warn_after_ns
        age_ns = self._clock.boottime_ns() - queued.arrived_at_ns
        is_to_be_told = queued.state in (State.WAITING, State.DEFERRED) and not queued.is_warned
        return after_ns is not None and age_ns >= after_ns and is_to_be_told and queued.reverse_path != ""

    def _told(self, queued: Queued, message: Message) -> tuple[Sequence[Note], int]:
        """Return what its sender is told, and until when (wall clock) its recipients will be tried."""
        now_ns, wall_ns = self._clock.boottime_ns(), self._clock.wall_ns()
        pausing = self._pausing(queued.upstream)
        status, why = _why(queued, is_paused=pausing is not None and pausing.state.is_resting)
        replies = self._settling.replies.get(queued.queue_id, {}) if queued.refusal is not None else {}
        late = (replies.get(i) or Note(i, status, "expired", why, None, wall_ns) for i in message.left)
        rests = (*self._queue.line_of(queued).sender_pauses.rests_of(queued.sender), *queued.past.rested)
        paused_ns = 0 if pausing is None else pausing.paused_ns(queued.arrived_at_ns, now_ns, rests)
        age_ns = now_ns - queued.arrived_at_ns - paused_ns
        # One that is older has an attempt all the same.
        until_at_ns = wall_ns + max(self._settling.terms.lifetime_ns - age_ns, 0)
        tells_of = message.envelope.tells_of
        return [note for note in late if tells_of(note.index, Notify.DELAY)], until_at_ns


def _why(queued: Queued, *, is_paused: bool) -> tuple[str, str]:
    """Return the status and the words for a sender; they tell nothing of others' mail."""
    if queued.state is State.DEFERRED and not queued.is_sitting_out:
        status = queued.refusal.status if queued.refusal is not None else UNKNOWN_STATUS
        return status, queued.reason or "refused for now"
    if queued.is_sitting_out or is_paused:
        return CONGESTED, "the next mail server takes no mail from here at present"
    return CONGESTED, "it waits for its turn: the next mail server limits how much may be sent"
