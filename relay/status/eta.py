"""When the mail of a line will have gone, by arithmetic.  Pure.

N slots of a window open one after the other, and each opens again T after it was used.  So what needs the
k-th slot from now goes at `opening[(k-1) mod N] + T * ((k-1) div N)`; of several limits the greatest counts,
and how fast connections carry transactions.

Exact for one line under one limit of messages, without lanes, while no mail comes, nothing is refused, and
transactions take as long as they do on average.  Else an estimate: of several limits it is rather early, and
limits for each key, and the turns of lanes, are not counted.
Cost: that of a window's openings once for each line, and a division for each message.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from relay.throttle.limit_state import Limited

CONNECTIONS = "connections"
NEXT = ""
"""It goes now."""


class Load(NamedTuple):
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0

    def plus(self, messages: int, recipients: int, size_bytes: int) -> "Load":
        return Load(self.messages + messages, self.recipients + recipients, self.size_bytes + size_bytes)

    def part(self, number: int, of: int) -> "Load":
        """Return so many parts of it, rounded up."""
        return Load(*(-(-each * number // of) for each in self))

    def least(self, other: "Load") -> "Load":
        return Load(*map(min, self, other))


_UNITS = {"messages": 0, "recipients": 1, "bytes": 2}


class Expected(NamedTuple):
    eta_ns: int | None
    """Boottime: when it will have been relayed; None where nobody can tell."""
    held_by: str
    """What most of its wait is for; empty where it goes now."""


class _Window:
    def __init__(self, limit: Limited, transaction_ns: int, now_ns: int) -> None:
        self.words = limit_words(limit.label)
        self.lane = limit.only
        self._unit = _UNITS[limit.unit]
        self._count, self._again_ns = max(1, limit.count), limit.span_ns + transaction_ns
        self._now_ns = now_ns
        taken = limit.shared if limit.only is None else limit.of_key.get(limit.only, ())
        openings = sorted(each for each in taken if each[0] > now_ns)
        self._instants = [at_ns for at_ns, _ in openings]
        self._opened = list(accumulate(weight for _, weight in openings))

    def at_ns(self, load: Load) -> int:
        """Return when the last slot that a load needs is free."""
        turns, slot = divmod(max(1, load[self._unit]) - 1, self._count)
        # So many of what is taken now must have opened.
        needed = (self._opened[-1] if self._opened else 0) + slot + 1 - self._count
        first_ns = self._now_ns if needed <= 0 else self._instants[bisect_left(self._opened, needed)]
        return first_ns + turns * self._again_ns


class Pace:
    """How the mail of one account goes from now on."""

    def __init__(
        self,
        now_ns: int,
        limits: Sequence[Limited] = (),
        *,
        connections: int = 1,
        transaction_ns: int = 0,
        rests: str = "",
        until_ns: int | None = 0,
    ) -> None:
        """`rests` says why nothing is sent until an instant; None: nobody can tell until when."""
        self._is_endless = bool(rests) and until_ns is None
        self._rests = rests
        self._from_ns = max(now_ns, until_ns or 0) if rests else now_ns
        self._connections, self._transaction_ns = max(1, connections), transaction_ns
        judged = [each for each in limits if each.for_each is None or each.only is not None]
        self._windows = [
            _Window(each, transaction_ns, self._from_ns) for each in judged if each.unit in _UNITS
        ]

    def at(self, load: Load, lane: str = "", of_lane: Load | None = None) -> Expected:
        """Return what to expect of the last message of a load, of which its lane has a part."""
        if self._is_endless:
            return Expected(None, self._rests)
        turns = (max(1, load.messages) - 1) // self._connections
        begins = [(self._from_ns + turns * self._transaction_ns, CONNECTIONS if turns else NEXT)]
        for window in self._windows:
            if window.lane is None:
                begins.append((window.at_ns(load), window.words))
            elif window.lane == lane:
                begins.append((window.at_ns(of_lane or load), f"ceiling of lane {lane}"))
        at_ns, words = max(begins, key=lambda begin: begin[0])
        held_by = words if at_ns > self._from_ns else NEXT
        return Expected(at_ns + self._transaction_ns, self._rests or held_by)


def limit_words(label: str) -> str:
    return f"limit {label}"
