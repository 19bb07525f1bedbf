"""Take the next messages, have ready connections, reserve durably, send, judge, settle durably.

One `Dispatcher` for each upstream: it beats when there is something to do and otherwise sleeps
until a slot opens, a back-off ends, a pause is over or mail comes in.  No polling.  Its `Departures`
bring what may go to a transaction, or back to the queue.

Guarantees: no byte of MAIL before its slot is on disk; nothing about a message is
forgotten once the upstream replied; a message that was not attempted has lost nothing.
When the history fails, nothing is sent.  A refusal about us pauses the upstream; it
comes back with a single transaction, a small one, and fully when that one went well.
"""

import asyncio
from collections.abc import Iterable

from relay.clock import SECOND_NS
from relay.mail.envelope import Shape
from relay.queue.queued import WaitReason
from relay.queue.upstream_queue import Waits
from relay.sender.attempt import Attempt
from relay.sender.delivery import Delivery, KnownUpstream
from relay.sender.settling import AccountBacklog
from relay.sender.spool_thread import seconds
from relay.sender.throttle_thread import ThrottleThread
from relay.sender.upstream_health import Pausing
from relay.smtp.reply import Phase
from relay.spool.disk.os_errors import is_lack_of_means
from relay.telemetry.telemetry import Telemetry
from relay.throttle.admission import Place, Request, TooLarge, Wait, request_for
from relay.throttle.history import HistoryError
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection
from relay.upstream.pool import Pool
from relay.verdicts.account import largest
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

MOST_AT_ONCE = 64
"""Messages decided on in one beat."""
HISTORY_RETRY_NS = 60 * SECOND_NS
MEANS_RETRY_NS = SECOND_NS
SHORT_WAIT_NS = SECOND_NS
"""A shorter wait for room is not logged."""


class Departures:
    """Ready messages on their way: to a connection that carries each, and a durable slot; or back."""

    def __init__(
        self,
        name: str,
        backlog: AccountBacklog,
        known: KnownUpstream,
        *,
        throttle: ThrottleThread,
        pool: Pool[Connection],
        delivery: Delivery,
        telemetry: Telemetry,
    ) -> None:
        self.name = name
        self.connections = self.max_recipients = 1
        self.is_over = False
        """Nothing more may begin."""
        self._line = backlog.line
        self._throttle = throttle
        self._pool = pool
        self._delivery = delivery
        self._pausing, self._offers = known.pausing, known.offers
        self._events, self._metrics, self._clock = telemetry
        self._told: dict[str, str] = {}
        """By lane: the message last logged as waiting for room."""

    def most_now(self) -> int:
        """Return how many transactions may be started, by connections and slow start."""
        most = min(MOST_AT_ONCE, self._delivery.room(self.connections), self._line.ready_count)
        if self._pausing.state.is_proving:
            most = min(most, 1 - self._delivery.in_flight)
        return most

    async def begin(self, connections: list[Connection], now_ns: int) -> None:
        """Have as many messages as may go depart.  Raises HistoryError."""
        if attempts := await self._take(connections, now_ns):
            await self._reserve_and_send(attempts)

    async def _take(self, connections: list[Connection], now_ns: int) -> list[Attempt]:
        taken = self._line.take(len(connections), now_ns)
        attempts: list[Attempt] = []
        for queued, message, rewritten in await self._delivery.load(taken):
            left = queued.part.left(message.left)
            attempt = Attempt(queued, message, connections[-1], list(left), rewritten=rewritten)
            if (fit := _fitting(connections, attempt.shape)) is not None:
                connections.remove(fit)
                attempt.connection = fit
                # None is asked for twice in a round.
                attempt.indices = [index for index in left if index not in queued.past.tried] or list(left)
                # A report that the upstream makes goes to whom it knows as the sender.
                attempt.passes_dsn = rewritten is None and self._offers.takes_dsn(fit)
                attempts.append(attempt)
            elif (unfit := attempt.connection.unfit(attempt.shape)) is not None:
                answer = self._offers.judged(unfit, attempt.shape.size_bytes)
                self._delivery.refuse(attempt, answer, is_for_ever=answer.verdict is Verdict.BOUNCE)
        for connection in connections:
            self._pool.release(connection, was_used=False)
        if self._must_not_begin:
            self._give_back(attempts, "")
            return []
        return attempts

    async def _reserve_and_send(self, attempts: list[Attempt]) -> None:
        """Send what there is room for; the others wait."""
        began_ns = self._clock.boottime_ns()
        try:
            grants = await self._throttle.reserve([self._request(attempt) for attempt in attempts])
        except HistoryError:
            self._give_back(attempts, "the history of the limits failed")
            raise
        self._metrics.decided(self.name, self._clock.boottime_ns() - began_ns)
        waits: list[Waits] = []
        for attempt, grant in zip(attempts, grants, strict=True):
            match grant:
                case Reservation() if self._must_not_begin:
                    # The slot is wasted, and nothing was sent.
                    self._throttle.ended(grant)
                    self._give_back([attempt], "")
                case Reservation():
                    self._send(attempt, grant)
                case TooLarge():
                    # Deferred, so that nobody waits for it, its sender is told, and an edit can still help.
                    self._delivery.refuse(attempt, _too_large(attempt, grant), is_for_ever=True)
                    self._pool.release(attempt.connection, was_used=False)
                case Wait(until_ns, label, place):
                    waits.append(Waits(attempt.queued, until_ns, place, _no_room(label, place)))
                    self._pool.release(attempt.connection, was_used=False)
        self._line.wait(waits)
        for each in waits[:1]:
            self._tell_waiting(each)

    def _request(self, attempt: Attempt) -> Request:
        """Return the request: as many recipients as a transaction may have, of those that have room."""
        usual = min(self.max_recipients, attempt.connection.max_recipients or self.max_recipients)
        most = largest(usual, self._pausing.state.taken)
        lane = self._line.lane_of(attempt.queued)
        # Never over by the upstream's count: a limit for each sender is for the one that it sees.
        return request_for(attempt.sent_envelope, attempt.indices, most, lane, attempt.shape.size_bytes)

    def _send(self, attempt: Attempt, reservation: Reservation) -> None:
        queued = attempt.queued
        self._line.granted(queued, reservation.recipients)
        attempt.indices = [attempt.indices[position] for position in reservation.chosen]
        self._metrics.reserved_after(self.name, reservation.reserved_at_ns - queued.since_ns)
        self._delivery.send(attempt, reservation)

    def _give_back(self, attempts: Iterable[Attempt], reason: str) -> None:
        for attempt in reversed(list(attempts)):
            self._line.give_back(attempt.queued, WaitReason(reason))
            self._pool.release(attempt.connection, was_used=False)

    def _tell_waiting(self, waits: Waits) -> None:
        """Log once that a message waits for room."""
        queued, wait_ns = waits.message, waits.until_ns - self._clock.boottime_ns()
        if queued.queue_id != self._told.get(queued.lane) and wait_ns >= SHORT_WAIT_NS:
            self._told[queued.lane] = queued.queue_id
            self._metrics.had_to_wait(self.name)
            self._events.waiting(
                queue_id=queued.queue_id,
                upstream=self.name,
                reason=waits.why.text,
                until_at_ns=self._clock.wall_ns() + wait_ns,
                lane=self._line.lane_of(queued) or None,
            )

    @property
    def _must_not_begin(self) -> bool:
        """Whether a stop, or a refusal of another transaction, overtakes what this beat decided."""
        return self.is_over or bool(self._pausing.because)


