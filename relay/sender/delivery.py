"""Messages on ready connections, with their slots reserved: send, judge, settle durably.

Guarantees: whatever happens, the slot ends, the connection goes back to its pool or ends, and the
message leaves ACTIVE.  If its settlement could not be written, `on_fault` is told, and only a restart
may go on.  The slot ends with the transaction; or, where the upstream may go on with it unheard, at its
deadline.  No MAIL and no final dot is sent past the reservation's deadline, by a clock that counts suspend.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.mail.text import clean
from relay.policy.lane import Lanes
from relay.policy.model import Upstream
from relay.queue.queued import Queued
from relay.sender.known_offers import KnownOffers, server_of
from relay.sender.lowered_limits import LoweredLimits
from relay.sender.settling import Attempt, Backlog
from relay.sender.state_file import KeptState
from relay.sender.throttle_thread import ThrottleThread
from relay.sender.upstream_health import Pausing
from relay.smtp.dot_stuffing import UnsendableContent
from relay.smtp.reply import Phase
from relay.spool.interface import Absent, Corrupt, Message
from relay.spool.maildir.files import Unreadable
from relay.telemetry.telemetry import Telemetry
from relay.throttle.limit import Limit
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection
from relay.upstream.pool import Pool
from relay.upstream.transaction import Transaction
from relay.verdicts.decision import REFUSALS_IN_PLACE, Decision, Standing, decide
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Judge, Rule, Scope, Verdict

READ_RETRY_NS = SECOND_NS
"""How long a message waits that could not be read for lack of descriptors or memory."""
UNREADABLE_RETRY_NS = 60 * SECOND_NS
"""How long a message waits that the disk does not give."""
UNSETTLED = 2
"""Messages begun and not settled, for each connection: it need not wait for the disk."""


class _Overslept(Exception):  # noqa: N818 - what this host did
    """A reservation's deadline is past though no timer said so: the host was suspended."""


@dataclass(frozen=True, slots=True)
class KnownUpstream:
    judge: Judge
    shield: Shield
    pausing: Pausing
    learning: LoweredLimits
    offers: KnownOffers
    kept: KeptState

    def use(self, rules: Iterable[Rule], upstream: Upstream, lanes: Lanes) -> Sequence[Limit]:
        # What is said from now on is judged by the new rules, on the connections that there are.
        self.judge.use(rules)
        self.offers.use(server_of(upstream))
        self.shield.is_off = upstream.shield is None
        if upstream.shield is not None:
            self.shield.in_a_row = upstream.shield.in_a_row
            self.shield.refused_percent = upstream.shield.refused_percent
        return self.learning.use(upstream, lanes)

    def resume(self) -> None:
        """Use the upstream again, carefully, by an operator's word, which answers what the shield asks."""
        self.pausing.end()
        self.shield.clear()

    async def recall(self) -> None:
        """Go on from what was kept before a restart; call it ahead of the first decision."""
        if (pause := await self.kept.pause.read()) is not None:
            self.pausing.recall(pause)
            self.shield.recall(pause.doubts)
        if (lessons := await self.kept.lessons.read()) is not None:
            self.learning.recall(lessons)
        if (offers := await self.kept.offers.read()) is not None:
            self.offers.recall(offers)

    async def close(self) -> None:
        await self.kept.close()


