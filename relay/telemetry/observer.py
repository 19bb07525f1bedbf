"""What a listener tells, as events in the log and as counts.

It is the `Observer` of `relay.listener.ports`, in the sender's process and in listener
processes alike; only what becomes of the counts differs.
"""

from relay.mail.envelope import Envelope, QueueId
from relay.mail.formats import described
from relay.telemetry.events import Events
from relay.telemetry.listener_counts import ListenerCounts
from relay.verdicts.shortage import is_lack_of_means


class ListenerObserver:
    """Tells `Events` and counts."""

    def __init__(self, events: Events, counts: ListenerCounts) -> None:
        self._events = events
        self._counts = counts

    def connection_opened(self, listener: str, client: str) -> None:
        """Tell of a connection that was let in."""
        self._counts.opened(listener)
        self._events.connected(listener=listener, client=client)

    def connection_closed(self, listener: str, client: str, reason: str) -> None:
        """Tell of its end."""
        self._counts.closed(listener)
        self._events.disconnected(listener=listener, client=client, reason=reason)

    def refused(self, listener: str, client: str, phase: str, reply: str) -> None:
        """Tell of a 4yz or 5yz reply."""
        self._counts.rejected(listener, phase, reply[:3])
        self._events.refused(listener=listener, client=client, phase=phase, reply=reply)

    def accepted(
        self, listener: str, queue_id: QueueId, envelope: Envelope, size_bytes: int, commit_ns: int
    ) -> None:
        """Tell of a message that became ours."""
        recipients = len(envelope.recipients)
        self._counts.accepted(listener, recipients=recipients, size_bytes=size_bytes, commit_ns=commit_ns)
        self._events.accepted(
            listener=listener,
            queue_id=queue_id,
            envelope=envelope,
            size_bytes=size_bytes,
            commit_ns=commit_ns,
        )

    def fault(self, listener: str, client: str, error: BaseException) -> None:
        """Tell of an error of our own making, or of what we are out of."""
        if is_lack_of_means(error):
            self._events.shortage(where=f"listener {listener}", error=described(error))
            return
        self._counts.fault(listener)
        self._events.fault(where=f"listener {listener}", error=error, client=client)
