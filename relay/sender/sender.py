"""The sender: the one holder of the spool's lock, with the queue in memory and a heart per upstream.

Takes new mail when the trigger is pulled, and every few seconds in case a pull was lost;
starts by recovering; keeps the numbers that an operator sees; applies a policy edit.
Stopping is finishing the transactions in flight, then dying.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from relay.clock import SECOND_NS
from relay.mail.age import BOOTS_FORMAT, Boots, BootsRecord
from relay.policy.lane import lanes_of, price_of, sorter_of
from relay.policy.model import Policy
from relay.queue.scheduler import SLICE, Queued, Scheduler, State
from relay.sender.accounts import Accounts
from relay.sender.dispatcher import Dispatcher
from relay.sender.parts import Backlog
from relay.sender.report_limit import OwedReports
from relay.sender.reports import Reporter
from relay.sender.settling import Settling
from relay.sender.spool_thread import SpoolThread
from relay.sender.state_file import KeptFile, boots_path
from relay.sender.upstreams import Upstreams
from relay.spool.durable import Disk
from relay.spool.interface import Absent, Corrupt, Entry, Message, Spool, SpoolFull, Totals
from relay.spool.maildir.files import Unreadable
from relay.spool.maildir.trigger import Trigger
from relay.telemetry.events import Events
from relay.telemetry.telemetry import Telemetry
from relay.throttle.keys import run_of
from relay.verdicts.decision import Terms
from relay.verdicts.shortage import is_lack_of_means

SWEEP_SECONDS = 3.0
"""How long a lost trigger can cost."""
BOOTS_NS = 300 * SECOND_NS
"""How much age a crash of the host can cost what is queued."""
END_SECONDS = 1.0
"""How long a start waits for the end of a message that only lacks that; then others go meanwhile."""
SUSPEND_NS = SECOND_NS
"""How much more the time of this boot may have passed than the loop's before we call it a suspend."""
AUDIT_SECONDS = 300.0
"""How old the count of what each limit held at most may be."""
SORTED_AT_ONCE = 100
"""Messages read between two other calls of the spool, when an edit of the lanes sorts the queue anew."""
LOOK_SECONDS = 1.0
"""How old the account and the free space in a snapshot may be."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was last read off the spool, for showing."""

    totals: Totals = field(default_factory=Totals)
    free_bytes: int = 0
    free_inodes: int | None = None
    corrupt: int = 0
    accepted: int = 0
    """Messages that were not taken yet: no more than milliseconds' worth, unless the disk is full."""


NOT_SEEN = Seen()


