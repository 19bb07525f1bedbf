"""Records what an upstream saw, and counts whether any window of its limit held too much.

It judges the relay, so it uses none of its code: it reads a limit as a policy writes it, and counts by plain
arithmetic.  A window is half-open, `(t - T, t]` for any t: two attempts exactly T apart never share one.
Every attempt counts, refused or not.  It is judged by every window that it falls into, also if its instant
lies before others that were counted already.
"""

import re
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SECOND_NS = 1_000_000_000
_UNITS_NS = {"ms": SECOND_NS // 1000, "s": SECOND_NS, "m": 60 * SECOND_NS, "h": 3600 * SECOND_NS}


@dataclass(frozen=True, slots=True)
class Seen:
    """One transaction as the upstream saw it; instants by boottime."""

    mail_at_ns: int
    """When MAIL came."""
    ended_at_ns: int
    """When the upstream replied to the final dot, or the transaction was abandoned."""
    reverse_path: str
    recipients: tuple[str, ...]
    content: bytes
    """Without the stuffed dots."""
    reply: str
    """The reply to the final dot, also if the client did not get it; empty if the dot never came."""

    @property
    def is_relayed(self) -> bool:
        return self.reply.startswith("2")


class Witness:
    """Counts for one limit, as a policy writes it: `messages` or `recipients`, and `per`."""

    def __init__(self, limit: Mapping[str, Any], *, cut_off_ns: int = 0) -> None:
        """`cut_off_ns` is how long everything is refused once the limit was exceeded."""
        (self._unit,) = set(limit) - {"per"}
        self.count = int(limit[self._unit])
        self.label = f"{self.count} {self._unit} per {limit['per']}"
        number, unit = re.fullmatch(r"([0-9]+)(ms|s|m|h)", limit["per"]).groups()  # type: ignore[union-attr]  # or fail
        self._period_ns = int(number) * _UNITS_NS[unit]
        self._cut_off_ns = cut_off_ns
        self._cut_off_until_ns = 0
        self._counted: list[int] = []
        """The instants of all attempts, sorted; each as often as it counts."""
        self._came: list[int] = []
        """The same instants as they came: the count at the end shares nothing with `admit`."""
        self.seen: list[Seen] = []
        """In the order in which they ended."""
        self.relayed = 0
        self.refused = 0
        self.abandoned = 0
        """How many transactions counted, but their final dot never came."""
        self.cut_offs = 0
        """How often an attempt began a cut-off."""

    def admit(self, counted_at_ns: int, recipients: int, now_ns: int) -> bool:
        """Count one attempt; return whether it is within the limit and outside of a cut-off.

        The attempt that exceeds it begins the cut-off.  Attempts during that count, but do not extend it.
        """
        for _ in range(recipients if self._unit == "recipients" else 1):
            insort(self._counted, counted_at_ns)
            self._came.append(counted_at_ns)
        if now_ns < self._cut_off_until_ns:
            return False
        if self._most_around(counted_at_ns) > self.count:
            self._cut_off_until_ns = now_ns + self._cut_off_ns
            self.cut_offs += 1
            return False
        return True

    def enter(self, seen: Seen) -> None:
        self.seen.append(seen)
        self.relayed += seen.is_relayed
        self.refused += seen.reply != "" and not seen.is_relayed
        self.abandoned += seen.reply == ""

    def most_in_any_window(self) -> int:
        """Return the largest count of any window that ends at an attempt: no other window holds more."""
        most = first = 0
        attempts = sorted(self._came)
        for last, instant_ns in enumerate(attempts):
            while attempts[first] <= instant_ns - self._period_ns:
                first += 1
            most = max(most, last - first + 1)
        return most

    def _most_around(self, instant_ns: int) -> int:
        """Return the same for the windows that this instant is in."""
        most = 0
        for last in range(bisect_right(self._counted, instant_ns) - 1, len(self._counted)):
            if self._counted[last] >= instant_ns + self._period_ns:
                break
            most = max(most, last + 1 - bisect_right(self._counted, self._counted[last] - self._period_ns))
        return most


def share_of(count: int, period_s: float, seen: Sequence[Seen]) -> float:
    """Return the share used of the highest safe rate, N / (T + guard + mean transaction).

    A round uses each of N slots once; the share is the shortest safe round divided by the mean round.
    Rounds are timed slot by slot: the first N cannot start at one instant, which is no waste.
    """
    starts_ns = sorted(each.mail_at_ns for each in seen)
    mean_ns = sum(each.ended_at_ns - each.mail_at_ns for each in seen) / len(seen)
    # 1 %: the guard of a policy that names none.
    shortest_ns = period_s * SECOND_NS * 1.01 + mean_ns
    took_ns = (sum(starts_ns[-count:]) - sum(starts_ns[:count])) / count
    return (len(seen) - count) / count * shortest_ns / took_ns
