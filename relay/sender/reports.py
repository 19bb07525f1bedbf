"""From what became of recipients to a message of our own for the sender.  Pure.

Guarantees: the same message, as it is marked and noted, gives the same report, so that publishing it again
after a crash is the same message.  A recipient whose note was lost is reported all the same.
Does not: choose the recipients that it tells of (`relay.spool.interface.owed_report`).
"""

from collections.abc import Sequence

from relay.mail.envelope import Envelope
from relay.mail.report import Reason, ReportedMessage, ReportedRecipient, report
from relay.spool.identity import warning_id
from relay.spool.interface import Message, Note, OwedReport, Report, Status

_LOST = "The reason is no longer known."
_REASONS = {Status.EXPIRED: Reason.EXPIRED, Status.SUCCESS: Reason.RELAYED}


class Reporter:
    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self.sender: str | None = None
        """The policy's `reports.from`, which may change; None for MAILER-DAEMON at the host."""

    def report(self, message: Message, owed: OwedReport) -> Report:
        """Tell of what ended, by the message's notes; of content that is long its beginning is returned."""
        notes, content = {note.index: note for note in message.notes}, message.head
        endings = [
            self._ending(message, index, notes.get(index), status)
            for index, status in zip(owed.indices, owed.statuses, strict=True)
        ]
        at_ns = max(ending.at_ns for ending in endings)
        is_whole = message.content is not None
        reported = ReportedMessage(message.queue_id, message.envelope, content, is_whole)
        suffix = owed.report_id.removeprefix(message.queue_id)
        written = self._written(reported, endings, at_ns, suffix)
        return Report(owed.report_id, self._envelope(message, at_ns), written)

    def warning(self, message: Message, delays: Sequence[Note], until_at_ns: int) -> Report:
        """Tell of recipients that wait, and until when (wall clock) they will be tried."""
        late = [_told(message.envelope, note, Reason.DELAYED) for note in delays]
        at_ns = max(each.at_ns for each in late)
        reported = ReportedMessage(message.queue_id, message.envelope, message.head)
        written = self._written(reported, late, at_ns, "w", until_at_ns)
        return Report(warning_id(message.queue_id), self._envelope(message, at_ns), written)

    def _written(
        self,
        message: ReportedMessage,
        recipients: Sequence[ReportedRecipient],
        at_ns: int,
        suffix: str,
        until_ns: int | None = None,
    ) -> bytes:
        sender = self.sender or f"MAILER-DAEMON@{self._hostname}"
        return report(
            message,
            recipients,
            hostname=self._hostname,
            sender=sender,
            at_ns=at_ns,
            suffix=suffix,
            until_ns=until_ns,
        )

    @staticmethod
    def _ending(message: Message, index: int, note: Note | None, status: Status) -> ReportedRecipient:
        if note is None or (note.reason == Reason.RELAYED) == status.is_failure:
            # Lost; or of an attempt that a crash cut off, behind which another one came.
            reason, code = _REASONS.get(status, Reason.BOUNCED), "5.0.0" if status.is_failure else "2.0.0"
            note = Note(index, code, reason, _LOST, None, message.envelope.arrival_at_ns)
        return _told(message.envelope, note, Reason(note.reason))

    @staticmethod
    def _envelope(message: Message, at_ns: int) -> Envelope:
        sender = message.envelope.reverse_path
        return Envelope("", (sender,), at_ns, "local", "", "local", smtputf8=not sender.isascii())


def _told(envelope: Envelope, note: Note, reason: Reason) -> ReportedRecipient:
    recipient, orcpt = envelope.recipients[note.index], envelope.dsn.of(note.index).orcpt
    return ReportedRecipient(recipient, note.status, note.diagnostic, note.remote, note.at_ns, reason, orcpt)
