"""Messages on ready connections, with their slots reserved: send, judge, settle durably.

`Delivery` speaks with the upstream; `Consequences` has what came of it decided, and carries that out.

Guarantees: whatever happens, the slot ends, the connection goes back to its pool or ends, and the
message leaves ACTIVE.  If its settlement could not be written, `on_fault` is told, and only a restart
may go on.  The slot ends with the transaction; or, where the upstream may go on with it unheard, at its
deadline.  No MAIL and no final dot is sent past the reservation's deadline, by a clock that counts suspend.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

from relay.clock import SECOND_NS, Clock
from relay.mail.dsn import NOTHING_ASKED
from relay.mail.envelope import QueueId
from relay.mail.rewriting import FRONT_BYTES, Rewritten
from relay.mail.text import clean
from relay.policy.model import Upstream
from relay.queue.queued import Queued, WaitReason
from relay.queue.routes import Because
from relay.sender.attempt import Attempt
from relay.sender.known_offers import KnownOffers, server_of
from relay.sender.settling import AccountBacklog
from relay.sender.state_file import KeptFile
from relay.sender.throttle_thread import ThrottleThread
from relay.sender.upstream_health import Pausing
from relay.smtp.dot_stuffing import UnsendableContent
from relay.smtp.reply import Phase
from relay.spool.interface import Absent, Corrupt, Message, Unavailable
from relay.telemetry.telemetry import Telemetry
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection
from relay.upstream.pool import Pool
from relay.upstream.transaction import Transaction
from relay.verdicts.account import AccountState, PauseRecord
from relay.verdicts.decision import Decision, Standing, decide
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed, of_full_session
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Judge, Rule, Verdict

UNREADABLE_RETRY_NS = 60 * SECOND_NS
"""How long a message waits that the spool does not give."""
SUSPENDED_NS = SECOND_NS
"""Of a deadline a host that is awake hears sooner than so long after it."""
UNSETTLED = 2
"""Messages begun and not settled, for each connection: it need not wait for the disk."""


class Overslept(Exception):  # noqa: N818 - what this host did
    """A reservation's deadline is past though no timer said so: the host was suspended."""


def check_in_time(reservation: Reservation, clock: Clock) -> None:
    """Raise Overslept where the slot may be given to another by now.

    The timers of the loop stand still while the host is suspended; this clock does not.
    """
    if clock.boottime_ns() >= reservation.deadline_ns:
        raise Overslept


class WholeContent:
    """Content that is in memory, in one part.  No generator: the loop keeps account of each of these."""

    def __init__(self, content: bytes, check: Callable[[], None]) -> None:
        self._content: bytes | None = content
        self._check = check

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        content, self._content = self._content, None
        if content is None:
            self._check()
            raise StopAsyncIteration
        return content


class Loaded(NamedTuple):
    queued: Queued
    message: Message
    rewritten: Rewritten | None
    """By the route that it goes by now."""


@dataclass(frozen=True, slots=True)
class KnownUpstream:
    judge: Judge
    shield: Shield
    pausing: Pausing
    offers: KnownOffers
    kept: KeptFile[PauseRecord]

    def use(self, rules: Iterable[Rule], upstream: Upstream) -> None:
        # What is said from now on is judged by the new rules, on the connections that there are.
        self.judge.use(rules)
        self.offers.use(server_of(upstream))
        self.shield.is_off = upstream.shield is None
        if upstream.shield is not None:
            self.shield.in_a_row = upstream.shield.in_a_row

    def resume(self) -> None:
        """Use the upstream again, carefully, by an operator's word, which answers what the shield asks."""
        self.pausing.end()
        self.shield.clear()

    def edited(self) -> None:
        """Use the upstream again, carefully, as an edit may have mended it, where no operator paused it."""
        self.pausing.edited()
        self.shield.clear()

    async def recall(self, before: AccountState | None) -> None:
        """Go on from what was kept before a restart; call it ahead of all else.

        `before` is the state of the account that an edit replaced by this one: what the operator said of it
        counts, and not what was said when this one was used before.
        """
        if (pause := await self.kept.read()) is not None:
            self.pausing.recall(pause)
            self.shield.recall(pause.state.doubts)
        if before is not None and before.operator is not None:
            self.pausing.keep_back(before.operator, since_ns=before.spans[-1][0])
        elif before is not None and self.pausing.state.operator is not None:
            self.pausing.end()


