"""Senders of messages that wait for long are warned, once each.

A refusal warns by itself (`settling`); this looks now and then at what was not attempted since: no room in a
window, a pause, a back-off.  A warning is for what the sender can do something about.  So it tells of a
message that is late, counted from acceptance with pauses, *and* will be for long enough to matter, by our
estimate: its ETA; while its upstream is paused at least as long again as that has rested so far, pause after
pause; in a back-off its next attempt, which will tell more.  Where there is no estimate (its upstream is
stopped, or refuses its sender) it may take any time.  A held message is its operator's matter.

Guarantees: a message is warned of at most once, over restarts too, and none from `<>` or without a recipient
left of whose delay its sender wants to be told (NOTIFY, RFC 3461); a look is one pass over the queue where
no message is late, and takes at most a hundredth of the time where many are, in another thread.
Does not: promise that no sender is told of a message that goes a moment later.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from relay.clock import SECOND_NS, Clock
from relay.mail.envelope import QueueId
from relay.mail.formats import utc
from relay.queue.scheduler import SLICE, Queued, State
from relay.queue.whole import Queue, queue_id_of
from relay.sender.settling import Settling, told_of_delay
from relay.sender.spool_thread import seconds
from relay.sender.upstream_health import Pausing
from relay.spool.interface import Message, Note
from relay.verdicts.decision import UNKNOWN_STATUS

LOOK_NS = 60 * SECOND_NS
SHORTEST_LOOK_NS = SECOND_NS
MOST_AT_ONCE = 100
SHARE = 100
"""After a look, wait at least so many times as long as it took."""
CONGESTED = "4.4.5"
"""RFC 3463, 3.5: X.4.5 is mail system congestion, which is what a full window is."""
LONGEST_SOON_NS = 3600 * SECOND_NS


def soon_ns(warn_after_ns: int) -> int:
    """Return the longest wait not worth a warning: a quarter of `retry.warn_after`, an hour at most."""
    return min(warn_after_ns // 4, LONGEST_SOON_NS)


def is_to_be_told(*, late_ns: int, left_ns: int | None, warn_after_ns: int | None) -> bool:
    """Return whether a warning is due.

    `late_ns` is counted from acceptance; `left_ns` is the estimated wait from now, None where unknown.
    """
    if warn_after_ns is None or late_ns < warn_after_ns:
        return False
    return left_ns is None or left_ns >= soon_ns(warn_after_ns)


class Estimate(Protocol):
    """By the wall clock; None where nobody can tell."""

    @property
    def queue_id(self) -> QueueId: ...
    @property
    def next_attempt_at_ns(self) -> int | None: ...
    @property
    def eta_at_ns(self) -> int | None: ...


class LateMail:
    def __init__(
        self,
        queue: Queue,
        settling: Settling,
        clock: Clock,
        *,
        foresee: Callable[[], Callable[[], Iterable[Estimate]]],
        pausing: Callable[[str], Pausing | None],
    ) -> None:
        self._queue, self._settling, self._clock = queue, settling, clock
        self._foresee, self._pausing = foresee, pausing

    async def run(self) -> None:
        while True:
            warn_after_ns = self._settling.terms.warn_after_ns
            period_ns = LOOK_NS if warn_after_ns is None else min(LOOK_NS, soon_ns(warn_after_ns))
            began_ns = self._clock.boottime_ns()
            await self.look()
            took_ns = self._clock.boottime_ns() - began_ns
            await asyncio.sleep(seconds(max(SHORTEST_LOOK_NS, period_ns, SHARE * took_ns)))

    async def look(self) -> int:
        """Warn of late messages that stay late; return how many were warned."""
        warn_after_ns = self._settling.terms.warn_after_ns
        now_ns = self._clock.boottime_ns()
        if warn_after_ns is None or not await self._has_late(now_ns, warn_after_ns):
            return 0
        warned = 0
        for number, listed in enumerate(await asyncio.to_thread(self._foresee())):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            queued = self._queue.get(listed.queue_id)
            if queued is None or not self._is_late(queued, now_ns, warn_after_ns):
                continue
            left_ns, late_ns = self._left_ns(queued, listed), now_ns - queued.arrived_at_ns
            if not is_to_be_told(late_ns=late_ns, left_ns=left_ns, warn_after_ns=warn_after_ns):
                continue
            if warned == MOST_AT_ONCE or not await self._settling.may_warn():
                break
            warned += await self._warn(queued, left_ns)
        return warned

    async def _has_late(self, now_ns: int, warn_after_ns: int) -> bool:
        """Look in slices between turns of the loop."""
        for number, key in enumerate(self._queue.keys()):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            queued = self._queue.get(queue_id_of(key))
            if queued is not None and self._is_late(queued, now_ns, warn_after_ns):
                return True
        return False

    @staticmethod
    def _is_late(queued: Queued, now_ns: int, warn_after_ns: int) -> bool:
        return (
            queued.state in (State.WAITING, State.DEFERRED)
            and not queued.is_warned
            and queued.reverse_path != ""
            and now_ns - queued.arrived_at_ns >= warn_after_ns
        )

    def _left_ns(self, queued: Queued, listed: Estimate) -> int | None:
        """Return the estimated wait from now; None where unknown."""
        goes_at_ns = listed.next_attempt_at_ns if queued.state is State.DEFERRED else listed.eta_at_ns
        if queued.is_sitting_out or goes_at_ns is None:
            return None
        pausing = self._pausing(queued.upstream)
        rested_ns = 0 if pausing is None else pausing.rested_ns(self._clock.boottime_ns())
        return max(goes_at_ns - self._clock.wall_ns(), rested_ns)

    async def _warn(self, queued: Queued, left_ns: int | None) -> bool:
        (message,) = await self._settling.load([queued.queue_id])
        is_still_late = queued.state in (State.WAITING, State.DEFERRED) and not queued.is_warned
        if not (isinstance(message, Message) and is_still_late):
            return False
        now_ns, wall_ns = self._clock.boottime_ns(), self._clock.wall_ns()
        status, why = self._why(queued)
        if left_ns is not None and not self._is_paused(queued):
            why += f"; the next attempt is expected at {utc(wall_ns + left_ns)}"
        late = (Note(index, status, "expired", why, None, wall_ns) for index in message.left)
        notes = told_of_delay(message.envelope, late)
        if not notes:
            # Others of its recipients, that are done by now, were to be told of: nothing to look at again.
            self._queue.warned(queued.queue_id)
            return False
        pausing = self._pausing(queued.upstream)
        rests = (*self._queue.line_of(queued).sender_pauses.rests_of(queued.sender), *queued.past.rested)
        paused_ns = 0 if pausing is None else pausing.paused_ns(queued.arrived_at_ns, now_ns, rests)
        age_ns = now_ns - queued.arrived_at_ns - paused_ns
        # One that is older has an attempt all the same.
        until_at_ns = wall_ns + max(self._settling.terms.lifetime_ns - age_ns, left_ns or 0)
        return await self._settling.warn(message, queued, notes, until_at_ns)

    def _why(self, queued: Queued) -> tuple[str, str]:
        """Return the status and the words for a sender; they tell nothing of others' mail."""
        if queued.state is State.DEFERRED and not queued.is_sitting_out:
            status = queued.refusal.status if queued.refusal is not None else UNKNOWN_STATUS
            return status, queued.reason or "refused for now"
        if queued.is_sitting_out or self._is_paused(queued):
            return CONGESTED, "the next mail server takes no mail from here at present"
        return CONGESTED, "it waits for its turn: the next mail server limits how much may be sent"

    def _is_paused(self, queued: Queued) -> bool:
        pausing = self._pausing(queued.upstream)
        return pausing is not None and pausing.because != ""