class Dispatcher:
    """Looks what may go, in a fixed order, and when to look again."""

    def __init__(
        self,
        backlog: AccountBacklog,
        departures: Departures,
        *,
        pausing: Pausing,
        throttle: ThrottleThread,
        pool: Pool[Connection],
        telemetry: Telemetry,
        wake: asyncio.Event,
    ) -> None:
        """`wake` is set when there may be something to do."""
        self._pausing, self._throttle = pausing, throttle
        self._departures = departures
        self._line = backlog.line
        self._pool = pool
        self._events, self._metrics, self._clock = telemetry
        self._wake = wake
        self._has_ended = asyncio.Event()
        self._has_history = False

    async def run(self) -> None:
        """Beat until halted."""
        try:
            while not self._departures.is_over:
                self._wake.clear()
                try:
                    looks_again_at_ns = await self._beat()
                except HistoryError as error:
                    looks_again_at_ns = await self._fail_history(error)
                await self._sleep_until(looks_again_at_ns)
        finally:
            self._has_ended.set()

    def halt(self) -> None:
        """Start nothing more; what is in flight goes on."""
        self._departures.is_over = True
        self._wake.set()
        self._pool.stop()

    async def stop(self) -> None:
        """Halt, and wait for a beat that is under way: it may still start something, or give it back."""
        self.halt()
        await self._has_ended.wait()

    async def _beat(self) -> int | None:
        """Begin what can begin now; return when to look again, None for "when woken"."""
        if (paused_until_ns := self._pausing.until_ns(self._clock.boottime_ns())) is not None:
            return paused_until_ns
        await self._read_history()
        now_ns = self._clock.boottime_ns()
        if self._line.first(now_ns) is None:
            return self._line.next_look_ns()
        if (most := self._departures.most_now()) <= 0:
            return None  # the end of a transaction wakes us
        openings, opens_at_ns, _ = self._throttle.room_for_connections()
        connections = self._pool.take(most, openings=openings)
        if connections:
            await self._departures.begin(connections, now_ns)
            return now_ns
        if openings == 0 and not self._pool.is_opening:
            return opens_at_ns
        return None  # one is being opened, and wakes us

    async def _read_history(self) -> None:
        """Read what the limits hold.  Raises HistoryError."""
        if not self._has_history:
            await self._throttle.open()
            self._has_history = True
            self._pausing.trust_history()
        await self._throttle.hear_of_others()

    async def _fail_history(self, error: HistoryError) -> int:
        """Send nothing until the history can be trusted again; return when to look."""
        self._has_history = False
        if is_lack_of_means(error.__cause__):
            # It says nothing about the history; it is read anew, and until then nothing is sent.
            self._events.shortage(where=f"upstream {self._departures.name}", error=str(error))
            return self._clock.boottime_ns() + MEANS_RETRY_NS
        self._metrics.history_failed(self._departures.name)
        self._events.history_failed(upstream=self._departures.name, error=str(error))
        return self._pausing.stop(str(error), HISTORY_RETRY_NS)

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


def _too_large(attempt: Attempt, found: TooLarge) -> Answer:
    has = f"the message has {attempt.shape.size_bytes} octets"
    text = f"{has}, and the limit {found.limit_label} lets no more than {found.count} go"
    return Answer(Verdict.DEFER, Phase.MAIL, None, text, own_status="4.3.4")


def _no_room(label: str, place: Place | None) -> WaitReason:
    if place is not None and place.for_each == "lane":
        return WaitReason(f"no room under the ceiling of lane {place.key}")
    return WaitReason(f"no room in {label}")


def _fitting(connections: list[Connection], shape: Shape) -> Connection | None:
    for connection in reversed(connections):
        if connection.unfit(shape) is None:
            return connection
    return None
