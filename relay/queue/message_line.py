"""Messages in order, of which any may leave at any time.  Pure.

A message is in the line that is its `Queued.spot`.  The entry of one that left stays until it is first, or
until such entries are half of the line.  Each call is O(1), amortized.
"""

from collections import deque
from collections.abc import Iterator

from relay.queue.queued import Queued

SPARE = 64
"""Entries of messages that left, which a line may have beyond as many as wait."""


class MessageLine:
    __slots__ = ("_entries", "_length")

    def __init__(self) -> None:
        self._entries: deque[Queued] = deque()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Queued]:
        # One that left and came back has two entries.
        return (each for each in dict.fromkeys(self._entries) if each.spot is self)

    def put(self, message: Queued, *, is_in_front: bool = False) -> None:
        if is_in_front:
            self._entries.appendleft(message)
        else:
            self._entries.append(message)
        message.spot = self
        self._length += 1

    def first(self) -> Queued:
        """Return the first message; the line must not be empty."""
        while self._entries[0].spot is not self:
            self._entries.popleft()
        return self._entries[0]

    def discard(self, message: Queued) -> None:
        """Take out a message; one that is not here is ignored."""
        if message.spot is self:
            message.spot = None
            self._length -= 1
            if self._entries[0] is message:
                # Or it would be first again once it comes back.
                self._entries.popleft()
            elif len(self._entries) > 2 * self._length + SPARE:
                self._entries = deque(self)
