"""After an attempt: write down what it came to, then tell, then let the message go on.

The order is the promise.  `relay.queue.settlement` decides, the desk makes it durable, and
only then does the log say so, the queue in memory change, and the operator see it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from relay.clock import Clock
from relay.mail.envelope import QueueId
from relay.queue.scheduler import Queued, Scheduler
from relay.queue.settlement import Fate, Next, Settlement, Terms, settle
from relay.sender.report_limit import OwedReports
from relay.sender.spool_thread import Ending, SpoolThread, Written
from relay.smtp.reply import Phase
from relay.spool.interface import Absent, Corrupt, Message, Note, SpoolFault, Status
from relay.telemetry.events import Events, Via
from relay.telemetry.metrics import Metrics
from relay.telemetry.redaction import Redaction
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.suspect_message import REFUSALS_IN_PLACE
from relay.verdicts.verdict import Scope, Verdict

Delays = tuple[int, int, int, int]
"""Nanoseconds before the queue, in the queue and the throttle, connecting, transmitting."""

_MARKS = {Fate.RELAYED: Status.RELAYED, Fate.BOUNCED: Status.BOUNCED, Fate.EXPIRED: Status.EXPIRED}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One transaction for one message, seen from its end."""

    upstream: str
    queued: Queued
    message: Message
    asked: list[int]
    """Which recipients of the envelope, in the order of the outcome's answers."""
    outcome: Outcome
    relay: str
    """`host[address]:port`"""
    tls: str
    conn_use: int
    delays_ns: Delays
    paused_ns: int
    """How much of the message's time in the queue its upstream was paused: no part of its age."""

    @property
    def host(self) -> str:
        """Return the upstream's name, as a report shows it."""
        return self.relay.partition("[")[0]


