"""The sender: the one holder of the spool's lock, with the queue in memory and a heart per upstream.

Takes new mail when the trigger is pulled, and every few seconds in case a pull was lost;
starts by recovering; keeps the numbers that an operator sees; applies a policy edit.
Stopping is finishing the transactions in flight, then dying.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from relay.clock import SECOND_NS, Clock
from relay.outcome import Answer
from relay.policy.model import Mechanism, Policy, Upstream
from relay.policy.secrets import SecretError, read_password
from relay.reply import Phase, clean
from relay.scheduler import Queued, Scheduler, State
from relay.service.desk import Desk
from relay.service.events import Events
from relay.service.gate import Gate
from relay.service.heart import Heart
from relay.service.metrics import Metrics
from relay.service.redaction import Redaction
from relay.service.reports import Reporter
from relay.service.settling import Settling
from relay.settlement import Terms
from relay.spool.durable import Disk
from relay.spool.interface import Absent, Corrupt, Entry, Spool, SpoolFull, Totals
from relay.spool.trigger import Trigger
from relay.throttle.throttle import Throttle
from relay.upstream.connection import Account, Connection, UpstreamUnavailable, open_connection
from relay.upstream.pool import Pool
from relay.verdict import Verdict

SWEEP_SECONDS = 3.0
"""How long a lost trigger can cost."""
SUSPEND_NS = SECOND_NS
"""How much more the time of this boot may have passed than the loop's before we call it a suspend."""
LOOK_SECONDS = 1.0
"""How old the account and the free space in a snapshot may be."""
GRACE_SECONDS = 60.0
"""How long transactions in flight may take at a stop; most of them then end within a second."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was last read off the spool, for showing."""

    totals: Totals = field(default_factory=Totals)
    free_bytes: int = 0
    free_inodes: int | None = None
    corrupt: int = 0


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
        events: Events,
        metrics: Metrics,
        redaction: Redaction,
        clock: Clock,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`on_fault` is told of what must end the sender: a disk that cannot be trusted, a fault of ours."""
        self.scheduler = Scheduler()
        self.desk = Desk(spool, Reporter(hostname), self._tell_full)
        self.seen = Seen()
        self.hearts: dict[str, Heart] = {}
        self._trigger = trigger
        self._policy = policy
        self._hostname = hostname
        self._disk = disk
        self._events = events
        self._metrics = metrics
        self._redaction = redaction
        self._clock = clock
        self._on_fault = on_fault
        self._new_mail = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._chores: list[asyncio.Task[None]] = []
        self._finishing = asyncio.Lock()
        self._is_finished = False
        self.settling = Settling(
            self.scheduler,
            self.desk,
            events,
            metrics,
            clock,
            terms=_terms(policy),
            redaction=redaction,
            on_report=self._new_mail.set,
        )

    async def read(self) -> None:
        """Recover: read the whole queue, end what only lacks its end, take what was accepted meanwhile.

        Raises OSError and SpoolFault when the spool cannot be read.
        """
        began_ns = self._clock.boottime_ns()
        recovery = await self.desk.recover()
        for entry in sorted(recovery.entries, key=lambda entry: entry.queue_id):
            await self._admit(entry)
        self._events.recovered(
            counts={
                "queued": len(self.scheduler),
                "finished": sum(entry.recipients_left == 0 for entry in recovery.entries),
                "corrupt": recovery.corrupt,
                "abandoned": recovery.abandoned,
                "missing_recipients": recovery.missing_recipients,
            },
            duration_ns=self._clock.boottime_ns() - began_ns,
        )
        await self.take_now()
        await self.look()

    async def start(self) -> None:
        """Recover, then relay.  Raises OSError and SpoolFault when the spool cannot be read."""
        await self.read()
        for name in self._policy.upstreams:
            self._add_heart(name, self._policy.upstreams[name])
        asyncio.get_running_loop().add_reader(self._trigger.listen(), self._pulled)
        for chore in (self._take_forever, self._look_forever):
            self._chores.append(asyncio.create_task(self._guard(chore)))
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
            for chore in self._chores:
                chore.cancel()
            await asyncio.gather(*self._chores, return_exceptions=True)
            await asyncio.gather(*(heart.stop(GRACE_SECONDS) for heart in self.hearts.values()))
            await asyncio.gather(*self._running.values(), *self._retiring, return_exceptions=True)

    def close(self) -> None:
        """Let go of the spool; another sender may have it from here on."""
        self.desk.close()
        self._trigger.close()

    def fail(self, error: BaseException) -> None:
        """End because of something that only a restart can make good; nothing more is begun meanwhile."""
        for heart in self.hearts.values():
            heart.halt()
        self._on_fault(error)

    async def apply(self, policy: Policy) -> None:
        """Go on by another policy.  Connections finish their transactions under the old one."""
        before, self._policy = self._policy, policy
        self.settling.terms = _terms(policy)
        self._metrics.know_upstreams(policy.upstreams)
        for name in list(self.hearts):
            # Another account has another history, and what goes through it must be counted there.
            if name not in policy.upstreams or policy.history_path(name) != before.history_path(name):
                self._retire(self.hearts.pop(name), self._running.pop(name))
        for name, upstream in policy.upstreams.items():
            if name in self.hearts:
                is_other = _account_of(before.upstreams[name]) != _account_of(upstream)
                await self._change_heart(self.hearts[name], upstream, upstream_changed=is_other)
            else:
                self._add_heart(name, upstream)
        self.wake()

    def wake(self) -> None:
        """Look again whether something can be sent."""
        if (heart := self.hearts.get(self._policy.default_upstream)) is not None:
            heart.wake()

    async def take_now(self) -> None:
        """Take what listeners accepted so far into the queue.  Raises SpoolFault."""
        try:
            while entries := await self.desk.take():
                for entry in entries:
                    await self._admit(entry)
                self.wake()
        except SpoolFull as full:
            # What is queued already goes on, and gives room.
            self._tell_full(str(full))

    @property
    def in_flight(self) -> int:
        """Return how many transactions are not at their end."""
        return sum(heart.in_flight for heart in self.hearts.values())

    def _add_heart(self, name: str, upstream: Upstream) -> None:
        throttle = Throttle(
            self._policy.history_path(name),
            upstream.limits,
            upstream.guard_ns,
            self._disk,
            self._clock,
        )
        gate = Gate(throttle, self._clock, lambda error: self._fail_history(name, str(error)))
        pool = Pool(
            self._opener(upstream),
            connections=upstream.connections,
            max_messages=upstream.max_messages,
            max_age_ns=upstream.max_age_ns,
            idle_ns=upstream.idle_ns,
            clock=self._clock,
        )
        heart = Heart(
            name,
            scheduler=self.scheduler,
            desk=self.desk,
            gate=gate,
            pool=pool,
            settling=self.settling,
            events=self._events,
            metrics=self._metrics,
            clock=self._clock,
            on_fault=self.fail,
            wake_others=self.wake,
        )
        self._set(heart, upstream)
        self.hearts[name] = heart
        self._running[name] = asyncio.create_task(self._guard(heart.run))

    async def _change_heart(self, heart: Heart, upstream: Upstream, *, upstream_changed: bool) -> None:
        self._set(heart, upstream)
        heart.pool.reconfigure(
            opener=self._opener(upstream) if upstream_changed else None,
            connections=upstream.connections,
            max_messages=upstream.max_messages,
            max_age_ns=upstream.max_age_ns,
            idle_ns=upstream.idle_ns,
        )
        if upstream_changed:
            heart.renew()
        await heart.gate.replan(upstream.limits, upstream.guard_ns)
        if upstream_changed:
            # What made it rest may be what was edited.
            heart.pausing.end()
        heart.wake()

    def _retire(self, heart: Heart, running: asyncio.Task[None]) -> None:
        """Let an upstream that is no longer in the policy finish what it has begun."""

        async def retire() -> None:
            await heart.stop(GRACE_SECONDS)
            await running

        retiring = asyncio.create_task(self._guard(retire))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    def _set(self, heart: Heart, upstream: Upstream) -> None:
        heart.connections, heart.max_recipients = upstream.connections, upstream.max_recipients
        heart.is_used = heart.name == self._policy.default_upstream

    def _opener(self, upstream: Upstream) -> Callable[[], Awaitable[Connection]]:
        async def opened() -> Connection:
            password = None
            if upstream.auth is not None:
                # Read for each connection, so that a new password counts from the next one on.
                try:
                    password = await asyncio.to_thread(read_password, upstream.auth)
                except SecretError as error:
                    raise UpstreamUnavailable(
                        Answer(Verdict.PAUSE, Phase.AUTH, None, clean(str(error)))
                    ) from None
                self._redaction.add(upstream.auth.user, password)
            account = Account(
                upstream.host,
                upstream.port,
                upstream.tls,
                self._hostname,
                ca_file=upstream.ca_file,
                user=upstream.auth.user if upstream.auth else None,
                password=password,
                mechanism=upstream.auth.mechanism if upstream.auth else Mechanism.AUTO,
            )
            return await open_connection(account, self._clock)

        return opened

    async def _admit(self, entry: Entry) -> None:
        """Put a message into the queue, or end one that only lacks its end."""
        if entry.recipients_left > 0:
            self.scheduler.add(self._queued(entry))
            return
        (message,) = await self.desk.load([entry.queue_id])
        # One that is corrupt was set aside just now, and has been told of.
        with contextlib.suppress(Absent, Corrupt):
            if isinstance(message, Exception):
                raise message
            await self.settling.finish(message)

    def _queued(self, entry: Entry) -> Queued:
        """Convert an entry of the spool to the queue's own time."""
        now_ns, wall_ns = self._clock.boottime_ns(), self._clock.wall_ns()
        queued = Queued(
            entry.queue_id,
            entry.reverse_path,
            entry.size_bytes,
            # What seems to come from the future was written by a clock that has stepped back since.
            now_ns - max(0, wall_ns - entry.arrival_at_ns),
            entry.arrival_at_ns,
            entry.recipients_left,
            is_warned=entry.is_warned,
            recipients_shown=entry.recipients_shown,
        )
        wait_ns = (entry.next_attempt_at_ns or 0) - wall_ns
        if entry.is_held:
            queued.state = State.HELD
        elif 0 < wait_ns <= self._policy.retry.max_ns:
            queued.state, queued.due_at_ns = State.DEFERRED, now_ns + wait_ns
            queued.reason = "deferred before the last start"
        return queued

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
                for heart in self.hearts.values():
                    heart.wake()
            await self.look()
            if now_ns - drafts_at_ns > 3600 * SECOND_NS:
                drafts_at_ns = now_ns
                with contextlib.suppress(SpoolFull):
                    await self.desk.call(self.desk.spool.clean_up)

    async def look(self) -> None:
        """Read the account and the free space off the spool, for showing."""
        self.seen = await self.desk.call(self._read_spool)

    def _read_spool(self) -> Seen:
        free_bytes, free_inodes = self.desk.spool.free()
        return Seen(self.desk.spool.totals(), free_bytes, free_inodes, self.desk.spool.corrupt_count())

    async def _guard(self, chore: Callable[[], Awaitable[None]]) -> None:
        """Run one of our loops; its end by an error ends the sender."""
        try:
            await chore()
        except Exception as error:  # noqa: BLE001 - whatever it is, mail must not silently stop
            self.fail(error)

    def _tell_full(self, text: str) -> None:
        self._metrics.spool_failed()
        self._events.spool_failed(error=text)

    def _fail_history(self, name: str, text: str) -> None:
        self._metrics.history_failed(name)
        self._events.history_failed(upstream=name, error=text)


def _terms(policy: Policy) -> Terms:
    retry = policy.retry
    return Terms(retry.min_ns, retry.max_ns, retry.lifetime_ns, retry.warn_after_ns)


def _account_of(upstream: Upstream) -> tuple[object, ...]:
    """Return what a connection depends on: another one means other connections."""
    return (upstream.host, upstream.port, upstream.tls, upstream.ca_file, upstream.auth)
