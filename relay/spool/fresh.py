"""Messages that were just taken, kept in memory until they are sent: mostly within the second.

A cache of what was read and checked, so that it need not be read again; bounded, and
never the only place of anything.  When it is full, what comes later is read when its
turn comes: those that came first are the next to go.
"""

from relay.envelope import QueueId
from relay.spool.files import Opened

MOST = 512
MOST_BYTES = 16 * 1024 * 1024


class Fresh:
    """A bounded number of messages with their content."""

    def __init__(self) -> None:
        self._messages: dict[QueueId, Opened] = {}
        self._bytes = 0

    @property
    def has_room(self) -> bool:
        """Return whether one more would be kept."""
        return len(self._messages) < MOST and self._bytes < MOST_BYTES

    def keep(self, message: Opened) -> None:
        """Keep a message, if it has content and there is room."""
        if message.content is not None and self.has_room:
            self._messages[message.queue_id] = message
            self._bytes += len(message.content)

    def pop(self, queue_id: QueueId) -> Opened | None:
        """Return a message that was kept, and forget it."""
        message = self._messages.pop(queue_id, None)
        if message is not None:
            self._bytes -= len(message.content or b"")
        return message
