"""Messages in order, of which any may leave at any time.  Pure.

A message is in the line that is its `Queued.spot`.  Each call is O(1).
"""

from collections import OrderedDict
from collections.abc import Iterator

from relay.queue.queued import Queued


class MessageLine:
    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: OrderedDict[Queued, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Queued]:
        return iter(self._messages)

    def put(self, message: Queued, *, is_in_front: bool = False) -> None:
        self._messages[message] = None
        if is_in_front:
            self._messages.move_to_end(message, last=False)
        message.spot = self

    def first(self) -> Queued:
        """Return the first message; the line must not be empty."""
        return next(iter(self._messages))

    def discard(self, message: Queued) -> None:
        """Take out a message; one that is not here is ignored."""
        if message.spot is self:
            message.spot = None
            del self._messages[message]
