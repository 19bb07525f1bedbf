"""The building blocks of a line: entries that wait until an instant, and counts.  Pure."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from typing import Generic, NamedTuple, TypeVar

from relay.queue.queued import Queued, State
from relay.queue.routes import Route

Entry = TypeVar("Entry")

SPARE = 1024
"""A heap with at most this many entries is not swept."""


class TimedHeap(Generic[Entry]):
    """Entries that wait until an instant, the earliest first; O(log n) a call, amortized.

    An entry whose wait ended early stays until it comes first, or until the heap has more than doubled.
    """

    __slots__ = ("_added", "_heap", "_is_current", "_sweeps_at")

    def __init__(self, is_current: Callable[[int, Entry], bool]) -> None:
        """`is_current` tells whether an entry still waits until that instant."""
        self._is_current = is_current
        self._heap: list[tuple[int, int, Entry]] = []
        self._added, self._sweeps_at = 0, SPARE

    def add(self, at_ns: int, entry: Entry) -> None:
        self._added += 1  # breaks ties: first come, first served
        heapq.heappush(self._heap, (at_ns, self._added, entry))
        if len(self._heap) > self._sweeps_at:
            self._heap = [each for each in self._heap if self._is_current(each[0], each[2])]
            heapq.heapify(self._heap)
            self._sweeps_at = 2 * len(self._heap) + SPARE

    def first(self) -> tuple[int, Entry] | None:
        while self._heap:
            at_ns, _, entry = self._heap[0]
            if self._is_current(at_ns, entry):
                return at_ns, entry
            heapq.heappop(self._heap)
        return None

    def first_ns(self) -> int | None:
        return None if (first := self.first()) is None else first[0]

    def pop_due(self, now_ns: int) -> Entry | None:
        """Take out and return the first entry if its instant has come."""
        if (first := self.first()) is None or first[0] > now_ns:
            return None
        heapq.heappop(self._heap)
        return first[1]


def earliest(*instants_ns: int | None) -> int | None:
    """None stands for never."""
    return min((each for each in instants_ns if each is not None), default=None)


class Sums(NamedTuple):
    parts: int = 0
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0
    oldest_arrived_at_ns: int | None = None
    """Boottime; None without a message, and in the sums of `Counts`."""


class Counts:
    """Counts mail by state, lane and route.  Take a message out before one of these changes; add it after."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[State, str, Route | None], list[int]]
        self._sums = defaultdict(lambda: [0, 0, 0, 0])
        """Each has four sums: parts, messages, recipients, octets."""

    def add(self, message: Queued, by: int = 1) -> None:
        key = message.state, message.lane, message.part.route
        sums = self._sums[key]
        sums[0] += by
        sums[2] += by * message.recipients_left
        if message.is_counted:
            sums[1] += by
            sums[3] += by * message.size_bytes
        if not sums[0]:
            del self._sums[key]  # a removed lane or route is not kept

    def of(self, state: State) -> list[tuple[str, Sums]]:
        """Return sums of a state, each with its lane; a lane is named for each of its routes."""
        return [(lane, Sums(*sums)) for (each, lane, _), sums in self._sums.items() if each is state]

    def by_route(self) -> Counter[Route | None]:
        """Return how many parts each route has here; routes without mail are left out."""
        found = Counter[Route | None]()
        for (_, _, route), sums in self._sums.items():
            found[route] += sums[0]
        return found


def total(sums: Collection[Sums]) -> Sums:
    return Sums(
        sum(each.parts for each in sums),
        sum(each.messages for each in sums),
        sum(each.recipients for each in sums),
        sum(each.size_bytes for each in sums),
        earliest(*(each.oldest_arrived_at_ns for each in sums)),
    )
