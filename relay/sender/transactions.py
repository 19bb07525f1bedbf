"""The transactions of one account: each on a connection, with its slot, from MAIL to its settlement.

Guarantees: no MAIL and no final dot goes out past the reservation's deadline, by a clock that counts
suspend.  The connection goes back to its pool or ends.  The slot ends with the transaction; if the upstream
may still relay the message unheard, at the deadline.  The message leaves ACTIVE, and the upstream's reply
is settled durably, however late.  If that is impossible, `on_fault` is called, and only a restart may go
on.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from relay.clock import SECOND_NS
from relay.mail.dsn import NOTHING_ASKED
from relay.mail.rewriting import FRONT_BYTES, Rewritten
from relay.mail.text import clean
from relay.queue.queued import Queued, State, WaitReason
from relay.queue.routes import Because
from relay.sender.connections import OfferedExtensions
from relay.sender.pausing import Pausing
from relay.sender.settling import Attempt, Settling
from relay.sender.threads import ThrottleThread
from relay.smtp.dot_stuffing import UnsendableContent
from relay.smtp.reply import Phase
from relay.spool.interface import Absent, Corrupt, Message, Unavailable
from relay.telemetry.metrics import Telemetry
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection
from relay.upstream.pool import Pool
from relay.upstream.transaction import Transaction, why_unfit
from relay.verdicts.account import rest_ns
from relay.verdicts.decision import AttemptContext, Decision, decide
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed, of_full_session
from relay.verdicts.shield import SENDER_WAITS
from relay.verdicts.verdict import Scope, Verdict

SUSPENDED_NS = SECOND_NS
"""A host that is awake notices a deadline within this time."""


class Overslept(Exception):  # noqa: N818 - what this host did
    """A reservation's deadline is past though no timer said so: the host was suspended."""


