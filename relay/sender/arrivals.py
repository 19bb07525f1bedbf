"""Mail into the queue: the whole spool at a start, then what listeners accept.

Starting is recovering.  A message that only lacks its end gets it before others go, unless it has to
wait for room.  The age of a message of an earlier boot stands in a file of its own
(`relay.mail.age`), which is written every few minutes.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from relay.clock import SECOND_NS
from relay.mail.age import BOOTS_FORMAT, Boots, BootsRecord
from relay.policy.lane import sorter_of
from relay.policy.model import Policy
from relay.queue.queued import wait_reason
from relay.queue.scheduler import SLICE, Queued, State
from relay.sender.settling import Backlog
from relay.sender.state_file import KeptFile, boots_path
from relay.spool.durable import Disk
from relay.spool.interface import Absent, Corrupt, Entry, Message, SpoolFull
from relay.spool.maildir.files import Unreadable
from relay.telemetry.telemetry import Telemetry
from relay.throttle.admission import run_of

BOOTS_NS = 300 * SECOND_NS
"""How much age a crash of the host can cost what is queued."""
END_SECONDS = 1.0
"""How long a start waits for messages that only lack their ends; then others go meanwhile."""
SORTED_AT_ONCE = 100
"""Messages read between two other calls of the spool, when an edit of the lanes sorts the queue anew."""

Guard = Callable[[Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]
"""Runs a chore, whose end by an error ends the sender."""


class Arrivals:
    def __init__(
        self,
        backlog: Backlog,
        policy: Policy,
        disk: Disk,
        telemetry: Telemetry,
        *,
        guard: Guard,
        wake: Callable[[], None],
        on_full: Callable[[SpoolFull], None],
    ) -> None:
        """`wake` is called when there is more to be sent, `on_full` when there is no room to take any."""
        self._scheduler, self._spool_thread, self._settling = backlog
        self._events, self._clock = telemetry.events, telemetry.clock
        self._guard = guard
        self._wake = wake
        self._on_full = on_full
        self._longest_wait_ns = policy.retry.max_ns
        self._sorter = sorter_of(policy.lanes)
        self._sorting: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        """Messages that only lack their ends and wait for room."""
        self._boots = Boots(self._clock.boot_id(), self._clock.boottime_ns())
        self._kept_boots: KeptFile[BootsRecord] = KeptFile(
            boots_path(policy),
            disk,
            BOOTS_FORMAT,
            lambda error: telemetry.events.boots_unrecorded(error=error),
        )
        self._keeps_boots_at_ns = 0

    async def recover(self, on_step: Callable[[], None]) -> None:
        """Read the whole queue, end what only lacks its end, take what was accepted meanwhile.

        `on_step` is called for each step that was done, from this thread or the spool's.
        Raises OSError and SpoolFault when the spool cannot be read.
        """
        began_ns = self._clock.boottime_ns()
        self._boots = Boots(self._clock.boot_id(), began_ns, await self._kept_boots.read())
        recovery = await self._spool_thread.recover(self._sorter, on_step)
        self._boots.forget_but({entry.boot_id for entry in recovery.entries})
        for number, entry in enumerate(sorted(recovery.entries, key=lambda entry: entry.queue_id), 1):
            await self._admit(entry)
            on_step()
            if number % SLICE == 0:
                await asyncio.sleep(0)
        self._events.recovered(
            counts={"queued": len(self._scheduler), **recovery.audit},
            duration_ns=self._clock.boottime_ns() - began_ns,
        )
        await self.take()
        self.keep_ages()

    async def take(self) -> None:
        """Take what listeners accepted so far into the queue.  Raises SpoolFault."""
        try:
            while entries := await self._spool_thread.take(sorter := self._sorter):
                for entry in entries:
                    await self._admit(entry)
                if sorter is not self._sorter:
                    # An edit came while they were read, by the rules before it.
                    self._begin_sorting()
                self._wake()
        except SpoolFull as full:
            # What is queued already goes on, and gives room.
            self._on_full(full)

    def use(self, policy: Policy) -> None:
        """Go on by another policy; queued messages are sorted by it in the background."""
        self._longest_wait_ns = policy.retry.max_ns
        sorter = sorter_of(policy.lanes)
        if sorter != self._sorter:
            self._sorter = sorter
            self._begin_sorting()

    async def stop(self) -> None:
        """Cancel what is under way: the next start finds it."""
        under_way = [*self._ending, *([self._sorting] if self._sorting else [])]
        for chore in under_way:
            chore.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def close(self) -> None:
        self.keep_ages()
        await self._kept_boots.close()

    def keep_ages(self, *, now: bool = True) -> None:
        """Keep the ages of queued messages for a restart in another boot; an empty queue needs none."""
        now_ns = self._clock.boottime_ns()
        if len(self._scheduler) and (now or now_ns >= self._keeps_boots_at_ns):
            self._keeps_boots_at_ns = now_ns + BOOTS_NS
            self._kept_boots.keep(self._boots.record(now_ns))

    def here(self, boot_id: str, at_ns: int) -> int | None:
        """Return an instant of another boot by this one's clock; None if unknown."""
        return self._boots.here(boot_id, at_ns)

    async def _admit(self, entry: Entry) -> None:
        if entry.queue_id in self._scheduler:
            return  # somebody moved its file to new/; it may be under way, and would go twice
        if entry.recipients_left > 0:
            self._scheduler.add(self._queued(entry))
            return
        (message,) = await self._spool_thread.load([entry.queue_id])
        ending = asyncio.create_task(self._end(entry, message))
        await asyncio.wait([ending], timeout=0 if self._ending else END_SECONDS)
        if ending.done():
            await ending
        else:
            # It has to wait for room, which perhaps only the others give.
            self._ending.add(asyncio.create_task(self._guard(lambda: ending)))

    async def _end(self, entry: Entry, message: Message | Exception) -> None:
        # One that is corrupt was set aside just now, and one that cannot be read now stays for the next
        # start; both have been told of.
        with contextlib.suppress(Absent, Corrupt, Unreadable):
            if isinstance(message, Exception):
                raise message
            await self._settling.finish(message, self._queued(entry))

    def _queued(self, entry: Entry) -> Queued:
        now_ns, wall_ns = self._clock.boottime_ns(), self._clock.wall_ns()
        wait_ns = (entry.next_attempt_at_ns or 0) - wall_ns
        is_deferred = not entry.is_held and 0 < wait_ns <= self._longest_wait_ns
        state = State.HELD if entry.is_held else State.DEFERRED if is_deferred else State.WAITING
        return Queued(
            entry.queue_id,
            entry.reverse_path,
            entry.size_bytes,
            self._boots.arrived_at_ns(
                entry.boot_id, entry.boottime_ns, now_ns, wall_ns - entry.arrival_at_ns
            ),
            entry.arrival_at_ns,
            entry.recipients_left,
            state,
            now_ns + wait_ns if is_deferred else 0,
            wait_reason("deferred before the last start" if is_deferred else ""),
            is_warned=entry.is_warned,
            recipients_shown=entry.recipients_shown,
            client=entry.client,
            domains=tuple(run_of(domain, count) for domain, count in entry.domains),
            lane=entry.lane,
        )

    def _begin_sorting(self) -> None:
        if self._sorting is not None:
            self._sorting.cancel()
        self._sorting = asyncio.create_task(self._guard(self._sort_anew))

    async def _sort_anew(self) -> None:
        """Find the lane of every message that came in before an edit; mail goes on meanwhile."""
        sorter = self._sorter
        queue_ids = sorted(queued.queue_id for queued in self._scheduler)
        for start in range(0, len(queue_ids), SORTED_AT_ONCE):
            found = await self._spool_thread.sort(queue_ids[start : start + SORTED_AT_ONCE], sorter)
            for queue_id, lane in found.items():
                self._scheduler.move(queue_id, lane)
        self._wake()
