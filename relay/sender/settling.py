"""After an attempt: write down what it came to, then tell, then let the message go on.

The order is the promise.  `relay.verdicts.decision` decides, the spool's thread makes it durable, and
only then does the log say so, the queue in memory change, and the operator see it.

Parts of one message may be in transactions at several upstreams at once.  Their status bytes are their
own; whether the message has ended is asked of all of them, so their settlements go one after another.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from relay.mail.dsn import Notify
from relay.mail.envelope import Envelope, QueueId, Shape, is_notice
from relay.mail.rewriting import Rewritten
from relay.queue.queued import RecipientsLeft, WaitKind, WaitReason
from relay.queue.scheduler import Queued, Scheduler, State
from relay.queue.whole import Queue
from relay.sender.report_limit import OwedReports
from relay.sender.spool_thread import NOTHING_WRITTEN, Ending, SpoolThread, Written
from relay.smtp.reply import Phase
from relay.spool.interface import (
    DEFERRED,
    RECIPIENTS_SHOWN,
    Absent,
    Corrupt,
    Message,
    Note,
    SpoolFault,
    Status,
    runs,
)
from relay.telemetry.events import Delays, Via
from relay.telemetry.telemetry import Telemetry
from relay.throttle.admission import runs_of
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection
from relay.verdicts.decision import Decision, Fate, Next, Terms
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

_FAILED = frozenset(status for status in Status if status.is_failure)
_Became = Literal["relayed", "bounced", "expired", "deleted"]
_WORST_FIRST: tuple[tuple[Status, _Became], ...] = (
    (Status.BOUNCED, "bounced"),
    (Status.EXPIRED, "expired"),
    (Status.DELETED, "deleted"),
)
_REASONS = {
    Fate.BOUNCED: "bounced",
    Fate.EXPIRED: "expired",
    Fate.DEFERRED: DEFERRED,
    Fate.RELAYED: "relayed",
}
_MARKS = {Fate.RELAYED: Status.RELAYED, Fate.BOUNCED: Status.BOUNCED, Fate.EXPIRED: Status.EXPIRED}


@dataclass(slots=True)
class Attempt:
    """Some recipients of one message, on one connection; from its taking to its settlement."""

    queued: Queued
    message: Message
    connection: Connection
    indices: list[int]
    """Of the recipients in the envelope."""
    reservation: Reservation | None = None
    """Its slot; None where the upstream is not asked."""
    is_content_out: bool = False
    """The final dot may have gone out."""
    ended_ns: int = 0
    conn_use: int = 1
    """Which transaction of its connection it was."""
    rewritten: Rewritten | None = None
    """What of it is sent in another form; what is settled, reported and logged is the message of before."""
    passes_dsn: bool = False
    """What its sender wants to be told was passed on: the upstream tells of success."""

    @property
    def shape(self) -> Shape:
        """Return the shape of what is sent."""
        return self.message.shape if self.rewritten is None else self.rewritten.shape(self.message.shape)

    @property
    def sent_envelope(self) -> Envelope:
        """Return the envelope as the upstream sees it."""
        envelope = self.message.envelope
        return (
            envelope
            if self.rewritten is None
            else replace(envelope, reverse_path=self.rewritten.reverse_path)
        )

    @property
    def left(self) -> tuple[int, ...]:
        """Return the indices of the recipients that were to do when the message was read, of this part."""
        return self.queued.part.left(self.message.left)

    def status_of(self, index: int, fate: Fate) -> Status:
        """Return the mark of a recipient whose fate is final."""
        is_told = fate is Fate.RELAYED and not self.passes_dsn
        if is_told and self.message.envelope.tells_of(index, Notify.SUCCESS):
            return Status.SUCCESS
        return _MARKS[fate]

    @property
    def took_ns(self) -> int:
        return 0 if self.reservation is None else self.ended_ns - self.reservation.reserved_at_ns

    @property
    def delays(self) -> Delays:
        if self.reservation is None:
            return Delays()
        queued_ns = self.reservation.reserved_at_ns - self.queued.arrived_at_ns
        return Delays(queued_ns=queued_ns, transmitting_ns=self.took_ns)

    def domains_left(self, gone: Collection[int]) -> tuple[tuple[str, int], ...]:
        """Return the domains of the recipients left except `gone`, in the order of asking for them."""
        return recipients_left(self.message, self.queued, gone, self.queued.past.tried).domains


def recipients_left(
    message: Message, queued: Queued, gone: Collection[int], tried: Collection[int]
) -> RecipientsLeft:
    """Return the recipients of a part but for some: domains with those not tried yet first."""
    left = [index for index in queued.part.left(message.left) if index not in gone]
    in_order = [i for i in left if i not in tried] + [i for i in left if i in tried]
    all_of_them = message.envelope.recipients
    of_domains = runs(all_of_them[index] for index in in_order)
    return RecipientsLeft(
        runs_of(of_domains),
        tuple(all_of_them[index] for index in left[:RECIPIENTS_SHOWN]),
    )


class Settling:
    """Settles attempts of all upstreams.  `terms` is the policy's `retry`, and may change."""

    def __init__(
        self,
        queue: Queue,
        spool_thread: SpoolThread,
        telemetry: Telemetry,
        *,
        terms: Terms,
        owed: OwedReports,
        on_report: Callable[[], None],
    ) -> None:
        """`on_report` is told when a report was queued: it waits in the spool to be taken."""
        self.terms = terms
        self._queue = queue
        self._spool_thread = spool_thread
        self._events, self._metrics, self._clock = telemetry
        self._owed = owed
        self._on_report = on_report
        self._locks: dict[QueueId, asyncio.Lock] = {}
        """Of messages in parts, while some are being settled."""
        self._waiting: Counter[QueueId] = Counter()
        """How many have or wait for each lock."""
        self._settled: dict[QueueId, dict[int, Status]] = {}
        """Of messages in parts: what was marked since they came into memory."""

    async def load(self, queue_ids: Sequence[QueueId]) -> list[Message | Exception | None]:
        """Read queued messages; for each the message, why it cannot be read now, or None where it is gone.

        Raises SpoolFault.
        """
        loaded: list[Message | Exception | None] = []
        for queue_id, message in zip(queue_ids, await self._spool_thread.load(queue_ids), strict=True):
            if isinstance(message, SpoolFault):
                raise message
            is_gone = isinstance(message, Absent | Corrupt)
            if is_gone:
                # It was set aside, or somebody removed it by hand: the spool has said so.
                self.forget(queue_id)
            loaded.append(None if is_gone else message)
        return loaded

    def forget(self, queue_id: QueueId) -> None:
        """Forget a message that is gone, or was set aside."""
        self._queue.remove(queue_id)
        self._settled.pop(queue_id, None)

    async def settle(self, upstream: str, attempt: Attempt, decision: Decision) -> None:
        """Carry out durably what was decided about a message.  Raises SpoolFault."""
        if attempt.queued.part.indices is None:
            await self._settle(upstream, attempt, decision)
            return
        async with self._one_part_at_a_time(attempt.queued.queue_id):
            # Other parts may have ended since it was read.
            settled = self._settled.setdefault(attempt.queued.queue_id, {})
            attempt.message = _after(attempt.message, settled)
            await self._settle(upstream, attempt, decision)

    @contextlib.asynccontextmanager
    async def _one_part_at_a_time(self, queue_id: QueueId) -> AsyncIterator[None]:
        lock = self._locks.setdefault(queue_id, asyncio.Lock())
        self._waiting[queue_id] += 1
        try:
            async with lock:
                yield
        finally:
            self._waiting[queue_id] -= 1
            if not self._waiting[queue_id]:
                del self._waiting[queue_id], self._locks[queue_id]

    async def _settle(self, upstream: str, attempt: Attempt, decision: Decision) -> None:
        queue_id, message = attempt.queued.queue_id, attempt.message
        marks = {
            index: attempt.status_of(index, fate)
            for index, (fate, _) in decision.fates.items()
            if fate in _MARKS
        }
        after = _after(message, marks)
        is_done = not after.left
        # What was relayed must not wait for a report about the rest.
        is_finished = is_done and after.owed_report is None
        is_gone = False
        try:
            await self._write(attempt, decision, marks, is_finished=is_finished)
        except (Absent, Corrupt):
            # Somebody removed its file, or the disk damaged it, during the transaction.  It is not
            # in the queue any more, and what the upstream took of it stays true.
            self.forget(queue_id)
            is_gone = True
        if (settled := self._settled.get(queue_id)) is not None:
            settled.update(marks)
        self._tell(upstream, attempt, decision)
        if is_gone:
            return
        if is_finished:
            self._ended(after)
        elif is_done:
            await self.finish(after, attempt.queued)
        else:
            await self._report_so_far(after, attempt.queued)
            self._go_on(attempt, decision)

    async def finish(self, message: Message, queued: Queued) -> None:
        """End a message whose recipients are all done, once its report may go.  Raises SpoolFault."""
        if message.owed_report is not None and not await self._owed.may_go():
            self._owed.wait(queued)
        else:
            await self._end_now(message)

    async def report(self, queue_id: QueueId) -> bool:
        """Make the report that waited for its turn; False if its message is unreadable now.

        A message of which only that was left ends.  Raises SpoolFault.
        """
        (message,) = await self.load([queue_id])
        if isinstance(message, Message):
            queued = self._queue.get(queue_id)
            # One whose last recipients are settled just now is ended by that.
            is_last = queued is not None and queued.state is State.REPORTING
            await (self._end_now(message) if is_last else self._report_now(message))
        return message is None or isinstance(message, Message)

    def report_soon(self, queue_id: QueueId) -> None:
        """Have the report made that a start found owed, when its turn comes."""
        self._owed.ask_soon(queue_id)

    async def _report_so_far(self, message: Message, queued: Queued) -> None:
        """Tell the sender what is owed while recipients are left, once the report may go."""
        if message.owed_report is None:
            return
        if await self._owed.may_go():
            await self._report_now(message)
        else:
            self._owed.wait_meanwhile(queued)

    async def _report_now(self, message: Message) -> None:
        """Publish the report that is owed, and remember it; the message goes on."""
        try:
            written = await self._spool_thread.settle(
                Ending(message, {}, (), is_finished=False, reports=True)
            )
        except (Absent, Corrupt):
            self.forget(message.queue_id)
        else:
            self._tell_report(message, written)

    async def end_silently(self, message: Message) -> None:
        """End a message of which only the report is left, without it, by an operator's word."""
        await self._spool_thread.settle(Ending(message, {}, (), is_finished=True, is_silent=True))
        self._ended(message)
        if (owed := message.owed_report) is not None:
            self._events.report_omitted(queue_id=message.queue_id, nrcpt=len(owed.indices))

    async def bounce(self, message: Message, text: str) -> None:
        """Fail all recipients that are left, by an operator's word; the sender gets a report."""
        at_ns = self._clock.wall_ns()
        # RFC 3463, 3.8: X.7.1 is delivery not authorized, message refused.
        notes = tuple(Note(index, "5.7.1", "operator", text, None, at_ns) for index in message.left)
        await self._end(message, dict.fromkeys(message.left, Status.BOUNCED), notes)
        for note in notes:
            answer = Answer(Verdict.BOUNCE, Phase.EOD, None, text, own_status=note.status)
            self._tell_unasked(message, note.index, answer, at_ns)

    async def believe(self, message: Message, refusals: dict[int, Answer]) -> int:
        """Bounce some recipients by refusals that were doubted so far; return how many are left."""
        at_ns = self._clock.wall_ns()
        marks = dict.fromkeys(refusals, Status.BOUNCED)
        notes = tuple(
            Note(index, answer.status, "bounced", answer.text, None, at_ns)
            for index, answer in refusals.items()
        )
        after = _after(message, marks)
        queued = self._queue.get(message.queue_id)
        if after.left:
            await self._spool_thread.settle(Ending(message, marks, notes, is_finished=False))
        else:
            await self._end(message, marks, notes)
        for index, answer in refusals.items():
            self._tell_unasked(message, index, answer, at_ns)
        if after.left and queued is not None:
            await self._report_so_far(after, queued)
        return len(after.left)

    async def delete(self, message: Message) -> None:
        """Drop all recipients that are left, by an operator's word; no one is told."""
        await self._end(message, dict.fromkeys(message.left, Status.DELETED), ())
        queue_id, message_id, envelope = message.queue_id, message.names.message_id, message.envelope
        for index in message.left:
            self._events.recipient_deleted(
                queue_id=queue_id,
                message=message,
                reverse_path=envelope.reverse_path,
                recipient=envelope.recipients[index],
            )
        self._events.deleted(queue_id=queue_id, message_id=message_id, nrcpt=len(message.left))

    async def _end(self, message: Message, marks: dict[int, Status], notes: tuple[Note, ...]) -> None:
        """Mark all recipients that are left, durably, and end the message."""
        after = _after(message, marks)
        queued = self._queue.get(message.queue_id)
        if after.owed_report is not None and queued is not None:
            await self._spool_thread.settle(Ending(message, marks, notes, is_finished=False))
            await self.finish(after, queued)
        else:
            written = await self._spool_thread.settle(Ending(message, marks, notes, is_finished=True))
            self._ended(after, written)

    async def _end_now(self, message: Message) -> None:
        """Publish the report that is owed, if one is, and remove the message."""
        try:
            written = await self._spool_thread.settle(Ending(message, {}, (), is_finished=True))
        except (Absent, Corrupt):
            self.forget(message.queue_id)
        else:
            self._ended(message, written)

    async def _write(
        self, attempt: Attempt, decision: Decision, marks: dict[int, Status], *, is_finished: bool
    ) -> None:
        # The hint is for a whole message: a restart must not keep its other parts for that long.
        is_postponed = decision.next is Next.POSTPONE and len(self._queue.parts(attempt.queued.queue_id)) == 1
        now_ns = self._clock.wall_ns()
        delayed = self._notes(
            attempt, decision, [i for i, (fate, _) in decision.fates.items() if fate is Fate.DEFERRED], now_ns
        )
        if not (marks or is_finished or delayed or is_postponed):
            return
        message, queued = attempt.message, attempt.queued
        await self._spool_thread.settle(
            Ending(
                message,
                marks,
                self._notes(attempt, decision, [i for i, s in marks.items() if s.is_reported], now_ns),
                is_finished=is_finished,
                next_attempt_at_ns=now_ns + decision.back_off_ns if is_postponed else None,
                replies=delayed,
            )
        )
        # Behind the marks: what was relayed must not wait for a warning about the rest.
        late = told_of_delay(message.envelope, delayed) if decision.warns and not queued.is_warned else ()
        if late and await self.may_warn():
            until_at_ns = now_ns + self.terms.lifetime_ns - decision.age_ns
            await self.warn(message, queued, late, until_at_ns)

    async def may_warn(self) -> bool:
        """Take a slot for a warning, unless there is too little room."""
        return await self._owed.may_go(is_warning=True)

    async def warn(
        self, message: Message, queued: Queued, delays: tuple[Note, ...], until_at_ns: int
    ) -> bool:
        """Tell the sender, durably and once, that recipients wait; return whether it was not told before.

        Assumes that `may_warn` said yes.  Raises SpoolFault.
        """
        try:
            written = await self._spool_thread.settle(
                Ending(message, {}, (), is_finished=False, warning=(delays, until_at_ns))
            )
        except (Absent, Corrupt):
            # It went, or was set aside, just now: whoever did that has told of it.
            return False
        # Also where the warning was queued before a crash: the file says so by now.
        self._queue.warned(queued.queue_id)
        if written.warning is not None:
            self._metrics.report_published("warning")
            self._events.warning_published(
                queue_id=queued.queue_id, report_id=written.warning, size_bytes=written.size_bytes
            )
            self._on_report()
        return written.warning is not None

    def _notes(
        self, attempt: Attempt, decision: Decision, indices: Sequence[int], at_ns: int
    ) -> tuple[Note, ...]:
        if not indices:
            return ()  # as nearly always
        host = attempt.connection.name.partition("[")[0]
        fates = ((index, *decision.fates[index]) for index in indices)
        return tuple(
            Note(
                index,
                _final(fate, answer).status,
                _REASONS[fate],
                answer.text,
                host,
                at_ns,
            )
            for index, fate, answer in fates
        )

    def _tell(self, upstream: str, attempt: Attempt, decision: Decision) -> None:
        connection, recipients, delays = (
            attempt.connection,
            attempt.message.envelope.recipients,
            attempt.delays,
        )
        tls = None if connection.tls == "none" else connection.tls
        via = Via(upstream, connection.name, attempt.conn_use, tls)
        for index, (fate, answer) in decision.fates.items():
            if fate is not Fate.WAITING:
                self._events.delivery(
                    queue_id=attempt.message.queue_id,
                    reverse_path=attempt.message.envelope.reverse_path,
                    recipient=recipients[index],
                    fate=fate,
                    answer=_final(fate, answer),
                    delays=delays,
                    via=via,
                    message=attempt.message,
                )
        if decision.is_relayed:
            self._metrics.relayed_after(delays)

    def _tell_unasked(self, message: Message, index: int, answer: Answer, at_ns: int) -> None:
        self._events.delivery(
            queue_id=message.queue_id,
            reverse_path=message.envelope.reverse_path,
            recipient=message.envelope.recipients[index],
            fate=Fate.BOUNCED,
            answer=answer,
            delays=Delays(queued_ns=max(0, at_ns - message.envelope.arrival_at_ns)),
            message=message,
        )

    def _tell_report(self, message: Message, written: Written) -> None:
        if written.report is not None:
            tell = self._events.report_published if written.is_failure else self._events.success_published
            self._metrics.report_published("report" if written.is_failure else "success")
            tell(queue_id=message.queue_id, report_id=written.report, size_bytes=written.size_bytes)
            self._on_report()

    def _ended(self, message: Message, written: Written = NOTHING_WRITTEN) -> None:
        """Forget a message that is gone; log it, and the report about it."""
        self.forget(message.queue_id)
        statuses = message.statuses
        self._tell_report(message, written)
        if not _FAILED.isdisjoint(statuses):
            tells_of = message.envelope.tells_of
            untold = [i for i, s in enumerate(statuses) if s in _FAILED and not tells_of(i, Notify.FAILURE)]
            if is_notice(message.queue_id):
                self._metrics.report_dropped()
                self._events.report_dropped(
                    queue_id=message.queue_id, recipient=message.envelope.recipients[0]
                )
            elif untold:
                self._events.report_omitted(queue_id=message.queue_id, nrcpt=len(untold))
        # What is worst for any of its recipients is what became of the message.
        self._metrics.removed(next((word for status, word in _WORST_FIRST if status in statuses), "relayed"))
        self._events.removed(queue_id=message.queue_id)

    def _go_on(self, attempt: Attempt, decision: Decision) -> None:
        """Move the message on in the queue; the caller wakes the dispatchers."""
        queued, left = attempt.queued, decision.recipients_left
        line, key = self._queue.line_of(queued), queued.key
        if decision.next is Next.FINISH:
            self._queue.end_part(queued)
            return
        line.attempted(
            key,
            tried=decision.tried,
            refusals=decision.refusals,
            singled_out=decision.singled_out,
            left=recipients_left(attempt.message, queued, decision.gone(), decision.tried),
        )
        why = WaitReason(decision.reason, WaitKind.REFUSAL, decision.status)
        match decision.next:
            case Next.REFUSED:
                line.refused(key, left, why)
            case Next.GIVE_BACK:
                line.give_back(key, why)
            case Next.AGAIN:
                line.again(key, left, why)
            case Next.POSTPONE:
                due_at_ns = self._clock.boottime_ns() + decision.back_off_ns
                line.postpone(key, due_at_ns, left, why)
        self._queue.put(queued, self._clock.boottime_ns())


class AccountBacklog(NamedTuple):
    """The queue as one upstream account has it, and what its messages are settled with."""

    scheduler: Scheduler
    """The line of the account."""
    spool_thread: SpoolThread
    settling: Settling
    queue: Queue


class Backlog(NamedTuple):
    queue: Queue
    spool_thread: SpoolThread
    settling: Settling

    def of(self, upstream: str) -> AccountBacklog:
        return AccountBacklog(self.queue.line(upstream), self.spool_thread, self.settling, self.queue)


def told_of_delay(envelope: Envelope, delays: Iterable[Note]) -> tuple[Note, ...]:
    """Return the delays of which the sender wants to be told."""
    return tuple([note for note in delays if envelope.tells_of(note.index, Notify.DELAY)])


def _after(message: Message, marks: dict[int, Status]) -> Message:
    statuses = [marks.get(index, status) for index, status in enumerate(message.statuses)]
    return message._replace(statuses=tuple(statuses))


def _final(fate: Fate, answer: Answer) -> Answer:
    """Return the answer as it counts: an expired recipient failed for good, whatever the last reply was."""
    # RFC 3463, 3.5: X.4.7 is delivery time expired.
    return answer._replace(own_status="5.4.7") if fate is Fate.EXPIRED else answer