class Consequences:
    """What an outcome means for the upstream, the sender and the message: decided, carried out, settled."""

    def __init__(
        self, upstream: str, backlog: AccountBacklog, known: KnownUpstream, telemetry: Telemetry
    ) -> None:
        self._upstream = upstream
        self._line, _, self._settling, self._queue = backlog
        self._senders = self._line.sender_pauses
        self._pausing, self._shield, self._offers = known.pausing, known.shield, known.offers
        self._metrics = telemetry.metrics

    async def settle(self, attempt: Attempt, outcome: Outcome) -> None:
        """Settle durably what an attempt came to."""
        decision = decide(outcome, self._standing(attempt), self._settling.terms, self._shield)
        began_ns = 0
        if attempt.reservation is not None:
            began_ns = attempt.reservation.reserved_at_ns
            self._metrics.attempted(self._upstream, decision.outcome, attempt.took_ns)
            choice = attempt.queued.choice
            if choice.instead_of and decision.is_relayed:
                self._metrics.diverted(self._upstream, choice.instead_of, choice.because)
            if outcome.is_ambiguous:
                # Another upstream would relay it twice if this one has it.
                self._queue.stay_unknown(attempt.queued, attempt.reservation.deadline_ns)
        if outcome.is_dsn_refused:
            self._offers.refused_dsn()
        self._pausing.feel(decision.outcome, began_ns)
        self._feel_sender(attempt, decision)
        await self._settling.settle(self._upstream, attempt, decision)

    def _standing(self, attempt: Attempt) -> Standing:
        queued, pausing, sender = attempt.queued, self._pausing, attempt.queued.sender
        arrived_ns, ended_ns = queued.arrived_at_ns, attempt.ended_ns
        rests = self._senders.rests_of(sender)
        paused_ns = pausing.paused_ns(arrived_ns, ended_ns, queued.past.rested)
        return Standing(
            queue_id=queued.queue_id,
            recipients=attempt.message.envelope.recipients,
            left=attempt.left,
            asked=attempt.indices,
            tried=queued.past.tried,
            refusals=queued.past.refusals,
            in_a_row=pausing.state.in_a_row,
            sender=sender,
            span_ns=(attempt.reservation.reserved_at_ns if attempt.reservation else ended_ns, ended_ns),
            late_ns=ended_ns - arrived_ns,
            paused_ns=paused_ns,
            resting_ns=pausing.paused_ns(arrived_ns, ended_ns, (*rests, *queued.past.rested))
            if rests
            else paused_ns,
            is_well=pausing.is_well,
            is_sender_alone=self._senders.is_alone(sender, pausing.relayed_from_ns),
            is_probe=queued.choice.because is Because.PROBE,
        )

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
                ages=refusal.is_doubted,
            )
            self._pausing.tell_sender(queued.sent_reverse_path, refusal, until_ns - attempt.ended_ns)
        elif decision.is_relayed:
            self._line.trust_sender(queued.sender, attempt.ended_ns)


