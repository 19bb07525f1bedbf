"""After an attempt: write down what it came to, then tell, then let the message go on.

The order is the promise.  `relay.verdicts.decision` decides, the spool's thread makes it durable, and
only then does the log say so, the queue in memory change, and the operator see it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from relay.mail.envelope import QueueId
from relay.queue.queued import WaitKind, WaitReason
from relay.queue.scheduler import Queued, Scheduler
from relay.sender.report_limit import OwedReports
from relay.sender.spool_thread import Ending, SpoolThread
from relay.smtp.reply import Phase
from relay.spool.interface import Absent, Corrupt, Message, Note, SpoolFault, Status, runs
from relay.telemetry.events import Delays, Via
from relay.telemetry.telemetry import Telemetry
from relay.throttle.admission import run_of
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
    ended_ns: int = 0
    conn_use: int = 1
    """Which transaction of its connection it was."""

    @property
    def took_ns(self) -> int:
        return 0 if self.reservation is None else self.ended_ns - self.reservation.reserved_at_ns

    @property
    def delays(self) -> Delays:
        if self.reservation is None:
            return Delays()
        queued_ns = self.reservation.reserved_at_ns - self.queued.arrived_at_ns
        return Delays(queued_ns=queued_ns, transmitting_ns=self.took_ns)

    def domains_left(
        self, gone: Collection[int], tried: Collection[int] | None = None
    ) -> tuple[tuple[str, int], ...]:
        """Return the domains of the recipients left except `gone`, in the order of asking for them.

        First come those that were not tried yet; `tried` None: as before the attempt.
        """
        return domains_left(self.message, gone, self.queued.tried if tried is None else tried)


def domains_left(
    message: Message, gone: Collection[int], tried: Collection[int]
) -> tuple[tuple[str, int], ...]:
    """Return the domains of a message's recipients left but for some, those not tried yet first."""
    left = [index for index in message.left if index not in gone]
    in_order = [i for i in left if i not in tried] + [i for i in left if i in tried]
    addresses = (message.envelope.recipients[index] for index in in_order)
    return tuple(run_of(domain, count) for domain, count in runs(addresses))