class Sender:
    """Relays what is in one spool."""

    def __init__(
        self,
        spool: Spool,
        trigger: Trigger,
        *,
        policy: Policy,
        hostname: str,
        disk: Disk,
        telemetry: Telemetry,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`on_fault` is told of what must end the sender: a disk that cannot be trusted, a fault of ours."""
        self.scheduler = Scheduler()
        self.spool_thread = SpoolThread(spool, Reporter(hostname), self._tell_full)
        self.seen = NOT_SEEN
        self._trigger = trigger
        self._policy = policy
        self._events, self._metrics, redaction, self._clock = telemetry
        self._on_fault = on_fault
        self._new_mail = asyncio.Event()
        self._chores: list[asyncio.Task[None]] = []
        self._sorter = sorter_of(policy.lanes)
        self._sorting: asyncio.Task[None] | None = None
        self._boots = Boots(self._clock.boot_id(), self._clock.boottime_ns())
        self._kept_boots = _kept_boots(policy, disk, self._events)
        self._keeps_boots_at_ns = 0
        self._finishing = asyncio.Lock()
        self._is_finished = False
        self._is_ending = False
        """A message that only lacks its end waits for room."""
        self.owed = OwedReports(policy, self.scheduler, disk, telemetry)
        self.settling = Settling(
            self.scheduler,
            self.spool_thread,
            telemetry,
            terms=_terms(policy),
            owed=self.owed,
            on_report=self._new_mail.set,
        )
        self._arrange()
        self.upstreams = Upstreams(
            policy,
            Accounts(hostname, redaction),
            Backlog(self.scheduler, self.spool_thread, self.settling),
            disk,
            telemetry,
            on_fault=self.fail,
            here=self._here,
        )

    async def read(self, on_step: Callable[[], None] = lambda: None) -> None:
        """Recover: read the whole queue, end what only lacks its end, take what was accepted meanwhile.

        `on_step` is called for each step that was done, from this thread or the spool's.

        Raises OSError and SpoolFault when the spool cannot be read.
        """
        began_ns = self._clock.boottime_ns()
        self._boots = Boots(self._clock.boot_id(), began_ns, await self._kept_boots.read())
        recovery = await self.spool_thread.recover(self._sorter, on_step)
        self._boots.forget_but({entry.boot_id for entry in recovery.entries})
        for number, entry in enumerate(sorted(recovery.entries, key=lambda entry: entry.queue_id), 1):
            await self._admit(entry)
            on_step()
            if number % SLICE == 0:
                await asyncio.sleep(0)
        self._events.recovered(
            counts={"queued": len(self.scheduler), **recovery.audit},
            duration_ns=self._clock.boottime_ns() - began_ns,
        )
        await self.take_now()
        self._keep_boots()
        await self.look()

    async def start(self, on_step: Callable[[], None] = lambda: None) -> None:
        """Recover, then relay.  Raises OSError and SpoolFault when the spool cannot be read."""
        await self.read(on_step)
        self.upstreams.start()
        asyncio.get_running_loop().add_reader(self._trigger.listen(), self._pulled)
        for chore in (self._take_forever, self._look_forever, self._audit_forever, self._report_forever):
            self._chores.append(asyncio.create_task(self.upstreams.guard(chore)))
        self._new_mail.set()

    async def stop(self) -> None:
        """Finish the transactions in flight and let go of the spool."""
        await self.finish()
        self.close()

    async def finish(self) -> None:
        """Finish the transactions in flight, and begin no other; the spool is still ours."""
        async with self._finishing:
            if self._is_finished:
                return
            self._is_finished = True
            asyncio.get_running_loop().remove_reader(self._trigger.listen())
            chores = [*self._chores, *([self._sorting] if self._sorting else [])]
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            await self.upstreams.finish()
            await self.owed.close()
            self._keep_boots()
            await self._kept_boots.close()

    def close(self) -> None:
        """Let go of the spool; another sender may have it from here on."""
        self.spool_thread.close()
        self._trigger.close()

    def fail(self, error: BaseException) -> None:
        """End because of something that only a restart can make good; nothing more is begun meanwhile."""
        self.upstreams.halt()
        self._on_fault(error)

    async def apply(self, policy: Policy) -> None:
        """Go on by another policy.  Connections finish their transactions under the old one."""
        self._policy = policy
        self.settling.terms = _terms(policy)
        await self.owed.use(policy)
        for _ in self._arranging():
            # A long queue is arranged in slices, so that it holds up nobody.
            await asyncio.sleep(0)
        await self.upstreams.apply(policy)
        sorter = sorter_of(policy.lanes)
        if sorter != self._sorter:
            self._sorter = sorter
            self._begin_sorting()

    def wake(self) -> None:
        """Look again whether something can be sent."""
        self.upstreams.wake()

    @property
    def dispatchers(self) -> Mapping[str, Dispatcher]:
        """Return what relays through each upstream."""
        return self.upstreams.dispatchers

    async def take_now(self) -> None:
        """Take what listeners accepted so far into the queue.  Raises SpoolFault."""
        try:
            while entries := await self.spool_thread.take(sorter := self._sorter):
                for entry in entries:
                    await self._admit(entry)
                if sorter is not self._sorter:
                    # An edit came while they were read, by the rules before it.
                    self._begin_sorting()
                self.wake()
        except SpoolFull as full:
            # What is queued already goes on, and gives room.
            self._tell_full(full)

    @property
    def queued(self) -> int:
        """Return how many messages are ours by now, taken or not, as of the last look."""
        return len(self.scheduler) + self.seen.accepted

    @property
    def in_flight(self) -> int:
        """Return how many transactions are not at their end."""
        return self.upstreams.in_flight

    async def _admit(self, entry: Entry) -> None:
        """Put a message into the queue, or end one that only lacks its end."""
        if entry.queue_id in self.scheduler:
            return  # somebody moved its file to new/; it may be under way, and would go twice
        if entry.recipients_left > 0:
            self.scheduler.add(self._queued(entry))
            return
        (message,) = await self.spool_thread.load([entry.queue_id])
        ending = asyncio.create_task(self._end(entry, message))
        await asyncio.wait([ending], timeout=0 if self._is_ending else END_SECONDS)
        if ending.done():
            await ending
        else:
            # It has to wait for room, which perhaps only the others give.
            self._is_ending = True
            self._chores.append(asyncio.create_task(self.upstreams.guard(lambda: ending)))

    async def _end(self, entry: Entry, message: Message | Exception) -> None:
        # One that is corrupt was set aside just now, and one that cannot be read now stays for the next
        # start; both have been told of.
        with contextlib.suppress(Absent, Corrupt, Unreadable):
            if isinstance(message, Exception):
                raise message
            await self.settling.finish(message, self._queued(entry))

    def _queued(self, entry: Entry) -> Queued:
        """Convert an entry of the spool to the queue's own time."""
        now_ns, wall_ns = self._clock.boottime_ns(), self._clock.wall_ns()
        queued = Queued(
            entry.queue_id,
            entry.reverse_path,
            entry.size_bytes,
            self._boots.arrived_at_ns(
                entry.boot_id, entry.boottime_ns, now_ns, wall_ns - entry.arrival_at_ns
            ),
            entry.arrival_at_ns,
            entry.recipients_left,
            is_warned=entry.is_warned,
            recipients_shown=entry.recipients_shown,
            client=entry.client,
            domains=tuple(run_of(domain, count) for domain, count in entry.domains),
            lane=entry.lane,
        )
        wait_ns = (entry.next_attempt_at_ns or 0) - wall_ns
        if entry.is_held:
            queued.state = State.HELD
        elif 0 < wait_ns <= self._policy.retry.max_ns:
            queued.state, queued.due_at_ns = State.DEFERRED, now_ns + wait_ns
            queued.reason = "deferred before the last start"
        return queued

    def _keep_boots(self) -> None:
        """Have a restart in another boot know how old what is queued is by now; nobody ages where none is."""
        if len(self.scheduler):
            now_ns = self._clock.boottime_ns()
            self._keeps_boots_at_ns = now_ns + BOOTS_NS
            self._kept_boots.keep(self._boots.record(now_ns))

    def _here(self, boot_id: str, at_ns: int) -> int | None:
        return self._boots.here(boot_id, at_ns)

    def _arrange(self) -> None:
        for _ in self._arranging():
            pass

    def _arranging(self) -> Iterator[None]:
        """Have the queue go by the lanes of the policy, and by what the upstream in use counts; in slices."""
        upstream = self._policy.upstreams[self._policy.default_upstream]
        return self.scheduler.arranging(
            lanes_of(self._policy.lanes), price_of(upstream.limits), upstream.max_recipients
        )

    def _begin_sorting(self) -> None:
        if self._sorting is not None:
            self._sorting.cancel()
        self._sorting = asyncio.create_task(self.upstreams.guard(self._sort_anew))

    async def _sort_anew(self) -> None:
        """Find the lane of every message that came in before an edit; mail goes on meanwhile."""
        sorter = self._sorter
        queue_ids = sorted(queued.queue_id for queued in self.scheduler)
        for start in range(0, len(queue_ids), SORTED_AT_ONCE):
            found = await self.spool_thread.sort(queue_ids[start : start + SORTED_AT_ONCE], sorter)
            for queue_id, lane in found.items():
                self.scheduler.move(queue_id, lane)
        self.wake()

    def _pulled(self) -> None:
        self._trigger.clear()
        self._new_mail.set()

    async def _take_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._new_mail.wait()
            self._new_mail.clear()
            await self.take_now()

    async def _look_forever(self) -> None:
        drafts_at_ns = now_ns = self._clock.boottime_ns()
        while True:
            due_at = asyncio.get_running_loop().time() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            lag_seconds = asyncio.get_running_loop().time() - due_at
            self._metrics.woke_late(int(lag_seconds * SECOND_NS))
            before_ns, now_ns = now_ns, self._clock.boottime_ns()
            if now_ns - before_ns > (LOOK_SECONDS + lag_seconds) * SECOND_NS + SUSPEND_NS:
                # The timers of the loop stood still while this host was suspended.
                self.upstreams.wake_all()
                self.owed.wake()
            await self.look()
            if now_ns >= self._keeps_boots_at_ns:
                self._keep_boots()
            await self.upstreams.try_new_passwords()
            if now_ns - drafts_at_ns > 3600 * SECOND_NS:
                drafts_at_ns = now_ns
                with contextlib.suppress(SpoolFull):
                    await self.spool_thread.call(self.spool_thread.spool.clean_up)

    async def _audit_forever(self) -> None:
        while True:
            await self.upstreams.audit()
            await asyncio.sleep(AUDIT_SECONDS)

    async def _report_forever(self) -> None:
        await self.owed.run(self.settling.report)

    async def look(self) -> None:
        """Read the account and the free space off the spool, for showing.

        What could not be read for lack of descriptors or memory stays as it was: none was seen, not none is
        there.  Raises OSError and SpoolFault, and the first time SpoolFull.
        """
        try:
            self.seen = await self.spool_thread.call(self._read_spool)
        except (SpoolFull, OSError) as error:
            is_passing = isinstance(error, SpoolFull) or is_lack_of_means(error)
            if self.seen is NOT_SEEN or not is_passing:
                raise
            self._tell_full(error)

    def _read_spool(self) -> Seen:
        free_bytes, free_inodes = self.spool_thread.spool.free()
        spool = self.spool_thread.spool
        return Seen(spool.totals(), free_bytes, free_inodes, spool.corrupt_count(), spool.accepted_count())

    def _tell_full(self, error: SpoolFull | OSError) -> None:
        if is_lack_of_means(error) or is_lack_of_means(error.__cause__):
            self._events.shortage(where="the spool", error=str(error))
            return
        self._metrics.spool_failed()
        self._events.spool_failed(error=str(error))


def _kept_boots(policy: Policy, disk: Disk, events: Events) -> KeptFile[BootsRecord]:
    return KeptFile(
        boots_path(policy),
        disk,
        BOOTS_FORMAT,
        lambda error: events.boots_unrecorded(error=error),
    )


def _terms(policy: Policy) -> Terms:
    retry = policy.retry
    return Terms(retry.min_ns, retry.max_ns, retry.lifetime_ns, retry.warn_after_ns)
