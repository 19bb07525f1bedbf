"""The upstreams of the policy, a dispatcher for each: made, changed by edits, retired, used again.

Guarantees: an edit drops no transaction and forgets no history; an upstream that leaves
the policy, or gets another account, finishes what it has begun.  The queue goes through
the policy's first one.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable

from relay.mail.age import Here
from relay.policy.lane import with_ceilings
from relay.policy.model import Policy, Upstream
from relay.policy.shipped import rules_of
from relay.sender.accounts import Accounts
from relay.sender.connections import account_of, open_with_slot
from relay.sender.delivery import KnownUpstream
from relay.sender.dispatcher import Dispatcher
from relay.sender.known_offers import KnownOffers, server_of
from relay.sender.lowered_limits import LoweredLimits
from relay.sender.settling import Backlog
from relay.sender.state_file import kept_state
from relay.sender.throttle_thread import ThrottleThread
from relay.sender.upstream_health import Pausing
from relay.spool.durable import Disk
from relay.telemetry.telemetry import Telemetry
from relay.throttle.throttle import Throttle
from relay.upstream.connection import Connection
from relay.upstream.pool import Pool
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Judge

GRACE_SECONDS = 60.0
"""How long transactions in flight may take at a stop; most of them then end within a second."""


class Upstreams:
    def __init__(
        self,
        policy: Policy,
        accounts: Accounts,
        backlog: Backlog,
        disk: Disk,
        telemetry: Telemetry,
        *,
        on_fault: Callable[[BaseException], None],
        here: Here,
    ) -> None:
        """`on_fault` is told of what must end the sender; `here` tells when something of another boot was."""
        self.dispatchers: dict[str, Dispatcher] = {}
        self._policy = policy
        self._accounts = accounts
        self._backlog, self._scheduler = backlog, backlog.scheduler
        self._disk = disk
        self._telemetry = telemetry
        self._events, self._metrics, _, self._clock = telemetry
        self._on_fault = on_fault
        self._here = here
        self._running: dict[str, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for name, upstream in self._policy.upstreams.items():
            self._add(name, upstream)

    async def finish(self) -> None:
        await asyncio.gather(*(dispatcher.stop(GRACE_SECONDS) for dispatcher in self.dispatchers.values()))
        await asyncio.gather(*self._running.values(), *self._retiring, return_exceptions=True)

    def halt(self) -> None:
        for dispatcher in self.dispatchers.values():
            dispatcher.halt()

    async def apply(self, policy: Policy) -> None:
        before, self._policy = self._policy, policy
        self._metrics.know_upstreams(policy.upstreams)
        for name in list(self.dispatchers):
            # Another account has another history, and what goes through it must be counted there.
            if name not in policy.upstreams or policy.history_path(name) != before.history_path(name):
                self._retire(self.dispatchers.pop(name), self._running.pop(name))
        for name, upstream in policy.upstreams.items():
            if name in self.dispatchers:
                is_other = account_of(before.upstreams[name]) != account_of(upstream)
                await self._change(self.dispatchers[name], upstream, upstream_changed=is_other)
            else:
                self._add(name, upstream)
        self._scheduler.ask_anew()
        self.wake()

    @property
    def _default(self) -> Dispatcher | None:
        return self.dispatchers.get(self._policy.default_upstream)

    def wake(self) -> None:
        if self._default is not None:
            self._default.wake()

    def default_pausing(self) -> Pausing | None:
        return None if self._default is None else self._default.pausing

    def wake_all(self) -> None:
        """Have every upstream look at the time again."""
        for dispatcher in self.dispatchers.values():
            dispatcher.wake()

    async def audit(self) -> None:
        for dispatcher in list(self.dispatchers.values()):
            await dispatcher.throttle.audit()
            for label in dispatcher.throttle.newly_crowded():
                self._events.keys_crowded(upstream=dispatcher.name, limit=label)

    @property
    def in_flight(self) -> int:
        return sum(dispatcher.in_flight for dispatcher in self.dispatchers.values())

    def _add(self, name: str, upstream: Upstream) -> None:
        throttle = self._throttle(name, upstream)
        known = self._known(name, upstream, throttle)
        pool = Pool(
            self._opener(name, upstream, known, throttle),
            connections=upstream.connections,
            max_messages=upstream.max_messages,
            max_age_ns=upstream.max_age_ns,
            idle_ns=upstream.idle_ns,
            clock=self._clock,
        )
        dispatcher = Dispatcher(
            name,
            self._backlog,
            known,
            throttle=throttle,
            pool=pool,
            telemetry=self._telemetry,
            on_fault=self._on_fault,
            wake_others=self.wake,
        )
        self._set(dispatcher, upstream)
        self.dispatchers[name] = dispatcher
        self._running[name] = asyncio.create_task(self.guard(dispatcher.run))

    def _throttle(self, name: str, upstream: Upstream) -> ThrottleThread:
        history = self._policy.history_path(name)
        exact = Throttle(
            history,
            with_ceilings(upstream.limits, self._policy.lanes),
            upstream.guard_ns,
            self._disk,
            self._clock,
            transaction_ns=upstream.max_transaction_ns,
        )
        return ThrottleThread(
            exact,
            self._clock,
            lambda error: self._fail_history(name, str(error)),
            lambda: self._events.history_begun(upstream=name, path=str(history)),
        )

    def _known(self, name: str, upstream: Upstream, throttle: ThrottleThread) -> KnownUpstream:
        kept = kept_state(self._policy, name, self._disk, self._events)
        lessons = LoweredLimits(name, self._telemetry, throttle, kept.lessons.keep)
        pausing = Pausing(
            name,
            self._telemetry,
            keep=kept.pause.keep,
            leaves_in_ns=throttle.leaves_in_ns,
            on_refusal=lessons.refused,
            here=self._here,
        )
        offers = KnownOffers(server_of(upstream), self._clock, keep=kept.offers.keep)
        known = KnownUpstream(Judge(()), Shield(), pausing, lessons, offers, kept)
        known.use(rules_of(name, upstream), upstream, self._policy.lanes)
        return known

    async def _change(self, dispatcher: Dispatcher, upstream: Upstream, *, upstream_changed: bool) -> None:
        self._set(dispatcher, upstream)
        known, throttle = dispatcher.known, dispatcher.throttle
        rules_before = known.judge.rules
        limits = known.use(rules_of(dispatcher.name, upstream), upstream, self._policy.lanes)
        opener = self._opener(dispatcher.name, upstream, known, throttle)
        dispatcher.pool.reconfigure(
            opener=opener if upstream_changed else None,
            connections=upstream.connections,
            max_messages=upstream.max_messages,
            max_age_ns=upstream.max_age_ns,
            idle_ns=upstream.idle_ns,
        )
        if upstream_changed:
            dispatcher.renew()
        await throttle.replan(limits, upstream.guard_ns, upstream.max_transaction_ns)
        if upstream_changed or known.judge.rules != rules_before:
            # What made it rest may be what was edited.
            self._resume(dispatcher)
        dispatcher.wake()

    def shield(self, name: str) -> Shield | None:
        return None if (dispatcher := self.dispatchers.get(name)) is None else dispatcher.shield

    def resume(self, name: str) -> bool:
        """Use a resting upstream, and senders that it refused, by an operator's word.

        Returns False where there is no such upstream.  It begins with one transaction.
        """
        if (dispatcher := self.dispatchers.get(name)) is None:
            return False
        self._resume(dispatcher)
        dispatcher.wake()
        return True

    def _resume(self, dispatcher: Dispatcher) -> None:
        dispatcher.known.resume()
        if dispatcher.is_used:
            for sender in self._scheduler.sender_pauses.senders():
                self._scheduler.trust_sender(sender, self._clock.boottime_ns())

    async def try_new_passwords(self) -> None:
        for name, upstream in self._policy.upstreams.items():
            dispatcher = self.dispatchers.get(name)
            if dispatcher is None or upstream.auth is None or not dispatcher.pausing.is_refused:
                continue
            if await self._accounts.has_new_password(name, upstream.auth) and dispatcher.pausing.is_refused:
                self.resume(name)

    def _retire(self, dispatcher: Dispatcher, running: asyncio.Task[None]) -> None:
        async def retire() -> None:
            await dispatcher.stop(GRACE_SECONDS)
            await running

        retiring = asyncio.create_task(self.guard(retire))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    def _set(self, dispatcher: Dispatcher, upstream: Upstream) -> None:
        dispatcher.connections, dispatcher.max_recipients = upstream.connections, upstream.max_recipients
        dispatcher.is_used = dispatcher.name == self._policy.default_upstream

    def _opener(
        self, name: str, upstream: Upstream, known: KnownUpstream, throttle: ThrottleThread
    ) -> Callable[[], Awaitable[Connection]]:
        return functools.partial(
            open_with_slot,
            throttle,
            functools.partial(self._accounts.account, name, upstream, known.judge),
            self._clock,
            functools.partial(known.offers.seen, server_of(upstream)),
        )

    async def guard(self, chore: Callable[[], Awaitable[None]]) -> None:
        """Run a chore; its end by an error ends the sender."""
        try:
            await chore()
        except Exception as error:  # noqa: BLE001 - whatever it is, mail must not silently stop
            self._on_fault(error)

    def _fail_history(self, name: str, text: str) -> None:
        self._metrics.history_failed(name)
        self._events.history_failed(upstream=name, error=text)
