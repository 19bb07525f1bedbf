"""One message on one ready connection, with its slot reserved: send, then settle durably.

Guarantees: whatever happens, the slot ends, the connection goes back to its pool or ends,
and the message leaves ACTIVE, unless its settlement could not be written: then the
error goes to the caller, and only a restart may go on.  The slot ends with the
transaction; or, where the upstream may go on with it unheard, at its deadline.  No MAIL and no
final dot is sent once the reservation's deadline is past, by a clock that counts suspend.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from relay.clock import SECOND_NS, Clock
from relay.mail.envelope import QueueId
from relay.queue.scheduler import Queued, Scheduler
from relay.sender.pause import Pausing
from relay.sender.settling import Attempt, Settling
from relay.sender.spool_thread import SpoolThread
from relay.sender.throttle_thread import ThrottleThread
from relay.smtp.dot_stuffing import UnsendableContent
from relay.smtp.reply import Phase, clean
from relay.spool.interface import Absent, Corrupt, Message, runs
from relay.spool.maildir.files import Unreadable
from relay.telemetry.metrics import Metrics
from relay.throttle.decision import run_of
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection
from relay.upstream.pool import Pool
from relay.upstream.transaction import Transaction
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.pauses import rest_ns
from relay.verdicts.shield import Shield
from relay.verdicts.suspect_message import (
    EVIDENT,
    REFUSALS_IN_PLACE,
    as_its_own,
    is_any_relayed,
    is_singled_out,
    pauses_sender,
)
from relay.verdicts.unproven import Unproven
from relay.verdicts.verdict import Scope, Verdict

READ_RETRY_NS = SECOND_NS
"""How long a message waits that we could not read for lack of our own."""
UNREADABLE_RETRY_NS = 60 * SECOND_NS
"""How long one waits that the disk does not give us."""


class _Overslept(Exception):  # noqa: N818 - what this host did
    """A reservation's deadline is past though no timer said so: the host was suspended."""


@dataclass(frozen=True, slots=True)
class Portion:
    """Some recipients of one message, and what they are sent with."""

    queued: Queued
    message: Message
    connection: Connection
    indices: list[int]
    """Which recipients of the envelope."""


