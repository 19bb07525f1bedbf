"""The upstreams of the policy, an account for each: made, changed by edits, retired, used again.

Guarantees: an edit drops no transaction and forgets no history; an upstream that leaves
the policy, or gets another account, finishes what it has begun.  Each has a line of the queue of its
own (`relay.queue.queues`), which hears here of every change of its state.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from relay.policy.lane import with_ceilings
from relay.policy.model import Policy, Upstream
from relay.policy.shipped import rules_of
from relay.sender.account import Account
from relay.sender.accounts import Accounts
from relay.sender.connections import Openings, account_of, open_with_slot
from relay.sender.host import Host
from relay.sender.known_offers import KnownOffers, server_of
from relay.sender.known_upstream import KnownUpstream
from relay.sender.settling import Backlog
from relay.sender.state_file import KeptFile, account_file
from relay.sender.throttle_thread import ThrottleThread
from relay.sender.upstream_health import Pausing
from relay.telemetry.telemetry import Telemetry
from relay.throttle.file_history import FileHistory
from relay.throttle.throttle import Throttle, View
from relay.upstream.connection import Connection
from relay.upstream.pool import Caps, Pool
from relay.verdicts.account import AccountState, PauseRecord
from relay.verdicts.health import ENDLESS, Health
from relay.verdicts.operator_pause import OperatorPause, PauseAsked
from relay.verdicts.outcome import Answer
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Judge

Opener = Callable[[], Coroutine[Any, Any, Connection]]
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
    """What can be seen of an upstream at one instant.  Only `limits` answers as of when it is asked.

    Of one that is not in use, what a start would know of it.
    """

    health: Health = Health.USED
    because: str = ""
    """Why it rests; empty while it is used."""
    paused_until_ns: int = 0
    """Boottime; without meaning while it is used."""
    operator: OperatorPause | None = None
    """The operator's pause, while it lasts."""
    limits: View | None = None
    """None where the history cannot be judged."""
    proving_after: str = ""
    """What it rested for before it has to prove itself."""
    is_tried: bool = False
    """A transaction or a refusal has shown since the start whether it works."""
    connections_open: int = 0
    connections_idle: int = 0
    in_flight: int = 0
    """Transactions, and what of them is not settled."""
    transaction_ns: int = 0
    """How long the last ones took, on average; 0 before the first."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """By the label of each limit, the most slots that were occupied at one instant, as of the last audit."""
    certificate_ends_at_ns: int | None = None
    """Wall clock: when the upstream's certificate ends, as of the last connection under TLS."""
    client_certificate_ends_at_ns: int | None = None
    """Wall clock: when the one that it is shown ends."""

    @property
    def is_endless(self) -> bool:
        """Whether no instant is known at which mail goes again."""
        return self.health in ENDLESS or (self.operator is not None and self.operator.is_lasting)


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
        self.in_use: dict[str, Account] = {}
        self._openings: dict[str, Openings] = {}
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
            each.halt()

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

    def take_eight_bit(self, names: Iterable[str]) -> bool:
        """Whether each offered 8BITMIME the last time.  May be called from any thread."""
        in_use = [self.in_use.get(name) for name in names]
        return all(each is not None and each.known.offers.has_eight_bit for each in in_use)

    def pausing(self, name: str) -> Pausing | None:
        return None if (each := self.in_use.get(name)) is None else each.pausing

    def wake(self) -> None:
        """Have every upstream look what may go."""
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
        _configure(added, upstream)
        await added.known.recall(before)
        self.in_use[name] = added
        self._note(name, added.pausing)
        self._running[name] = asyncio.create_task(self.guard(added.run))

    def _made(self, name: str, upstream: Upstream) -> Account:
        throttle = self._throttle(name, upstream)
        known, backlog = self._known(name, upstream, throttle), self._backlog.of(name)
        wake = asyncio.Event()

        def fail(error: BaseException) -> None:
            # What is sent from now on could not be settled, and would be sent again.
            account.halt()
            self._on_fault(error)

        openings = self._openings[name] = Openings(
            name,
            self._telemetry,
            on_unavailable=known.pausing.rest,
            on_no_room=lambda wait: account.no_room_to_connect(wait),  # noqa: PLW0108 - it is made later
        )
        pool: Pool[Connection] = Pool(
            self._opener(name, upstream, known, throttle),
            _caps(upstream),
            self._clock,
            on_change=wake.set,
            on_failed=lambda error: openings.failed(error, is_any_open=pool.open > 0),
        )
        account = Account(
            name,
            backlog,
            known,
            throttle=throttle,
            pool=pool,
            telemetry=self._telemetry,
            wake=wake,
            on_fault=fail,
        )
        return account

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
            if name in self.in_use and self.in_use[name].pausing is not pausing:
                return  # of an account that left the policy, and came back meanwhile
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
            self._events.cut_off(upstream=name, windows=windows or "none", named=ruling.named)

    async def _change(self, name: str, before: Upstream, upstream: Upstream) -> None:
        changed, known = self.in_use[name], self.in_use[name].known
        known.use(rules_of(name, upstream), upstream)
        opener = None
        if is_other_server(before, upstream):
            # No transaction begins on a connection opened for another account.
            opener = self._opener(name, upstream, known, changed.throttle)
            self._openings[name].certificate_ends_at_ns = None
        limits = with_ceilings(upstream.limits, self._policy.lanes)
        await changed.throttle.replan(limits, upstream.guard_ns, upstream.max_transaction_ns)
        # By the new limits: they may have room for a connection.
        _configure(changed, upstream, opener)
        if is_mended(name, before, upstream):
            self._use_again(changed, changed.known.edited)
        changed.wake()

    def view(self, name: str) -> UpstreamView | None:
        if (each := self.in_use.get(name)) is None:
            return None
        state = each.pausing.state
        return UpstreamView(
            health=state.shown,
            because=state.why,
            paused_until_ns=state.over_ns,
            operator=state.operator,
            limits=each.throttle,
            proving_after=state.because if state.is_proving and not state.is_resting else "",
            is_tried=each.pausing.is_tried,
            connections_open=each.pool.open,
            connections_idle=each.pool.idle,
            in_flight=each.in_flight,
            transaction_ns=each.transaction_ns,
            counted=each.throttle.counted,
            certificate_ends_at_ns=self._openings[name].certificate_ends_at_ns,
            client_certificate_ends_at_ns=self._accounts.certificates.ends_at_ns(name),
        )

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

    def _use_again(self, each: Account, act: Callable[[], None]) -> None:
        """Have an upstream used again, carefully, and trust the senders that it refused."""
        act()
        line = self._backlog.queue.line(each.name)
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

    async def _stop(self, stopped: Account) -> None:
        """Stop an upstream for the end of this process: what is not settled then, a restart sends again."""
        await stopped.stop(GRACE_SECONDS)
        await stopped.give_up()

    def _retire(self, retired: Account, running: asyncio.Task[None]) -> None:
        async def retire() -> None:
            await retired.stop(GRACE_SECONDS)
            await running
            await retired.settled()

        retiring = asyncio.create_task(self.guard(retire))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    def _note(self, name: str, pausing: Pausing) -> None:
        """Have the queue hear of an upstream's state, unless it is of an account of before."""
        is_in_use = name in self.in_use and self.in_use[name].pausing is pausing
        if is_in_use:
            self._backlog.queue.note(name, pausing.standing)

    def _opener(
        self, name: str, upstream: Upstream, known: KnownUpstream, throttle: ThrottleThread
    ) -> Opener:
        def opened(connection: Connection) -> None:
            known.offers.seen(server_of(upstream), connection)
            self._openings[name].opened(connection)

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


def _configure(account: Account, upstream: Upstream, opener: Opener | None = None) -> None:
    account.connections, account.max_recipients = upstream.connections, upstream.max_recipients
    account.pool.configure(_caps(upstream), opener)


def _caps(upstream: Upstream) -> Caps:
    return Caps(upstream.connections, upstream.max_messages, upstream.max_age_ns, upstream.idle_ns)
