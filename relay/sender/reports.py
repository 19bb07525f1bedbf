"""From notes about failed recipients to a message of our own for the sender.  Pure.

Guarantees: the same notes give the same report, so that publishing it again after a
crash is the same message.  A recipient whose note was lost is reported all the same.
"""

from collections.abc import Mapping, Sequence

from relay.mail.envelope import Envelope
from relay.mail.report import Action, Failure, Reason, ReportedMessage, delay_warning, failure_report
from relay.spool.interface import DEFERRED, Message, Note, OwedReport, Status

_LOST = "The reason is no longer known."


class Reporter:
    def __init__(self, hostname: str) -> None:
        self._hostname = hostname

    def failures(
        self, message: Message, header: bytes, owed: OwedReport, notes: Mapping[int, Note]
    ) -> tuple[Envelope, bytes]:
        failures = [self._failure(message, index, notes.get(index), Action.FAILED) for index in owed.failed]
        at_ns = max(failure.at_ns for failure in failures)
        reported = ReportedMessage(message.queue_id, message.envelope, header)
        suffix = owed.report_id.removeprefix(message.queue_id)
        content = failure_report(reported, failures, hostname=self._hostname, at_ns=at_ns, suffix=suffix)
        return self._envelope(message, at_ns), content

    def delays(
        self, message: Message, header: bytes, delays: Sequence[Note], until_at_ns: int
    ) -> tuple[Envelope, bytes]:
        failures = [self._failure(message, note.index, note, Action.DELAYED) for note in delays]
        at_ns = max(failure.at_ns for failure in failures)
        reported = ReportedMessage(message.queue_id, message.envelope, header)
        content = delay_warning(
            reported, failures, hostname=self._hostname, at_ns=at_ns, will_retry_until_ns=until_at_ns
        )
        return self._envelope(message, at_ns), content

    @staticmethod
    def _failure(message: Message, index: int, note: Note | None, action: Action) -> Failure:
        recipient = message.envelope.recipients[index]
        is_delayed = action is Action.DELAYED
        if note is None or (note.reason == DEFERRED and not is_delayed):
            is_expired = message.statuses[index] is Status.EXPIRED
            reason = Reason.EXPIRED if is_expired else Reason.BOUNCED
            return Failure(recipient, "5.0.0", action, _LOST, None, message.envelope.arrival_at_ns, reason)
        # Of what is delayed there is none.
        reason = Reason.BOUNCED if is_delayed else Reason(note.reason)
        return Failure(recipient, note.status, action, note.diagnostic, note.remote, note.at_ns, reason)

    @staticmethod
    def _envelope(message: Message, at_ns: int) -> Envelope:
        sender = message.envelope.reverse_path
        return Envelope("", (sender,), at_ns, "local", "", "local", smtputf8=not sender.isascii())
