"""What a strict upstream saw, and whether any window of its limit held too much.  Pure.

The window is half-open: `(t - T, t]` for any t, so two attempts exactly T apart never
share one.  Everything attempted counts, refused or not.  An attempt is judged by every
window that it falls into, also when its instant lies before that of others already
counted; whoever exceeds is cut off for a while, as the ISP of the story does it.
Guarantees: exact, whatever the order of arrival.  `most_in_any_window` is worked out
afresh from all instants by brute force and owes nothing to the judging.
Does not: share code with `relay.throttle`, which it is there to judge.
Memory: 32 bytes an attempt for as long as it lives, and the newest entries whole.
"""

import enum
from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from relay.mail.envelope import Envelope
from relay.policy.limits import LimitSettings


class Witnessed(enum.StrEnum):
    RELAYED = "relayed"
    REFUSED = "refused"
    ABANDONED = "abandoned"
    """MAIL was counted, and the final dot never came."""


@dataclass(frozen=True, slots=True)
class Sighting:
    counted_at_ns: int
    """By the upstream's clock."""
    envelope: Envelope
    size_bytes: int
    """Of the content, dot-stuffing undone."""
    sha256: str
    """Of the content, in hexadecimal."""
    reply: str
    """What the final dot was answered; empty if it never came."""
    fate: Witnessed


class Witness:
    def __init__(self, limit: LimitSettings, cut_off_ns: int, *, remember: int) -> None:
        """`remember` is how many of the newest entries are kept whole."""
        self.limit = limit
        self.entries: deque[Sighting] = deque(maxlen=remember)
        self.relayed = 0
        self.refused = 0
        self.abandoned = 0
        self.cut_offs = 0
        """How often the limit was exceeded while nobody was cut off yet."""
        self._cut_off_ns = cut_off_ns
        self._cut_off_until_ns: int | None = None
        # By instant, for judging; `_running[i]` is the weight of all up to and with i.
        self._instants_ns = array("q")
        self._running = array("q")
        # As they came, for the brute force alone.
        self._seen_ns = array("q")
        self._seen_weights = array("q")

    def is_cut_off(self, now_ns: int) -> bool:
        return self._cut_off_until_ns is not None and now_ns < self._cut_off_until_ns

    def admit(self, counted_at_ns: int, recipients: int, now_ns: int) -> bool:
        """Count one attempt, and return whether it is within the limit and nobody is cut off.

        The attempt that exceeds begins the cut-off; those refused during it do not
        lengthen it, but they count, and the first after it is judged by them too.
        """
        weight = recipients if self.limit.unit == "recipients" else 1
        self._seen_ns.append(counted_at_ns)
        self._seen_weights.append(weight)
        self._insert(counted_at_ns, weight)
        if self.is_cut_off(now_ns):
            return False
        if self._most_around(counted_at_ns) > self.limit.count:
            self._cut_off_until_ns = now_ns + self._cut_off_ns
            self.cut_offs += 1
            return False
        return True

    def enter(self, entry: Sighting) -> None:
        self.entries.append(entry)
        match entry.fate:
            case Witnessed.RELAYED:
                self.relayed += 1
            case Witnessed.REFUSED:
                self.refused += 1
            case Witnessed.ABANDONED:
                self.abandoned += 1

    def most_in_any_window(self) -> int:
        """Look at all attempts by brute force."""
        attempts = sorted(zip(self._seen_ns, self._seen_weights, strict=True))
        held = most = oldest = 0
        for instant_ns, weight in attempts:
            held += weight
            while attempts[oldest][0] <= instant_ns - self.limit.per_ns:
                held -= attempts[oldest][1]
                oldest += 1
            most = max(most, held)
        return most

    def _insert(self, instant_ns: int, weight: int) -> None:
        index = bisect_right(self._instants_ns, instant_ns)
        self._instants_ns.insert(index, instant_ns)
        self._running.insert(index, self._running[index - 1] if index else 0)
        for later in range(index, len(self._running)):
            self._running[later] += weight

    def _most_around(self, instant_ns: int) -> int:
        """Look only at the windows that can be the fullest with this instant in them.

        Only windows that end at an attempt can be the fullest, and only those that end
        less than T after the instant hold it: usually that is one, the newest.
        """
        most = 0
        end = bisect_right(self._instants_ns, instant_ns) - 1
        while end < len(self._instants_ns) and self._instants_ns[end] < instant_ns + self.limit.per_ns:
            before = bisect_right(self._instants_ns, self._instants_ns[end] - self.limit.per_ns)
            held = self._running[end] - (self._running[before - 1] if before else 0)
            most = max(most, held)
            end += 1
        return most
