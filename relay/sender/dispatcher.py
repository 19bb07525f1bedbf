"""The heart: take the next message, have a ready connection, reserve durably, send, settle durably.

One `Dispatcher` for each upstream.  It beats when there is something to do and otherwise
sleeps until the instant at which there will be: a slot opens, a back-off ends, a pause
is over, mail comes in.  No polling.

Guarantees: no byte of MAIL before its slot is on disk; nothing about a message is
forgotten once the upstream replied; a message that was not attempted has lost nothing.
When the history fails, nothing is sent.  A refusal about us pauses the upstream; it
comes back with a single transaction, a small one, and fully when that one went well.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

from relay.clock import SECOND_NS, Clock
from relay.queue.scheduler import Queued, Scheduler
from relay.sender.connection_waiter import ReadyConnections
from relay.sender.delivery import Delivery, Portion
from relay.sender.lowered_limits import LoweredLimits
from relay.sender.offers import KnownOffers
from relay.sender.pause import Pausing
from relay.sender.settling import Settling
from relay.sender.spool_thread import SpoolThread, seconds
from relay.sender.state_file import KeptState
from relay.sender.throttle_thread import ThrottleThread
from relay.sender.waits import Waits
from relay.spool.interface import Absent, Corrupt, Message, SpoolFault
from relay.spool.maildir.files import is_lack_of_room
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.throttle.decision import Place, Request, Wait, request_for
from relay.throttle.history_format import HistoryError
from relay.throttle.limit_hints import Tally
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection
from relay.upstream.pool import Pool
from relay.verdicts.outcome import Answer
from relay.verdicts.shield import Shield
from relay.verdicts.shortage import is_lack_of_means
from relay.verdicts.verdict import Judge, Verdict

MOST_AT_ONCE = 64
"""Messages decided on in one beat."""
UNSETTLED = 2
"""Messages begun and not settled, for each connection: it need not wait for what is written down."""
HISTORY_RETRY_NS = 60 * SECOND_NS
MEANS_RETRY_NS = SECOND_NS
"""After a lack of descriptors or memory."""


class Dispatcher:
    """Relays the queue through one upstream."""

    def __init__(
        self,
        name: str,
        *,
        scheduler: Scheduler,
        spool_thread: SpoolThread,
        throttle: ThrottleThread,
        pool: Pool[Connection],
        settling: Settling,
        pausing: Pausing,
        learning: LoweredLimits,
        offers: KnownOffers,
        kept: KeptState,
        events: Events,
        metrics: Metrics,
        clock: Clock,
        on_fault: Callable[[BaseException], None],
        wake_others: Callable[[], None],
        judge: Judge,
    ) -> None:
        """`on_fault` is told of what must end the sender; `wake_others` when a message may go elsewhere."""
        self.name = name
        self.throttle, self.pool = throttle, pool
        self.judge = judge
        self.is_used = False
        """Whether the queue goes through this upstream: only the policy's first one gets mail."""
        self.connections = self.max_recipients = 1
        self.shield, self.learning, self.offers = Shield(), learning, offers
        self._kept = kept
        self.pausing = pausing
        self._scheduler = scheduler
        self._spool_thread = spool_thread
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._on_fault = on_fault
        self._wake_others = wake_others
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._has_ended = asyncio.Event()
        self._has_history = False
        self._sending: set[asyncio.Task[None]] = set()
        self._transacting = 0  # of them, those that need their connections yet
        self._waits = Waits(name, scheduler, events, metrics, clock)
        self.relaying = Delivery(
            name,
            scheduler=scheduler,
            spool_thread=spool_thread,
            throttle=throttle,
            pool=pool,
            settling=settling,
            pausing=pausing,
            shield=self.shield,
            metrics=metrics,
            clock=clock,
            on_free=self._freed,
        )
        self._ready = ReadyConnections(
            name, pool, events, metrics, clock, on_change=self._wake.set, on_unavailable=self._do_without
        )

    @property
    def in_flight(self) -> int:
        """Return how many transactions are not at their end."""
        return len(self._sending)

    def wake(self) -> None:
        """Look again: mail came in, a slot opened, the policy changed."""
        self._wake.set()

    async def run(self) -> None:
        """Beat until `stop`."""
        try:
            await self._recall()
            while not self._is_stopping:
                self._wake.clear()
                try:
                    looks_again_at_ns = await self._beat()
                except HistoryError as error:
                    looks_again_at_ns = await self._fail_history(error)
                await self._sleep_until(looks_again_at_ns)
        except SpoolFault as fault:
            self._fail(fault)
        finally:
            self._has_ended.set()

    def halt(self) -> None:
        """Start nothing more; what is in flight goes on."""
        self._is_stopping = True
        self._wake.set()
        self._ready.stop()

    async def stop(self, grace_seconds: float) -> None:
        """Start nothing more, finish what is in flight, close the connections."""
        self.halt()
        # A beat that is under way may still start something, or give it back.
        await self._has_ended.wait()
        if self._sending:
            _, unfinished = await asyncio.wait(self._sending, timeout=grace_seconds)
            for sending in unfinished:
                sending.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        await self.pool.close()
        await self.throttle.close()
        await self._kept.close()

    def renew(self) -> None:
        """Begin no transaction on a connection that was made ready for another account."""
        self._ready.let_go()

    async def _recall(self) -> None:
        """Go on from what was known before a restart, ahead of the first decision."""
        if (pause := await self._kept.pause.read()) is not None:
            self.pausing.recall(pause)
            self.shield.recall(pause.doubts)
        if (lessons := await self._kept.lessons.read()) is not None:
            self.learning.recall(lessons)
        if (offers := await self._kept.offers.read()) is not None:
            self.offers.recall(offers)

    async def _beat(self) -> int | None:
        """Start what can start now; return when to look again, None for "when woken"."""
        now_ns = self._clock.boottime_ns()
        if (paused_until_ns := self.pausing.until_ns(now_ns)) is not None:
            self._ready.let_go()
            return paused_until_ns
        if not self._has_history:
            await self.throttle.open()
            self._has_history = True
            self.pausing.trust_history()
        await self.throttle.hear_of_others()
        now_ns = self._clock.boottime_ns()
        if self.is_used and not self._ask_places(now_ns):
            return now_ns
        first = self._scheduler.first_ready(now_ns) if self.is_used else None
        if first is None:
            self._ready.let_go()
            return self._scheduler.next_due_at_ns() if self.is_used else None
        # Asked once: between two questions a slot may open, and then nobody would wake us.
        room = self.throttle.room()
        most = self._most_now(room)
        if most == 0:
            if room != 0:
                return None  # the end of a transaction wakes us
            # Not kept out of the pool meanwhile: it ends what is idle for too long.
            self._ready.let_go()
            opens_at_ns = self.throttle.opens_at_ns()
            self._waits.tell(first, f"no room in {' and '.join(self.throttle.full())}", opens_at_ns)
            return opens_at_ns
        most = min(most, self._scheduler.most_ready)
        openings, opens_at_ns, label = self.throttle.room_for_connections()
        connections = self._ready.take(most, openings=openings)
        if connections:
            return await self._start(connections, now_ns)
        if openings == 0 and not self._ready.is_opening:
            self._waits.tell(first, f"no room in {label}", opens_at_ns)
            return opens_at_ns
        return None  # one is being opened, and wakes us

    @property
    def _must_not_begin(self) -> bool:
        """Whether what this beat decided on is overtaken: by a stop, or by a refusal to another one."""
        return self._is_stopping or bool(self.pausing.because)

    def _ask_places(self, now_ns: int) -> bool:
        """Let those go on for whom there is room by now, and no others; False where more are to be asked."""
        for lane in self._scheduler.with_ceiling():
            lane_room, opens_at_ns = self.throttle.room_in(lane)
            if (first := self._scheduler.let_lane(lane, lane_room, opens_at_ns)) is not None:
                self._waits.tell(first, f"no room under the ceiling of lane {lane}", opens_at_ns)
        for place in self._scheduler.places_due(now_ns):
            room, opens_at_ns = self.throttle.room_at(cast(Place, place))
            self._scheduler.let_leave(place, room, opens_at_ns)
        return not self._scheduler.has_places_due(now_ns)

    def _most_now(self, room: int | None) -> int:
        """Return how many transactions may be started, by room, connections and caution."""
        unsettled = UNSETTLED * self.connections - len(self._sending)
        most = min(MOST_AT_ONCE, self.connections - self._transacting, unsettled)
        if room is not None:
            most = min(most, room)
        if self.pausing.is_proving:
            most = min(most, 1 - len(self._sending))
        return max(0, most)

    def _do_without(self, answer: Answer) -> None:
        """Rest because no connection can be had; where there are others it is only one more.

        Unless it refused the account: each further try with that password may lock it.
        """
        if self.pool.open and answer.verdict is not Verdict.STOP:
            self._ready.spare(0 if answer.ruling is None else answer.ruling.wait_ns or 0)
        else:
            # It was charged as a connection where some limit counts them.
            self.pausing.rest(answer, Tally(connections=1))

    async def _start(self, connections: list[Connection], now_ns: int) -> int:
        """Load, reserve and start a transaction for each connection; return when to look again."""
        taken: list[Queued] = []
        while len(taken) < len(connections) and (queued := self._scheduler.next_ready(now_ns)) is not None:
            taken.append(queued)
        portions: list[Portion] = []
        is_doubtful = False
        for queued, message in await self._load(taken):
            fit = next((one for one in reversed(connections) if one.unfit(message.shape) is None), None)
            if fit is not None:
                connections.remove(fit)
                portions.append(Portion(queued, message, fit, self._indices(queued, message)))
            elif (unfit := connections[-1].unfit(message.shape)) is not None:
                answer = self.offers.judged(unfit, message.shape.size_bytes)
                is_doubtful = is_doubtful or answer.verdict is Verdict.DEFER
                left = Portion(queued, message, connections[-1], list(message.left))
                self._begin(self.relaying.refuse(left, answer))
        # Where connections are limited, mail needs them more: another one is opened when this one is old.
        if is_doubtful and self.throttle.room_for_connections()[0] is None and self.offers.looks_again():
            self.pool.retire(connections.pop())
        for connection in connections:
            self.pool.release(connection)
        self._tell_others()
        if self._must_not_begin:
            for portion in reversed(portions):
                self._give_back(portion, "")
            return now_ns
        until_ns = await self._reserve_and_send(portions) if portions else None
        # At once, for what else there is to wait for: a back-off may end before a transaction does.
        return self._clock.boottime_ns() if until_ns is None else until_ns

    async def _reserve_and_send(self, portions: list[Portion]) -> int | None:
        """Send what there is room for, give back the rest; return when that may go."""
        began_ns = self._clock.boottime_ns()
        try:
            grants = await self.throttle.reserve([self._request(portion) for portion in portions])
        except HistoryError:
            for portion in reversed(portions):
                self._give_back(portion, "the history of the limits failed")
            raise
        self._metrics.decided(self.name, self._clock.boottime_ns() - began_ns)
        for portion, grant in zip(portions, grants, strict=True):
            if isinstance(grant, Wait) and grant.place is not None and grant.place.for_each != "lane":
                self._park(portion, grant, grant.place)
        until_ns: int | None = None
        for portion, grant in reversed(list(zip(portions, grants, strict=True))):
            match grant:
                case Reservation() if self._must_not_begin:
                    # The slot is wasted, and nothing was sent.
                    self.throttle.ended(grant)
                    self._give_back(portion, "")
                case Reservation():
                    self._scheduler.reserved(portion.queued.queue_id, grant.recipients)
                    chosen = [portion.indices[position] for position in grant.chosen]
                    is_whole = chosen == portion.indices
                    self._send(portion if is_whole else replace(portion, indices=chosen), grant)
                case Wait(limit_label=label, place=Place("lane")):
                    # Another process took it; the next beat sees that the lane has no room.
                    self._give_back(portion, f"no room in {label}")
                case Wait(until_ns=until_ns, limit_label=label, place=None):
                    self._give_back(portion, f"no room in {label}")
                    self._waits.tell(portion.queued, f"no room in {label}", until_ns)
        return until_ns

    def _send(self, portion: Portion, reservation: Reservation) -> None:
        queued = portion.queued
        self._metrics.reserved_after(
            self.name, reservation.reserved_at_ns - max(queued.ready_at_ns, queued.arrived_at_ns)
        )
        self._transacting += 1
        self.relaying.under_way[queued.queue_id] = reservation.reserved_at_ns, portion
        self._begin(self.relaying.relay(portion, reservation))

    def _begin(self, relaying: Coroutine[Any, Any, None]) -> None:
        """Do something about one message beside all else."""
        sending = asyncio.create_task(relaying)
        self._sending.add(sending)
        sending.add_done_callback(self._sent)

    def _freed(self) -> None:
        self._transacting -= 1
        self._wake.set()

    def _sent(self, sending: "asyncio.Task[None]") -> None:
        self._sending.discard(sending)
        self._wake.set()
        self._tell_others()
        if not sending.cancelled() and (error := sending.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Start nothing more: what is sent from now on could not be settled, and would be sent again."""
        self.halt()
        self._on_fault(error)

    def _give_back(self, portion: Portion, reason: str) -> None:
        """Put back what was taken and is not attempted."""
        self._scheduler.give_back(portion.queued.queue_id, reason)
        self.pool.release(portion.connection)
        self._tell_others()

    def _park(self, portion: Portion, wait: Wait, place: Place) -> None:
        """Put aside what only its own key keeps back, so that others may go."""
        reason = f"no room in {wait.limit_label}"
        if self._scheduler.park(portion.queued.queue_id, place, wait.until_ns, reason):
            self._waits.tell(portion.queued, reason, wait.until_ns)
        self.pool.release(portion.connection)
        self._tell_others()

    def _tell_others(self) -> None:
        """Where the queue goes another way by now, what came back may be the next there."""
        if not self.is_used or self._is_stopping:
            self._wake_others()

    async def _load(self, taken: list[Queued]) -> list[tuple[Queued, Message]]:
        """Read messages from the spool; what cannot be read is not sent."""
        loaded: list[tuple[Queued, Message]] = []
        for queued, message in zip(
            taken, await self._spool_thread.load([q.queue_id for q in taken]), strict=True
        ):
            match message:
                case Message():
                    loaded.append((queued, message))
                case Corrupt() | Absent():
                    # It was set aside, or somebody removed it by hand: the spool has said so.
                    self._scheduler.remove(queued.queue_id)
                case SpoolFault():
                    raise message
                case _:
                    self.relaying.postpone_unread(queued, message)
        return loaded

    @staticmethod
    def _indices(queued: Queued, message: Message) -> list[int]:
        """Return which recipients to ask for: none twice in a round."""
        untried = [index for index in message.left if index not in queued.tried]
        return untried or list(message.left)

    def _request(self, portion: Portion) -> Request:
        """Return what to ask for: as many recipients as a transaction may have, of those that have room."""
        most = self.pausing.slow_start.largest(self.max_recipients, portion.connection.max_recipients)
        lane = self._scheduler.lane_of(portion.queued)
        return request_for(portion.message.envelope, portion.indices, most, lane)

    async def _fail_history(self, error: HistoryError) -> int:
        """Send nothing until the history can be trusted again; return when to look."""
        self._has_history = False
        if is_lack_of_room(error.__cause__) and await self._spool_thread.make_room():
            # On a full disk the queue gives room only by going on.
            return self._clock.boottime_ns()
        if is_lack_of_means(error.__cause__):
            # It says nothing about the history; it is read anew, and until then nothing is sent.
            self._events.shortage(where=f"upstream {self.name}", error=str(error))
            return self._clock.boottime_ns() + MEANS_RETRY_NS
        self._metrics.history_failed(self.name)
        self._events.history_failed(upstream=self.name, error=str(error))
        return self.pausing.stop(str(error), HISTORY_RETRY_NS)

    async def _sleep_until(self, at_ns: int | None) -> None:
        """Sleep until an instant of this boot, or until woken."""
        delay_seconds = None if at_ns is None else seconds(at_ns - self._clock.boottime_ns())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_seconds):
                await self._wake.wait()
