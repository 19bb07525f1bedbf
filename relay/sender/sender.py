"""The sender: it alone holds the spool's lock, with the queue in memory and an account for each upstream.

A start claims what is queued.  New mail is claimed when a listener pulls the trigger, and every few seconds
in case a pull was lost.  A stop finishes the transactions in flight.  So does an upstream that leaves the
policy, or gets another account.  Each upstream has a line of the queue of its own (`relay.queue.queues`),
which learns each change of its state.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.queue.queued import Queued
from relay.queue.queues import Queues
from relay.sender.account import GRACE_SECONDS, Account, UpstreamView
from relay.sender.arrivals import Arrivals
from relay.sender.connections import Logins
from relay.sender.host import Host
from relay.sender.reports import OwedReports
from relay.sender.settling import Settling
from relay.sender.threads import SpoolThread
from relay.spool.interface import Full, Spool, SpoolCounts, Unavailable
from relay.telemetry.metrics import Telemetry
from relay.throttle.admission import Place
from relay.throttle.admission import keys_of as sender_keys_of
from relay.verdicts.account import AccountState

SUSPEND_NS = SECOND_NS
"""How far boottime may run ahead of the loop's clock; beyond that the host was suspended."""
TIDY_SECONDS = 3600.0
CLOSING_SECONDS = 10.0
"""How long the rest of a stop may take after the grace: QUIT, and outcomes that the spool does not take."""


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
        self.accounts: dict[str, Account] = {}
        """The accounts in use, by upstream."""
        self._logins: dict[str, Logins] = {}
        """One for each upstream, kept when its account changes: no two may rotate one refresh token."""
        self._policy, self._hostname, self._host = policy, hostname, host
        self._telemetry, self._on_fault = telemetry, on_fault
        self._chores: list[asyncio.Task[None]] = []
        self._stopping: set[asyncio.Task[None]] = set()
        """The stops of accounts that left the policy, and at the end of all others."""
        self._is_finished = False
        self._owed = OwedReports(policy, host, telemetry)
        self.settling = Settling(self.queue, self.spool_thread, telemetry, hostname=hostname, owed=self._owed)
        self._arrivals = Arrivals(host, self.settling, policy, telemetry, self._owed)

    async def read(self) -> None:
        """Claim the whole queue; relay nothing.  Raises Full, Unavailable."""
        await self._arrivals.take()

    async def read_only(self, queue_ids: Collection[QueueId]) -> bool:
        """Queue these messages without a claim; return False if only a claim of all can do that."""
        return await self._arrivals.take_only(queue_ids)

    async def start(self) -> None:
        """Claim the first page, and relay from then on.  Raises Full, Unavailable."""
        await self._arrivals.claim()
        await self.look()
        for name in self._policy.upstreams:
            await self._add(name, None)
        for chore in (
            self._arrivals.run,
            self._arrivals.route_forever,
            self._arrivals.sort_forever,
            self._look_forever,
            self._tidy_forever,
            lambda: self._owed.run(self.settling.report),
        ):
            self._chores.append(asyncio.create_task(self.guard(chore)))

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
        for each in self.accounts.values():
            self._stop(each)
        # What is not settled in time, a restart sends again.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS + CLOSING_SECONDS):
                await asyncio.gather(*self._stopping)
        await asyncio.gather(*(each.close() for each in self._logins.values()))
        await self._owed.close()

    def close(self) -> None:
        """Close the spool; another sender may have it from here on."""
        self.spool_thread.close()
        self._arrivals.close()

    def halt(self) -> None:
        """Begin no more transactions; those in flight go on."""
        for each in self.accounts.values():
            each.halt()

    def fail(self, error: BaseException) -> None:
        """Begin no more transactions, and report a fault that only a restart can repair."""
        self.halt()
        self._on_fault(error)

    async def guard(self, chore: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function; an error in it ends the sender."""
        try:
            await chore()
        except Exception as error:  # noqa: BLE001 - whatever it is, mail must not silently stop
            self.fail(error)

    async def apply(self, policy: Policy) -> None:
        """Apply an edited policy.  Transactions in flight finish under the old one."""
        await self._owed.use(policy)
        self._arrivals.use(policy)
        before, self._policy = self._policy, policy
        self._telemetry.metrics.know("upstream", policy.upstreams)
        replaced: dict[str, AccountState] = {}
        for name in list(self.accounts):
            # Another account has another history, which must count the transactions of that account.
            if name not in policy.upstreams or policy.history_of(name) != before.history_of(name):
                # Crash here: the pause is saved for the old account alone, and the operator must repeat it.
                retired = self.accounts.pop(name)
                replaced[name] = retired.pausing.retire()
                self._stop(retired)
        for name in policy.upstreams:
            if name in self.accounts:
                await self.accounts[name].use(policy)
            else:
                await self._add(name, replaced.get(name))
        for name in self.accounts:
            self.queue.line(name).ask_anew()

    def wake(self) -> None:
        """Have everything look at once for what may go, or may belong in another line by now."""
        for each in self.accounts.values():
            each.wake.set()
        self._arrivals.may_stand_elsewhere.set()
        self._owed.wake.set()

    def view(self, upstream: str) -> UpstreamView | None:
        """Return a snapshot of an upstream; None if it is not in use."""
        return None if (account := self.accounts.get(upstream)) is None else account.view()

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
        return sum(each.in_flight for each in self.accounts.values())

    async def look(self) -> None:
        """Read the spool's figures for display; if that fails, the last ones stay."""
        try:
            self.spool_counts = await self.spool_thread.call(lambda spool: spool.look())
        except (Full, Unavailable) as trouble:
            self.spool_thread.tell(trouble)

    async def _add(self, name: str, replaced: AccountState | None) -> None:
        upstream, disk = self._policy.upstreams[name], self._host.disk
        new = Logins(name, upstream, self._hostname, disk=disk, telemetry=self._telemetry)
        added = Account(
            name,
            self._policy,
            self.settling,
            logins=self._logins.setdefault(name, new),
            host=self._host,
            telemetry=self._telemetry,
            on_fault=self.fail,
        )
        await added.start(replaced)
        # An account without a record announces no change, and the replaced one may have been down.
        self.queue.set_availability(name, added.pausing.availability)
        self.accounts[name] = added

    def _stop(self, account: Account) -> None:
        stopping = asyncio.create_task(self.guard(account.stop))
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)

    async def _look_forever(self) -> None:
        (events, metrics, clock), look_seconds = self._telemetry, self._host.look_seconds
        now_ns = clock.boottime_ns()
        while True:
            due_at = asyncio.get_running_loop().time() + look_seconds
            await asyncio.sleep(look_seconds)
            lag_seconds = asyncio.get_running_loop().time() - due_at
            metrics.observe("relay_event_loop_lag_seconds", span_ns=int(lag_seconds * SECOND_NS))
            metrics.count("relay_log_lost_lines_total", by=events.take_lines_lost())
            before_ns, now_ns = now_ns, clock.boottime_ns()
            if now_ns - before_ns > (look_seconds + lag_seconds) * SECOND_NS + SUSPEND_NS:
                # The timers of the loop stood still while this host was suspended.
                self.wake()
            await self.look()
            for account in list(self.accounts.values()):
                await account.look_at_secrets()

    async def _tidy_forever(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            try:
                await self.spool_thread.call(lambda spool: spool.tidy())
            except (Full, Unavailable) as trouble:
                self.spool_thread.tell(trouble)


def keys_of(queued: Queued) -> list[Place]:
    """Return the keys of limits that may make the message wait, whichever of its recipients go."""
    by = queued.origin
    sender, sender_domain, client, user = sender_keys_of(by.sent_reverse_path, by.client, by.user)
    keys = [Place("sender", sender), Place("sender_domain", sender_domain)]
    keys += [Place("client", client), Place("user", user)]
    if queued.domain:
        keys.append(Place("recipient_domain", queued.domain))
    return keys
