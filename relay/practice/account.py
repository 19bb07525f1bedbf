"""The account that is practised on: a message counts when its final dot arrives.

The window is half-open: `(t - T, t]` for any t, so two messages exactly T apart never share one.  Whoever
exceeds the limit is cut off for a while: everything is refused then, and nothing is counted.
Guarantees: exact.  Memory: an instant for each message of one window.
Does not: share code with `relay.throttle`, whose errors it is to show.
"""

from collections import deque

from relay.policy.limits import LimitSettings


class PracticeAccount:
    def __init__(self, limit: LimitSettings, cut_off_ns: int) -> None:
        self.limit = limit
        self.relayed = 0
        self.refused = 0
        self.cut_offs = 0
        self.most = 0
        """What the fullest window so far held."""
        self._cut_off_ns = cut_off_ns
        self._cut_off_until_ns = 0
        self._window: deque[tuple[int, int]] = deque()
        """Instants and what each counts."""
        self._held = 0

    def admit(self, recipients: int, now_ns: int) -> bool:
        """Count a message; return whether it is within the limit."""
        is_within = now_ns >= self._cut_off_until_ns and self._count(recipients, now_ns)
        if is_within:
            self.relayed += 1
        else:
            self.refused += 1
        return is_within

    def _count(self, recipients: int, now_ns: int) -> bool:
        while self._window and self._window[0][0] <= now_ns - self.limit.per_ns:
            self._held -= self._window.popleft()[1]
        weight = recipients if self.limit.unit == "recipients" else 1
        self._window.append((now_ns, weight))
        self._held += weight
        self.most = max(self.most, self._held)
        if self._held > self.limit.count:
            self._cut_off_until_ns = now_ns + self._cut_off_ns
            self.cut_offs += 1
            return False
        return True
