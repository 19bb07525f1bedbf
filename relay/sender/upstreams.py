"""The upstreams of the policy, a dispatcher for each: made, changed by edits, retired, used again.

Guarantees: an edit drops no transaction and forgets no history; an upstream that leaves
the policy, or gets another account, finishes what it has begun.  Each has a line of the queue of its
own (`relay.queue.queues`), which hears here of every change of its state.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from relay.mail.envelope import QueueId
from relay.policy.lane import with_ceilings
from relay.policy.model import Policy, Upstream
from relay.policy.shipped import rules_of
from relay.sender.accounts import Accounts
from relay.sender.attempt import Attempt
from relay.sender.connections import Openings, account_of, open_with_slot
from relay.sender.delivery import Consequences, Delivery, KnownUpstream
from relay.sender.dispatcher import Departures, Dispatcher
from relay.sender.host import Host
from relay.sender.known_offers import KnownOffers, server_of
from relay.sender.settling import Backlog
from relay.sender.state_file import KeptFile, account_file
from relay.sender.throttle_thread import ThrottleThread
from relay.sender.upstream_health import Pausing
from relay.telemetry.telemetry import Telemetry
from relay.throttle.file_history import FileHistory
from relay.throttle.throttle import Throttle, View
from relay.upstream.connection import Connection
from relay.upstream.pool import Pool
from relay.verdicts.account import AccountState, PauseRecord
from relay.verdicts.health import ENDLESS, RESTING, TABLE, Happening, Health
from relay.verdicts.operator_pause import OperatorPause, PauseAsked
from relay.verdicts.outcome import Answer
from relay.verdicts.pauses import Paused
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Judge

GRACE_SECONDS = 60.0
"""How long transactions in flight may take at a stop; most of them then end within a second."""


def is_other_server(before: Upstream, after: Upstream) -> bool:
    """Return whether no transaction may begin on the connections of before."""
    return account_of(before) != account_of(after)


def is_mended(name: str, before: Upstream, after: Upstream) -> bool:
    """Return whether what made an upstream rest may be what was edited."""
    return is_other_server(before, after) or rules_of(name, before) != rules_of(name, after)


@dataclass(frozen=True, slots=True)
class UpstreamView:
    """What can be seen of an upstream at one instant.  Only `limits` answers as of when it is asked."""

    @property
    def is_endless(self) -> bool:
        """Whether no instant is known at which mail goes again."""
        return self.is_stopped or (self.operator is not None and self.operator.is_lasting)

    name: str
    is_used: bool
    """Whether mail may go through it: a route names it, or it is the first and there are no routes."""
    because: str
    """Why it rests; empty while it is used."""
    proving_after: str
    """What it rested for before it has to prove itself."""
    is_stopped: bool
    is_proving: bool
    paused_until_ns: int
    """Boottime; without meaning while it is used."""
    health: Health
    operator: OperatorPause | None
    """The operator's pause, while it lasts."""
    is_tried: bool
    """A transaction or a refusal has shown since the start whether it works."""
    pauses: tuple[Paused, ...]
    """When nothing was sent."""
    taken: int | None
    """Recipients taken since it refused too much; None where it is trusted."""
    connections: int
    max_recipients: int
    connections_open: int
    connections_idle: int
    under_way: Mapping[QueueId, tuple[int, Attempt]]
    """When each transaction was reserved, and what it is about."""
    in_flight: int
    """Transactions, and what of them is not settled."""
    transaction_ns: int
    suspects: frozenset[QueueId]
    """Messages whose refusals the shield doubts."""
    limits: View
    counted: Mapping[str, int]
    """By the label of each limit, the most slots that were occupied at one instant, as of the last audit."""
    certificate_ends_at_ns: int | None
    """Wall clock: when the upstream's certificate ends, as of the last connection under TLS."""
    client_certificate_ends_at_ns: int | None
    """Wall clock: when the one that it is shown ends."""

    def edited(self, upstream: Upstream, *, is_other_server: bool, is_mended: bool) -> Self:
        """Return what would be seen just behind an edit, which `Upstreams.apply` would carry out.

        `limits` answer by those of before.
        """
        health = TABLE[self.health, Happening.EDIT] if is_mended else self.health
        operator = self.operator
        if health in RESTING:
            because, until_ns = self.because, self.paused_until_ns
        else:
            because, until_ns = ("", 0) if operator is None else (operator.words, operator.until_ns)
        return replace(
            self,
            health=health,
            because=because,
            paused_until_ns=until_ns,
            is_stopped=health in ENDLESS,
            is_proving=health is Health.PROVING,
            connections=upstream.connections,
            max_recipients=upstream.max_recipients,
            connections_idle=0 if is_other_server else self.connections_idle,
        )


