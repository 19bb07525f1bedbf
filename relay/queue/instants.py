"""What waits until an instant, the earliest first.  Pure.

An item whose wait ended otherwise stays in the heap until it is first, or until such items are half of it.
Cost: O(log n) a call, amortized.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

SPARE = 1024
"""Entries that are never swept."""


class Instants(Generic[Item]):
    __slots__ = ("_entries", "_heap", "_is_true", "_sweeps_at")

    def __init__(self, is_true: Callable[[int, Item], bool]) -> None:
        """`is_true`: whether an item still waits until that instant."""
        self._is_true = is_true
        self._heap: list[tuple[int, int, Item]] = []
        self._entries = 0
        """A number for each entry: of one instant, first come first served."""
        self._sweeps_at = SPARE

    def add(self, at_ns: int, item: Item) -> None:
        self._entries += 1
        heapq.heappush(self._heap, (at_ns, self._entries, item))
        if len(self._heap) > self._sweeps_at:
            self._heap = [each for each in self._heap if self._is_true(each[0], each[2])]
            heapq.heapify(self._heap)
            self._sweeps_at = 2 * len(self._heap) + SPARE

    def __iter__(self) -> Iterator[Item]:
        """Yield the items, the first ones near the beginning."""
        return (item for at_ns, _, item in self._heap if self._is_true(at_ns, item))

    def first(self) -> tuple[int, Item] | None:
        while self._heap:
            at_ns, _, item = self._heap[0]
            if self._is_true(at_ns, item):
                return at_ns, item
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ns: int) -> Item | None:
        """Take out the first item, if its instant has come."""
        if (first := self.first()) is None or first[0] > now_ns:
            return None
        heapq.heappop(self._heap)
        return first[1]
