"""Reports to senders on recipients that ended, so many an hour; and one warning for mail that is late.

An upstream that counts bounces cuts off accounts that send many (cPanel after five an hour, others after
fifteen), so a storm of bounces must not become one of reports.  In any hour at most `reports.per_hour`
reports and warnings are queued; a history on disk keeps that over restarts and edits.

Guarantees: a message with the same marks and notes gives the same report, so a second publication after a
crash is the same message.  A report that may not go yet is not lost: its message stays in the spool with
its marks and notes, and a start asks again.  Reports go in the order in which they were owed, before any
warning; recipients that fail meanwhile join the report.
A message gets at most one warning, over restarts too.  It gets none if it is from `<>` or held, or if its
sender wants no word on the delay of any recipient left (NOTIFY, RFC 3461).
A history that cannot be read or written limits nothing: a report is owed, the limit is courtesy.
Does not: choose the recipients of a report (`relay.spool.interface.owed_report`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relay.clock import SECOND_NS
from relay.mail.dsn import Note, Notify
from relay.mail.envelope import Envelope, QueueId
from relay.mail.report import Reason, report
from relay.policy.model import Policy
from relay.queue.queued import Queued, State, WaitReason
from relay.queue.upstream_queue import SLICE
from relay.sender.host import Host, seconds, woken
from relay.sender.threads import ThrottleThread
from relay.spool.identity import warning_id
from relay.spool.interface import Message, OwedReport, Report, Status
from relay.telemetry.metrics import Telemetry
from relay.throttle.admission import Request, Wait
from relay.throttle.file_history import FileHistory
from relay.throttle.history import HistoryError
from relay.throttle.limit import Limit
from relay.throttle.throttle import Reservation, Throttle
from relay.verdicts.decision import UNKNOWN_STATUS

if TYPE_CHECKING:
    from relay.sender.settling import Settling

HOUR_NS = 3600 * SECOND_NS
PUBLISHING_NS = 60 * SECOND_NS
"""A slot whose process died is in use for so long, and leaves the window an hour later."""
REASON = WaitReason("only its report is left; it goes within reports.per_hour")
LOOK_NS = 60 * SECOND_NS
"""Between two looks for late mail; a look at 200,000 messages takes 0.2 s, in slices."""
_LOST = "The reason is no longer known."
_REASONS = {Status.EXPIRED: Reason.EXPIRED, Status.SUCCESS: Reason.RELAYED}


@dataclass
class Reporter:
    """Writes reports and warnings, which are messages from the relay to a sender.  Pure."""

    hostname: str
    sender: str | None = None
    """The policy's `reports.from`, which may change; None for MAILER-DAEMON at the host."""

    def report(self, message: Message, owed: OwedReport) -> Report:
        """Return the report on recipients that ended, by their notes; it quotes the head of long content."""
        notes = {note.index: note for note in message.notes}
        endings = [_ending(message, index, notes.get(index)) for index in owed.indices]
        return self._written(message, owed.report_id, endings, is_whole=message.content is not None)

    def warning(self, message: Message, delays: Sequence[Note], until_at_ns: int) -> Report:
        """Return the warning that recipients wait, and until when they will be tried (wall clock)."""
        late = [replace(note, reason=Reason.DELAYED.value) for note in delays]
        return self._written(message, warning_id(message.queue_id), late, until_ns=until_at_ns)

    def _written(
        self,
        message: Message,
        own_id: QueueId,
        notes: Sequence[Note],
        *,
        is_whole: bool = False,
        until_ns: int | None = None,
    ) -> Report:
        at_ns, to = max(each.at_ns for each in notes), message.envelope.reverse_path
        content = report(
            own_id,
            message.envelope,
            message.head,
            notes,
            is_whole=is_whole,
            hostname=self.hostname,
            sender=self.sender or f"MAILER-DAEMON@{self.hostname}",
            until_ns=until_ns,
        )
        envelope = Envelope("", (to,), at_ns, "local", "", "local", smtputf8=not to.isascii())
        return Report(own_id, envelope, content)


def _ending(message: Message, index: int, note: Note | None) -> Note:
    status = message.statuses[index]
    if note is None or (note.reason == Reason.RELAYED) == status.is_failure:
        # The note is lost, or is of an attempt that a crash cut off and another one followed.
        reason, code = _REASONS.get(status, Reason.BOUNCED), "5.0.0" if status.is_failure else "2.0.0"
        return Note(index, code, reason.value, _LOST, None, message.envelope.arrival_at_ns)
    return note


