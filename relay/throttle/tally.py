"""How much was charged in a window that ends now, for comparing with a refusal.

An account without limits has no history.  What goes through it is counted here in memory,
by the 10 seconds and for a day: enough to compare with its first refusal.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock

from relay.clock import SECOND_NS
from relay.learning import Tally
from relay.throttle.record import Charged

GRAIN_NS = 10 * SECOND_NS
KEPT_NS = 24 * 3600 * SECOND_NS
"""With the grain: the most that is kept is 8,641 entries."""


def tally_of(charges: Iterable[Charged], now_ns: int) -> Tally:
    """Add up what ended."""
    messages = recipients = connections = 0
    first_ns = now_ns
    for charged in charges:
        messages += charged.messages
        recipients += charged.recipients
        connections += charged.connections
        started_at_ns = charged.ended_at_ns if charged.started_at_ns is None else charged.started_at_ns
        first_ns = min(first_ns, started_at_ns)
    return Tally(messages, recipients, connections, now_ns - first_ns)


def peak_of(charges: Sequence[Charged], span_ns: int) -> Tally:
    """Return the most, of each unit, that ended within any `span_ns`; by what is known one by one.

    `charges` ascend.  What was merged may have ended at any time before, and is left out.
    """
    most = [0, 0, 0]
    held = [0, 0, 0]
    inside: deque[Charged] = deque()
    for charged in charges:
        if charged.is_merged:
            continue
        inside.append(charged)
        _add(held, charged, 1)
        while inside[0].ended_at_ns <= charged.ended_at_ns - span_ns:
            _add(held, inside.popleft(), -1)
        most = [max(pair) for pair in zip(most, held, strict=True)]
    return Tally(*most)


def _add(held: list[int], charged: Charged, sign: int) -> None:
    for index, weight in enumerate((charged.messages, charged.recipients, charged.connections)):
        held[index] += sign * weight


class Unrecorded:
    """What ended lately of an account without limits.  For any thread."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._ended: deque[Charged] = deque()

    def add(self, ended: Charged) -> None:
        """Count the end of a transaction; ends come in their order."""
        with self._mutex:
            self._add(ended)

    def within(self, span_ns: int, now_ns: int) -> Tally:
        """Return what ended within the last `span_ns`."""
        with self._mutex:
            return tally_of((each for each in self._ended if each.ended_at_ns > now_ns - span_ns), now_ns)

    def _add(self, ended: Charged) -> None:
        last = self._ended[-1] if self._ended else None
        if last is not None and ended.ended_at_ns < last.ended_at_ns + GRAIN_NS:
            # At the instant of the first: what is near the edge of a window is not counted too long.
            self._ended[-1] = last._replace(
                messages=last.messages + ended.messages,
                recipients=last.recipients + ended.recipients,
                connections=last.connections + ended.connections,
            )
        else:
            self._ended.append(ended)
        while self._ended[0].ended_at_ns <= ended.ended_at_ns - KEPT_NS:
            self._ended.popleft()
