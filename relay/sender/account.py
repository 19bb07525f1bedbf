"""The loop of one upstream account: take messages, get connections, reserve slots durably, send.

The loop runs one pass after each change of the queue, a pause or the pool, and sleeps in between.  Only the
throttle decides what may go, and only by `reserve`.

Guarantees: no byte of MAIL goes out before its slot is on disk.  A message that was not attempted has lost
nothing.  When the history fails, nothing is sent.  A refusal about us pauses the upstream.  After the pause
one transaction goes first, a small one after a refusal for too much; the rest follows once it went well.
An edit drops no transaction and forgets no history.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.mail.text import clean
from relay.policy.model import Policy, Upstream
from relay.policy.shipped import rules_of
from relay.queue.queued import WaitReason
from relay.queue.upstream_queue import ThrottledMessage
from relay.sender.connections import Logins, NoRoomToConnect, OfferedExtensions
from relay.sender.host import Host, woken
from relay.sender.pausing import Pausing, account_store
from relay.sender.settling import Attempt, Settling
from relay.sender.threads import ThrottleThread
from relay.sender.transactions import Transactions
from relay.smtp.reply import Phase
from relay.telemetry.metrics import Telemetry
from relay.throttle.admission import Admission, Request, TooLarge, Wait, request_for
from relay.throttle.history import HistoryError
from relay.throttle.limit import with_ceilings
from relay.throttle.throttle import Reservation, Throttle, View, open_history
from relay.upstream.connection import Connection, UpstreamUnavailable
from relay.upstream.pool import Pool
from relay.verdicts.account import AccountState, Event, EventKind, Health, PauseAsked, max_recipients_now
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Judge, Verdict

UNSETTLED = 2
"""Unsettled transactions for each connection: the next one need not wait for the disk."""
HISTORY_RETRY_NS = 60 * SECOND_NS
SHARED_RETRY_NS = 5 * SECOND_NS
"""For a history in a database."""
GRACE_SECONDS = 60.0
"""How long transactions in flight may take at a stop; most of them then end within a second."""
ENOUGH_NS = 30 * SECOND_NS
"""After a failed connection, while others work, the pool opens none for at least this long."""
_SERVER_KEYS = ("host", "port", "source_address", "tls", "ca_file", "tls_certificate", "tls_key")
_OPENED_WITH = (*_SERVER_KEYS, "auth", "pipelining")
"""The policy's keys with which a connection is opened."""
SHORT_WAIT_NS = SECOND_NS
"""A shorter wait for room is not logged."""


@dataclass(frozen=True, slots=True)
class UpstreamView:
    """A snapshot of an account and its parts.  Only `limits` answers as of when it is asked."""

    state: AccountState = field(default_factory=AccountState)
    limits: View | None = None
    """None if the upstream is not in use."""
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
        return self.state.shown is Health.STOPPED or (operator is not None and operator.is_lasting)


