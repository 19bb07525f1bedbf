"""The sender: it alone holds the spool's lock, with the queue in memory and an account for each upstream.

A start claims what is queued.  New mail is claimed when a listener pulls the trigger, and every few seconds
in case a pull was lost.  A stop finishes the transactions in flight.
"""

import asyncio
from collections.abc import Callable, Collection

from relay.clock import SECOND_NS, StepWatch
from relay.mail.envelope import QueueId
from relay.policy.lane import lanes_of, price_of
from relay.policy.model import Policy
from relay.queue.lanes import Arrangement
from relay.queue.queues import Queues
from relay.sender.arrivals import Arrivals
from relay.sender.attempt import keys_of
from relay.sender.host import Host
from relay.sender.reports import OwedReports
from relay.sender.settling import Backlog, Settling
from relay.sender.spool_thread import SpoolThread
from relay.sender.upstreams import Upstreams
from relay.spool.interface import Full, Spool, SpoolCounts, Unavailable
from relay.telemetry.metrics import Telemetry

SUSPEND_NS = SECOND_NS
"""How far boottime may run ahead of the loop's clock; beyond that the host was suspended."""
TIDY_SECONDS = 3600.0


class Sender:
    def __init__(
        self,
        spool: Spool,
        host: Host,
        *,
        policy: Policy,
        hostname: str,
        telemetry: Telemetry,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`on_fault` is called with an error that must end the sender: a fault of ours."""
        self.queue = Queues(keys_of)
        self.spool_thread = SpoolThread(spool, telemetry.spool_trouble, host.workers)
        self.spool_counts = SpoolCounts()
        self._look_seconds = host.look_seconds
        self._telemetry, self._on_fault = telemetry, on_fault
        self._chores: list[asyncio.Task[None]] = []
        self._is_finished = False
        self._owed = OwedReports(policy, self.queue, host, telemetry)
        self.settling = Settling(
            self.queue,
            self.spool_thread,
            telemetry,
            hostname=hostname,
            owed=self._owed,
            on_report=lambda: self._arrivals.look(),  # noqa: PLW0108 - self._arrivals is made later
        )
        backlog = Backlog(self.queue, self.spool_thread, self.settling)
        self.upstreams = Upstreams(policy, hostname, backlog, host, telemetry, on_fault=self.fail)
        self._arrivals = Arrivals(host, backlog, policy, telemetry, self._owed)
        self._go_by(policy)

    async def read(self) -> None:
        """Claim the whole queue; relay nothing.  Raises Full, Unavailable."""
        await self._arrivals.begin()
        await self._arrivals.take()
        await self.look()

    async def read_only(self, queue_ids: Collection[QueueId]) -> bool:
        """Queue these messages without a claim; return False if only a claim of all can do that."""
        return await self._arrivals.take_only(queue_ids)

    async def start(self) -> None:
        """Claim the first page, and relay from then on.  Raises Full, Unavailable."""
        await self._arrivals.begin()
        await self.look()
        await self.upstreams.start()
        self._arrivals.listen()
        for chore in (
            self._arrivals.run,
            self._arrivals.route_forever,
            self._look_forever,
            self._tidy_forever,
            lambda: self._owed.run(self.settling.report),
        ):
            self._chores.append(asyncio.create_task(self.upstreams.guard(chore)))

    async def stop(self) -> None:
        await self.finish()
        self.close()

    async def finish(self) -> None:
        """Finish the transactions in flight, and begin no other; keep the spool's lock.

        Does nothing if it was called before.  Call it after the last edit.
        """
        if self._is_finished:
            return
        self._is_finished = True
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        self._arrivals.stop()
        await self.upstreams.finish()
        await self._owed.close()

    def close(self) -> None:
        """Close the spool; another sender may have it from here on."""
        self.spool_thread.close()
        self._arrivals.let_go()

    def fail(self, error: BaseException) -> None:
        """Begin no more transactions, and report a fault that only a restart can repair."""
        self.upstreams.halt()
        self._on_fault(error)

    async def apply(self, policy: Policy) -> None:
        """Apply an edited policy.  Transactions in flight finish under the old one."""
        await self._owed.use(policy)
        self._go_by(policy)
        self._arrivals.use(policy)
        await self.upstreams.apply(policy)

    def wake(self) -> None:
        self.upstreams.wake()

    def reroute(self) -> None:
        """Have mail that belongs in another line by now moved there at once."""
        self._arrivals.reroute()

    @property
    def queued(self) -> int:
        """Return how many messages the spool holds, claimed or not, as of the last look."""
        return len(self.queue) + self.spool_counts.unclaimed

    @property
    def is_reading(self) -> bool:
        return self._arrivals.is_reading

    @property
    def unread(self) -> int:
        """Return how many messages the start has yet to read, as of the last look; 0 once all are known."""
        return max(1, self.spool_counts.unclaimed) if self.is_reading else 0

    @property
    def totals(self) -> dict[str, int]:
        return self._telemetry.metrics.totals

    @property
    def in_flight(self) -> int:
        return self.upstreams.in_flight

    async def look(self) -> None:
        """Read the spool's figures for display; if that fails, the last ones stay."""
        try:
            self.spool_counts = await self.spool_thread.call(lambda spool: spool.look())
        except (Full, Unavailable) as trouble:
            self.spool_thread.tell(trouble)

    def _go_by(self, policy: Policy) -> None:
        """Order each line by the policy's lanes and what its upstream counts; settle by its `retry`."""
        self.settling.use(policy)
        lanes = lanes_of(policy.lanes)
        for name, upstream in policy.upstreams.items():
            by = Arrangement(lanes, price_of(upstream.limits), upstream.max_recipients)
            self.queue.line(name).arrange(by)

    async def _look_forever(self) -> None:
        events, metrics, clock = self._telemetry
        steps = StepWatch(clock)
        now_ns = clock.boottime_ns()
        while True:
            due_at = asyncio.get_running_loop().time() + self._look_seconds
            await asyncio.sleep(self._look_seconds)
            lag_seconds = asyncio.get_running_loop().time() - due_at
            metrics.observe("relay_event_loop_lag_seconds", span_ns=int(lag_seconds * SECOND_NS))
            metrics.count("relay_log_lost_lines_total", by=events.take_lines_lost())
            before_ns, now_ns = now_ns, clock.boottime_ns()
            if now_ns - before_ns > (self._look_seconds + lag_seconds) * SECOND_NS + SUSPEND_NS:
                # The timers of the loop stood still while this host was suspended.
                self.wake()
                self.reroute()
                self._owed.wake()
            if stepped_ns := steps.stepped_ns():
                metrics.count("relay_clock_steps_total")
                events.tell("clock_stepped", by_ns=stepped_ns)
            await self.look()
            await self.upstreams.look_at_secrets()

    async def _tidy_forever(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            try:
                await self.spool_thread.call(lambda spool: spool.tidy())
            except (Full, Unavailable) as trouble:
                self.spool_thread.tell(trouble)
