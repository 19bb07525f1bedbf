"""The order that an edit of the lanes leaves, taken over message by message.  Pure.

Guarantees: messages come out by since when they are ready, then by id; a step costs no more for a
long queue.  First each step sorts some of them, then each gives one.  Assumes that the old order, which
nobody else has any more, does not change; who takes a message checks whether it is still to be lined up.
"""

import heapq
from collections.abc import Callable

from relay.mail.envelope import QueueId
from relay.queue.lanes import Order

InLine = tuple[int, QueueId]
"""Since when a message is ready, and its key."""
AT_ONCE = 4
"""Messages sorted in a step; a look of the scheduler takes a thousand steps."""


class Regrouping:
    def __init__(
        self,
        old: Order,
        since: Callable[[QueueId], int | None],
        behind: "Regrouping | None" = None,
    ) -> None:
        """`since` says since when a message is ready, or None of one that is gone.

        `behind` is what an edit before has not taken over yet: it comes last.
        """
        self._old = old
        self._since = since
        self._unsorted = old.keys()
        self._runs: list[list[InLine]] = []
        """Each sorted backwards: what is last goes first."""
        self._firsts: list[tuple[InLine, int]] = []
        """A heap: of each run that is begun the message that goes first, which is not in the run any more."""
        self._behind = behind

    def __bool__(self) -> bool:
        return bool(self._unsorted or self._firsts or self._behind)

    def step(self) -> QueueId | None:
        """Return the next message, or None: not yet, or there is none."""
        if self._unsorted:
            self._sort()
            return None
        if not self._firsts:
            return None if self._behind is None else self._behind.step()
        first, number = self._firsts[0]
        if run := self._runs[number]:
            heapq.heapreplace(self._firsts, (run.pop(), number))
        else:
            heapq.heappop(self._firsts)
        return first[1]

    def left(self) -> list[QueueId]:
        """Return all that is to come; sorts what there is of it at once."""
        while self._unsorted:
            self._sort()
        found = [each for run in self._runs for each in run] + [first for first, _ in self._firsts]
        behind = [] if self._behind is None else self._behind.left()
        return [queue_id for _, queue_id in sorted(found)] + behind

    def _sort(self) -> None:
        some, self._unsorted[-AT_ONCE:] = self._unsorted[-AT_ONCE:], []
        whole = ((self._since(queue_id), queue_id) for queue_id in self._old.in_line(some))
        if run := sorted(
            ((since_ns, each) for since_ns, each in whole if since_ns is not None), reverse=True
        ):
            heapq.heappush(self._firsts, (run.pop(), len(self._runs)))
            self._runs.append(run)
        # A long order that is let go of at once holds up the loop too.
        for queue_id in reversed(some):
            self._old.remove(queue_id)