class Settling:
    """Settles attempts of all upstreams.  `terms` is the policy's `retry`, and may change."""

    def __init__(
        self,
        scheduler: Scheduler,
        spool_thread: SpoolThread,
        events: Events,
        metrics: Metrics,
        clock: Clock,
        *,
        terms: Terms,
        redaction: Redaction,
        owed: OwedReports,
        on_report: Callable[[], None],
    ) -> None:
        """`on_report` is told when a report was queued: it waits in the spool to be taken."""
        self.terms = terms
        self.redaction = redaction
        self._scheduler = scheduler
        self._spool_thread = spool_thread
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._owed = owed
        self._on_report = on_report

    async def settle(self, attempt: Attempt) -> None:
        """Settle an attempt durably.  Raises SpoolFault."""
        queued, message = attempt.queued, attempt.message
        age_ns = self._clock.boottime_ns() - queued.arrived_at_ns - attempt.paused_ns
        settlement = settle(
            left=message.left,
            asked=attempt.asked,
            tried_before=queued.tried,
            outcome=attempt.outcome,
            age_ns=age_ns,
            terms=self.terms,
            paused_ns=attempt.paused_ns,
        )
        marks = _marks(settlement)
        ended = _after(message, marks) if settlement.next is Next.FINISH else None
        # What was relayed must not wait for a report about the rest.
        is_finished = ended is not None and not owes_report(ended)
        try:
            written = await self._write(attempt, settlement, marks, age_ns, is_finished=is_finished)
        except (Absent, Corrupt):
            # Somebody removed its file, or the disk damaged it, during the transaction.  It is not
            # in the queue any more, and what the upstream took of it stays true.
            self._scheduler.remove(queued.queue_id)
            written = None
        for index, (fate, answer) in settlement.fates.items():
            if fate is not Fate.WAITING:
                self._tell(attempt, message.envelope.recipients[index], fate, answer)
        if any(fate is Fate.RELAYED for fate, _ in settlement.fates.values()):
            self._metrics.relayed_after(attempt.delays_ns)
        if written is None:
            return
        if ended is None:
            self._go_on(attempt, settlement)
        elif is_finished:
            self._scheduler.remove(queued.queue_id)
            self._told_end(ended, None)
        else:
            await self.finish(ended, queued)

    async def finish(self, message: Message, queued: Queued) -> None:
        """End a message whose recipients are all done, as soon as the report that it owes may go.

        Raises SpoolFault.
        """
        if owes_report(message) and not await self._owed.may_go():
            self._owed.wait(queued)
        else:
            await self._end_now(message)

    async def report(self, queue_id: QueueId) -> bool:
        """End a message that waited for its report's turn; False if it cannot be read now.

        Raises SpoolFault.
        """
        (message,) = await self._spool_thread.load([queue_id])
        match message:
            case Message():
                await self._end_now(message)
            case SpoolFault():
                raise message
            case Absent() | Corrupt():
                # It was set aside, or somebody removed it by hand: the spool has said so.
                self._scheduler.remove(queue_id)
            case _:
                return False
        return True

    async def end_silently(self, message: Message) -> None:
        """End a message of which only the report is left, without it, by an operator's word."""
        await self._spool_thread.settle(Ending(message, {}, (), is_finished=True, is_silent=True))
        self._scheduler.remove(message.queue_id)
        self._told_end(message, None)
        failed = sum(status.is_failure for status in message.statuses)
        self._events.report_omitted(queue_id=message.queue_id, nrcpt=failed)

    async def bounce(self, message: Message, text: str) -> None:
        """Fail all recipients that are left, by an operator's word; the sender gets a report."""
        at_ns = self._clock.wall_ns()
        # RFC 3463, 3.8: X.7.1 is delivery not authorized, message refused.
        notes = tuple(Note(index, "5.7.1", "operator", text, None, at_ns) for index in message.left)
        await self._end(message, dict.fromkeys(message.left, Status.BOUNCED), notes)
        for note in notes:
            self._events.delivery(
                queue_id=message.queue_id,
                recipient=message.envelope.recipients[note.index],
                fate=Fate.BOUNCED,
                answer=Answer(Verdict.BOUNCE, Phase.EOD, None, text, own_status=note.status),
                delays_ns=(0, max(0, at_ns - message.envelope.arrival_at_ns), 0, 0),
            )

    async def believe(self, message: Message, refusals: dict[int, Answer]) -> int:
        """Bounce some recipients by refusals that were doubted so far; return how many are left."""
        at_ns = self._clock.wall_ns()
        marks = dict.fromkeys(refusals, Status.BOUNCED)
        notes = tuple(
            Note(index, answer.status, "bounced", self.redaction.hide(answer.text), None, at_ns)
            for index, answer in refusals.items()
        )
        left = len(message.left) - len(refusals)
        if left:
            await self._spool_thread.settle(Ending(message, marks, notes, is_finished=False))
        else:
            await self._end(message, marks, notes)
        for index, answer in refusals.items():
            self._events.delivery(
                queue_id=message.queue_id,
                recipient=message.envelope.recipients[index],
                fate=Fate.BOUNCED,
                answer=answer,
                delays_ns=(0, max(0, at_ns - message.envelope.arrival_at_ns), 0, 0),
            )
        return left

    async def delete(self, message: Message) -> None:
        """Drop all recipients that are left, by an operator's word; nobody is told."""
        await self._end(message, dict.fromkeys(message.left, Status.DELETED), ())
        self._events.deleted(queue_id=message.queue_id, nrcpt=len(message.left))

    async def _end(self, message: Message, marks: dict[int, Status], notes: tuple[Note, ...]) -> None:
        """Mark all recipients that are left, durably, and end the message."""
        ended = _after(message, marks)
        queued = self._scheduler.get(message.queue_id)
        if owes_report(ended) and queued is not None:
            await self._spool_thread.settle(Ending(message, marks, notes, is_finished=False))
            await self.finish(ended, queued)
        else:
            written = await self._spool_thread.settle(Ending(message, marks, notes, is_finished=True))
            self._scheduler.remove(message.queue_id)
            self._told_end(ended, written.report)

    async def _end_now(self, message: Message) -> None:
        """Publish the report that is owed, if one is, and remove the message."""
        try:
            written = await self._spool_thread.settle(Ending(message, {}, (), is_finished=True))
        except (Absent, Corrupt):
            self._scheduler.remove(message.queue_id)
        else:
            self._scheduler.remove(message.queue_id)
            self._told_end(message, written.report)

    async def _write(
        self,
        attempt: Attempt,
        settlement: Settlement,
        marks: dict[int, Status],
        age_ns: int,
        *,
        is_finished: bool,
    ) -> Written:
        now_ns = self._clock.wall_ns()
        message = attempt.message
        is_postponed = settlement.next is Next.POSTPONE
        if not marks and not is_finished and not is_postponed:
            return Written()
        delayed = self._notes(attempt, settlement, (Fate.DEFERRED,), now_ns)
        is_due = settlement.warns and not attempt.queued.is_warned and not message.envelope.is_null
        written = await self._spool_thread.settle(
            Ending(
                message,
                marks,
                self._notes(attempt, settlement, (Fate.BOUNCED, Fate.EXPIRED), now_ns),
                is_finished=is_finished,
                next_attempt_at_ns=now_ns + settlement.back_off_ns if is_postponed else None,
            )
        )
        # Behind the marks: what was relayed must not wait for a warning about the rest.
        if is_due and delayed and await self.may_warn():
            await self.warn(message, attempt.queued, delayed, now_ns + self.terms.lifetime_ns - age_ns)
        return written

    async def may_warn(self) -> bool:
        """Take a slot for a warning, unless there is too little room."""
        return await self._owed.may_go(is_warning=True)

    async def warn(
        self, message: Message, queued: Queued, delays: tuple[Note, ...], until_at_ns: int
    ) -> bool:
        """Tell the sender, durably and once, that recipients wait; return whether it was not told before.

        `may_warn` was asked.  Raises SpoolFault.
        """
        try:
            written = await self._spool_thread.settle(
                Ending(message, {}, (), is_finished=False, warning=(delays, until_at_ns))
            )
        except (Absent, Corrupt):
            # It went, or was set aside, just now: whoever did that has told of it.
            return False
        self._warned(queued, written)
        return written.warning is not None

    def _warned(self, queued: Queued, written: Written) -> None:
        # Also where the warning was queued before a crash: the file says so by now.
        queued.is_warned = True
        if written.warning is not None:
            self._metrics.report_published("warning")
            self._events.warning_published(queue_id=queued.queue_id, report_id=written.warning)
            self._on_report()

    def _notes(
        self, attempt: Attempt, settlement: Settlement, fates: tuple[Fate, ...], at_ns: int
    ) -> tuple[Note, ...]:
        return tuple(
            Note(
                index,
                _final(fate, answer).status,
                "expired" if fate is Fate.EXPIRED else "bounced",
                self.redaction.hide(answer.text),
                attempt.host,
                at_ns,
            )
            for index, (fate, answer) in settlement.fates.items()
            if fate in fates
        )

    def _tell(self, attempt: Attempt, recipient: str, fate: Fate, answer: Answer) -> None:
        self._events.delivery(
            queue_id=attempt.message.queue_id,
            recipient=recipient,
            fate=fate,
            answer=_final(fate, answer),
            delays_ns=attempt.delays_ns,
            via=Via(
                attempt.upstream,
                attempt.relay,
                max(1, attempt.conn_use),
                None if attempt.tls == "none" else attempt.tls,
            ),
        )

    def _told_end(self, message: Message, report: QueueId | None) -> None:
        """Tell that a message is gone, and of the report about it."""
        statuses = message.statuses
        failed = [status for status in statuses if status.is_failure]
        if report is not None:
            self._metrics.report_published("report")
            self._events.report_published(queue_id=message.queue_id, report_id=report)
            self._on_report()
        elif failed and message.envelope.is_null:
            self._events.report_omitted(queue_id=message.queue_id, nrcpt=len(failed))
        if Status.BOUNCED in statuses:
            self._metrics.removed("bounced")
        elif Status.EXPIRED in statuses:
            self._metrics.removed("expired")
        elif Status.DELETED in statuses:
            self._metrics.removed("deleted")
        else:
            self._metrics.removed("relayed")
        self._events.removed(queue_id=message.queue_id)

    def _go_on(self, attempt: Attempt, settlement: Settlement) -> None:
        """Move the message on in the queue; whoever waits for it is woken by the caller."""
        queued = attempt.queued
        queued.tried = settlement.tried
        reason = self.redaction.hide(settlement.reason)
        match settlement.next:
            case Next.FINISH:
                pass
            case Next.GIVE_BACK if attempt.outcome.pause is not None:
                queued.refusals += attempt.outcome.pause.scope is Scope.UPSTREAM
                if queued.refusals < REFUSALS_IN_PLACE:
                    self._scheduler.give_back(queued.queue_id, reason)
                else:
                    # Another one proves the upstream from now on: else a single message that it takes for
                    # an offence of ours each time would keep all others for ever.
                    self._scheduler.again(queued.queue_id, settlement.recipients_left, reason)
            case Next.GIVE_BACK:
                self._scheduler.give_back(queued.queue_id, reason)
            case Next.AGAIN:
                self._scheduler.again(queued.queue_id, settlement.recipients_left, reason)
            case Next.POSTPONE:
                due_at_ns = self._clock.boottime_ns() + settlement.back_off_ns
                self._scheduler.postpone(queued.queue_id, due_at_ns, settlement.recipients_left, reason)


def owes_report(message: Message) -> bool:
    """Return whether the sender is to be told of recipients that failed."""
    return not message.envelope.is_null and any(status.is_failure for status in message.statuses)


def _after(message: Message, marks: dict[int, Status]) -> Message:
    """Return a message as it is once these marks are on disk."""
    statuses = tuple(marks.get(index, status) for index, status in enumerate(message.statuses))
    return replace(message, statuses=statuses)


def _marks(settlement: Settlement) -> dict[int, Status]:
    return {index: _MARKS[fate] for index, (fate, _) in settlement.fates.items() if fate in _MARKS}


def _final(fate: Fate, answer: Answer) -> Answer:
    """Return the answer as it counts: what expired failed for good, whatever the last reply was."""
    # RFC 3463, 3.5: X.4.7 is delivery time expired.
    return replace(answer, own_status="5.4.7") if fate is Fate.EXPIRED else answer
