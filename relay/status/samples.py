"""How full each window was, and how long the queue, for each minute of the last day.  Pure.

Kept in memory only, and bounded: MINUTES numbers of eight octets for each limit of the policy.
A restart begins anew.  A minute without a sample is a gap.  Does not: read a clock.
"""

from array import array
from collections.abc import Iterator, Sequence

from relay.status.snapshot import QueueState, Snapshot

MINUTES = 24 * 60
GAP = -1
QUEUE = ("", "")
"""The key of how many messages wait."""

Key = tuple[str, str]
"""The upstream's name and the limit's label."""


class Samples:
    def __init__(self) -> None:
        self._minute = 0
        self._of: dict[Key, array[int]] = {}

    def note(self, snapshot: Snapshot, minute: int) -> None:
        """Keep the highest numbers of each minute, which never goes back.  Forget limits that are gone."""
        now = dict(_numbers(snapshot))
        self._of = {key: self._of.get(key) or array("q", [GAP]) * MINUTES for key in now}
        since = max(self._minute + 1, minute - MINUTES + 1)
        for key, series in self._of.items():
            for passed in range(since, minute + 1):
                series[passed % MINUTES] = GAP
            series[minute % MINUTES] = max(series[minute % MINUTES], now[key])
        self._minute = minute

    def last(self, key: Key, minutes: int) -> Sequence[int]:
        """Return the number of each of the last minutes, the newest last; `GAP` where nothing is known."""
        series = self._of.get(key)
        if series is None:
            return [GAP] * minutes
        return [series[each % MINUTES] for each in range(self._minute - minutes + 1, self._minute + 1)]


def _numbers(snapshot: Snapshot) -> Iterator[tuple[Key, int]]:
    yield QUEUE, snapshot.counts(QueueState.WAITING).messages
    for upstream in snapshot.upstreams:
        for limit in upstream.limits:
            yield (upstream.name, limit.label), limit.used