class OwedReports:
    """The messages that owe a report, in order.  Belongs to one event loop."""

    def __init__(self, policy: Policy, host: Host, telemetry: Telemetry) -> None:
        self._events, self._clock = telemetry.events, telemetry.clock
        history = FileHistory(policy.reports_history, host.disk, self._clock)
        throttle = Throttle(history, _limits(policy), self._clock, transaction_ns=PUBLISHING_NS)
        self._gate = ThrottleThread(throttle, self._clock, self._tell_uncounted, workers=host.workers)
        self._waiting: dict[QueueId, None] = {}
        self._is_capped = False
        """It was logged that the reports in `_waiting` wait for a slot."""
        self.wake = asyncio.Event()
        """When it is set, `run` looks for the next report."""
        self._opens_at_ns = 0
        """Boottime at which there may be a slot; in the past if there may be one now."""

    def ask(self, queue_id: QueueId) -> None:
        """Have the report of a queued message made in its turn, which may be at once."""
        self._waiting.setdefault(queue_id)
        self.wake.set()

    async def run(self, report: Callable[[QueueId], Awaitable[bool]]) -> None:
        """Make each report in its turn, until cancelled.

        `report` takes the slot; it returns False if there was none, and otherwise is not called again for
        it.
        """
        while True:
            self.wake.clear()
            if (queue_id := next(iter(self._waiting), None)) is None:
                self._is_capped = False
                await self.wake.wait()
            elif self._clock.boottime_ns() < self._opens_at_ns:
                if not self._is_capped:
                    until_at_ns = self._clock.wall_ns() + self._opens_at_ns - self._clock.boottime_ns()
                    self._events.tell("reports_capped", until_at_ns=until_at_ns)
                self._is_capped = True
                await woken(self.wake, self._opens_at_ns, self._clock)
            elif await report(queue_id):
                del self._waiting[queue_id]

    async def may_warn(self) -> bool:
        """Take a slot for a warning; return False if there is none, or reports wait for one."""
        return not self._waiting and await self.take_slot()

    async def take_slot(self) -> bool:
        try:
            (answer,) = await self._gate.call(lambda gate: gate.reserve([Request(1)]))
        except HistoryError as error:
            self._tell_uncounted(error)
            return True
        if isinstance(answer, Reservation):
            self._gate.ended(answer)
        elif isinstance(answer, Wait):
            self._opens_at_ns = answer.until_ns
        return isinstance(answer, Reservation)

    async def use(self, policy: Policy) -> None:
        await self._gate.call(lambda gate: gate.replan(_limits(policy)))
        self._opens_at_ns = 0
        self.wake.set()

    async def close(self) -> None:
        await self._gate.close()

    def _tell_uncounted(self, error: HistoryError) -> None:
        self._events.tell("reports_uncounted", error=str(error))


def _limits(policy: Policy) -> list[Limit]:
    most = policy.reports.per_hour
    return [] if most is None else [Limit("messages", most, HOUR_NS, f"{most} reports per 1h")]


class LateMail:
    """Warns of messages that wait too long: for room in a window, or the end of a pause or a back-off.

    The time counts from acceptance, pauses included.  A message may be relayed just after its warning.
    """

    def __init__(self, settling: "Settling", host: Host) -> None:
        self._queue, self._settling = settling.queue, settling
        self._clock, self._look_seconds = host.clock, host.look_seconds

    async def run(self) -> None:
        while True:
            await self.look()
            period_ns = min(LOOK_NS, (self._settling.terms.warn_after_ns or 4 * LOOK_NS) // 4)
            await asyncio.sleep(max(self._look_seconds, seconds(period_ns)))

    async def look(self) -> None:
        """Warn of late messages, in slices between turns of the loop."""
        for number, queue_id in enumerate(self._queue.ids()):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            queued = next(iter(self._queue.parts(queue_id)), None)
            if queued is None or not self._is_late(queued):
                continue
            (message,) = await self._settling.load([queue_id])
            if not (isinstance(message, Message) and self._is_late(queued)):
                continue
            late = [i for i in message.left if message.envelope.tells_of(i, Notify.DELAY)]
            if not late:
                # The sender wanted a warning only for recipients that are done: do not look again.
                queued.is_warned = True
            elif not await self._settling.warn(message, *self._told(queued, late)):
                break  # no slot for this message, nor for those behind it

    def _is_late(self, queued: Queued) -> bool:
        after_ns = self._settling.terms.warn_after_ns
        if after_ns is None or queued.is_warned or not queued.origin.reverse_path:
            return False
        age_ns = self._clock.boottime_ns() - queued.arrived_at_ns
        return age_ns >= after_ns and queued.state in (State.WAITING, State.DEFERRED)

    def _told(self, queued: Queued, late: Sequence[int]) -> tuple[Sequence[Note], int]:
        """Return the notes for its sender, and until when at least its recipients are tried (wall clock)."""
        wall_ns, why, replies = self._clock.wall_ns(), queued.why, dict[int, Note]()
        # RFC 3463, 3.5: X.4.5 is mail system congestion, as a full window or a pause is.
        status, text = "4.4.5", "the next mail server accepts no more mail from here at the moment"
        if queued.state is State.DEFERRED:
            status, text = why.status or UNKNOWN_STATUS, why.text or "refused for now"
            if why.status:
                replies = self._settling.replies.get(queued.queue_id, {})
        notes = [replies.get(i) or Note(i, status, "expired", text, None, wall_ns) for i in late]
        age_ns = self._clock.boottime_ns() - queued.arrived_at_ns
        # An older message has one attempt all the same.
        return notes, wall_ns + max(self._settling.terms.lifetime_ns - age_ns, 0)
