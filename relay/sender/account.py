"""The loop of one upstream account: take, have connections, reserve durably, send, judge, settle durably.

It beats when there is something to do, and otherwise sleeps until the queue, a pause or the pool says.  Only
the throttle decides what may go, and only by `reserve`.

Guarantees: no byte of MAIL before its slot is on disk; whatever happens, the slot ends, the connection goes
back to its pool or ends, and the message leaves ACTIVE; nothing about a message is forgotten once the
upstream replied; a message that was not attempted has lost nothing.  When the history fails, nothing is sent.
A refusal about us pauses the upstream; it comes back with a single transaction, a small one, and fully when
that one went well.  If a settlement could not be written, `on_fault` is told, and only a restart may go on.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId, Shape
from relay.queue.queued import Queued, WaitReason
from relay.queue.upstream_queue import Waits
from relay.sender.attempt import Attempt
from relay.sender.carrier import Carrier
from relay.sender.consequences import Consequences
from relay.sender.known_upstream import KnownUpstream
from relay.sender.loading import Loading
from relay.sender.settling import AccountBacklog
from relay.sender.spool_thread import seconds
from relay.sender.throttle_thread import ThrottleThread
from relay.sender.upstream_health import Pausing
from relay.smtp.reply import Phase
from relay.spool.disk.os_errors import is_lack_of_means
from relay.spool.interface import Absent, Corrupt, Unavailable
from relay.telemetry.telemetry import Telemetry
from relay.throttle.admission import Request, TooLarge, Wait, request_for
from relay.throttle.history import HistoryError
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection
from relay.upstream.pool import Pool
from relay.verdicts.account import largest
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.verdict import Verdict

MOST_AT_ONCE = 64
"""Messages decided on in one beat."""
UNSETTLED = 2
"""Messages begun and not settled, for each connection: it need not wait for the disk."""
HISTORY_RETRY_NS = 60 * SECOND_NS
MEANS_RETRY_NS = SECOND_NS
SHORT_WAIT_NS = SECOND_NS
"""A shorter wait for room is not logged."""


class Account:
    def __init__(
        self,
        name: str,
        backlog: AccountBacklog,
        known: KnownUpstream,
        *,
        throttle: ThrottleThread,
        pool: Pool[Connection],
        telemetry: Telemetry,
        wake: asyncio.Event,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`wake` is set when there may be something to do; `on_fault` is told of what must end the sender."""
        self.name, self.known, self.throttle, self.pool = name, known, throttle, pool
        self.connections = self.max_recipients = 1
        self._line, self._queue = backlog.line, backlog.queue
        self._loading = Loading(backlog, telemetry.clock)
        self._carrier = Carrier(backlog.spool_thread, throttle, pool, telemetry.clock)
        self._consequences = Consequences(name, backlog, known, telemetry)
        self._events, self._metrics, self._clock = telemetry
        self._wake, self._on_fault = wake, on_fault
        self._unsettled: dict[Queued, asyncio.Task[None]] = {}
        """What was begun and is not settled."""
        self._transacting: set[Queued] = set()
        """Of these, those that need their connections yet."""
        self._is_over = False
        """Nothing more may begin."""
        self._has_ended = asyncio.Event()
        self._has_history = False
        self._told: dict[str, QueueId] = {}
        """By lane: the message last logged as waiting for room."""
        self._line.on_change = wake.set

    @property
    def pausing(self) -> Pausing:
        return self.known.pausing

    @property
    def in_flight(self) -> int:
        """Return how many transactions there are, and what of them is not settled."""
        return len(self._unsettled)

    @property
    def transaction_ns(self) -> int:
        return self._carrier.transaction_ns

    def wake(self) -> None:
        """Look again: an operator or an edit changed something."""
        self._wake.set()

    async def run(self) -> None:
        """Beat until halted."""
        try:
            while not self._is_over:
                self._wake.clear()
                try:
                    looks_again_at_ns = await self._beat()
                except HistoryError as error:
                    looks_again_at_ns = self._fail_history(error)
                await self._sleep_until(looks_again_at_ns)
        finally:
            self._has_ended.set()

    async def _beat(self) -> int | None:
        """Begin what may begin; return when to look again, None for "when woken".  Raises HistoryError."""
        if (paused_until_ns := self.pausing.until_ns(self._clock.boottime_ns())) is not None:
            return paused_until_ns
        await self._open_history()
        now_ns = self._clock.boottime_ns()
        if self._line.first(now_ns) is None:
            return self._line.next_look_ns()
        connections = self.pool.take(self._most_now())
        if not connections:
            return None  # one that is opened, or the end of a transaction, wakes this
        waits: list[Waits] = []
        for attempt, answer in await self._reserve(await self._load(connections, now_ns)):
            match answer:
                case Reservation():
                    self._begin(attempt, answer)
                case TooLarge():
                    self._refuse(attempt, _too_large(attempt, answer), is_for_ever=True)
                    self.pool.release(attempt.connection, was_used=False)
                case Wait():
                    waits.append(Waits(attempt.queued, answer.until_ns, answer.place, _no_room(answer)))
                    self.pool.release(attempt.connection, was_used=False)
        self._line.wait(waits)
        self._tell_waiting(waits[:1])
        return now_ns

    def _most_now(self) -> int:
        """Return how many transactions may be begun, by connections and by what is to be proven."""
        unsettled = UNSETTLED * self.connections - len(self._unsettled)
        free = self.connections - len(self._transacting)
        if self.pausing.state.is_proving:
            free = min(free, 1 - len(self._unsettled))
        return max(0, min(MOST_AT_ONCE, unsettled, free, self._line.ready_count))

    async def _load(self, connections: list[Connection], now_ns: int) -> list[Attempt]:
        """Take what goes next, read it, and give each a connection that can carry it; release the others."""
        attempts: list[Attempt] = []
        taken = self._line.take(len(connections), now_ns)
        for queued, message, rewritten in await self._loading.load(taken):
            left = queued.part.left(message.left)
            attempt = Attempt(queued, message, connections[-1], list(left), rewritten=rewritten)
            if (fit := _fitting(connections, attempt.shape)) is not None:
                connections.remove(fit)
                attempt.connection = fit
                # None is asked for twice in a round.
                attempt.indices = [index for index in left if index not in queued.past.tried] or list(left)
                # A report that the upstream makes goes to whom it knows as the sender.
                attempt.passes_dsn = rewritten is None and self.known.offers.takes_dsn(fit)
                attempts.append(attempt)
            elif (unfit := attempt.connection.unfit(attempt.shape)) is not None:
                answer = self.known.offers.judged(unfit, attempt.shape.size_bytes)
                self._refuse(attempt, answer, is_for_ever=answer.verdict is Verdict.BOUNCE)
        for connection in connections:
            self.pool.release(connection, was_used=False)
        return attempts

    async def _reserve(
        self, attempts: Sequence[Attempt]
    ) -> Iterable[tuple[Attempt, Reservation | Wait | TooLarge]]:
        """Have the throttle decide; give all back where a stop, or a refusal of another, overtakes it."""
        answers: list[Reservation | Wait | TooLarge] = []
        why = ""
        try:
            if attempts and not self._must_not_begin:
                began_ns = self._clock.boottime_ns()
                answers = await self.throttle.reserve([self._request(attempt) for attempt in attempts])
                self._metrics.decided(self.name, self._clock.boottime_ns() - began_ns)
        except HistoryError:
            why = "the history of the limits failed"
            raise
        finally:
            if why or self._must_not_begin:
                self._give_back(attempts, answers, why)
                answers = []
        return zip(attempts, answers, strict=False)

    def _give_back(
        self, attempts: Sequence[Attempt], answers: Iterable[Reservation | Wait | TooLarge], why: str
    ) -> None:
        for answer in answers:
            if isinstance(answer, Reservation):
                # The slot is wasted, and nothing was sent.
                self.throttle.ended(answer)
        for attempt in reversed(attempts):
            self._line.give_back(attempt.queued, WaitReason(why))
            self.pool.release(attempt.connection, was_used=False)

    @property
    def _must_not_begin(self) -> bool:
        return self._is_over or self.pausing.state.is_resting

    def _request(self, attempt: Attempt) -> Request:
        """Return the request: as many recipients as a transaction may have, of those that have room."""
        usual = min(self.max_recipients, attempt.connection.max_recipients or self.max_recipients)
        most = largest(usual, self.pausing.state.taken)
        lane = self._line.lane_of(attempt.queued)
        # Never over by the upstream's count: a limit for each sender is for the one that it sees.
        return request_for(attempt.sent_envelope, attempt.indices, most, lane, attempt.shape.size_bytes)

    def _begin(self, attempt: Attempt, reservation: Reservation) -> None:
        # The reservation is on disk: a crash from here on wastes a slot, and can exceed no limit.
        queued = attempt.queued
        self._line.granted(queued, reservation.recipients)
        attempt.reservation = reservation
        attempt.indices = [attempt.indices[position] for position in reservation.chosen]
        self._metrics.reserved_after(self.name, reservation.reserved_at_ns - queued.since_ns)
        self._transacting.add(queued)
        self._unsettled[queued] = asyncio.create_task(self._send(attempt, reservation))

    def _refuse(self, attempt: Attempt, unfit: Answer, *, is_for_ever: bool) -> None:
        """Begin to settle what does not go, without asking the upstream or using a slot.

        It is deferred, so that nobody waits for it, its sender is told, and an edit can still help.  What the
        upstream can never take goes on through the next one of its route instead, if there is one.
        """
        now_ns = attempt.ended_ns = self._clock.boottime_ns()
        if not (is_for_ever and self._queue.pass_on(attempt.queued, WaitReason(unfit.text), now_ns)):
            outcome = Outcome((unfit,) * len(attempt.indices))
            self._unsettled[attempt.queued] = asyncio.create_task(self._settle(attempt, outcome))

    async def _send(self, attempt: Attempt, reservation: Reservation) -> None:
        """Run a transaction, and settle what it comes to."""
        outcome: Outcome | None = None
        try:
            outcome = await self._carrier.carry(attempt, reservation)
        except asyncio.CancelledError:
            # Its grace is over, and perhaps only its upstream leaves the policy: others may go on with it.
            self._line.give_back(attempt.queued, WaitReason("its transaction did not end in time"))
            if attempt.is_content_out:
                self._queue.stay_unknown(attempt.queued, reservation.deadline_ns)
            raise
        except (Corrupt, Absent, Unavailable) as error:
            self._loading.unreadable(attempt.queued, error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, what was sent is not settled
            self._on_fault(error)
        finally:
            self._transacting.discard(attempt.queued)
            if outcome is None:
                self._unsettled.pop(attempt.queued, None)
            self._wake.set()
        if outcome is not None:
            await self._settle(attempt, outcome)

    async def _settle(self, attempt: Attempt, outcome: Outcome) -> None:
        try:
            await self._consequences.settle(attempt, outcome)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, what was sent is not settled
            self._on_fault(error)
        finally:
            self._unsettled.pop(attempt.queued, None)
            self._wake.set()

    def no_room_to_connect(self, wait: Wait) -> None:
        """Tell that the first message waits for a connection."""
        if (first := self._line.first(self._clock.boottime_ns())) is not None:
            first.why = _no_room(wait)
            self._tell_waiting([Waits(first, wait.until_ns, None, first.why)])

    def _tell_waiting(self, waits: Collection[Waits]) -> None:
        """Log once that a message waits for room."""
        for queued, until_ns, _, why in waits:
            wait_ns = until_ns - self._clock.boottime_ns()
            if queued.queue_id != self._told.get(queued.lane) and wait_ns >= SHORT_WAIT_NS:
                self._told[queued.lane] = queued.queue_id
                self._metrics.had_to_wait(self.name)
                self._events.waiting(
                    queue_id=queued.queue_id,
                    upstream=self.name,
                    reason=why.text,
                    until_at_ns=self._clock.wall_ns() + wait_ns,
                    lane=self._line.lane_of(queued) or None,
                )

    async def _open_history(self) -> None:
        """Read what the limits hold, unless that was done.  Raises HistoryError."""
        if not self._has_history:
            await self.throttle.open()
            self._has_history = True
            self.pausing.trust_history()

    def _fail_history(self, error: HistoryError) -> int:
        """Send nothing until the history can be trusted again; return when to look."""
        self._has_history = False
        if is_lack_of_means(error.__cause__):
            # It says nothing about the history; it is read anew, and until then nothing is sent.
            self._events.shortage(where=f"upstream {self.name}", error=str(error))
            return self._clock.boottime_ns() + MEANS_RETRY_NS
        self._metrics.history_failed(self.name)
        self._events.history_failed(upstream=self.name, error=str(error))
        return self.pausing.stop(str(error), HISTORY_RETRY_NS)

    async def _sleep_until(self, at_ns: int | None) -> None:
        left_ns = None if at_ns is None else at_ns - self._clock.boottime_ns()
        if left_ns is None:
            await self._wake.wait()
        elif left_ns <= 0:
            await asyncio.sleep(0)
        else:
            timer = asyncio.get_running_loop().call_later(seconds(left_ns), self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()

    def halt(self) -> None:
        """Begin nothing more; what is in flight goes on."""
        self._is_over = True
        self._wake.set()
        self.pool.stop()

    async def stop(self, grace_seconds: float) -> None:
        """Begin nothing more, and give what is in flight so long; transactions that take longer are cut off.

        What they came to is settled however late (`settled`): else it would be sent again.
        """
        self.halt()
        # A beat that is under way may still begin something, or give it back.
        await self._has_ended.wait()
        if self._unsettled:
            await asyncio.wait(self._unsettled.values(), timeout=grace_seconds)
            late = [self._unsettled[each] for each in self._transacting]
            for sending in late:
                sending.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.pool.close()
        await self.throttle.close()
        await self.known.kept.close()

    async def settled(self) -> None:
        """Wait until all are settled.  Cancelled, it gives up."""
        await asyncio.gather(*self._unsettled.values(), return_exceptions=True)

    async def give_up(self) -> None:
        """Settle nothing more: only a restart may go on with what is not."""
        for unsettled in self._unsettled.values():
            unsettled.cancel()
        await self.settled()


def _too_large(attempt: Attempt, found: TooLarge) -> Answer:
    has = f"the message has {attempt.shape.size_bytes} octets"
    text = f"{has}, and the limit {found.limit_label} lets no more than {found.count} go"
    return Answer(Verdict.DEFER, Phase.MAIL, None, text, own_status="4.3.4")


def _no_room(wait: Wait) -> WaitReason:
    if wait.place is not None and wait.place.for_each == "lane":
        return WaitReason(f"no room under the ceiling of lane {wait.place.key}")
    return WaitReason(f"no room in {wait.limit_label}")


def _fitting(connections: Sequence[Connection], shape: Shape) -> Connection | None:
    return next((each for each in reversed(connections) if each.unfit(shape) is None), None)
