"""When the mail of a line will have gone, by arithmetic.  Pure.

N slots of a window open one after the other, and each opens again T after its transaction ended.  So what
needs the k-th slot from now goes at `opening[(k-1) mod N] + T * ((k-1) div N)`.  Where several windows count
messages, a slot of one is used only when the others have room too: they are stepped through together, from
one instant at which messages go to the next.  Connections are such a window, whose T is a transaction.

Exact for one line whose limits all count messages, without keys and lanes, for the first MOST_STEPS steps;
and under a single limit that binds more than connections do.  This holds while no mail comes, nothing is
refused, and transactions take as long as they do on average.  Else it is an estimate, and rather early:
limits for each key, the turns of lanes, and how limits of several units hold up each other are not counted.
Cost: what is taken of each window and at most MOST_STEPS steps, once, and a search for each message.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from relay.throttle.limit_state import Limited
from relay.throttle.window import Opening

CONNECTIONS = "connections"
NEXT = ""
"""It goes now."""
MOST_STEPS = 500


class Load(NamedTuple):
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0

    def plus(self, messages: int, recipients: int, size_bytes: int) -> "Load":
        return Load(self.messages + messages, self.recipients + recipients, self.size_bytes + size_bytes)


_UNITS = {"messages": 0, "recipients": 1, "bytes": 2}


class Expected(NamedTuple):
    eta_ns: int | None
    """Boottime: when it will have been relayed; None where nobody can tell."""
    held_by: str
    """What most of its wait is for; empty where it goes now."""


class _Begin(NamedTuple):
    at_ns: int
    words: str


class _Window:
    def __init__(
        self, words: str, count: int, again_ns: int, now_ns: int, taken: Iterable[Opening] = ()
    ) -> None:
        """Let a slot that is used be free again after `again_ns`."""
        self.words, self._count, self._again_ns, self._now_ns = words, count, again_ns, now_ns
        openings = sorted(each for each in taken if each[0] > now_ns)
        self._instants = [at_ns for at_ns, _ in openings]
        self._opened = list(accumulate(weight for _, weight in openings))
        # What changes as slots are taken one after the other; what is sorted is a heap.
        self._ahead = openings
        self._free = count - (self._opened[-1] if openings else 0)

    def slot(self, number: int) -> _Begin:
        """Return when so many slots will have been free, if each is used at once."""
        turns, slot = divmod(max(1, number) - 1, self._count)
        # So many of what is taken now must have opened.
        needed = (self._opened[-1] if self._opened else 0) + slot + 1 - self._count
        first_ns = self._now_ns if needed <= 0 else self._instants[bisect_left(self._opened, needed)]
        return _Begin(first_ns + turns * self._again_ns, self.words)

    def next(self) -> _Begin:
        """Return when the next slot is free."""
        at_ns = self._now_ns
        while self._free < 1:
            at_ns, weight = heappop(self._ahead)
            self._free += weight
        return _Begin(at_ns, self.words)

    def room(self, at_ns: int) -> int:
        while self._ahead and self._ahead[0][0] <= at_ns:
            self._free += heappop(self._ahead)[1]
        return self._free

    def take(self, number: int, at_ns: int) -> None:
        self._free -= number
        heappush(self._ahead, (at_ns + self._again_ns, number))


class _Line:
    """What begins when, by all windows that count messages."""

    def __init__(self, windows: Sequence[_Window], now_ns: int) -> None:
        self._windows = windows
        self._begun, self._begins = [0], [_Begin(now_ns, NEXT)]
        """How many have begun at each step, and when."""

    def begin(self, number: int) -> _Begin:
        """Return when the last of so many begins."""
        if not self._windows:
            return self._begins[0]
        while self._begun[-1] < number and len(self._begun) <= MOST_STEPS:
            self._step()
        if number <= self._begun[-1]:
            return self._begins[bisect_left(self._begun, number)]
        # Beyond the steps each window goes on by itself, as far behind as the last step was.
        begins = [window.slot(number) for window in self._windows]
        return max(
            begin._replace(at_ns=begin.at_ns + behind_ns)
            for begin, behind_ns in zip(begins, self._behind_ns, strict=True)
        )

    @cached_property
    def _behind_ns(self) -> list[int]:
        begun, begin = self._begun[-1], self._begins[-1]
        return [begin.at_ns - window.slot(begun).at_ns for window in self._windows]

    def _step(self) -> None:
        begin = max(self._begins[-1], *(window.next() for window in self._windows))
        number = min(window.room(begin.at_ns) for window in self._windows)
        for window in self._windows:
            window.take(number, begin.at_ns)
        self._begun.append(self._begun[-1] + number)
        self._begins.append(begin)


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
        self._rests, self._transaction_ns = rests, transaction_ns
        self._from_ns = max(now_ns, until_ns or 0) if rests else now_ns
        self._others: list[tuple[int, str | None, _Window]] = []
        """Limits of recipients and bytes, and ceilings of lanes: each by itself."""
        of_line = []
        if transaction_ns:
            of_line.append(_Window(CONNECTIONS, max(1, connections), transaction_ns, self._from_ns))
        for limit in limits:
            if limit.unit not in _UNITS or (limit.for_each is not None and limit.only is None):
                continue
            words = f"limit {limit.label}" if limit.only is None else f"ceiling of lane {limit.only}"
            window = _window_of(limit, words, self._from_ns, transaction_ns)
            if limit.only is None and limit.unit == "messages":
                of_line.append(window)
            else:
                self._others.append((_UNITS[limit.unit], limit.only, window))
        self._line = _Line(of_line, self._from_ns)

    def at(self, load: Load, lane: str = "", of_lane: Load | None = None) -> Expected:
        """Return what to expect of the last message of a load, of which its lane has a part."""
        if self._is_endless:
            return Expected(None, self._rests)
        begins = [self._line.begin(load.messages)]
        for unit, only, window in self._others:
            if only in (None, lane):
                begins.append(window.slot((load if only is None else of_lane or load)[unit]))
        begin = max(begins)
        held_by = begin.words if begin.at_ns > self._from_ns else NEXT
        return Expected(begin.at_ns + self._transaction_ns, self._rests or held_by)


def opens_ns(limit: Limited, now_ns: int) -> int:
    """Return when a limit has room for one more."""
    return _window_of(limit, limit.label, now_ns, 0).next().at_ns


def _window_of(limit: Limited, words: str, now_ns: int, transaction_ns: int) -> _Window:
    return _Window(words, max(1, limit.count), limit.span_ns + transaction_ns, now_ns, limit.taken)