class Settling:
    """Settles attempts of all upstreams.  `terms` is the policy's `retry`, and may change."""

    def __init__(
        self,
        scheduler: Scheduler,
        spool_thread: SpoolThread,
        telemetry: Telemetry,
        *,
        terms: Terms,
        owed: OwedReports,
        on_report: Callable[[], None],
    ) -> None:
        """`on_report` is told when a report was queued: it waits in the spool to be taken."""
        self.terms = terms
        self._scheduler = scheduler
        self._spool_thread = spool_thread
        self._events, self._metrics, self._redaction, self._clock = telemetry
        self._owed = owed
        self._on_report = on_report

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
                self._scheduler.remove(queue_id)
            loaded.append(None if is_gone else message)
        return loaded

    async def settle(self, upstream: str, attempt: Attempt, decision: Decision) -> None:
        """Carry out durably what was decided about a message.  Raises SpoolFault."""
        queue_id, message = attempt.queued.queue_id, attempt.message
        marks = {index: _MARKS[fate] for index, (fate, _) in decision.fates.items() if fate in _MARKS}
        statuses = _after(message, marks)
        is_done = decision.next is Next.FINISH
        # What was relayed must not wait for a report about the rest.
        is_finished = is_done and not _owes_report(message, statuses)
        is_gone = False
        try:
            await self._write(attempt, decision, marks, is_finished=is_finished)
        except (Absent, Corrupt):
            # Somebody removed its file, or the disk damaged it, during the transaction.  It is not
            # in the queue any more, and what the upstream took of it stays true.
            self._scheduler.remove(queue_id)
            is_gone = True
        self._tell(upstream, attempt, decision)
        if is_gone:
            return
        if is_finished:
            self._ended(message, statuses)
        elif is_done:
            await self.finish(replace(message, statuses=statuses), attempt.queued)
        else:
            self._go_on(attempt, decision)

    async def finish(self, message: Message, queued: Queued) -> None:
        """End a message whose recipients are all done, once its report may go.  Raises SpoolFault."""
        if _owes_report(message, message.statuses) and not await self._owed.may_go():
            self._owed.wait(queued)
        else:
            await self._end_now(message)

    async def report(self, queue_id: QueueId) -> bool:
        """End a message that waited for its report's turn; False if unreadable now.  Raises SpoolFault."""
        (message,) = await self.load([queue_id])
        if isinstance(message, Message):
            await self._end_now(message)
        return message is None or isinstance(message, Message)

    async def end_silently(self, message: Message) -> None:
        """End a message of which only the report is left, without it, by an operator's word."""
        await self._spool_thread.settle(Ending(message, {}, (), is_finished=True, is_silent=True))
        self._ended(message, message.statuses)
        failed = sum(status.is_failure for status in message.statuses)
        self._events.report_omitted(queue_id=message.queue_id, nrcpt=failed)

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
            Note(index, answer.status, "bounced", self._redaction.hide(answer.text), None, at_ns)
            for index, answer in refusals.items()
        )
        left = len(message.left) - len(refusals)
        if left:
            await self._spool_thread.settle(Ending(message, marks, notes, is_finished=False))
        else:
            await self._end(message, marks, notes)
        for index, answer in refusals.items():
            self._tell_unasked(message, index, answer, at_ns)
        return left

    async def delete(self, message: Message) -> None:
        """Drop all recipients that are left, by an operator's word; no one is told."""
        await self._end(message, dict.fromkeys(message.left, Status.DELETED), ())
        self._events.deleted(queue_id=message.queue_id, nrcpt=len(message.left))

    async def _end(self, message: Message, marks: dict[int, Status], notes: tuple[Note, ...]) -> None:
        """Mark all recipients that are left, durably, and end the message."""
        statuses = _after(message, marks)
        queued = self._scheduler.get(message.queue_id)
        if _owes_report(message, statuses) and queued is not None:
            await self._spool_thread.settle(Ending(message, marks, notes, is_finished=False))
            await self.finish(replace(message, statuses=statuses), queued)
        else:
            written = await self._spool_thread.settle(Ending(message, marks, notes, is_finished=True))
            self._ended(message, statuses, written.report)

    async def _end_now(self, message: Message) -> None:
        """Publish the report that is owed, if one is, and remove the message."""
        try:
            written = await self._spool_thread.settle(Ending(message, {}, (), is_finished=True))
        except (Absent, Corrupt):
            self._scheduler.remove(message.queue_id)
        else:
            self._ended(message, message.statuses, written.report)

    async def _write(
        self, attempt: Attempt, decision: Decision, marks: dict[int, Status], *, is_finished: bool
    ) -> None:
        is_postponed = decision.next is Next.POSTPONE
        if not (marks or is_finished or is_postponed):
            return
        now_ns = self._clock.wall_ns()
        message, queued = attempt.message, attempt.queued
        await self._spool_thread.settle(
            Ending(
                message,
                marks,
                self._notes(attempt, decision, {Fate.BOUNCED, Fate.EXPIRED}, now_ns),
                is_finished=is_finished,
                next_attempt_at_ns=now_ns + decision.back_off_ns if is_postponed else None,
            )
        )
        # Behind the marks: what was relayed must not wait for a warning about the rest.
        if decision.warns and not queued.is_warned and not message.envelope.is_null:
            delayed = self._notes(attempt, decision, {Fate.DEFERRED}, now_ns)
            if delayed and await self.may_warn():
                until_at_ns = now_ns + self.terms.lifetime_ns - decision.age_ns
                await self.warn(message, queued, delayed, until_at_ns)

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
        self._scheduler.warned(queued.queue_id)
        if written.warning is not None:
            self._metrics.report_published("warning")
            self._events.warning_published(queue_id=queued.queue_id, report_id=written.warning)
            self._on_report()
        return written.warning is not None

    def _notes(
        self, attempt: Attempt, decision: Decision, fates: AbstractSet[Fate], at_ns: int
    ) -> tuple[Note, ...]:
        if fates.isdisjoint([fate for fate, _ in decision.fates.values()]):
            return ()  # as nearly always
        host = attempt.connection.name.partition("[")[0]
        return tuple(
            Note(
                index,
                _final(fate, answer).status,
                "expired" if fate is Fate.EXPIRED else "bounced",
                self._redaction.hide(answer.text),
                host,
                at_ns,
            )
            for index, (fate, answer) in decision.fates.items()
            if fate in fates
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
                    recipient=recipients[index],
                    fate=fate,
                    answer=_final(fate, answer),
                    delays=delays,
                    via=via,
                )
        if decision.is_relayed:
            self._metrics.relayed_after(delays)

    def _tell_unasked(self, message: Message, index: int, answer: Answer, at_ns: int) -> None:
        self._events.delivery(
            queue_id=message.queue_id,
            recipient=message.envelope.recipients[index],
            fate=Fate.BOUNCED,
            answer=answer,
            delays=Delays(queued_ns=max(0, at_ns - message.envelope.arrival_at_ns)),
        )

    def _ended(self, message: Message, statuses: Sequence[Status], report: QueueId | None = None) -> None:
        """Forget a message that is gone; log it, and the report about it."""
        self._scheduler.remove(message.queue_id)
        failed = sum(map(_FAILED.__contains__, statuses))
        if report is not None:
            self._metrics.report_published("report")
            self._events.report_published(queue_id=message.queue_id, report_id=report)
            self._on_report()
        elif failed and message.envelope.is_null:
            self._events.report_omitted(queue_id=message.queue_id, nrcpt=failed)
        # What is worst for any of its recipients is what became of the message.
        self._metrics.removed(next((word for status, word in _WORST_FIRST if status in statuses), "relayed"))
        self._events.removed(queue_id=message.queue_id)

    def _go_on(self, attempt: Attempt, decision: Decision) -> None:
        """Move the message on in the queue; the caller wakes the dispatchers."""
        queue_id, left = attempt.queued.queue_id, decision.recipients_left
        self._scheduler.attempted(
            queue_id,
            tried=decision.tried,
            refusals=decision.refusals,
            singled_out=decision.singled_out,
            domains=attempt.domains_left(decision.gone(), decision.tried),
        )
        why = WaitReason(WaitKind.REFUSAL, self._redaction.hide(decision.reason), decision.status)
        match decision.next:
            case Next.REFUSED:
                self._scheduler.refused(queue_id, left, why)
            case Next.GIVE_BACK:
                self._scheduler.give_back(queue_id, why)
            case Next.AGAIN:
                self._scheduler.again(queue_id, left, why)
            case Next.POSTPONE:
                due_at_ns = self._clock.boottime_ns() + decision.back_off_ns
                self._scheduler.postpone(queue_id, due_at_ns, left, why)
            case Next.FINISH:
                pass


class Backlog(NamedTuple):
    scheduler: Scheduler
    spool_thread: SpoolThread
    settling: Settling


def _owes_report(message: Message, statuses: Iterable[Status]) -> bool:
    return not (_FAILED.isdisjoint(statuses) or message.envelope.is_null)


def _after(message: Message, marks: dict[int, Status]) -> tuple[Status, ...]:
    return tuple([marks.get(index, status) for index, status in enumerate(message.statuses)])


def _final(fate: Fate, answer: Answer) -> Answer:
    """Return the answer as it counts: an expired recipient failed for good, whatever the last reply was."""
    # RFC 3463, 3.5: X.4.7 is delivery time expired.
    return replace(answer, own_status="5.4.7") if fate is Fate.EXPIRED else answer
