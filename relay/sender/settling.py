"""After an attempt: make its outcome durable, then log it, then let the message go on.

The order is the promise.  `relay.verdicts.decision` decides, and the spool's thread makes the decision
durable.  Only then does the log say so, the queue in memory change, and the operator see it.

Settlements of one message go one after another: its parts may be in transactions at several upstreams at
once, with its reports in between.  Each part has its own status bytes.  Whether the message has ended, and
of which recipients its sender was told, depends on all parts.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Literal
from weakref import WeakValueDictionary

from relay.clock import SECOND_NS
from relay.mail.dsn import Notify
from relay.mail.envelope import QueueId, is_notice
from relay.policy.model import Policy
from relay.queue.queued import Queued, State, WaitReason
from relay.queue.queues import Queues
from relay.sender.attempt import MARKS, Attempt, recipients_left
from relay.sender.reports import REASON, OwedReports, Reporter
from relay.sender.spool_thread import SpoolThread
from relay.spool.interface import Absent, Corrupt, Message, Note, Report, Settlement, Status, Unavailable
from relay.telemetry.events import NO_TRANSACTION, Delays, Subject, Via
from relay.telemetry.metrics import Telemetry
from relay.verdicts.decision import Decision, Fate, Next, Terms
from relay.verdicts.outcome import Answer

REPLIES_KEPT, REPLIES_EACH = 1000, 32
"""Limits of `replies`: messages, and recipients of each."""
_WORST_FIRST = (Status.BOUNCED, Status.EXPIRED, Status.DELETED, Status.SUCCESS, Status.RELAYED)


class Settling:
    """Settles messages of the queue in memory and in the spool behind it; call `use` before all else."""

    terms: Terms
    """The policy's `retry`."""

    def __init__(
        self,
        queue: Queues,
        spool_thread: SpoolThread,
        telemetry: Telemetry,
        *,
        hostname: str,
        owed: OwedReports,
    ) -> None:
        self.queue, self.spool_thread = queue, spool_thread
        self._events, self._metrics, self._clock = telemetry
        self._owed = owed
        self._reporter = Reporter(hostname)
        self.new_mail = asyncio.Event()
        """Set when a report was published, or a listener pulled the trigger: the spool has mail to claim."""
        self._locks: WeakValueDictionary[QueueId, asyncio.Lock] = WeakValueDictionary()
        """One for each message that is being settled."""
        self._newest: dict[QueueId, Message] = {}
        """Messages with an active part, as last settled, without content: the part was read before."""
        self.replies: OrderedDict[QueueId, dict[int, Note]] = OrderedDict()
        """For display: the upstream's last reply on each recipient that is deferred or failed."""

    def use(self, policy: Policy) -> None:
        retry = policy.retry
        self.terms = Terms(retry.min_ns, retry.max_ns, retry.lifetime_ns, retry.warn_after_ns)
        self._reporter.sender = policy.reports.sender

    async def load(self, queue_ids: Sequence[QueueId]) -> list[Message | Unavailable | None]:
        """Read queued messages; for each the message, Unavailable, or None if it is gone."""
        loaded = await self.spool_thread.read(queue_ids)
        for queue_id, message in zip(queue_ids, loaded, strict=True):
            if isinstance(message, Absent | Corrupt):
                # It was set aside, or removed by hand.
                self.forget(queue_id)
        return [None if isinstance(each, Absent | Corrupt) else each for each in loaded]

    def forget(self, queue_id: QueueId) -> None:
        self.queue.remove(queue_id)
        self._newest.pop(queue_id, None)
        self.replies.pop(queue_id, None)
        self.spool_thread.forget(queue_id)

    async def settle(self, upstream: str, attempt: Attempt, decision: Decision) -> None:
        """Make a decision about a message durable, then log it and let the message go on."""
        queued, fates, now_ns = attempt.queued, decision.fates, self._clock.wall_ns()
        async with self._lock(queued.queue_id):
            attempt.message = message = self._as_settled(attempt.message)
            marks = {i: attempt.status_of(i, fate) for i, (fate, _) in fates.items() if fate in MARKS}
            reported = [i for i, status in marks.items() if status.is_reported]
            deferred = [i for i, (fate, _) in fates.items() if fate is Fate.DEFERRED]
            notes = _notes(attempt, decision, reported, now_ns)
            delays = _notes(attempt, decision, deferred, now_ns)
            # The hint is for the whole message: a restart would keep its other parts for as long.
            is_postponed = decision.next is Next.POSTPONE and len(self.queue.parts(queued.queue_id)) == 1
            what = Settlement(message.queue_id, message.envelope, marks, notes)
            what.next_attempt_at_ns = now_ns + decision.back_off_ns if is_postponed else None
            subject = _subject(message, queued)
            # If it was set aside or removed meanwhile, the upstream's replies are logged all the same.
            after = await self._settle(message, what) if marks or is_postponed else message
            via = Via(upstream, attempt.connection.name, attempt.conn_use, attempt.connection.tls)
            answered = {index: each for index, each in fates.items() if each[0] is not Fate.WAITING}
            self._tell(subject, answered, attempt.delays, via)
            self._keep_replies(message, (*notes, *delays))
            if after is None:
                return
            self._go_on(after)
            if after.left:
                self._put_back(attempt, decision)
                self._keep(after)

    def finish(self, message: Message) -> None:
        """Have a message whose recipients are all done ended, after the report that it may owe."""
        self.queue.owe_report(message.queue_id, REASON)
        self._newest.pop(message.queue_id, None)
        self._owed.ask(message.queue_id)

    async def report(self, queue_id: QueueId) -> bool:
        """Publish an owed report, and end a message that has no recipient left.

        Returns False if there is no slot for the report.
        """
        async with self._lock(queue_id):
            if queue_id not in self.queue:
                return True
            (message,) = await self.load([queue_id])
            if isinstance(message, Unavailable):
                retry_seconds = self.spool_thread.unreadable_retry_ns / SECOND_NS
                asyncio.get_running_loop().call_later(retry_seconds, self._owed.ask, queue_id)
                return True
            if message is None:
                return True
            what = Settlement(queue_id, message.envelope)
            if (owed := message.owed_report) is not None:
                if not await self._owed.take_slot():
                    return False
                what.told, what.report = owed.indices, self._reporter.report(message, owed)
            elif message.left:
                return True
            if (after := await self._settle(message, what)) is not None:
                self._keep(after)
                self._go_on(after)
            return True

    async def bounce(self, message: Message, queued: Queued, answer: Answer) -> None:
        """Bounce all recipients left, by an operator's command.

        Raises Full, Unavailable, Absent and Corrupt, as `delete` does: nothing has happened yet.
        """
        at_ns, subject = self._clock.wall_ns(), _subject(message, queued)
        notes = [Note(i, answer.status, "operator", answer.text, None, at_ns) for i in message.left]
        await self._end_left(message, Status.BOUNCED, notes)
        delays = Delays(queued_ns=max(0, at_ns - message.envelope.arrival_at_ns))
        self._tell(subject, dict.fromkeys(message.left, (Fate.BOUNCED, answer)), delays, NO_TRANSACTION)

    async def delete(self, message: Message, queued: Queued) -> None:
        """Delete all recipients left, by an operator's command, without any report."""
        subject = _subject(message, queued)
        queue_id, message_id, envelope = message.queue_id, subject.names.message_id, message.envelope
        if told := await self._end_left(message, Status.DELETED):
            self._events.tell("report_omitted", queue_id=queue_id, nrcpt=len(told))
        for index in message.left:
            self._events.tell(
                "recipient_deleted",
                subject,
                queue_id=queue_id,
                message_id=message_id,
                reverse_path=envelope.reverse_path,
                recipient=envelope.recipients[index],
            )
        self._events.tell("deleted", queue_id=queue_id, message_id=message_id, nrcpt=len(message.left))

    async def _end_left(self, message: Message, status: Status, notes: Sequence[Note] = ()) -> Sequence[int]:
        """End all recipients left; return those of which no report tells because they were deleted."""
        async with self._lock(message.queue_id):
            message = self._as_settled(message)
            what = Settlement(message.queue_id, message.envelope, dict.fromkeys(message.left, status), notes)
            if status is Status.DELETED and (owed := message.owed_report) is not None:
                # Told, so that it is not sent either if a power loss brings the message back.
                what.told = owed.indices
            if (after := await self._settle(message, what, is_asked=True)) is not None:
                self._go_on(after)
        return what.told

    async def warn(self, message: Message, delays: Sequence[Note], until_at_ns: int) -> bool:
        """Warn the sender, durably and once, that recipients wait; return False if no slot is free."""
        async with self._lock(message.queue_id):
            message = self._as_settled(message)
            if not message.is_warned:
                if not await self._owed.may_warn():
                    return False
                report = self._reporter.warning(message, delays, until_at_ns)
                what = Settlement(message.queue_id, message.envelope, report=report, is_warned=True)
                if (after := await self._settle(message, what)) is not None:
                    self._keep(after)
            for part in self.queue.parts(message.queue_id):
                part.is_warned = True
            return True

    def _keep_replies(self, message: Message, notes: Sequence[Note]) -> None:
        if notes:
            its = self.replies.pop(message.queue_id, {}) | {note.index: note for note in notes}
            self.replies[message.queue_id] = dict([*its.items()][-REPLIES_EACH:])
            if len(self.replies) > REPLIES_KEPT:
                self.replies.popitem(last=False)

    def _lock(self, queue_id: QueueId) -> asyncio.Lock:
        return self._locks.setdefault(queue_id, asyncio.Lock())

    def _as_settled(self, message: Message) -> Message:
        """Return a message as last settled, with the content that was read."""
        newest = self._newest.get(message.queue_id)
        if newest is None:
            return message
        return newest._replace(content=message.content, long_head=message.long_head)

    def _keep(self, message: Message) -> None:
        """Keep the settled message while a part of it is active that was read before."""
        if any(part.state is State.ACTIVE for part in self.queue.parts(message.queue_id)):
            self._newest[message.queue_id] = message._replace(content=None, long_head=b"")
        else:
            self._newest.pop(message.queue_id, None)

    async def _settle(self, message: Message, what: Settlement, *, is_asked: bool = False) -> Message | None:
        """Settle durably, however long that takes; return the message as it is then, None if it is gone.

        If an operator asked for it, raise as `SpoolThread.change` does instead.
        """
        after = message.after(what.marks, what.notes)
        if what.report is not None or what.told:
            told, is_warned = message.told.union(what.told), message.is_warned or what.is_warned
            after = after._replace(told=told, is_warned=is_warned)
        # The marks of relayed recipients must not wait for a report on the others.
        what.ends = not after.left and after.owed_report is None
        try:
            settle = self.spool_thread.change if is_asked else self.spool_thread.settle
            await settle(what)
        except (Absent, Corrupt):
            self.forget(what.queue_id)
            if is_asked:
                raise
            return None
        self._metrics.count_fates(status.word for status in what.marks.values())
        if what.report is not None:
            self._tell_published(after, what, what.report)
        return after

    def _go_on(self, message: Message) -> None:
        """Have the owed report made, or forget a message whose end is durable."""
        if message.owed_report is None:
            if not message.left:
                self._ended(message)
        elif message.left:
            self._owed.ask(message.queue_id)
        else:
            self.finish(message)

    def _tell_published(self, message: Message, what: Settlement, report: Report) -> None:
        is_failure = any(message.statuses[index].is_failure for index in what.told)
        kind: Literal["report", "success", "warning"]
        kind = "warning" if what.is_warned else "report" if is_failure else "success"
        self._metrics.count("relay_reports_total", kind)
        report_id, size_bytes = report.queue_id, len(report.content)
        self._events.tell(
            f"{kind}_published", queue_id=what.queue_id, report_id=report_id, size_bytes=size_bytes
        )
        self.new_mail.set()

    def _tell(
        self, subject: Subject, answered: Mapping[int, tuple[Fate, Answer]], delays: Delays, via: Via
    ) -> None:
        for index, (fate, answer) in answered.items():
            self._events.delivery(subject, index, fate, _final(fate, answer), delays=delays, via=via)

    def _ended(self, message: Message) -> None:
        self.forget(message.queue_id)
        queue_id, statuses, envelope = message.queue_id, message.statuses, message.envelope
        failed = [index for index, status in enumerate(statuses) if status.is_failure]
        if failed and is_notice(queue_id):
            self._metrics.count("relay_reports_dropped_total")
            self._events.tell("report_dropped", queue_id=queue_id, recipient=envelope.recipients[0])
        elif untold := [index for index in failed if not envelope.tells_of(index, Notify.FAILURE)]:
            self._events.tell("report_omitted", queue_id=queue_id, nrcpt=len(untold))
        # The worst result of its recipients counts as the message's.
        worst = next(status for status in _WORST_FIRST if status in statuses)
        self._metrics.count("relay_queue_removed_total", worst.word)
        self._events.tell("removed", queue_id=queue_id)

    def _put_back(self, attempt: Attempt, decision: Decision) -> None:
        """Put a part back into its line; the caller wakes the accounts."""
        queued = attempt.queued
        line = self.queue.line_of(queued)
        if decision.next is Next.FINISH:
            self.queue.end_part(queued)
            return
        line.note_left(queued, recipients_left(attempt.message, queued, decision.gone()))
        queued.tried, queued.refusals = decision.tried, decision.refusals
        why = WaitReason(decision.reason, decision.status)
        now_ns = self._clock.boottime_ns()
        match decision.next:
            case Next.GIVE_BACK:
                line.give_back(queued, why)
            case Next.AGAIN:
                # Ready from now on: otherwise a large message stays overdue for all its transactions.
                line.put_back(queued, State.WAITING, why=why, ready_at_ns=now_ns)
            case Next.POSTPONE:
                line.put_back(queued, State.DEFERRED, why=why, due_at_ns=now_ns + decision.back_off_ns)


def _notes(attempt: Attempt, decision: Decision, indices: Sequence[int], at_ns: int) -> tuple[Note, ...]:
    if not indices:
        return ()  # as nearly always
    host = attempt.connection.name.partition("[")[0]
    fates = ((index, *decision.fates[index]) for index in indices)
    return tuple(
        [
            Note(i, _final(fate, answer).status, fate.value, answer.text, host, at_ns)
            for i, fate, answer in fates
        ]
    )


def _subject(message: Message, queued: Queued) -> Subject:
    return Subject(message, queued.shown.names, queued.lane)


def _final(fate: Fate, answer: Answer) -> Answer:
    """Return the answer to record: an expired recipient failed for good, whatever the last reply was."""
    # RFC 3463, 3.5: X.4.7 is delivery time expired.
    return answer._replace(own_status="5.4.7") if fate is Fate.EXPIRED else answer
