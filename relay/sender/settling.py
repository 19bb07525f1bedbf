"""One attempt, and after it: make its outcome durable, then log it, then let the message go on.

The order is the promise.  `relay.verdicts.decision` decides, and the spool's thread makes the decision
durable.  Only then does the log say so, the queue in memory change, and the operator see it.

Settlements of one message go one after another: its parts may be in transactions at several upstreams at
once, with its reports in between.  Each part has its own status bytes.  Whether the message has ended, and
of which recipients its sender was told, depends on all parts.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from relay.clock import SECOND_NS
from relay.mail.dsn import Note, Notify
from relay.mail.envelope import Envelope, QueueId, Shape, is_notice
from relay.mail.header import Names
from relay.mail.rewriting import Rewritten
from relay.policy.model import Policy
from relay.queue.queued import RECIPIENTS_SHOWN, ListedWords, Queued, State, WaitReason
from relay.queue.queues import Queues
from relay.sender.connections import OfferedExtensions
from relay.sender.reports import REASON, OwedReports, Reporter
from relay.sender.threads import AGAIN_SECONDS, SpoolThread
from relay.spool.interface import Absent, Corrupt, Message, Report, Settlement, Status, Unavailable
from relay.telemetry.events import NO_TRANSACTION, Delays, Subject, Via
from relay.telemetry.metrics import Telemetry
from relay.throttle.admission import domain_key
from relay.upstream.connection import Connection
from relay.verdicts.decision import Decision, Fate, Fates, Next, Terms
from relay.verdicts.outcome import Answer

REPLIES_KEPT, REPLIES_EACH = 1000, 32
"""Limits of `replies`: messages, and recipients of each."""
MARKS = {Fate.RELAYED: Status.RELAYED, Fate.BOUNCED: Status.BOUNCED, Fate.EXPIRED: Status.EXPIRED}
_WORST_FIRST = (Status.BOUNCED, Status.EXPIRED, Status.DELETED, Status.SUCCESS, Status.RELAYED)


@dataclass(slots=True, eq=False)
class Attempt:
    queued: Queued
    message: Message
    left: Sequence[int]
    """Indices of this part's recipients that were left when the message was read."""
    connection: Connection
    offered: OfferedExtensions
    """Of the connection's server."""
    read_at_ns: int
    """When the message was read, or earlier (boottime)."""
    rewritten: Rewritten | None = None
    """The form that is sent, if a route rewrites it; settlement, reports and log use the original."""
    indices: list[int] = field(default_factory=list)
    """Which recipients of the envelope the attempt is for."""
    began_ns: int = 0
    """When its slot was reserved, or it was refused without one (boottime)."""
    deadline_ns: int = 0
    """When the transaction must have ended (boottime); 0 if the upstream is not asked."""
    ended_ns: int = 0
    """Boottime; 0 while the transaction runs."""
    conn_use: int = 1
    """The number of this transaction on its connection, from 1."""
    passes_dsn: bool = False
    """The upstream gets the sender's DSN parameters (RFC 3461), and reports success itself."""

    def __post_init__(self) -> None:
        # A recipient that was deferred is not tried again before all others were tried.
        untried = [index for index in self.left if index not in self.queued.tried]
        self.indices = untried or list(self.left)
        # The upstream reports to the reverse path that it got; a rewritten one is not the sender.
        may_pass_dsn = self.connection.extensions.dsn and not self.offered.is_dsn_refused
        self.passes_dsn = self.rewritten is None and may_pass_dsn

    @property
    def shape(self) -> Shape:
        return self.message.shape if self.rewritten is None else self.rewritten.shape(self.message.shape)

    @property
    def sent_envelope(self) -> Envelope:
        envelope, rewritten = self.message.envelope, self.rewritten
        return envelope if rewritten is None else replace(envelope, reverse_path=rewritten.reverse_path)

    def status_of(self, index: int, fate: Fate) -> Status:
        is_told = fate is Fate.RELAYED and not self.passes_dsn
        if is_told and self.message.envelope.tells_of(index, Notify.SUCCESS):
            return Status.SUCCESS
        return MARKS[fate]

    @property
    def took_ns(self) -> int:
        return self.ended_ns - self.began_ns


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
        self.replies.pop(queue_id, None)
        self.spool_thread.forget(queue_id)

    async def settle(self, upstream: str, attempt: Attempt, decision: Decision) -> None:
        """Make a decision about a message durable, then log it and let the message go on."""
        queued, fates, now_ns = attempt.queued, decision.fates, self._clock.wall_ns()
        async with self._lock(queued.queue_id):
            message = await self._with_other_parts(attempt)
            marks = {i: attempt.status_of(i, fate) for i, (fate, _) in fates.items() if fate in MARKS}
            reported = {i: fates[i] for i, status in marks.items() if status.is_reported}
            deferred = {i: each for i, each in fates.items() if each[0] is Fate.DEFERRED}
            notes = _notes(attempt, reported, now_ns)
            # The hint is for the whole message: a restart would keep its other parts for as long.
            is_postponed = decision.next is Next.POSTPONE and len(self.queue.parts(queued.queue_id)) == 1
            what = Settlement(message.queue_id, message.envelope, marks, notes)
            what.next_attempt_at_ns = now_ns + decision.back_off_ns if is_postponed else None
            subject = _subject(message, queued)
            # If it was set aside or removed meanwhile, the upstream's replies are logged all the same.
            after = await self._settle(message, what) if marks or is_postponed else message
            via = Via(upstream, attempt.connection.name, attempt.conn_use, attempt.connection.tls)
            self._tell(subject, fates, Delays(attempt.began_ns - queued.arrived_at_ns, attempt.took_ns), via)
            self._keep_replies(message, [*notes, *_notes(attempt, deferred, now_ns)])
            if after is None:
                return
            self._go_on(after)
            if after.left:
                self._put_back(queued, after, decision)

    def finish(self, message: Message) -> None:
        """Have a message whose recipients are all done ended, after the report that it may owe."""
        self.queue.owe_report(message.queue_id, REASON)
        self._owed.ask(message.queue_id)

    async def report(self, queue_id: QueueId) -> bool:
        """Publish an owed report, and end a message that has no recipient left.

        Returns False if there is no slot for the report.
        """
        async with self._lock(queue_id):
            (message,) = await self.load([queue_id])
            if isinstance(message, Unavailable):
                retry_seconds = self.spool_thread.unreadable_retry_ns / SECOND_NS
                asyncio.get_running_loop().call_later(retry_seconds, self._owed.ask, queue_id)
            if not isinstance(message, Message):
                return True
            what = Settlement(queue_id, message.envelope)
            if (owed := message.owed_report) is not None:
                if not await self._owed.take_slot():
                    return False
                what.told, what.report = owed.indices, self._reporter.report(message, owed)
            elif message.left:
                return True
            if (after := await self._settle(message, what)) is not None:
                self._go_on(after)
            return True

    async def bounce(self, message: Message, queued: Queued, answer: Answer) -> None:
        """Bounce the recipients left, by an operator's command.

        Raises Full, Unavailable, Absent and Corrupt: nothing has happened yet.
        """
        left, at_ns, subject = message.left, self._clock.wall_ns(), _subject(message, queued)
        notes = [Note(i, answer.status, "operator", answer.text, None, at_ns) for i in left]
        marks = dict.fromkeys(left, Status.BOUNCED)
        await self._end(message, Settlement(message.queue_id, message.envelope, marks, notes))
        delays = Delays(queued_ns=max(0, at_ns - message.envelope.arrival_at_ns))
        self._tell(subject, dict.fromkeys(left, (Fate.BOUNCED, answer)), delays, NO_TRANSACTION)

    async def delete(self, message: Message, queued: Queued) -> None:
        """Delete a message, by an operator's command.  Raises as `bounce`.

        No report tells of it, nor of its recipients that failed before.
        """
        queue_id, envelope, subject = message.queue_id, message.envelope, _subject(message, queued)
        # Told, so that it is not sent either if a power loss brings the message back.
        told = () if message.owed_report is None else message.owed_report.indices
        marks = dict.fromkeys(message.left, Status.DELETED)
        await self._end(message, Settlement(queue_id, envelope, marks, told=told))
        if told:
            self._events.tell("report_omitted", queue_id=queue_id, nrcpt=len(told))
        message_id, path = subject.names.message_id, envelope.reverse_path
        for index in message.left:
            self._events.tell(
                "recipient_deleted",
                subject,
                queue_id=queue_id,
                message_id=message_id,
                reverse_path=path,
                recipient=envelope.recipients[index],
            )
        self._events.tell("deleted", queue_id=queue_id, message_id=message_id, nrcpt=len(message.left))

    async def warn(self, message: Message, delays: Sequence[Note], until_at_ns: int) -> bool:
        """Warn the sender, durably and once, that recipients wait; return False if no slot is free."""
        async with self._lock(message.queue_id):
            if not await self._owed.may_warn():
                return False
            report = self._reporter.warning(message, delays, until_at_ns)
            what = Settlement(message.queue_id, message.envelope, report=report, is_warned=True)
            await self._settle(message, what)
            for part in self.queue.parts(message.queue_id):
                part.is_warned = True
            return True

    def _keep_replies(self, message: Message, notes: Sequence[Note]) -> None:
        if notes:
            its = self.replies.pop(message.queue_id, {}) | {note.index: note for note in notes}
            self.replies[message.queue_id] = dict([*its.items()][-REPLIES_EACH:])
            if len(self.replies) > REPLIES_KEPT:
                self.replies.popitem(last=False)

    async def _end(self, message: Message, what: Settlement) -> None:
        async with self._lock(message.queue_id):
            if (after := await self._settle(message, what, is_asked=True)) is not None:
                self._go_on(after)

    def _lock(self, queue_id: QueueId) -> asyncio.Lock:
        return self._locks.setdefault(queue_id, asyncio.Lock())

    async def _with_other_parts(self, attempt: Attempt) -> Message:
        """Return the message; if the attempt is for a part, with what was settled of the others meanwhile."""
        while attempt.queued.part.indices is not None:
            (message,) = await self.spool_thread.read([attempt.queued.queue_id])
            if isinstance(message, Message):
                return message
            if not isinstance(message, Unavailable):
                break  # the settlement raises the same error
            self.spool_thread.tell(message)
            await asyncio.sleep(AGAIN_SECONDS)
        return attempt.message

    async def _settle(self, message: Message, what: Settlement, *, is_asked: bool = False) -> Message | None:
        """Settle durably, however long that takes; return the message as it is then, None if it is gone.

        If an operator asked for it, raise as `SpoolThread.change` does instead.
        """
        after = message.after(what.marks, what.notes)
        if what.told:
            after = after._replace(told=message.told.union(what.told))
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
        for status in what.marks.values():
            self._metrics.count("relay_ledger_recipients_total", status.word)
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
        kind = "warning" if what.is_warned else "report" if is_failure else "success"
        self._metrics.count("relay_reports_total", kind)
        own_id, size_bytes = report.queue_id, len(report.content)
        self._events.tell(
            f"{kind}_published", queue_id=what.queue_id, report_id=own_id, size_bytes=size_bytes
        )
        self.new_mail.set()

    def _tell(self, subject: Subject, fates: Fates, delays: Delays, via: Via) -> None:
        for index, (fate, answer) in fates.items():
            if fate is not Fate.WAITING:
                self._events.delivery(subject, index, fate, answer, delays=delays, via=via)

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

    def _put_back(self, queued: Queued, after: Message, decision: Decision) -> None:
        """Put a part back into its line; the caller wakes the accounts."""
        if decision.next is Next.FINISH:
            self.queue.end_part(queued)
            return
        line, now_ns = self.queue.line_of(queued), self._clock.boottime_ns()
        left = listed_fields(after, queued.part.left(after.left), queued.shown.names)
        line.update(queued, tried=decision.tried, refusals=decision.refusals, **left)
        why = WaitReason(decision.reason, decision.status)
        match decision.next:
            case Next.GIVE_BACK:
                line.give_back(queued, why)
            case Next.AGAIN:
                # Ready from now on: otherwise a large message stays overdue for all its transactions.
                line.put_back(queued, State.WAITING, why=why, ready_at_ns=now_ns)
            case Next.POSTPONE:
                line.put_back(queued, State.DEFERRED, why=why, due_at_ns=now_ns + decision.back_off_ns)


def _notes(attempt: Attempt, fates: Fates, at_ns: int) -> list[Note]:
    host, its = attempt.connection.name.partition("[")[0], fates.items()
    return [Note(i, answer.status, fate.value, answer.text, host, at_ns) for i, (fate, answer) in its]


def _subject(message: Message, queued: Queued) -> Subject:
    return Subject(message, queued.shown.names, queued.lane)


def listed_fields(message: Message, left: Sequence[int], names: Names) -> dict[str, Any]:
    """Return the fields of a `Queued` that tell which of its recipients are left."""
    recipients = [message.envelope.recipients[index] for index in left]
    domains = {domain_key(each.rpartition("@")[2]) for each in recipients}
    listed = ListedWords(names, message.envelope.arrival_at_ns, tuple(recipients[:RECIPIENTS_SHOWN]))
    return {
        "recipients_left": len(recipients),
        "domain": domains.pop() if len(domains) == 1 else "",
        "listed": listed.text(),
    }
