"""What is in memory of messages that wait: whole as they were taken, or without content once read.

Two bounded caches of what was read and checked, never the only place of anything.  A message is kept
whole from when it is taken until it is settled, so that no sending waits for the disk.  When that
cache is full, later messages are read when their turn comes.  Of the last messages read or settled
all but the content is remembered, so that a mark costs the same for 10,000 recipients.
Assumes: one thread, but for `whole`.
"""

from collections import OrderedDict

from relay.mail.envelope import QueueId
from relay.spool.message.message_file import Opened

MOST = 2048
MOST_BYTES = 16 * 1024 * 1024
_REMEMBERED = 256


class Recent:
    def __init__(self) -> None:
        self._whole: dict[QueueId, Opened] = {}
        self._bytes = 0
        self._remembered: OrderedDict[QueueId, Opened] = OrderedDict()

    @property
    def has_room(self) -> bool:
        return len(self._whole) < MOST and self._bytes < MOST_BYTES

    def keep(self, message: Opened) -> None:
        if message.content is not None and self.has_room:
            self._whole[message.queue_id] = message
            self._bytes += message.header.file_bytes

    def whole(self, queue_id: QueueId) -> Opened | None:
        """Return a message that is kept whole.  From any thread."""
        return self._whole.get(queue_id)

    def remember(self, message: Opened) -> Opened:
        """Remember a message without its content, which it loses; return it."""
        self.forget(message.queue_id)
        message.content = None
        self._remembered[message.queue_id] = message
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return message

    def known(self, queue_id: QueueId) -> Opened | None:
        """Return a message without its content, which it loses: it is about to change."""
        message = self._whole.get(queue_id)
        return self._remembered.get(queue_id) if message is None else self.remember(message)

    def forget(self, queue_id: QueueId) -> None:
        self._remembered.pop(queue_id, None)
        if (message := self._whole.pop(queue_id, None)) is not None:
            self._bytes -= message.header.file_bytes