class Delivery:
    """Carries out what the dispatcher of one upstream decided; holds all unsettled attempts."""

    def __init__(
        self,
        upstream: str,
        backlog: Backlog,
        known: KnownUpstream,
        *,
        throttle: ThrottleThread,
        pool: Pool[Connection],
        telemetry: Telemetry,
        on_free: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`on_free` is called when a connection is free, and again when its message is settled.

        `on_fault` is told of what must end the sender.
        """
        self._upstream = upstream
        self._scheduler, self._spool_thread, self._settling = backlog
        self._senders = self._scheduler.sender_pauses
        self._pausing, self._shield = known.pausing, known.shield
        self._throttle = throttle
        self._pool = pool
        self._metrics, self._clock = telemetry.metrics, telemetry.clock
        self._on_free = on_free
        self._on_fault = on_fault
        self._sending: set[asyncio.Task[None]] = set()
        self._transacting = 0  # of them, those that need their connections yet
        self.transaction_ns = 0
        """How long a transaction takes: an average in which the last ones count most."""
        self.under_way: dict[QueueId, tuple[int, Attempt]] = {}
        """When each transaction was reserved, and what it is about."""

    @property
    def in_flight(self) -> int:
        return len(self._sending)

    def room(self, connections: int) -> int:
        return min(connections - self._transacting, UNSETTLED * connections - len(self._sending))

    def send(self, attempt: Attempt, reservation: Reservation) -> None:
        # The reservation is on disk: a crash from here on wastes a slot, and can exceed no limit.
        attempt.reservation = reservation
        self._transacting += 1
        self.under_way[attempt.queued.queue_id] = reservation.reserved_at_ns, attempt
        self._begin(self._send(attempt, reservation))

    def refuse(self, attempt: Attempt, unfit: Answer) -> None:
        """Begin to settle what its connection cannot carry, without asking the upstream or using a slot."""
        attempt.ended_ns = self._clock.boottime_ns()
        self._begin(self._settle(attempt, Outcome((unfit,) * len(attempt.indices))))

    async def finish(self, grace_seconds: float) -> None:
        """Wait until all are settled; cancel what takes longer."""
        if self._sending:
            _, unfinished = await asyncio.wait(self._sending, timeout=grace_seconds)
            for sending in unfinished:
                sending.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    async def load(self, taken: Sequence[Queued]) -> list[tuple[Queued, Message]]:
        """Read messages from the spool; what cannot be read is not sent.  Raises SpoolFault."""
        loaded: list[tuple[Queued, Message]] = []
        messages = await self._settling.load([queued.queue_id for queued in taken])
        for queued, message in zip(taken, messages, strict=True):
            if isinstance(message, Message):
                loaded.append((queued, message))
            elif message is not None:
                self._postpone_unread(queued, message)
        return loaded

    def _begin(self, settling: Coroutine[Any, Any, None]) -> None:
        sending = asyncio.create_task(settling)
        self._sending.add(sending)
        sending.add_done_callback(self._sent)

    def _sent(self, sending: "asyncio.Task[None]") -> None:
        self._sending.discard(sending)
        self._on_free()
        if not sending.cancelled() and (error := sending.exception()) is not None:
            self._on_fault(error)

    async def _send(self, attempt: Attempt, reservation: Reservation) -> None:
        try:
            outcome = await self._transact(attempt, reservation)
            if outcome is not None:
                await self._settle(attempt, outcome)
        finally:
            self.under_way.pop(attempt.queued.queue_id, None)

    async def _transact(self, attempt: Attempt, reservation: Reservation) -> Outcome | None:
        """Run a transaction, end its slot and release its connection; None if its content cannot be read."""
        queued, connection = attempt.queued, attempt.connection
        is_over = True
        try:
            outcome = await self._speak(attempt, reservation)
            is_over = outcome.is_over
        except asyncio.CancelledError:
            # Its grace is over, and perhaps only its upstream leaves the policy: others may go on with it.
            is_over = False
            self._scheduler.give_back(queued.queue_id, "its transaction did not end in time")
            raise
        except (Corrupt, Absent):
            # It was set aside, and has been told of; nothing of it was relayed.
            self._scheduler.remove(queued.queue_id)
            return None
        except OSError as error:
            self._postpone_unread(queued, error)
            return None
        finally:
            if is_over:
                self._throttle.ended(reservation)
            # Else the upstream may count it yet: its slot ends by itself, at the deadline.
            attempt.conn_use = max(1, connection.transactions)
            if connection.is_usable:
                self._pool.release(connection)
            else:
                self._pool.discard(connection)
            self._transacting -= 1
            self._on_free()
        attempt.ended_ns = self._clock.boottime_ns()
        if is_any_relayed(outcome):
            known_ns = self.transaction_ns
            self.transaction_ns = (
                known_ns + (attempt.took_ns - known_ns) // 8 if known_ns else attempt.took_ns
            )
        return outcome

    async def _speak(self, attempt: Attempt, reservation: Reservation) -> Outcome:
        """Speak with the upstream; on an exception the connection has ended too.

        Raises what reading the content raises.
        """
        message, connection = attempt.message, attempt.connection
        recipients = message.envelope.recipients
        transaction = Transaction(
            message.envelope.reverse_path,
            tuple([recipients[index] for index in attempt.indices]),
            message.shape,
            lambda: self._content(message, reservation),
            # It ends before its slot may be given to another.
            longest_ns=reservation.deadline_ns - self._clock.boottime_ns(),
        )
        try:
            self._check(reservation)
            return await connection.transact(transaction)
        except _Overslept as overslept:
            connection.abort()
            # Nothing was relayed, and it says nothing of the message: no attempt.
            answer = Answer(Verdict.LATER, Phase.MAIL, None, str(overslept))
        except UnsendableContent as error:
            answer = Answer(Verdict.BOUNCE, Phase.DATA, None, clean(str(error)), own_status="5.6.0")
        return Outcome((answer,) * len(attempt.indices))

    async def _content(self, message: Message, reservation: Reservation) -> AsyncIterator[bytes]:
        """Yield the content; its last part, which the final dot follows at once, only in time."""
        if message.content is not None:
            yield message.content
        else:
            async with contextlib.aclosing(self._spool_thread.content(message)) as chunks:
                async for chunk in chunks:
                    self._check(reservation)
                    yield chunk
        self._check(reservation)

    def _check(self, reservation: Reservation) -> None:
        # The timers of the loop stand still while the host is suspended; this clock does not.
        if self._clock.boottime_ns() >= reservation.deadline_ns:
            raise _Overslept("this host was suspended in a transaction")

    async def _settle(self, attempt: Attempt, outcome: Outcome) -> None:
        decision = decide(outcome, self._standing(attempt), self._settling.terms, self._shield)
        began_ns = 0
        if attempt.reservation is not None:
            began_ns = attempt.reservation.reserved_at_ns
            self._metrics.attempted(self._upstream, decision.outcome, attempt.took_ns)
        self._pausing.feel(decision.outcome, began_ns)
        self._feel_doubt(attempt.queued, decision)
        self._feel_sender(attempt, decision)
        await self._settling.settle(self._upstream, attempt, decision)

    def _standing(self, attempt: Attempt) -> Standing:
        queued, pausing, sender = attempt.queued, self._pausing, attempt.queued.sender
        arrived_ns, ended_ns = queued.arrived_at_ns, attempt.ended_ns
        rests = self._senders.rests_of(sender)
        paused_ns = pausing.paused_ns(arrived_ns, ended_ns)
        return Standing(
            queue_id=queued.queue_id,
            recipients=attempt.message.envelope.recipients,
            left=attempt.message.left,
            asked=attempt.indices,
            tried=queued.tried,
            refusals=queued.refusals,
            singled_out=queued.singled_out,
            late_ns=ended_ns - arrived_ns,
            paused_ns=paused_ns,
            resting_ns=pausing.paused_ns(arrived_ns, ended_ns, rests) if rests else paused_ns,
            is_well=pausing.is_well,
            is_sender_alone=self._senders.is_alone(sender, pausing.relayed_from_ns),
        )

    def _feel_doubt(self, queued: Queued, decision: Decision) -> None:
        """Let other senders prove the upstream while it goes on refusing; end that once it is well."""
        # What goes on from an earlier row counts: its pauses are as long as if it were the same.
        in_a_row = self._pausing.in_a_row + self._pausing.slow_start.first_step
        pause, refusals = decision.outcome.pause, 0 if decision.is_relayed else queued.refusals
        if self._pausing.in_a_row == 0:
            self._scheduler.trust()
        elif (
            pause is not None
            and pause.scope is Scope.UPSTREAM
            and max(refusals + 1, in_a_row) >= REFUSALS_IN_PLACE
        ):
            self._scheduler.doubt(queued.sender)

    def _feel_sender(self, attempt: Attempt, decision: Decision) -> None:
        """Pause the mail of a sender that the upstream refuses; go on once it takes some."""
        queued, refusal = attempt.queued, decision.sender_rests
        if refusal is not None:
            until_ns = self._senders.begin(
                queued.sender,
                attempt.ended_ns,
                refusal.text,
                self._pausing.relayed_from_ns,
                asked_ns=decision.rest_ns,
            )
            self._pausing.tell_sender(queued.reverse_path, refusal, until_ns - attempt.ended_ns)
        elif decision.is_relayed:
            self._scheduler.trust_sender(queued.sender, attempt.ended_ns)

    def _postpone_unread(self, queued: Queued, error: Exception) -> None:
        """Try an unreadable message again soon: as far as is known, it is as good as before."""
        retry_ns = UNREADABLE_RETRY_NS if isinstance(error, Unreadable) else READ_RETRY_NS
        self._scheduler.postpone(
            queued.queue_id,
            self._clock.boottime_ns() + retry_ns,
            queued.recipients_left,
            f"cannot be read now: {clean(str(error))}",
        )