@dataclass(frozen=True, slots=True)
class UpstreamInUse:
    """All that serves one upstream, for as long as the policy has it with this account."""

    dispatcher: Dispatcher
    departures: Departures
    delivery: Delivery
    openings: Openings
    known: KnownUpstream
    throttle: ThrottleThread
    pool: Pool[Connection]
    wake: Callable[[], None]
    """Look again: mail came in, a slot opened, the policy changed."""

    @property
    def pausing(self) -> Pausing:
        return self.known.pausing

    @property
    def in_flight(self) -> int:
        return self.delivery.in_flight

    async def stop(self, grace_seconds: float) -> None:
        """Begin nothing more, and give what is in flight so long."""
        await self.dispatcher.stop()
        await self.delivery.finish(grace_seconds)
        await self.pool.close()
        await self.throttle.close()
        await self.known.kept.close()

    def view(self, *, is_used: bool, client_certificate_ends_at_ns: int | None) -> UpstreamView:
        departures, delivery, pausing, pool = self.departures, self.delivery, self.known.pausing, self.pool
        state = pausing.state
        return UpstreamView(
            name=departures.name,
            is_used=is_used,
            because=state.why,
            proving_after=state.because if state.is_proving and not state.is_resting else "",
            is_stopped=state.shown in ENDLESS,
            is_proving=state.is_proving,
            paused_until_ns=state.over_ns,
            health=state.shown,
            operator=state.operator,
            is_tried=pausing.is_tried,
            pauses=state.spans,
            taken=state.taken,
            connections=departures.connections,
            max_recipients=departures.max_recipients,
            connections_open=pool.open,
            connections_idle=pool.idle,
            under_way=dict(delivery.under_way),
            in_flight=delivery.in_flight,
            transaction_ns=delivery.transaction_ns,
            suspects=frozenset(suspect.queue_id for suspect in self.known.shield.suspects),
            limits=self.throttle,
            counted=self.throttle.counted,
            certificate_ends_at_ns=self.openings.certificate_ends_at_ns,
            client_certificate_ends_at_ns=client_certificate_ends_at_ns,
        )


