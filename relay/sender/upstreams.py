"""The upstreams of the policy, an account for each: made, edited, seen, retired, paused and used again.

Guarantees: an upstream that leaves the policy, or gets another account, finishes its transactions.  Each
has a line of the queue of its own (`relay.queue.queues`), which learns each change of its state.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from relay.policy.model import Policy
from relay.sender.account import Account
from relay.sender.host import Host
from relay.sender.logins import Logins
from relay.sender.settling import Backlog
from relay.telemetry.metrics import Telemetry
from relay.throttle.throttle import View
from relay.verdicts.account import ENDLESS, AccountState, EventKind, PauseAsked
from relay.verdicts.shield import Shield

GRACE_SECONDS = 60.0
"""How long transactions in flight may take at a stop; most of them then end within a second."""


@dataclass(frozen=True, slots=True)
class UpstreamView:
    """A snapshot of an upstream, or what a start would know of one that is not in use.

    Only `limits` answers as of when it is asked.
    """

    state: AccountState = field(default_factory=AccountState)
    limits: View | None = None
    """None if the history cannot be judged."""
    is_tried: bool = False
    """Whether a transaction or a refusal has shown since the start if the upstream works."""
    connections_open: int = 0
    connections_idle: int = 0
    in_flight: int = 0
    """Transactions that run, or ran and are not settled."""
    transaction_ns: int = 0
    """Average duration of the last transactions; 0 before the first."""
    certificate_ends_at_ns: int | None = None
    """Wall clock: when the upstream's certificate ends, as of the last connection under TLS."""
    client_certificate_ends_at_ns: int | None = None
    """Wall clock: when the client's certificate, which the upstream is shown, ends."""

    @property
    def is_endless(self) -> bool:
        """Whether no instant is known at which mail goes again."""
        operator = self.state.operator
        return self.state.shown in ENDLESS or (operator is not None and operator.is_lasting)


class Upstreams:
    def __init__(
        self,
        policy: Policy,
        hostname: str,
        backlog: Backlog,
        host: Host,
        telemetry: Telemetry,
        *,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self.in_use: dict[str, Account] = {}
        self._logins: dict[str, Logins] = {}
        """One for each upstream, kept when its account changes: no two may rotate one refresh token."""
        self._policy, self._hostname = policy, hostname
        self._backlog, self._host, self._telemetry = backlog, host, telemetry
        self._on_fault = on_fault
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for name in self._policy.upstreams:
            await self._add(name, None)

    async def finish(self) -> None:
        # What is not settled by then, a restart sends again.
        ends = [each.stop(GRACE_SECONDS, gives_up=True) for each in self.in_use.values()]
        stopping = [asyncio.create_task(each) for each in ends]
        if stopping or self._retiring:
            # An account that left the policy has the same grace as those in use.
            await asyncio.wait([*stopping, *self._retiring], timeout=GRACE_SECONDS)
        await asyncio.gather(*stopping)
        for retiring in self._retiring:
            retiring.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in self._logins.values()))

    def halt(self) -> None:
        for each in self.in_use.values():
            each.halt()

    async def apply(self, policy: Policy) -> None:
        before, self._policy = self._policy, policy
        self._telemetry.metrics.know_upstreams(policy.upstreams, policy.instead_of_pairs)
        replaced: dict[str, AccountState] = {}
        for name in list(self.in_use):
            # Another account has another history, which must count the transactions of that account.
            if name not in policy.upstreams or policy.history_of(name) != before.history_of(name):
                # Crash here: the pause is saved for the old account alone, and the operator must repeat it.
                replaced[name] = self.in_use[name].pausing.state
                self._retire(self.in_use.pop(name))
        for name, upstream in policy.upstreams.items():
            if name in self.in_use:
                self._logins[name].upstream = upstream
                await self.in_use[name].use(policy)
            else:
                await self._add(name, replaced.get(name))
        for name in self.in_use:
            self._backlog.queue.line(name).ask_anew()

    def wake(self) -> None:
        """Have every account look at once for messages that may go."""
        for each in self.in_use.values():
            each.wake()

    @property
    def in_flight(self) -> int:
        return sum(each.in_flight for each in self.in_use.values())

    def view(self, name: str) -> UpstreamView | None:
        if (each := self.in_use.get(name)) is None:
            return None
        return UpstreamView(
            each.pausing.state,
            each.throttle.view,
            is_tried=each.pausing.is_tried,
            connections_open=each.pool.open,
            connections_idle=each.pool.idle,
            in_flight=each.in_flight,
            transaction_ns=each.transactions.transaction_ns,
            certificate_ends_at_ns=each.certificate_ends_at_ns,
            client_certificate_ends_at_ns=self._logins[name].certificate_ends_at_ns,
        )

    def shield(self, name: str) -> Shield | None:
        return None if (each := self.in_use.get(name)) is None else each.pausing.shield

    def resume(self, name: str) -> bool:
        """End the pauses of an upstream and of senders that it refused, by an operator's command.

        One transaction goes first.  Returns False if nothing was paused, or there is no such upstream.
        """
        return name in self.in_use and self.in_use[name].use_again(EventKind.RESUME)

    def pause(self, name: str, asked: PauseAsked) -> bool:
        """Begin no more transactions of an upstream, by an operator's command; those in flight go on.

        Returns False if there is no such upstream.
        """
        if (paused := self.in_use.get(name)) is None:
            return False
        clock = self._telemetry.clock
        pause = asked.begun(clock.boottime_ns(), clock.wall_ns())
        paused.pausing.apply(EventKind.KEEP, pause=pause)
        paused.wake()
        return True

    async def recorded(self, name: str) -> str:
        """Wait until an upstream's pause is durable; return the error, empty if there is none."""
        each = self.in_use.get(name)
        return "" if each is None else await each.pausing.recorded()

    async def look_at_secrets(self) -> None:
        """Use a refused account again if its password was replaced; call it each second."""
        for name, each in list(self.in_use.items()):
            logins, state = self._logins[name], each.pausing.state
            if state.is_refused and await logins.has_new_password() and each.pausing.state.is_refused:
                each.use_again(EventKind.EDIT)

    async def guard(self, chore: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function; an error in it ends the sender."""
        try:
            await chore()
        except Exception as error:  # noqa: BLE001 - whatever it is, mail must not silently stop
            self._on_fault(error)

    async def _add(self, name: str, replaced: AccountState | None) -> None:
        upstream = self._policy.upstreams[name]
        if (logins := self._logins.get(name)) is None:
            logins = self._logins[name] = Logins(
                name, upstream, self._hostname, disk=self._host.disk, telemetry=self._telemetry
            )
        logins.upstream = upstream
        added = Account(
            name,
            self._policy,
            self._backlog,
            logins=logins,
            host=self._host,
            telemetry=self._telemetry,
            on_fault=self._on_fault,
        )
        await added.start(replaced)
        # An account without a record announces no change, and the replaced one may have been down.
        self._backlog.queue.set_availability(name, added.pausing.availability)
        self.in_use[name] = added

    def _retire(self, retired: Account) -> None:
        pausing, path = retired.pausing, retired.pausing.state_file.path
        # A retired account saves its state for its return, unless an account in use has the same file.
        pausing.owns_state_file = lambda: all(
            each.pausing.state_file.path != path for each in self.in_use.values()
        )
        pausing.on_change = lambda _: None

        stop = partial(retired.stop, GRACE_SECONDS, gives_up=False)
        retiring = asyncio.create_task(self.guard(stop))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