class Transactions:
    def __init__(
        self,
        upstream: str,
        settling: Settling,
        *,
        throttle: ThrottleThread,
        pool: Pool,
        pausing: Pausing,
        telemetry: Telemetry,
        on_end: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`on_end` is called when a connection, or room for another message, is free again."""
        self.transaction_ns = 0
        """Moving average of how long a transaction takes: a new one counts an eighth.  0: not known."""
        self._upstream, self._line = upstream, settling.queue.line(upstream)
        self._queue, self._spool_thread, self._settling = settling.queue, settling.spool_thread, settling
        self._throttle, self._pool, self._pausing = throttle, pool, pausing
        self._events, self._metrics, self._clock = telemetry
        self._on_end, self._on_fault = on_end, on_fault
        self._unsettled: dict[Attempt, asyncio.Task[None]] = {}

    @property
    def unsettled(self) -> int:
        """Return how many transactions run, or ran and are not settled."""
        return len(self._unsettled)

    async def load(
        self, taken: Sequence[Queued], connections: list[Connection], offered: OfferedExtensions
    ) -> list[Attempt]:
        """Read messages.  Each that may go takes a connection off the list; the others leave ACTIVE."""
        attempts, read_at_ns = list[Attempt](), self._clock.boottime_ns()
        messages = await self._spool_thread.read([queued.queue_id for queued in taken])
        for queued, message in zip(taken, messages, strict=True):
            if not isinstance(message, Message):
                self._unreadable(queued, message)
            elif not message.left:
                self._settling.finish(message)
            elif not (left := queued.part.left(message.left)):
                # An edit divided the message just when its last recipients here were settled.
                self._queue.end_part(queued)
            else:
                try:
                    rewritten = await self._rewritten(queued, message)
                except (Corrupt, Absent, Unavailable) as error:
                    self._unreadable(queued, error)
                    continue
                attempt = Attempt(queued, message, left, connections[-1], offered, read_at_ns, rewritten)
                if (unfit := why_unfit(attempt.connection.extensions, attempt.shape)) is None:
                    attempts.append(attempt)
                    connections.pop()
                else:
                    answer = offered.judge(unfit, attempt.shape)
                    self.refuse(attempt, answer, is_for_ever=answer.verdict is Verdict.BOUNCE)
        return attempts

    async def _rewritten(self, queued: Queued, message: Message) -> Rewritten | None:
        """Return the form in which the route sends a message.  Raises Corrupt, Absent, Unavailable."""
        if (rewriting := queued.part.rewriting) is None:
            return None
        front = message.content
        if front is None:
            async with contextlib.aclosing(self._spool_thread.content(queued.queue_id)) as chunks:
                front = await anext(chunks, b"")
        return rewriting.rewritten(message.envelope.reverse_path, front[:FRONT_BYTES])

    def begin(self, attempt: Attempt, reservation: Reservation) -> None:
        # The reservation is on disk: a crash from here on wastes a slot, and can exceed no limit.
        queued = attempt.queued
        self._line.granted(queued, reservation.recipients)
        attempt.began_ns = reservation.reserved_at_ns
        # The time since the message was read counts too: after it, a shared queue may have given the message
        # to another host.
        attempt.deadline_ns = reservation.deadline_ns - (attempt.began_ns - attempt.read_at_ns)
        attempt.indices = [attempt.indices[position] for position in reservation.chosen]
        waited_ns = attempt.began_ns - queued.ready_at_ns
        self._metrics.observe("relay_throttle_wait_seconds", self._upstream, span_ns=waited_ns)
        self._begin(attempt, self._send(attempt, reservation))

    def refuse(self, attempt: Attempt, unfit: Answer, *, is_for_ever: bool) -> None:
        """Begin to settle a message that cannot go, without asking the upstream or using a slot.

        It is deferred, so others need not wait behind it, its sender is told, and an edit can still help.
        What the upstream can never take goes to the next one of its route instead, if there is one.
        """
        now_ns = attempt.began_ns = attempt.ended_ns = self._clock.boottime_ns()
        if not (is_for_ever and self._queue.exclude_upstream(attempt.queued, WaitReason(unfit.text), now_ns)):
            self._begin(attempt, self._settle(attempt, Outcome((unfit,) * len(attempt.indices))))

    async def stop(self, grace_seconds: float) -> None:
        """Wait for transactions in flight; cut off those that still run after `grace_seconds`."""
        if self._unsettled:
            await asyncio.wait(self._unsettled.values(), timeout=grace_seconds)
            late = [task for attempt, task in self._unsettled.items() if not attempt.ended_ns]
            for sending in late:
                sending.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def settled(self) -> None:
        """Wait until all outcomes are settled; if this is cancelled, a restart sends the rest again."""
        await asyncio.gather(*self._unsettled.values(), return_exceptions=True)

    def _begin(self, attempt: Attempt, run: Coroutine[Any, Any, None]) -> None:
        self._unsettled[attempt] = asyncio.create_task(self._guarded(attempt, run))

    async def _guarded(self, attempt: Attempt, run: Coroutine[Any, Any, None]) -> None:
        try:
            await run
        except Exception as error:  # noqa: BLE001 - after any error, what was sent is not settled
            self._on_fault(error)
        finally:
            del self._unsettled[attempt]
            self._on_end()

    async def _send(self, attempt: Attempt, reservation: Reservation) -> None:
        connection, is_over = attempt.connection, True
        try:
            outcome = _by_session(connection, await self._speak(attempt))
            is_over = outcome.is_over
        except asyncio.CancelledError:
            # The grace is over.  If only this upstream leaves the policy, others may go on with the
            # message.  The connection has ended, and the upstream may have the content.
            is_over = False
            self._line.give_back(attempt.queued, WaitReason("its transaction was cut off"))
            raise
        except (Corrupt, Absent, Unavailable) as error:
            # The connection has ended here too.
            self._unreadable(attempt.queued, error)
            return
        finally:
            attempt.ended_ns = self._clock.boottime_ns()
            # If the upstream may count the transaction yet, its slot ends by itself at the deadline.  After
            # a suspend beyond that the host sends the rest on waking, and the upstream counts it then: end
            # the slot now.
            if is_over or attempt.ended_ns > reservation.deadline_ns + SUSPENDED_NS:
                self._throttle.ended(reservation)
            attempt.conn_use = max(1, connection.transactions)
            self._pool.release(connection)
            self._on_end()
        if is_any_relayed(outcome):
            known_ns, took_ns = self.transaction_ns, attempt.took_ns
            self.transaction_ns = known_ns + (took_ns - known_ns) // 8 if known_ns else took_ns
        await self._settle(attempt, outcome)

    async def _speak(self, attempt: Attempt) -> Outcome:
        """Run the transaction; after an exception the connection has ended too."""
        connection, envelope = attempt.connection, attempt.sent_envelope
        longest_ns = attempt.deadline_ns - self._clock.boottime_ns()
        transaction = Transaction(
            envelope.reverse_path,
            tuple([envelope.recipients[index] for index in attempt.indices]),
            attempt.shape,
            partial(self._content, attempt),
            longest_ns=longest_ns,
            dsn=envelope.dsn.for_some(attempt.indices) if attempt.passes_dsn else NOTHING_ASKED,
        )
        try:
            if longest_ns <= 0:
                raise Overslept
            return await connection.transact(transaction)
        except Overslept:
            connection.abort()
            # No attempt: nothing was relayed, and a suspend says nothing of the message.
            answer = Answer(Verdict.LATER, Phase.MAIL, None, "this host was suspended during the transaction")
        except UnsendableContent as error:
            answer = Answer(Verdict.BOUNCE, Phase.DATA, None, clean(str(error)), own_status="5.6.0")
        return Outcome((answer,) * len(attempt.indices))

    async def _content(self, attempt: Attempt) -> AsyncGenerator[bytes, None]:
        """Yield the content.  Raises Overslept if its end, which the final dot follows at once, is late."""
        content, rewritten = attempt.message.content, attempt.rewritten
        if content is not None:
            yield content if rewritten is None else rewritten.content(content)
        else:
            skip_bytes = 0
            if rewritten is not None:
                skip_bytes = rewritten.replaced_bytes
                yield rewritten.front
            async with contextlib.aclosing(self._spool_thread.content(attempt.queued.queue_id)) as chunks:
                async for chunk in chunks:
                    self._check_in_time(attempt)
                    yield chunk[skip_bytes:] if skip_bytes else chunk
                    skip_bytes = max(0, skip_bytes - len(chunk))
        self._check_in_time(attempt)

    def _check_in_time(self, attempt: Attempt) -> None:
        """Raise Overslept if the slot or the message may be given to another by now.

        The timers of the loop stand still while the host is suspended; this clock does not.
        """
        if self._clock.boottime_ns() >= attempt.deadline_ns:
            raise Overslept

    async def _settle(self, attempt: Attempt, outcome: Outcome) -> None:
        """Decide what an outcome means for the message, its sender and the account; settle it durably."""
        decision = decide(outcome, self._context(attempt), self._settling.terms, self._pausing.shield)
        if attempt.deadline_ns:
            self._metrics.attempted(self._upstream, decision.outcome, attempt.took_ns)
            choice = attempt.queued.choice
            if choice.instead_of and is_any_relayed(decision.outcome):
                self._metrics.count(
                    "relay_route_diverted_messages_total", self._upstream, choice.instead_of, choice.because
                )
        if outcome.is_dsn_refused:
            attempt.offered.is_dsn_refused = True
        self._pausing.observe(decision.outcome, attempt.began_ns)
        self._rest_sender(attempt, decision)
        await self._settling.settle(self._upstream, attempt, decision)

    def _context(self, attempt: Attempt) -> AttemptContext:
        queued, pausing, sender = attempt.queued, self._pausing, attempt.queued.sender
        ended_ns, senders = attempt.ended_ns, self._line.sender_pauses
        paused_ns, either_paused_ns = self._line.rests_of(queued, ended_ns)
        return AttemptContext(
            queue_id=queued.queue_id,
            recipients=attempt.message.envelope.recipients,
            left=attempt.left,
            asked=attempt.indices,
            tried=queued.tried,
            refusals=queued.refusals,
            in_a_row=pausing.state.in_a_row,
            sender=sender,
            span_ns=(attempt.began_ns, ended_ns),
            late_ns=ended_ns - queued.arrived_at_ns,
            paused_ns=paused_ns,
            either_paused_ns=either_paused_ns,
            is_well=pausing.is_well,
            is_sender_alone=senders.is_alone(sender, pausing.relayed_from_ns),
            is_probe=queued.choice.because is Because.PROBE,
        )

    def _rest_sender(self, attempt: Attempt, decision: Decision) -> None:
        """Pause the mail of a sender that the upstream refuses; end that once it takes some."""
        queued, refusal = attempt.queued, decision.outcome.pause
        if refusal is not None and refusal.scope is Scope.SENDER:
            until_ns = self._line.sender_pauses.begin(
                queued.sender,
                attempt.ended_ns,
                refusal.text,
                self._pausing.relayed_from_ns,
                asked_ns=rest_ns(refusal.ruling, 0),
                ages=refusal.ruling == SENDER_WAITS,
            )
            self._metrics.count("relay_sender_pauses_total", self._upstream)
            self._events.tell(
                "sender_paused",
                upstream=self._upstream,
                reverse_path=queued.origin.sent_reverse_path,
                reason=refusal.text,
                until_at_ns=self._clock.wall_ns() + until_ns - attempt.ended_ns,
            )
        elif is_any_relayed(decision.outcome):
            self._line.trust_sender(queued.sender, attempt.ended_ns)

    def _unreadable(self, queued: Queued, error: Absent | Corrupt | Unavailable) -> None:
        """Forget or postpone a message that cannot be read; nothing of it was relayed."""
        if not isinstance(error, Unavailable):
            # The message was set aside or is gone, and that is logged.
            self._settling.forget(queued.queue_id)
            return
        # As far as is known, the message is intact.
        self._spool_thread.tell(error)
        due_at_ns = self._clock.boottime_ns() + self._spool_thread.unreadable_retry_ns
        why = WaitReason(f"cannot be read now: {clean(str(error))}")
        self._line.put_back(queued, State.DEFERRED, why=why, due_at_ns=due_at_ns)


def _by_session(connection: Connection, outcome: Outcome) -> Outcome:
    """Return the outcome; if the session is full, end it, and return the outcome that counts then."""
    if is_any_relayed(outcome):
        connection.relayed += 1
    # If even the first message of a session is refused so, the session was not full.
    elif connection.relayed and (untried := of_full_session(outcome)) is not None:
        connection.abort()
        return untried
    return outcome