class Delivery:
    """Carries out what the heart of one upstream decided."""

    def __init__(
        self,
        upstream: str,
        *,
        scheduler: Scheduler,
        spool_thread: SpoolThread,
        throttle: ThrottleThread,
        pool: Pool[Connection],
        settling: Settling,
        pausing: Pausing,
        shield: Shield,
        metrics: Metrics,
        clock: Clock,
        on_free: Callable[[], None],
    ) -> None:
        """`on_free` is called when a connection is free again, before its message is settled."""
        self._upstream = upstream
        self._scheduler = scheduler
        self._spool_thread = spool_thread
        self._throttle = throttle
        self._pool = pool
        self._settling = settling
        self._pausing = pausing
        self._shield = shield
        self._unproven = Unproven()
        self._metrics = metrics
        self._clock = clock
        self._on_free = on_free
        self.transaction_ns = 0
        """How long one takes: an average in which the last ones count most."""
        self.under_way: dict[QueueId, tuple[int, Portion]] = {}
        """When each transaction was reserved, and what it is about."""

    async def relay(self, portion: Portion, reservation: Reservation) -> None:
        """Send to some recipients of one message, and settle what came of it.  Raises SpoolFault."""
        try:
            await self._relay(portion, reservation)
        finally:
            self.under_way.pop(portion.queued.queue_id, None)

    async def _relay(self, portion: Portion, reservation: Reservation) -> None:
        queued, connection = portion.queued, portion.connection
        # The reservation is on disk: a crash from here on wastes a slot, and can exceed no limit.
        is_over = True
        try:
            outcome = await self._transact(portion, reservation)
            is_over = outcome.is_over
        except asyncio.CancelledError:
            is_over = False
            raise
        except (Corrupt, Absent):
            # It was set aside, and has been told of; nothing of it was relayed.
            self._scheduler.remove(queued.queue_id)
            return
        except OSError as error:
            self.postpone_unread(queued, error)
            return
        finally:
            if is_over:
                self._throttle.ended(reservation)
            # Else the upstream may count it yet: its slot ends by itself, at the deadline.
            if connection.is_usable:
                self._pool.release(connection)
            else:
                self._pool.discard(connection)
            self._on_free()
        ended_ns = self._clock.boottime_ns()
        if is_any_relayed(outcome):
            self._learn_duration(ended_ns - reservation.reserved_at_ns)
        named = [(index, portion.message.envelope.recipients[index]) for index in portion.indices]
        outcome = self._unproven.judge(outcome, queued.queue_id, named)
        outcome = self._shield.judge(outcome, queued.queue_id, named)
        outcome, paused_ns = self._blame(queued, outcome, ended_ns)
        self._metrics.attempted(self._upstream, outcome, ended_ns - reservation.reserved_at_ns)
        self._pausing.feel(outcome, reservation.reserved_at_ns)
        self._feel_doubt(queued, outcome)
        self._feel_sender(queued, outcome, ended_ns)
        waited_ns = reservation.reserved_at_ns - queued.arrived_at_ns
        await self._settling.settle(
            Attempt(
                self._upstream,
                queued,
                portion.message,
                portion.indices,
                outcome,
                connection.name,
                connection.tls,
                connection.transactions,
                (0, waited_ns, 0, ended_ns - reservation.reserved_at_ns),
                paused_ns,
            )
        )

        _know_left(queued, portion, outcome)

    def _paused_ns(self, queued: Queued, now_ns: int) -> int:
        rests = self._scheduler.sender_pauses.rests_of(queued.sender)
        return self._pausing.paused_ns(queued.arrived_at_ns, now_ns, rests)

    def _learn_duration(self, took_ns: int) -> None:
        known_ns = self.transaction_ns
        self.transaction_ns = known_ns + (took_ns - known_ns) // 8 if known_ns else took_ns

    def _blame(self, queued: Queued, outcome: Outcome, now_ns: int) -> tuple[Outcome, int]:
        """Return an outcome with what is evidently the message's own, and how much of its time was no age."""
        pausing, paused_ns = self._pausing, self._paused_ns(queued, now_ns)
        if is_any_relayed(outcome):
            queued.refusals = queued.singled_out = 0
        elif is_singled_out(outcome, queued.refusals, is_well=pausing.is_well):
            queued.singled_out += 1
            if queued.singled_out >= EVIDENT:
                outcome = as_its_own(outcome)
        elif pauses_sender(outcome) and self._scheduler.sender_pauses.is_alone(
            queued.sender, pausing.relayed_from_ns
        ):
            # Its rests were no age for any other refusal, but to this one they are.
            upstream_ns = pausing.paused_ns(queued.arrived_at_ns, now_ns)
            if now_ns - queued.arrived_at_ns - upstream_ns >= self._settling.terms.lifetime_ns:
                return as_its_own(outcome), upstream_ns
        return outcome, paused_ns

    def _feel_doubt(self, queued: Queued, outcome: Outcome) -> None:
        """Let others prove the upstream where it goes on refusing, and nobody any more once it is well."""
        # What goes on from an earlier row counts: its pauses are as long as if it were the same.
        in_a_row = self._pausing.in_a_row + self._pausing.slow_start.first_step
        if self._pausing.in_a_row == 0:
            self._scheduler.trust()
        elif (
            outcome.pause is not None
            and outcome.pause.scope is Scope.UPSTREAM
            and max(queued.refusals + 1, in_a_row) >= REFUSALS_IN_PLACE
        ):
            self._scheduler.doubt(queued.sender)

    def _feel_sender(self, queued: Queued, outcome: Outcome, now_ns: int) -> None:
        """Let the mail of a sender wait that the upstream refuses, and go on once it takes some."""
        pause = outcome.pause
        if pause is not None and pause.scope is Scope.SENDER:
            until_ns = self._scheduler.sender_pauses.begin(
                queued.sender,
                now_ns,
                pause.text,
                self._pausing.relayed_from_ns,
                # Of a sender's own window our history knows nothing.
                asked_ns=rest_ns(pause.ruling, 0, lambda _span_ns: None),
            )
            self._pausing.tell_sender(queued.reverse_path, pause, until_ns - now_ns)
        elif is_any_relayed(outcome):
            self._scheduler.trust_sender(queued.sender, now_ns)

    async def refuse(self, portion: Portion, unfit: Answer) -> None:
        """Settle a message that the upstream cannot carry, without asking it or using a slot."""
        connection, indices = portion.connection, portion.indices
        named = [(index, portion.message.envelope.recipients[index]) for index in indices]
        outcome = self._shield.judge(Outcome((unfit,) * len(indices)), portion.queued.queue_id, named)
        self._pausing.feel(outcome)
        await self._settling.settle(
            Attempt(
                self._upstream,
                portion.queued,
                portion.message,
                indices,
                outcome,
                connection.name,
                connection.tls,
                0,
                (0, 0, 0, 0),
                self._paused_ns(portion.queued, self._clock.boottime_ns()),
            )
        )

    def postpone_unread(self, queued: Queued, error: Exception) -> None:
        """Try again soon what could not be read: it is as good as before, as far as anybody knows."""
        retry_ns = UNREADABLE_RETRY_NS if isinstance(error, Unreadable) else READ_RETRY_NS
        self._scheduler.postpone(
            queued.queue_id,
            self._clock.boottime_ns() + retry_ns,
            queued.recipients_left,
            f"cannot be read now: {clean(str(error))}",
        )

    async def _transact(self, portion: Portion, reservation: Reservation) -> Outcome:
        """Run a transaction; whatever ends it early has ended its connection too.

        Raises what reading the content raises.
        """
        message, count = portion.message, len(portion.indices)
        left_ns = reservation.deadline_ns - self._clock.boottime_ns()
        transaction = Transaction(
            message.envelope.reverse_path,
            tuple(message.envelope.recipients[index] for index in portion.indices),
            message.shape,
            lambda: self._content(message, reservation),
            # It ends before its slot may be given to another.
            longest_ns=left_ns,
        )
        try:
            self._check(reservation)
            return await portion.connection.transact(transaction)
        except _Overslept as overslept:
            portion.connection.abort()
            # Nothing was relayed, and it says nothing of the message: no attempt.
            return Outcome((Answer(Verdict.LATER, Phase.MAIL, None, str(overslept)),) * count)
        except UnsendableContent as error:
            answer = Answer(Verdict.BOUNCE, Phase.DATA, None, clean(str(error)), own_status="5.6.0")
            return Outcome((answer,) * count)

    async def _content(self, message: Message, reservation: Reservation) -> AsyncIterator[bytes]:
        """Yield the content; its end, behind which the final dot follows at once, only in time."""
        async with contextlib.aclosing(self._spool_thread.content(message)) as chunks:
            async for chunk in chunks:
                self._check(reservation)
                yield chunk
        self._check(reservation)

    def _check(self, reservation: Reservation) -> None:
        # The timers of the loop stand still while the host is suspended; this clock does not.
        if self._clock.boottime_ns() >= reservation.deadline_ns:
            raise _Overslept("this host was suspended in a transaction")


def _know_left(queued: Queued, portion: Portion, outcome: Outcome) -> None:
    """Note the domains of the recipients that are left, in the order in which they will be asked for."""
    ends = (Verdict.RELAYED, Verdict.BOUNCE)
    gone = {i for i, answer in zip(portion.indices, outcome.answers, strict=True) if answer.verdict in ends}
    if gone or queued.tried:
        queued.domains = domains_without(portion, gone)


def domains_without(portion: Portion, gone: Collection[int]) -> tuple[tuple[str, int], ...]:
    """Return the domains of a message's recipients but for some: first those that were not tried yet."""
    message, tried = portion.message, portion.queued.tried
    left = [index for index in message.left if index not in gone]
    in_order = [i for i in left if i not in tried] + [i for i in left if i in tried]
    addresses = (message.envelope.recipients[index] for index in in_order)
    return tuple(run_of(domain, count) for domain, count in runs(addresses))
