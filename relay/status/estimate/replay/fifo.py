"""Queue ids in the order in which they came, of which most leave from the front.  Pure.

For a million ids: 8 bytes each, where an OrderedDict takes 110, and a copy is one copy of a list.

Guarantees: each call but `copy` and `__iter__` takes O(1), amortized, wherever an id leaves.
Assumes: an id is added only while it is not there, and removed only while it is.

How: an id that leaves from between stays in the list, and is `_gone`; an id that came again since is the
last of its entries, so the earlier ones are those that count as gone.  The first entry is always there.
"""

from collections.abc import Iterator
from itertools import islice

from relay.mail.envelope import QueueId

SPARE_ENTRIES = 64
"""Entries of gone ids that a list may hold, beyond an eighth of it at its front, and as many as are there."""


class Fifo:
    __slots__ = ("_gone", "_ids", "_length", "_start")

    def __init__(self) -> None:
        self._ids: list[QueueId] = []
        self._start = self._length = 0
        self._gone: dict[QueueId, int] | None = None
        """How many entries of an id, the first ones, are of one that left; None for none."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[QueueId]:
        """Yield them in order; nothing may come or leave meanwhile."""
        entries = islice(self._ids, self._start, None)
        if not self._gone:
            yield from entries
            return
        gone = self._gone.copy()
        for queue_id in entries:
            if left := gone.get(queue_id, 0):
                gone[queue_id] = left - 1
            else:
                yield queue_id

    @property
    def first(self) -> QueueId:
        """Raise IndexError where there is none."""
        return self._ids[self._start]

    def add(self, queue_id: QueueId) -> None:
        self._ids.append(queue_id)
        self._length += 1

    def add_first(self, queue_id: QueueId) -> None:
        """Take time in proportion to the ids: for a short list."""
        if self._gone and queue_id in self._gone:
            self._ids, self._start, self._gone = list(self), 0, None
        self._ids.insert(self._start, queue_id)
        self._length += 1

    def remove(self, queue_id: QueueId) -> None:
        self._length -= 1
        if self._ids[self._start] == queue_id:
            self._start += 1
            self._skip_gone()
            if self._start > SPARE_ENTRIES + len(self._ids) // 8 or not self._length:
                del self._ids[: self._start]
                self._start = 0
            return
        if self._ids[-1] == queue_id:
            # An edit takes a long order over from its end: leave nothing behind that is swept at once later.
            self._ids.pop()
            return
        if self._gone is None:
            self._gone = {}
        self._gone[queue_id] = self._gone.get(queue_id, 0) + 1
        if len(self._ids) - self._start > 2 * self._length + SPARE_ENTRIES:
            self._ids, self._start, self._gone = list(self), 0, None

    def copy(self) -> "Fifo":
        twin = Fifo()
        twin._ids, twin._start, twin._length = self._ids.copy(), self._start, self._length
        twin._gone = None if self._gone is None else self._gone.copy()
        return twin

    def _skip_gone(self) -> None:
        gone, ids = self._gone, self._ids
        while gone and (left := gone.get(ids[self._start], 0)):
            if left == 1:
                del gone[ids[self._start]]
            else:
                gone[ids[self._start]] = left - 1
            self._start += 1
        if not gone:
            self._gone = None
