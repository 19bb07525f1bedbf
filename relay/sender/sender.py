"""The sender: the one holder of the spool's lock, with the queue in memory and a dispatcher per upstream.

Starts by recovering; takes new mail when the trigger is pulled, and every few seconds in case a pull
was lost.  Stopping is finishing the transactions in flight, then dying.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from relay.clock import SECOND_NS
from relay.policy.lane import lanes_of, price_of
from relay.policy.model import Policy
from relay.queue.scheduler import Scheduler
from relay.sender.accounts import Accounts
from relay.sender.arrivals import Arrivals
from relay.sender.dispatcher import Dispatcher
from relay.sender.report_limit import OwedReports
from relay.sender.reports import Reporter
from relay.sender.settling import Backlog, Settling
from relay.sender.spool_thread import SpoolThread
from relay.sender.upstreams import Upstreams
from relay.spool.durable import Disk
from relay.spool.interface import Spool, SpoolFull, Totals
from relay.spool.maildir.trigger import Trigger
from relay.telemetry.telemetry import Telemetry
from relay.verdicts.decision import Terms
from relay.verdicts.shortage import is_lack_of_means

SWEEP_SECONDS = 3.0
"""The delay that a lost trigger can cost."""
SUSPEND_NS = SECOND_NS
"""How far this boot's time may run ahead of the loop's before we call it a suspend."""
AUDIT_SECONDS = 300.0
"""Longest age of the count of what each limit held at most."""
LOOK_SECONDS = 1.0
"""Longest age of the account and the free space in a snapshot."""


@dataclass(frozen=True, slots=True)
class SpoolLook:
    totals: Totals = field(default_factory=Totals)
    free_bytes: int = 0
    free_inodes: int | None = None
    corrupt: int = 0
    accepted: int = 0
    """Messages not taken yet: no more than milliseconds' worth, unless the disk is full."""


NOT_SEEN = SpoolLook()


class Sender:
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
        self._spool, self._trigger = spool, trigger
        self._policy = policy
        self._events, self._metrics, redaction, self._clock = telemetry
        self._on_fault = on_fault
        self._new_mail = asyncio.Event()
        self._chores: list[asyncio.Task[None]] = []
        self._finishing = asyncio.Lock()
        self._is_finished = False
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
        backlog = Backlog(self.scheduler, self.spool_thread, self.settling)
        self._arrivals = Arrivals(
            backlog,
            policy,
            disk,
            telemetry,
            guard=lambda chore: self.upstreams.guard(chore),  # noqa: PLW0108 - they are made later
            wake=self.wake,
            on_full=self._tell_full,
        )
        self.upstreams = Upstreams(
            policy,
            Accounts(hostname, redaction),
            backlog,
            disk,
            telemetry,
            on_fault=self.fail,
            here=self._arrivals.here,
        )

    async def read(self, on_step: Callable[[], None] = lambda: None) -> None:
        """Do as `Arrivals.recover`.  Raises OSError and SpoolFault when the spool cannot be read."""
        await self._arrivals.recover(on_step)
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
        await self.finish()
        self.close()

    async def finish(self) -> None:
        """Finish the transactions in flight, and begin no other; the spool is still ours."""
        async with self._finishing:
            if self._is_finished:
                return
            self._is_finished = True
            asyncio.get_running_loop().remove_reader(self._trigger.listen())
            for chore in self._chores:
                chore.cancel()
            await asyncio.gather(*self._chores, return_exceptions=True)
            await self._arrivals.stop()
            await self.upstreams.finish()
            await self.owed.close()
            await self._arrivals.close()

    def close(self) -> None:
        """Let go of the spool; another sender may have it from here on."""
        self.spool_thread.close()
        self._trigger.close()

    def fail(self, error: BaseException) -> None:
        """End because of a fault that only a restart can make good; nothing more is begun meanwhile."""
        self.upstreams.halt()
        self._on_fault(error)

    async def apply(self, policy: Policy) -> None:
        """Go by another policy.  Connections finish their transactions under the old one."""
        self._policy = policy
        self.settling.terms = _terms(policy)
        await self.owed.use(policy)
        self._arrange()
        await self.upstreams.apply(policy)
        self._arrivals.use(policy)

    def wake(self) -> None:
        self.upstreams.wake()

    @property
    def dispatchers(self) -> Mapping[str, Dispatcher]:
        return self.upstreams.dispatchers

    @property
    def queued(self) -> int:
        """Return how many messages are ours by now, taken or not, as of the last look."""
        return len(self.scheduler) + self.seen.accepted

    @property
    def in_flight(self) -> int:
        return self.upstreams.in_flight

    def _arrange(self) -> None:
        """Order the queue by the policy's lanes, and by what the upstream in use counts."""
        upstream = self._policy.upstreams[self._policy.default_upstream]
        self.scheduler.arrange(
            lanes_of(self._policy.lanes), price_of(upstream.limits), upstream.max_recipients
        )

    def _pulled(self) -> None:
        self._trigger.clear()
        self._new_mail.set()

    async def _take_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._new_mail.wait()
            self._new_mail.clear()
            await self._arrivals.take()

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
            self._arrivals.keep_ages(now=False)
            await self.upstreams.try_new_passwords()
            if now_ns - drafts_at_ns > 3600 * SECOND_NS:
                drafts_at_ns = now_ns
                with contextlib.suppress(SpoolFull):
                    await self.spool_thread.call(self._spool.clean_up)

    async def _audit_forever(self) -> None:
        while True:
            await self.upstreams.audit()
            await asyncio.sleep(AUDIT_SECONDS)

    async def _report_forever(self) -> None:
        await self.owed.run(self.settling.report)

    async def look(self) -> None:
        """Read the account and the free space off the spool, for showing.

        A figure that cannot be read for lack of descriptors or memory stays as it was.  Raises OSError and
        SpoolFault, and the first time SpoolFull.
        """
        try:
            self.seen = await self.spool_thread.call(self._read_spool)
        except (SpoolFull, OSError) as error:
            is_passing = isinstance(error, SpoolFull) or is_lack_of_means(error)
            if self.seen is NOT_SEEN or not is_passing:
                raise
            self._tell_full(error)

    def _read_spool(self) -> SpoolLook:
        spool, (free_bytes, free_inodes) = self._spool, self._spool.free()
        return SpoolLook(
            spool.totals(), free_bytes, free_inodes, spool.corrupt_count(), spool.accepted_count()
        )

    def _tell_full(self, error: SpoolFull | OSError) -> None:
        if is_lack_of_means(error) or is_lack_of_means(error.__cause__):
            self._events.shortage(where="the spool", error=str(error))
            return
        self._metrics.spool_failed()
        self._events.spool_failed(error=str(error))


def _terms(policy: Policy) -> Terms:
    retry = policy.retry
    return Terms(retry.min_ns, retry.max_ns, retry.lifetime_ns, retry.warn_after_ns)
