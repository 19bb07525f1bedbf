"""The past that the page draws: how full each window was, and how long the queue, as path data of SVG.  Pure.

`Samples` keeps the last day in memory only, and bounded: MINUTES numbers for each limit of the policy.
A restart begins anew.  A minute without a sample is a gap.
A chart is WIDTH by HEIGHT units with the origin at its top left corner; the page stretches it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from relay.status.snapshot import QueueState, Snapshot

WIDTH = 240
HEIGHT = 48
MINUTES = 24 * 60
GAP = -1
QUEUE = ("", "")
"""The key of how many messages wait."""

Key = tuple[str, str]
"""The upstream's name and the limit's label."""


class Samples:
    def __init__(self) -> None:
        self._minute = 0
        self._of: dict[Key, deque[int]] = {}

    def note(self, snapshot: Snapshot, minute: int) -> None:
        """Keep the highest numbers of each minute, which never goes back.  Forget limits that are gone."""
        now = dict(_numbers(snapshot))
        self._of = {key: self._of.get(key) or deque([GAP] * MINUTES, MINUTES) for key in now}
        for key, series in self._of.items():
            series.extend([GAP] * min(minute - self._minute, MINUTES))
            series[-1] = max(series[-1], now[key])
        self._minute = minute

    def day(self, key: Key) -> list[int]:
        """Return the number of each of the last MINUTES, the newest last; `GAP` where nothing is known."""
        return list(self._of.get(key, [GAP] * MINUTES))


def _numbers(snapshot: Snapshot) -> Iterator[tuple[Key, int]]:
    yield QUEUE, snapshot.counts(QueueState.WAITING).messages
    for upstream in snapshot.upstreams:
        for limit in upstream.limits:
            yield (upstream.name, limit.label), limit.used


class Curve(NamedTuple):
    line: str
    area: str
    """The line, closed along the bottom."""


def steps(values: Sequence[int], top: int) -> Curve:
    """Draw each value as a step of equal width, `top` as the full height, and nothing for a `GAP`."""
    width = WIDTH / len(values)
    line, area = "", ""
    for is_known, run in groupby(enumerate(values), lambda each: each[1] != GAP):
        if is_known:
            known = [(index, HEIGHT * (1 - min(1.0, value / max(1, top)))) for index, value in run]
            corners = "".join(f"V{_short(y)}H{_short((index + 1) * width)}" for index, y in known)
            begin = _short(known[0][0] * width)
            line += f"M{begin} {_short(known[0][1])}{corners}"
            area += f"M{begin} {HEIGHT}{corners}V{HEIGHT}Z"
    return Curve(line, area)


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