class Account:
    def __init__(
        self,
        name: str,
        policy: Policy,
        settling: Settling,
        *,
        logins: Logins,
        host: Host,
        telemetry: Telemetry,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`on_fault` is called with an error that must end the sender."""
        self.name = name
        self.upstream = logins.upstream = policy.upstreams[name]
        self._line, self._logins = settling.queue.line(name), logins
        self._events, self._metrics, self._clock = telemetry
        self._on_fault = on_fault
        self.wake = asyncio.Event()
        """When it is set, the loop runs a pass."""
        self._line.on_change = self.wake.set
        self._judge = Judge(())
        history = self._history = policy.history_of(name)
        store = self._store = account_store(policy, name, host.disk, host.clock)
        exact = Throttle(
            open_history(history, host.disk, host.clock, store.note_row),
            with_ceilings(self.upstream, policy.lanes),
            host.clock,
            transaction_ns=self.upstream.max_transaction_ns,
        )
        self.throttle = ThrottleThread(exact, host.clock, self._tell_history, host.workers)
        self.pausing = Pausing(
            name,
            telemetry,
            store,
            view=self.throttle.view,
            on_change=partial(settling.queue.set_availability, name),
        )
        self.pool = Pool(
            self._opener(),
            self.upstream,
            host.clock,
            on_change=self.wake.set,
            on_failed=self._failed_to_open,
        )
        self.transactions = Transactions(
            name,
            settling,
            throttle=self.throttle,
            pool=self.pool,
            pausing=self.pausing,
            telemetry=telemetry,
            on_end=self.wake.set,
            on_fault=on_fault,
        )
        self._judge_by(self.upstream)
        self._is_over = False
        """No transaction may begin any more."""
        self._running: asyncio.Task[None] | None = None
        self._has_history = False
        self._told: dict[str, QueueId] = {}
        """By lane: the message last logged as waiting for room."""

    @property
    def in_flight(self) -> int:
        return self.transactions.unsettled

    def view(self) -> UpstreamView:
        return UpstreamView(
            self.pausing.state,
            self.throttle.view,
            is_tried=self.pausing.is_tried,
            connections_open=self.pool.open,
            connections_idle=self.pool.idle,
            in_flight=self.in_flight,
            transaction_ns=self.transactions.transaction_ns,
            certificate_ends_at_ns=self._offered.certificate_ends_at_ns,
            client_certificate_ends_at_ns=self._logins.certificate_ends_at_ns,
        )

    async def start(self, replaced: AccountState | None) -> None:
        """Load the saved pause state, then start the loop, which runs until `halt`.

        `replaced` is the state of the account that an edit replaced by this one.
        """
        await self.pausing.recall(replaced)
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        listening = asyncio.create_task(self._store.listen(self._learn))
        try:
            while not self._is_over:
                self.wake.clear()
                try:
                    looks_again_at_ns = await self._beat()
                except HistoryError as error:
                    looks_again_at_ns = self._fail_history(error)
                await woken(self.wake, looks_again_at_ns, self._clock)
        except Exception as error:  # noqa: BLE001 - whatever it is, mail must not silently stop
            self._on_fault(error)
        finally:
            listening.cancel()

    async def _beat(self) -> int | None:
        """Run one pass; return when the next is due (boottime; None: when woken).  Raises HistoryError."""
        if (paused_until_ns := self.pausing.until_ns(self._clock.boottime_ns())) is not None:
            return paused_until_ns
        await self._open_history()
        now_ns = self._clock.boottime_ns()
        if self._line.first(now_ns) is None:
            return self._line.next_look_ns()
        connections = self.pool.take(self._most_now())
        if not connections:
            return None  # a connection that opens, or a transaction that ends, wakes the loop
        taken = self._line.take(len(connections), now_ns)
        attempts = await self.transactions.load(taken, connections, self._offered)
        for connection in connections:
            self.pool.release(connection, was_used=False)
        waits: list[ThrottledMessage] = []
        for attempt, answer in await self._reserve(attempts):
            match answer:
                case Reservation():
                    self.transactions.begin(attempt, answer)
                    continue
                case TooLarge():
                    self.transactions.refuse(attempt, _too_large(attempt, answer), is_for_ever=True)
                case Wait():
                    why = WaitReason(answer.limit.reason)
                    waits.append(ThrottledMessage(attempt.queued, answer.until_ns, answer.place, why))
            self.pool.release(attempt.connection, was_used=False)
        self._line.wait(waits)
        if waits:
            self._tell_waiting(waits[0])
        return now_ns

    def _most_now(self) -> int:
        """Return how many transactions may begin now; one at a time while the upstream is proving."""
        most = 1 if self.pausing.state.is_proving else UNSETTLED * self.upstream.connections
        return max(0, min(most - self.in_flight, self._line.ready_count))

    async def _reserve(self, attempts: Sequence[Attempt]) -> list[tuple[Attempt, Admission]]:
        """Reserve slots; on an error, a stop or another refusal give all back.  Raises HistoryError."""
        if not attempts:
            return []
        began_ns = self._clock.boottime_ns()
        try:
            requests = [self._request(attempt) for attempt in attempts]
            answers = await self.throttle.call(lambda throttle: throttle.reserve(requests))
        except HistoryError:
            self._give_back(attempts, "the history of the limits failed")
            raise
        took_ns = self._clock.boottime_ns() - began_ns
        self._metrics.observe("relay_history_duration_seconds", self.name, span_ns=took_ns)
        if self._may_begin():
            return list(zip(attempts, answers, strict=True))
        for answer in answers:
            if isinstance(answer, Reservation):
                # The slot is wasted, and nothing was sent.
                self.throttle.ended(answer)
        self._give_back(attempts, "")
        return []

    def _give_back(self, attempts: Sequence[Attempt], why: str) -> None:
        for attempt in reversed(attempts):
            self._line.give_back(attempt.queued, WaitReason(why))
            self.pool.release(attempt.connection, was_used=False)

    def _may_begin(self) -> bool:
        """Return whether a transaction may begin.  Ask after a reservation: it brought other hosts' news."""
        self.pausing.learn()
        return not (self._is_over or self.pausing.state.is_resting)

    def _learn(self) -> None:
        self.pausing.learn()
        self.wake.set()

    def _request(self, attempt: Attempt) -> Request:
        """Return the request, for no more recipients than one transaction may have."""
        most = max_recipients_now(self.upstream.max_recipients, self.pausing.state.taken)
        lane = self._line.lane_of(attempt.queued)
        # The upstream counts the sender that it sees, so limits for each sender count the rewritten one.
        return request_for(attempt.sent_envelope, attempt.indices, most, lane, attempt.shape.size_bytes)

    def _tell_waiting(self, first: ThrottledMessage) -> None:
        """Log once that a message waits for room."""
        queued, wait_ns = first.message, first.until_ns - self._clock.boottime_ns()
        if queued.queue_id != self._told.get(queued.lane) and wait_ns >= SHORT_WAIT_NS:
            self._told[queued.lane] = queued.queue_id
            self._events.tell(
                "waiting",
                queue_id=queued.queue_id,
                upstream=self.name,
                reason=first.why.text,
                until_at_ns=self._clock.wall_ns() + wait_ns,
                lane=self._line.lane_of(queued) or None,
            )

    async def _open_history(self) -> None:
        """Read the history unless it is open already.  Raises HistoryError."""
        if not self._has_history:
            await self.throttle.call(Throttle.flush)
            if self.throttle.view.is_empty:
                self._events.tell("history_begun", upstream=self.name, path=str(self._history))
            self._has_history = True
            if self.pausing.state.fault:
                self.pausing.apply(Event(EventKind.SOUND, self._clock.boottime_ns()))

    def _fail_history(self, error: HistoryError) -> int:
        """Pause the account until the history is sound; return when to read it again (boottime)."""
        self._has_history = False
        self._tell_history(error)
        now_ns = self._clock.boottime_ns()
        until_ns = now_ns + (HISTORY_RETRY_NS if self._history.database is None else SHARED_RETRY_NS)
        self.pausing.apply(Event(EventKind.FAULT, now_ns, str(error), until_ns=until_ns))
        return until_ns

    def _tell_history(self, error: HistoryError) -> None:
        self._metrics.count("relay_history_errors_total", self.name)
        self._events.tell("history_failed", upstream=self.name, error=str(error))

    def _opener(self) -> Callable[[], Coroutine[Any, Any, Connection]]:
        """Return an opener for the server that the policy names now, of which no offer is known yet."""
        offered = self._offered = OfferedExtensions()

        async def open_one() -> Connection:
            connection = await self._logins.open(self.throttle, self._judge, may_begin=self._may_begin)
            offered.add(connection)
            self._metrics.count("relay_upstream_connects_total", self.name, "ready")
            self._events.tell(
                "upstream_connected", upstream=self.name, relay=connection.name, tls=connection.tls
            )
            return connection

        return open_one

    def _failed_to_open(self, error: Exception) -> int:
        """Handle a failed opening; return for how many ns the pool opens no other connection."""
        match error:
            case HistoryError():
                return self._fail_history(error) - self._clock.boottime_ns()
            case NoRoomToConnect(until_ns=until_ns):
                if (first := self._line.first(self._clock.boottime_ns())) is not None:
                    first.why = WaitReason(str(error))
                    self._tell_waiting(ThrottledMessage(first, until_ns, None, first.why))
                return until_ns - self._clock.boottime_ns()
            case UpstreamUnavailable():
                answer = error.answer
            case _:
                # A fault of ours: log it and pause, or mail would stop silently.
                self._events.fault(where=f"upstream {self.name}", error=error)
                self._metrics.count("relay_faults_total")
                text = clean(f"no connection could be opened: {error}")
                answer = Answer(Verdict.PAUSE, Phase.CONNECT, None, text)
        self._metrics.connect_failed(self.name, answer)
        if self.pool.open and answer.verdict is not Verdict.STOP:
            asked_ns = 0 if answer.ruling is None else answer.ruling.wait_ns or 0
            return max(ENOUGH_NS, asked_ns)
        # A refused account is paused even while other connections work: each further try may lock it.
        self.pausing.rest(answer)
        return 0

    async def use(self, policy: Policy) -> None:
        """Apply an edited policy.  Transactions in flight end under the old one."""
        before, after = self.upstream, policy.upstreams[self.name]
        self.upstream = self._logins.upstream = after
        self._judge_by(after)
        # No transaction begins on a connection opened for another account.
        opener = self._opener() if is_other_server(before, after) else None
        limits = with_ceilings(after, policy.lanes)
        await self.throttle.call(lambda it: it.replan(limits, transaction_ns=after.max_transaction_ns))
        # Only now: the new limits may have room for a connection.
        self.pool.configure(after, opener)
        if is_mended(self.name, before, after):
            self.use_again(EventKind.EDIT)
        self.wake.set()

    def pause(self, asked: PauseAsked) -> None:
        """Begin no more transactions, by an operator's command; those in flight go on."""
        now_ns = self._clock.boottime_ns()
        pause = asked.begun(now_ns, self._clock.wall_ns())
        self.pausing.apply(Event(EventKind.KEEP, now_ns, pause=pause))
        self.wake.set()

    def use_again(self, why: EventKind) -> bool:
        """End the pauses of the upstream and of senders that it refused, by a RESUME or an EDIT.

        One transaction proves the upstream first.  Returns False if it and all senders were in use.
        """
        rested, senders = not self.pausing.state.is_used, self._line.sender_pauses.senders()
        self.pausing.end(why)
        for sender in senders:
            self._line.trust_sender(sender, self._clock.boottime_ns())
        self.wake.set()
        return rested or bool(senders)

    async def look_at_secrets(self) -> None:
        """Use a refused account again if its password was replaced; call it each second."""
        pausing = self.pausing
        if pausing.state.is_stopped and await self._logins.has_new_password() and pausing.state.is_stopped:
            self.use_again(EventKind.EDIT)

    def _judge_by(self, upstream: Upstream) -> None:
        """Judge replies by the policy's rules from now on, on open connections too."""
        self._judge.rules = rules_of(self.name, upstream)
        shield = self.pausing.shield
        shield.is_off = upstream.shield is None
        if upstream.shield is not None:
            shield.in_a_row = upstream.shield.in_a_row

    def halt(self) -> None:
        """Begin no more transactions; those in flight go on."""
        self._is_over = True
        self.wake.set()
        self.pool.stop()

    async def stop(self) -> None:
        """Begin no more transactions, and cut off those that still run after the grace.

        Outcomes are settled however late, or their messages would be sent again.
        """
        self.halt()
        await self.transactions.stop(GRACE_SECONDS)
        if self._running is not None:
            # A pass under way gives its messages back, once it has the history.
            await self._running
        await self.pool.close()
        await self.throttle.close()
        await self.pausing.recorded()
        await self.transactions.settled()


def is_other_server(before: Upstream, after: Upstream) -> bool:
    """Return whether an edit names another server or login: no transaction may use old connections."""
    return any(getattr(before, key) != getattr(after, key) for key in _OPENED_WITH)


def is_mended(name: str, before: Upstream, after: Upstream) -> bool:
    """Return whether an edit may have removed the cause of a pause."""
    return is_other_server(before, after) or rules_of(name, before) != rules_of(name, after)


def _too_large(attempt: Attempt, found: TooLarge) -> Answer:
    limit = f"limit {found.limit.label} allows at most {found.limit.count}"
    text = f"the message has {attempt.shape.size_bytes} octets; {limit}"
    return Answer(Verdict.DEFER, Phase.MAIL, None, text, own_status="4.3.4")
