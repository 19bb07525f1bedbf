"""A limit in the estimate of `relay.status.eta`: what occupies it, and when that will be free.  Pure.

The rule is that of `relay.throttle.window`: a slot is occupied until one span after its
transaction ended.  Instants are asked about in ascending order only, so that what has
passed is let go of at once.
"""

import heapq

from relay.throttle.expected import Limited, Openings


class FutureWindow:
    """What occupies a window, and when it will be free again."""

    __slots__ = ("frees", "occupied")

    def __init__(self, openings: Openings) -> None:
        self.frees = list(openings)
        heapq.heapify(self.frees)
        self.occupied = sum(weight for _, weight in self.frees)

    def used(self, at_ns: int) -> int:
        """Return what is occupied; only later instants may be asked about after that."""
        frees = self.frees
        while frees and frees[0][0] <= at_ns:
            self.occupied -= heapq.heappop(frees)[1]
        return self.occupied

    def occupy(self, until_ns: int, weight: int) -> None:
        """Occupy so much until an instant."""
        self.occupied += weight
        heapq.heappush(self.frees, (until_ns, weight))


class FutureGauge:
    """A limit with its windows."""

    def __init__(self, limit: Limited) -> None:
        self.label, self.count, self.span_ns = limit.label, limit.count, limit.span_ns
        self.unit = limit.unit
        self.is_recipients = limit.unit == "recipients"
        self.for_each, self.only = limit.for_each, limit.only
        self.shared = FutureWindow(limit.shared)
        self._opens_ns = 0
        self.of_key = {key: FutureWindow(openings) for key, openings in limit.of_key.items()}

    def opens_at(self, at_ns: int) -> int:
        """Return when anything may start, without keys; nothing starts before that."""
        at_ns = max(at_ns, self._opens_ns)
        while self.shared.used(at_ns) >= self.count:
            at_ns = self._opens_ns = self.shared.frees[0][0]
        return at_ns

    def room(self, key: str, at_ns: int) -> int:
        """Return the most that may start of a key; less than none after an edit that lowered N."""
        own = self.of_key.get(key)
        return self.count - self.shared.used(at_ns) - (own.used(at_ns) if own else 0)

    def key_opens_at(self, key: str, at_ns: int) -> int:
        """Return when anything of a key may start."""
        missing = 1 - self.room(key, at_ns)
        if missing <= 0:
            return at_ns
        own = self.of_key.get(key)
        if own and missing == 1 and not self.shared.frees:
            return own.frees[0][0]
        for free_ns, weight in sorted(self.shared.frees + (own.frees if own else [])):
            missing -= weight
            if missing <= 0:
                return free_ns
        return at_ns

    def occupy(self, key: str, until_ns: int, weight: int) -> None:
        """Occupy so much of a key's window until an instant."""
        window = self.of_key.get(key)
        if window is None:
            window = self.of_key[key] = FutureWindow(())
        window.occupy(until_ns, weight)