class Upstreams:
    def __init__(
        self,
        policy: Policy,
        accounts: Accounts,
        backlog: Backlog,
        host: Host,
        telemetry: Telemetry,
        *,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`on_fault` is told of what must end the sender."""
        self.in_use: dict[str, UpstreamInUse] = {}
        self._policy = policy
        self._accounts = accounts
        self._backlog = backlog
        self._disk, self._workers = host.disk, host.workers
        self._telemetry = telemetry
        self._events, self._metrics, self._clock = telemetry
        self._on_fault = on_fault
        self._running: dict[str, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for name, upstream in self._policy.upstreams.items():
            await self._add(name, upstream)

    async def finish(self) -> None:
        stopping: list[Coroutine[Any, Any, object]] = [self._stop(each) for each in self.in_use.values()]
        if self._retiring:
            stopping.append(asyncio.wait(set(self._retiring), timeout=GRACE_SECONDS))
        await asyncio.gather(*stopping)
        for retiring in self._retiring:
            retiring.cancel()
        ending = *self._running.values(), *self._retiring
        await asyncio.gather(*ending, return_exceptions=True)
        await self._accounts.close()

    def halt(self) -> None:
        for each in self.in_use.values():
            each.dispatcher.halt()

    async def apply(self, policy: Policy) -> None:
        before, self._policy = self._policy, policy
        self._metrics.know_upstreams(policy.upstreams, policy.stand_ins)
        replaced: dict[str, AccountState] = {}
        for name in list(self.in_use):
            # Another account has another history, and what goes through it must be counted there.
            if name not in policy.upstreams or policy.history_path(name) != before.history_path(name):
                # Crash here: the pause is with the account of before, and its operator has to say it again.
                replaced[name] = self.in_use[name].pausing.state
                self._retire(self.in_use.pop(name), self._running.pop(name))
        for name, upstream in policy.upstreams.items():
            if name in self.in_use:
                await self._change(name, before.upstreams[name], upstream)
            else:
                await self._add(name, upstream, replaced.get(name))
        for name in self.in_use:
            self._backlog.queue.line(name).ask_anew()
        self.wake()

    def wake(self) -> None:
        """Have every upstream that has mail look what may go."""
        for name, each in self.in_use.items():
            if len(self._backlog.queue.line(name)):
                each.wake()

    def take_eight_bit(self, names: Iterable[str]) -> bool:
        """Whether each offered 8BITMIME the last time.  May be called from any thread."""
        in_use = [self.in_use.get(name) for name in names]
        return all(each is not None and each.known.offers.has_eight_bit for each in in_use)

    def pausing(self, name: str) -> Pausing | None:
        return None if (each := self.in_use.get(name)) is None else each.pausing

    def wake_all(self) -> None:
        """Have every upstream look at the time again."""
        for each in self.in_use.values():
            each.wake()

    async def audit(self) -> None:
        for name, each in list(self.in_use.items()):
            await each.throttle.count_peaks()
            for label in each.throttle.newly_crowded():
                self._events.keys_crowded(upstream=name, limit=label)

    @property
    def in_flight(self) -> int:
        return sum(each.in_flight for each in self.in_use.values())

    async def _add(self, name: str, upstream: Upstream, before: AccountState | None = None) -> None:
        """Use an upstream from now on; what was known of it is read before anything can change it."""
        added = self._made(name, upstream)
        self._set(added, upstream)
        await added.known.recall(before)
        self.in_use[name] = added
        self._note(name, added.pausing)
        self._running[name] = asyncio.create_task(self.guard(added.dispatcher.run))

    def _made(self, name: str, upstream: Upstream) -> UpstreamInUse:
        throttle = self._throttle(name, upstream)
        known, backlog = self._known(name, upstream, throttle), self._backlog.of(name)
        wake = asyncio.Event()
        openings = Openings(name, self._telemetry, known.pausing.rest)
        pool: Pool[Connection] = Pool(
            self._opener(name, upstream, known, throttle, openings),
            self._clock,
            on_change=wake.set,
            on_failed=lambda error: openings.failed(error, is_any_open=pool.open > 0),
        )
        _configure(pool, upstream)
        backlog.line.on_change = wake.set

        def fail(error: BaseException) -> None:
            # What is sent from now on could not be settled, and would be sent again.
            dispatcher.halt()
            self._on_fault(error)

        delivery = Delivery(
            backlog,
            Consequences(name, backlog, known, self._telemetry),
            throttle=throttle,
            pool=pool,
            clock=self._clock,
            on_free=wake.set,
            on_fault=fail,
        )
        departures = Departures(
            name,
            backlog,
            known,
            throttle=throttle,
            pool=pool,
            delivery=delivery,
            telemetry=self._telemetry,
        )
        dispatcher = Dispatcher(
            backlog,
            departures,
            pausing=known.pausing,
            throttle=throttle,
            pool=pool,
            telemetry=self._telemetry,
            wake=wake,
        )
        return UpstreamInUse(dispatcher, departures, delivery, openings, known, throttle, pool, wake.set)

    def _throttle(self, name: str, upstream: Upstream) -> ThrottleThread:
        history = self._policy.history_path(name)
        exact = Throttle(
            FileHistory(history, self._disk, self._clock),
            with_ceilings(upstream.limits, self._policy.lanes),
            upstream.guard_ns,
            self._clock,
            transaction_ns=upstream.max_transaction_ns,
        )
        return ThrottleThread(
            exact,
            self._clock,
            lambda error: self._fail_history(name, str(error)),
            lambda: self._events.history_begun(upstream=name, path=str(history)),
            self._workers,
        )

    def _known(self, name: str, upstream: Upstream, throttle: ThrottleThread) -> KnownUpstream:
        kept = KeptFile(
            account_file(self._policy, name, self._disk),
            lambda error: self._events.pause_unrecorded(upstream=name, error=error),
        )

        def keep(record: PauseRecord) -> None:
            kept.keep(record)
            self._note(name, pausing)

        pausing = Pausing(
            name,
            self._telemetry,
            keep=keep,
            leaves_in_ns=throttle.leaves_in_ns,
            on_refused=functools.partial(self._tell_cut_off, name, throttle),
        )
        offers = KnownOffers(server_of(upstream), self._clock)
        known = KnownUpstream(Judge(()), Shield(), pausing, offers, kept)
        known.use(rules_of(name, upstream), upstream)
        return known

    def _tell_cut_off(self, name: str, throttle: View, answer: Answer) -> None:
        """Tell what our own windows held where the upstream says that it was too much."""
        if (ruling := answer.ruling) is not None and ruling.is_too_much:
            self._metrics.cut_off(name)
            windows = ", ".join(f"{each.used}/{each.label}" for each in throttle.usage())
            named = None if ruling.named is None else ruling.named.slots
            self._events.cut_off(upstream=name, windows=windows or "none", named=named)

    async def _change(self, name: str, before: Upstream, upstream: Upstream) -> None:
        changed, upstream_changed = self.in_use[name], is_other_server(before, upstream)
        self._set(changed, upstream)
        known, throttle = changed.known, changed.throttle
        known.use(rules_of(name, upstream), upstream)
        limits = with_ceilings(upstream.limits, self._policy.lanes)
        # No transaction begins on a connection opened for another account.
        opener = self._opener(name, upstream, known, throttle, changed.openings) if upstream_changed else None
        _configure(changed.pool, upstream, opener)
        if upstream_changed:
            changed.openings.certificate_ends_at_ns = None
        await throttle.replan(limits, upstream.guard_ns, upstream.max_transaction_ns)
        if is_mended(name, before, upstream):
            self._use_again(changed, changed.known.edited)
        changed.wake()

    def view(self, name: str) -> UpstreamView | None:
        if (each := self.in_use.get(name)) is None:
            return None
        is_used = name in self._policy.listed_upstreams
        ends_at_ns = self._accounts.certificates.ends_at_ns(name)
        return each.view(is_used=is_used, client_certificate_ends_at_ns=ends_at_ns)

    def shield(self, name: str) -> Shield | None:
        return None if (each := self.in_use.get(name)) is None else each.known.shield

    def resume(self, name: str) -> bool:
        """Use a resting upstream, and senders that it refused, by an operator's word.

        It begins with one transaction.  Returns False where nothing rested, or there is no such upstream.
        """
        if (resumed := self.in_use.get(name)) is None:
            return False
        rested = not resumed.pausing.state.is_used
        rested = rested or bool(self._backlog.queue.line(name).sender_pauses.senders())
        self._use_again(resumed, resumed.known.resume)
        return rested

    def pause(self, name: str, asked: PauseAsked) -> bool:
        """Begin nothing more through an upstream, by an operator's word; what is in flight goes on.

        Returns False where there is no such upstream.
        """
        if (paused := self.in_use.get(name)) is None:
            return False
        now_ns, wall_ns = self._clock.boottime_ns(), self._clock.wall_ns()
        paused.pausing.keep_back(asked.begun(now_ns, wall_ns))
        paused.wake()
        return True

    async def recorded(self, name: str) -> str:
        """Wait until a restart would know for what it rests; return nothing, or why it would not."""
        each = self.in_use.get(name)
        return "" if each is None else await each.known.kept.written()

    def _use_again(self, each: UpstreamInUse, act: Callable[[], None]) -> None:
        """Have an upstream used again, carefully, and trust the senders that it refused."""
        act()
        line = self._backlog.queue.line(each.departures.name)
        for sender in line.sender_pauses.senders():
            line.trust_sender(sender, self._clock.boottime_ns())
        each.wake()

    async def look_at_secrets(self) -> None:
        """See which certificates and passwords were replaced; call it each second."""
        await self._accounts.certificates.look(self._policy.upstreams)
        await self._try_new_passwords()

    async def _try_new_passwords(self) -> None:
        for name, upstream in self._policy.upstreams.items():
            each = self.in_use.get(name)
            if each is None or upstream.auth is None or not each.pausing.state.is_refused:
                continue
            has_new = await self._accounts.has_new_password(name, upstream.auth)
            if has_new and each.pausing.state.is_refused:
                self._use_again(each, each.known.edited)

    async def _stop(self, stopped: UpstreamInUse) -> None:
        """Stop an upstream for the end of this process: what is not settled then, a restart sends again."""
        await stopped.stop(GRACE_SECONDS)
        await stopped.delivery.give_up()

    def _retire(self, retired: UpstreamInUse, running: asyncio.Task[None]) -> None:
        async def retire() -> None:
            await retired.stop(GRACE_SECONDS)
            await running
            await retired.delivery.settled()

        retiring = asyncio.create_task(self.guard(retire))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    def _note(self, name: str, pausing: Pausing) -> None:
        """Have the queue hear of an upstream's state, unless it is of an account of before."""
        is_in_use = name in self.in_use and self.in_use[name].pausing is pausing
        if is_in_use:
            self._backlog.queue.note(name, pausing.standing)

    def _set(self, changed: UpstreamInUse, upstream: Upstream) -> None:
        departures = changed.departures
        departures.connections, departures.max_recipients = upstream.connections, upstream.max_recipients

    def _opener(
        self,
        name: str,
        upstream: Upstream,
        known: KnownUpstream,
        throttle: ThrottleThread,
        openings: Openings,
    ) -> Callable[[], Coroutine[Any, Any, Connection]]:
        def opened(connection: Connection) -> None:
            known.offers.seen(server_of(upstream), connection)
            openings.opened(connection)

        logins = self._accounts.logins(name, upstream, known.judge)
        return functools.partial(open_with_slot, throttle, logins, self._clock, opened)

    async def guard(self, chore: Callable[[], Awaitable[None]]) -> None:
        """Run a chore; its end by an error ends the sender."""
        try:
            await chore()
        except Exception as error:  # noqa: BLE001 - whatever it is, mail must not silently stop
            self._on_fault(error)

    def _fail_history(self, name: str, text: str) -> None:
        self._metrics.history_failed(name)
        self._events.history_failed(upstream=name, error=text)


def _configure(
    pool: Pool[Connection],
    upstream: Upstream,
    opener: Callable[[], Coroutine[Any, Any, Connection]] | None = None,
) -> None:
    pool.configure(
        connections=upstream.connections,
        max_messages=upstream.max_messages,
        max_age_ns=upstream.max_age_ns,
        idle_ns=upstream.idle_ns,
        opener=opener,
    )
