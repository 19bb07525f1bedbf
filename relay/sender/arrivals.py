"""Mail into the queue: the whole spool at a start, what listeners accept; and into its lines.

Starting is recovering.  The first messages are read before anything is sent, the others meanwhile, by age
as far as ids tell it; new mail is taken in between.  So for a while what is behind may go ahead: a
sender's mail leaves in order as far as it is known.
A message that only lacks its end gets it before those read behind it go, unless it has to wait for room.
When the state of an upstream, an edit or time alone has mail stand in another line,
`route_forever` moves it, some at a time, and sleeps until there is more to move.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from relay.mail.envelope import QueueId
from relay.policy.lane import numbers_of, routes_of, sorter_of
from relay.policy.model import Policy
from relay.queue.queued import NO_REASON, ListedWords, WaitReason, origin_of
from relay.queue.routes import Because
from relay.queue.scheduler import Queued, State
from relay.queue.whole import queue_id_of
from relay.sender.settling import Backlog
from relay.sender.spool_thread import Reading, seconds
from relay.sender.state_file import Ages
from relay.spool.interface import Absent, Corrupt, Entry, Message, Recovery, SpoolFull, Unreadable
from relay.spool.root.trigger import TriggerPort
from relay.telemetry.telemetry import Telemetry
from relay.throttle.admission import runs_of

SWEEP_SECONDS = 3.0
"""The delay that a lost trigger can cost."""
END_SECONDS = 1.0
"""How long a start waits for messages that only lack their ends; then others go meanwhile."""
LACK_SECONDS = 1.0
"""How long a start waits for descriptors or memory that others of this process have now."""
SORTED_AT_ONCE = 100
"""Messages read between two other calls of the spool, when an edit of the lanes sorts the queue anew."""

Guard = Callable[[Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]
"""Runs a chore, whose end by an error ends the sender."""


class Arrivals:
    def __init__(
        self,
        trigger: TriggerPort,
        backlog: Backlog,
        policy: Policy,
        ages: Ages,
        telemetry: Telemetry,
        *,
        guard: Guard,
        on_full: Callable[[SpoolFull], None],
    ) -> None:
        """`on_full` is called when there is no room to take any."""
        self._trigger = trigger
        self._queue, self._spool_thread, self._settling = backlog
        self._ages = ages
        self._events, self._clock = telemetry.events, telemetry.clock
        self._guard = guard
        self._on_full = on_full
        self._longest_wait_ns = policy.retry.max_ns
        self._sorter = sorter_of(policy.lanes, policy.routes)
        self._numbers = numbers_of(policy.routes)
        self._queue.use(list(policy.upstreams), routes_of(policy.routes))
        self._reading: Reading | None = None
        """Of the start, until its end."""
        self._reads_by = self._sorter
        self._began_ns = 0
        self._boot_ids: set[str] = set()
        """Of the messages that the start found, and of what came in meanwhile."""
        self._sorting: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        """Messages that only lack their ends and wait for room."""
        self._new_mail = asyncio.Event()
        self._may_stand_elsewhere = asyncio.Event()

    @property
    def is_reading(self) -> bool:
        """Whether the start goes on: some of the queue is not known yet."""
        return self._reading is not None

    async def begin(self, on_step: Callable[[], None]) -> None:
        """Read the first of the queue: from here on mail may be sent, and new mail taken.

        `on_step` is called for each step that was done, from this thread or the spool's.
        Raises OSError and SpoolFault when the spool cannot be read.
        """
        self._began_ns = self._clock.boottime_ns()
        await self._ages.recall()
        self._reads_by = self._sorter
        self._reading = self._spool_thread.spool.recover(self._sorter, on_step)
        await self._read_some(self._reading, on_step)

    async def read_on(self, on_step: Callable[[], None] = lambda: None) -> None:
        """Read the rest.  Raises as `begin` does."""
        while self._reading is not None:
            await self._read_some(self._reading, on_step)

    async def _read_some(self, reading: Reading, on_step: Callable[[], None]) -> None:
        found = await self._spool_thread.read_on(reading)
        if isinstance(found, Recovery):
            self._reading = None
            self._ages.forget_but(self._boot_ids)
            self._events.recovered(
                counts={"queued": len(self._queue), **found.audit},
                duration_ns=self._clock.boottime_ns() - self._began_ns,
            )
            self.keep_ages()
            return
        if (sorter := self._sorter) is not self._reads_by:
            # An edit came since the start began to read by the rules before it.
            sorted_anew = await self._spool_thread.sort([entry.queue_id for entry in found], sorter)
            found = [sorted_anew.get(entry.queue_id, entry) for entry in found]
        if not found:
            await asyncio.sleep(LACK_SECONDS)
        await self._admit_all(found, on_step)
        if sorter is not self._sorter:
            # And another one meanwhile.
            self._begin_sorting()

    async def _admit_all(self, entries: Sequence[Entry], on_step: Callable[[], None] = lambda: None) -> None:
        for entry in entries:
            self._boot_ids.add(entry.boot_id)
            await self._admit(entry)
            if not entry.recipients_left:
                on_step()

    def listen(self) -> None:
        """Look for new mail when the trigger is pulled, and at once."""
        asyncio.get_running_loop().add_reader(self._trigger.listen(), self._pulled)
        self.look()

    def look(self) -> None:
        """Have `run` look for new mail at once."""
        self._new_mail.set()

    async def run(self) -> None:
        """Take new mail for ever: when there is some, and every few seconds in case a pull was lost."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._new_mail.wait()
            self._new_mail.clear()
            await self.take()

    async def take(self) -> None:
        """Take what listeners accepted so far into the queue.  Raises SpoolFault."""
        try:
            while entries := await self._spool_thread.take(sorter := self._sorter):
                await self._admit_all(entries)
                if sorter is not self._sorter:
                    # An edit came while they were read, by the rules before it.
                    self._begin_sorting()
        except SpoolFull as full:
            # What is queued already goes on, and gives room.
            self._on_full(full)

    async def route_forever(self) -> None:
        """Move mail to the lines where it stands by now, whenever that may have changed."""
        while True:
            self._may_stand_elsewhere.clear()
            self._queue.move_on(self._clock.boottime_ns())
            self._tell_turns()
            if ids := self._queue.sortable():
                await self._sort(ids)
            if self._queue.is_behind:
                await asyncio.sleep(0)
                continue
            until_ns = self._queue.next_look_ns()
            left_ns = None if until_ns is None else until_ns - self._clock.boottime_ns()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if left_ns is None else seconds(left_ns)):
                    await self._may_stand_elsewhere.wait()

    def reroute(self) -> None:
        """Have `route_forever` look at once."""
        self._may_stand_elsewhere.set()

    def use(self, policy: Policy) -> None:
        """Go on by another policy; queued messages are sorted by it in the background."""
        self._longest_wait_ns = policy.retry.max_ns
        self._queue.use(list(policy.upstreams), routes_of(policy.routes))
        # What is over by the edit is told by the numbers of before.
        self._tell_turns()
        self._numbers = numbers_of(policy.routes)
        self.reroute()
        sorter = sorter_of(policy.lanes, policy.routes)
        if sorter != self._sorter:
            self._sorter = sorter
            self._begin_sorting()

    async def stop(self) -> None:
        """Look no more, and cancel what is under way: the next start finds it."""
        asyncio.get_running_loop().remove_reader(self._trigger.listen())
        under_way = [*self._ending, *([self._sorting] if self._sorting else [])]
        for chore in under_way:
            chore.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def close(self) -> None:
        self.keep_ages()
        await self._ages.close()

    def let_go(self) -> None:
        """Let go of the trigger; another sender may have it from here on."""
        self._trigger.close()

    def keep_ages(self, *, now: bool = True) -> None:
        """Do as `Ages.keep`; an empty queue needs none."""
        if len(self._queue):
            self._ages.keep(now=now)

    def _pulled(self) -> None:
        self._trigger.clear()
        self._new_mail.set()

    async def _admit(self, entry: Entry) -> None:
        if entry.queue_id in self._queue:
            return  # somebody moved its file to new/; it may be under way, and would go twice
        if entry.recipients_left > 0:
            self._queue.add(*self._parts(entry), now_ns=self._clock.boottime_ns())
            if entry.owes_report:
                # A crash or `reports.per_hour` came first; or a version that reported when a message ended.
                self._settling.report_soon(entry.queue_id)
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

    def _parts(self, entry: Entry) -> list[Queued]:
        """Return a message as the queue has it: whole, or in parts."""
        return [
            self._queued(
                entry._replace(
                    recipients_left=part.recipients_left,
                    domains=part.left.domains,
                    recipients_shown=part.left.shown,
                    whole=part.part,
                )
            )
            for part in entry.parts
        ] or [self._queued(entry)]

    def _queued(self, entry: Entry) -> Queued:
        now_ns, wall_ns = self._clock.boottime_ns(), self._clock.wall_ns()
        wait_ns = (entry.next_attempt_at_ns or 0) - wall_ns
        is_deferred = not entry.is_held and 0 < wait_ns <= self._longest_wait_ns
        state = State.HELD if entry.is_held else State.DEFERRED if is_deferred else State.WAITING
        return Queued(
            entry.queue_id,
            origin_of(entry.reverse_path, entry.client, entry.user, entry.lane, entry.whole.rewriting),
            entry.size_bytes,
            self._ages.arrived_at_ns(entry, now_ns, wall_ns),
            entry.recipients_left,
            state,
            now_ns + wait_ns if is_deferred else 0,
            WaitReason("deferred before the last start") if is_deferred else NO_REASON,
            is_warned=entry.is_warned or not entry.warns,
            listed=ListedWords(entry.names, entry.arrival_at_ns, entry.recipients_shown),
            domains=runs_of(entry.domains),
            part=entry.whole,
        )

    def _begin_sorting(self) -> None:
        if self._sorting is not None:
            self._sorting.cancel()
        self._sorting = asyncio.create_task(self._guard(self._sort_anew))

    async def _sort_anew(self) -> None:
        """Find lane and routes of every message that came in before an edit; mail goes on meanwhile."""
        # No pass over all of them at once: a long queue holds up the loop.
        await self._sort(self._queue.keys())

    async def _sort(self, keys: Sequence[QueueId]) -> None:
        sorter = self._sorter
        for start in range(0, len(keys), SORTED_AT_ONCE):
            some = dict.fromkeys(map(queue_id_of, keys[start : start + SORTED_AT_ONCE]))
            found = await self._spool_thread.sort(list(some), sorter)
            now_ns = self._clock.boottime_ns()
            for entry in found.values():
                self._queue.sort_anew(self._parts(entry), now_ns)
            self._may_stand_elsewhere.set()

    def _tell_turns(self) -> None:
        """Tell which routes' mail goes elsewhere since the last call, and which goes again as they prefer."""
        for route, its, back_to in self._queue.diversions.turns():
            numbers = self._numbers.get(route, ())
            if back_to:
                self._events.route_restored(routes=numbers, upstream=back_to, because=its.because)
            elif its.because is Because.ALL_DOWN:
                self._events.route_down(routes=numbers, upstream=its.upstream)
            else:
                self._events.route_diverted(
                    routes=numbers, upstream=its.upstream, instead_of=its.instead_of, because=its.because
                )