class Delivery:
    """Carries out what the dispatcher of one upstream decided; holds all unsettled attempts."""

    def __init__(
        self,
        backlog: AccountBacklog,
        consequences: Consequences,
        *,
        throttle: ThrottleThread,
        pool: Pool[Connection],
        clock: Clock,
        on_free: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`on_free` is called when a connection is free, and again when its message is settled.

        `on_fault` is told of what must end the sender.
        """
        self._line, self._spool_thread, self._settling, self._queue = backlog
        self._throttle = throttle
        self._pool = pool
        self._clock = clock
        self._consequences = consequences
        self._on_free = on_free
        self._on_fault = on_fault
        self._sending: dict[QueueId, asyncio.Task[None]] = {}
        self._transacting: set[QueueId] = set()  # of them, those that need their connections yet
        self.transaction_ns = 0
        """How long a transaction takes: an average in which the last ones count most."""
        self.under_way: dict[QueueId, tuple[int, Attempt]] = {}
        """When each transaction was reserved, and what it is about."""

    @property
    def in_flight(self) -> int:
        return len(self._sending)

    def room(self, connections: int) -> int:
        return min(connections - len(self._transacting), UNSETTLED * connections - len(self._sending))

    def send(self, attempt: Attempt, reservation: Reservation) -> None:
        # The reservation is on disk: a crash from here on wastes a slot, and can exceed no limit.
        attempt.reservation = reservation
        self._transacting.add(attempt.queued.key)
        self.under_way[attempt.queued.key] = reservation.reserved_at_ns, attempt
        self._begin(attempt)

    def refuse(self, attempt: Attempt, unfit: Answer, *, is_for_ever: bool) -> None:
        """Begin to settle what its connection cannot carry, without asking the upstream or using a slot.

        What the upstream can never take goes on through the next one of its route instead, if there is one.
        """
        now_ns = attempt.ended_ns = self._clock.boottime_ns()
        if not (is_for_ever and self._queue.pass_on(attempt.queued, WaitReason(unfit.text), now_ns)):
            self._begin(attempt, Outcome((unfit,) * len(attempt.indices)))

    async def finish(self, grace_seconds: float) -> None:
        """Wait until all are settled; cut off transactions that take longer.

        What they came to is settled however late (`settled`): else it would be sent again.
        """
        if self._sending:
            await asyncio.wait(self._sending.values(), timeout=grace_seconds)
            late = [self._sending[key] for key in self._transacting]
            for sending in late:
                sending.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def settled(self) -> None:
        """Wait until all are settled.  Cancelled, it gives up."""
        await asyncio.gather(*self._sending.values(), return_exceptions=True)

    async def give_up(self) -> None:
        """Settle nothing more: only a restart may go on with what is not."""
        for sending in self._sending.values():
            sending.cancel()
        await self.settled()

    async def load(self, taken: Sequence[Queued]) -> list[Loaded]:
        """Read messages from the spool; what cannot be read is not sent."""
        loaded: list[Loaded] = []
        messages = await self._settling.load([queued.queue_id for queued in taken])
        for queued, message in zip(taken, messages, strict=True):
            if isinstance(message, Message) and not message.left:
                await self._settling.finish(message, queued)
            elif isinstance(message, Message) and not queued.part.left(message.left):
                # An edit divided the message just when these were settled.
                self._queue.end_part(queued)
            elif isinstance(message, Message):
                if (each := await self._rewrite(queued, message)) is not None:
                    loaded.append(each)
            elif message is not None:
                self._postpone_unread(queued, message)
        return loaded

    async def _rewrite(self, queued: Queued, message: Message) -> Loaded | None:
        """Return a message as its route has it sent; None where its content cannot be read now."""
        if (rewriting := queued.part.rewriting) is None:
            return Loaded(queued, message, None)
        front = message.content
        try:
            if front is None:
                async with contextlib.aclosing(self._spool_thread.content(queued.queue_id)) as chunks:
                    front = await anext(chunks, b"")
        except (Corrupt, Absent):
            self._settling.forget(queued.queue_id)
            return None
        except Unavailable as error:
            self._postpone_unread(queued, error)
            return None
        return Loaded(
            queued, message, rewriting.rewritten(message.envelope.reverse_path, front[:FRONT_BYTES])
        )

    def _begin(self, attempt: Attempt, unfit: Outcome | None = None) -> None:
        key = attempt.queued.key
        self._sending[key] = asyncio.create_task(self._send(attempt, unfit))

    async def _send(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Send what is not refused already, and settle it; whatever happens, tell of its end."""
        key = attempt.queued.key
        try:
            if attempt.reservation is not None:
                outcome = await self._transact(attempt, attempt.reservation)
            if outcome is not None:
                await self._consequences.settle(attempt, outcome)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, what was sent is not settled
            self._on_fault(error)
        finally:
            self.under_way.pop(key, None)
            self._sending.pop(key, None)
            self._on_free()

    async def _transact(self, attempt: Attempt, reservation: Reservation) -> Outcome | None:
        """Run a transaction, end its slot and release its connection; None if its content cannot be read."""
        queued, connection = attempt.queued, attempt.connection
        is_over = True
        try:
            outcome = self._by_session(connection, await self._speak(attempt, reservation))
            is_over = outcome.is_over
        except asyncio.CancelledError:
            # Its grace is over, and perhaps only its upstream leaves the policy: others may go on with it.
            is_over = False
            self._line.give_back(queued, WaitReason("its transaction did not end in time"))
            if attempt.is_content_out:
                self._queue.stay_unknown(queued, reservation.deadline_ns)
            raise
        except (Corrupt, Absent):
            # It was set aside, and has been told of; nothing of it was relayed.
            self._settling.forget(queued.queue_id)
            return None
        except Unavailable as error:
            self._postpone_unread(queued, error)
            return None
        finally:
            # Else the upstream may count it yet: its slot ends by itself, at the deadline.  But what a host
            # had not sent when it was suspended beyond that, it sends when it wakes, and it is counted then.
            if is_over or self._clock.boottime_ns() > reservation.deadline_ns + SUSPENDED_NS:
                self._throttle.ended(reservation)
            attempt.conn_use = max(1, connection.transactions)
            if connection.is_usable:
                self._pool.release(connection)
            else:
                self._pool.discard(connection)
            self._transacting.discard(queued.key)
            self._on_free()
        attempt.ended_ns = self._clock.boottime_ns()
        if is_any_relayed(outcome):
            known_ns = self.transaction_ns
            self.transaction_ns = (
                known_ns + (attempt.took_ns - known_ns) // 8 if known_ns else attempt.took_ns
            )
        return outcome

    def _by_session(self, connection: Connection, outcome: Outcome) -> Outcome:
        """Return an outcome as it counts where its session is full; learn how many messages one takes."""
        if is_any_relayed(outcome):
            connection.relayed += 1
        elif (untried := of_full_session(outcome)) is not None:
            if connection.relayed:
                self._pool.expect_most(connection.transactions - 1)
                return untried
            # The first message of a session is refused so too: no session was full.
            self._pool.expect_any()
        return outcome

    async def _speak(self, attempt: Attempt, reservation: Reservation) -> Outcome:
        """Speak with the upstream; on an exception the connection has ended too.

        Raises what reading the content raises.
        """
        connection, envelope = attempt.connection, attempt.sent_envelope
        # It ends before its slot may be given to another.
        longest_ns = reservation.deadline_ns - self._clock.boottime_ns()
        transaction = Transaction(
            envelope.reverse_path,
            tuple([envelope.recipients[index] for index in attempt.indices]),
            attempt.shape,
            partial(self._content, attempt, reservation),
            longest_ns=longest_ns,
            dsn=envelope.dsn.for_some(attempt.indices) if attempt.passes_dsn else NOTHING_ASKED,
        )
        try:
            if longest_ns <= 0:
                raise Overslept
            return await connection.transact(transaction)
        except Overslept:
            connection.abort()
            # Nothing was relayed, and it says nothing of the message: no attempt.
            answer = Answer(Verdict.LATER, Phase.MAIL, None, "this host was suspended in a transaction")
        except UnsendableContent as error:
            answer = Answer(Verdict.BOUNCE, Phase.DATA, None, clean(str(error)), own_status="5.6.0")
        return Outcome((answer,) * len(attempt.indices))

    def _content(self, attempt: Attempt, reservation: Reservation) -> AsyncIterator[bytes]:
        """Yield the content; its last part, which the final dot follows at once, only in time."""
        content, rewritten = attempt.message.content, attempt.rewritten
        if content is not None:
            content = content if rewritten is None else rewritten.content(content)
            return WholeContent(content, partial(self._let_dot_follow, attempt, reservation))
        return self._parts(attempt, reservation)

    async def _parts(self, attempt: Attempt, reservation: Reservation) -> AsyncIterator[bytes]:
        async with contextlib.aclosing(self._spool_thread.content(attempt.queued.queue_id)) as chunks:
            rewritten = attempt.rewritten
            skip_bytes = 0 if rewritten is None else rewritten.replaced_bytes
            if rewritten is not None:
                check_in_time(reservation, self._clock)
                yield rewritten.front
            async for chunk in chunks:
                check_in_time(reservation, self._clock)
                yield chunk[skip_bytes:] if skip_bytes else chunk
                skip_bytes = max(0, skip_bytes - len(chunk))
        self._let_dot_follow(attempt, reservation)

    def _let_dot_follow(self, attempt: Attempt, reservation: Reservation) -> None:
        check_in_time(reservation, self._clock)
        attempt.is_content_out = True

    def _postpone_unread(self, queued: Queued, error: Unavailable) -> None:
        """Try an unreadable message again later: as far as is known, it is as good as before."""
        self._spool_thread.tell(error)
        self._line.postpone(
            queued,
            self._clock.boottime_ns() + UNREADABLE_RETRY_NS,
            queued.recipients_left,
            WaitReason(f"cannot be read now: {clean(str(error))}"),
        )
