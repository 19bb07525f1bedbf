"""How many recipients came and went a minute, from the totals of the last looks.  Pure."""

from collections import deque
from typing import NamedTuple

from relay.clock import SECOND_NS
from relay.telemetry.metric_table import Totals

OVER_NS = 60 * SECOND_NS
_MINUTE_NS = 60 * SECOND_NS


class Rate(NamedTuple):
    """Recipients a minute."""

    accepted: float
    relayed: float
    over_ns: int


class Rates:
    """Knows the totals of the last OVER_NS; those of a relay that restarted begin anew."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, Totals]] = deque()

    def note(self, at_ns: int, totals: Totals) -> None:
        """`at_ns` is an instant of a clock that never steps."""
        if self._seen and not _may_follow(totals, self._seen[-1][1]):
            self._seen.clear()
        self._seen.append((at_ns, totals))
        # The last one from before the span stays: the span begins with it.
        while len(self._seen) > 2 and self._seen[1][0] <= at_ns - OVER_NS:
            self._seen.popleft()

    def rate(self) -> Rate | None:
        """Return None until two looks at different instants tell."""
        if not self._seen or self._seen[0][0] == self._seen[-1][0]:
            return None
        (since_ns, before), (at_ns, now) = self._seen[0], self._seen[-1]
        minutes = (at_ns - since_ns) / _MINUTE_NS
        return Rate(
            (now.accepted - before.accepted) / minutes,
            (now.relayed - before.relayed) / minutes,
            at_ns - since_ns,
        )


def _may_follow(now: Totals, before: Totals) -> bool:
    return now.accepted >= before.accepted and now.relayed >= before.relayed
