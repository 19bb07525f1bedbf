"""When the mail of a line will have gone, by arithmetic.  Pure.

N slots of a window open one after the other, and each opens again T after its transaction ended.  So what
needs the k-th slot from now goes at `opening[(k-1) mod N] + T * ((k-1) div N)` if each slot is used at once.
Where several windows count messages, the k-th message uses the slot of the one that began N before it:
`begun[k-N] + T`, and of several windows the last one decides.  Connections are such a window, whose T is a
transaction.

Exact for one line whose limits all count messages, without keys and lanes, for its first MOST_BEGINS
messages; and under a single limit that binds more than connections do.  This holds while no mail comes,
nothing is refused, and transactions take as long as they do on average.  Else it is an estimate, and rather
early: limits for each key, the turns of lanes, and how limits of several units hold up each other are not
counted.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from relay.throttle.limit import limit_words
from relay.throttle.limit_state import Limited, Opening

CONNECTIONS = "connections"
NEXT = ""
"""It goes now."""
MOST_BEGINS = 2000


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


class _Window:
    def __init__(
        self, words: str, count: int, again_ns: int, now_ns: int, taken: Iterable[Opening] = ()
    ) -> None:
        """Let a slot that is used be free again after `again_ns`."""
        openings = sorted(each for each in taken if each[0] > now_ns)
        self.words, self._count, self._again_ns = words, max(1, count), again_ns
        self._instants = [now_ns, *(at_ns for at_ns, _ in openings)]
        self._opened = [0, *accumulate(weight for _, weight in openings)]

    def slot(self, number: int) -> int:
        """Return when so many slots will have been free, if each is used at once."""
        turns, slot = divmod(max(1, number) - 1, self._count)
        # So many of what is taken now must have opened.
        needed = self._opened[-1] + slot + 1 - self._count
        return self._instants[bisect_left(self._opened, needed)] + turns * self._again_ns

    def next(self, begun: Sequence[int]) -> int:
        """Return when a slot is free for the message behind those that have begun."""
        if len(begun) < self._count:
            return self.slot(len(begun) + 1)
        return begun[-self._count] + self._again_ns


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
        self._of_line: list[_Window] = []
        """Those that count messages."""
        self._others: list[tuple[int, str | None, _Window]] = []
        """Limits of recipients and bytes, and ceilings of lanes: each by itself."""
        self._begun: list[int] = []
        self._held_by: list[str] = []
        """Of each message of the line, as far as it was asked for: when it begins, and what it waits for."""
        if transaction_ns:
            self._of_line.append(_Window(CONNECTIONS, connections, transaction_ns, self._from_ns))
        for limit in limits:
            if limit.unit not in _UNITS or (limit.for_each is not None and limit.only is None):
                continue
            window = _window_of(limit, limit_words(limit.label, limit.only), self._from_ns, transaction_ns)
            if limit.only is None and limit.unit == "messages":
                self._of_line.append(window)
            else:
                self._others.append((_UNITS[limit.unit], limit.only, window))

    def at(self, load: Load, lane: str = "", of_lane: Load | None = None) -> Expected:
        """Return what to expect of the last message of a load, of which its lane has a part."""
        if self._is_endless:
            return Expected(None, self._rests)
        begins = [self._begin(max(1, load.messages))]
        for unit, only, window in self._others:
            if only in (None, lane):
                number = (load if only is None else of_lane or load)[unit]
                begins.append((window.slot(number), window.words))
        at_ns, words = max(begins)
        held_by = words if at_ns > self._from_ns else NEXT
        return Expected(at_ns + self._transaction_ns, self._rests or held_by)

    def _begin(self, number: int) -> tuple[int, str]:
        """Return when the last of so many messages begins, and what it waits for."""
        if not self._of_line:
            return self._from_ns, NEXT
        begun = self._begun
        while len(begun) < min(number, MOST_BEGINS):
            at_ns, words = max((window.next(begun), window.words) for window in self._of_line)
            if begun and begun[-1] > at_ns:
                at_ns, words = begun[-1], self._held_by[-1]
            begun.append(at_ns)
            self._held_by.append(words)
        if number <= MOST_BEGINS:
            return begun[number - 1], self._held_by[number - 1]
        # From there each window goes on by itself, as far behind as it was.
        return max(
            (each.slot(number) + begun[-1] - each.slot(MOST_BEGINS), each.words) for each in self._of_line
        )


def opens_ns(limit: Limited, now_ns: int) -> int:
    """Return when a limit has room for one more."""
    return _window_of(limit, limit.label, now_ns, 0).slot(1)


def _window_of(limit: Limited, words: str, now_ns: int, transaction_ns: int) -> _Window:
    return _Window(words, limit.count, limit.span_ns + transaction_ns, now_ns, limit.taken)
