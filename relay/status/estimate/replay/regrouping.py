"""The order that an edit of the lanes leaves, taken over message by message.  Pure.

Guarantees: messages come out by since when they are ready, then by id; a step costs no more for a
long queue.  The first steps gather a few of them each; whenever RUN are gathered, a step sorts these too.
Each step behind those gives one.
Assumes that the old order, which nobody else has any more, does not change; who takes a message checks
whether it is still to be lined up.

What is kept of a message is no object that the collector of garbage looks at: a million of them, made within
seconds, held up the loop for 60 ms.
"""

import heapq
from array import array
from collections.abc import Callable, Iterator

from relay.mail.envelope import QueueId
from relay.status.estimate.replay.order import Order

AT_ONCE = 4
"""Messages gathered in a step; a look of the scheduler takes a thousand steps."""
RUN = 1024
"""Messages sorted together: some 0.3 ms."""


class _Run:
    """Messages, and since when each is ready."""

    __slots__ = ("_keys", "_sinces_ns")

    def __init__(self) -> None:
        self._sinces_ns = array("q")
        self._keys: list[QueueId] = []

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[int, QueueId]]:
        return zip(self._sinces_ns, self._keys, strict=True)

    def add(self, since_ns: int, queue_id: QueueId) -> None:
        self._sinces_ns.append(since_ns)
        self._keys.append(queue_id)

    def sort(self) -> None:
        """Sort backwards: what goes first is last."""
        in_order = sorted(self, reverse=True)
        self._sinces_ns = array("q", [since_ns for since_ns, _ in in_order])
        self._keys = [queue_id for _, queue_id in in_order]

    def pop(self) -> tuple[int, QueueId]:
        return self._sinces_ns.pop(), self._keys.pop()


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
        self._gathered = _Run()
        """Not sorted yet; empty once the old order is."""
        self._runs: list[_Run] = []
        self._firsts: list[tuple[int, QueueId, int]] = []
        """A heap: of each run that is begun the message that goes first, which is not in the run any more."""
        self._behind = behind

    def __bool__(self) -> bool:
        return bool(len(self._old) or self._firsts or self._behind)

    def step(self) -> QueueId | None:
        """Return the next message, or None: not yet, or there is none."""
        if len(self._old):
            self._gather()
            return None
        if not self._firsts:
            return None if self._behind is None else self._behind.step()
        _, queue_id, number = self._firsts[0]
        if run := self._runs[number]:
            heapq.heapreplace(self._firsts, (*run.pop(), number))
        else:
            heapq.heappop(self._firsts)
        return queue_id

    def left(self) -> list[QueueId]:
        """Return all that is to come; sorts what there is of it at once."""
        while len(self._old):
            self._gather()
        found = [each for run in self._runs for each in run] + [first[:2] for first in self._firsts]
        behind = [] if self._behind is None else self._behind.left()
        return [queue_id for _, queue_id in sorted(found)] + behind

    def _gather(self) -> None:
        # A long order that is let go of at once holds up the loop too.
        for queue_id in self._old.take_last(AT_ONCE):
            if (since_ns := self._since(queue_id)) is not None:
                self._gathered.add(since_ns, queue_id)
        if len(self._gathered) >= RUN or not len(self._old):
            self._begin_run()

    def _begin_run(self) -> None:
        run, self._gathered = self._gathered, _Run()
        if run:
            run.sort()
            heapq.heappush(self._firsts, (*run.pop(), len(self._runs)))
            self._runs.append(run)
