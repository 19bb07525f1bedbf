"""Which message a report or a warning is about."""

from relay.mail.envelope import QueueId, is_notice


def subject_of(queue_id: QueueId) -> QueueId | None:
    """Return None for a message that came in."""
    return QueueId(queue_id[:16]) if is_notice(queue_id) else None
