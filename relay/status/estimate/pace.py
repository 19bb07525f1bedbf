"""When mail behind the estimate goes: by the rates of limits and connections.  Pure.

The estimate (`relay.status.estimate.eta`) sends the first messages of a line once more, one by one; what
stands behind them is only counted.  It goes on from the instant and the slots at which the estimate ended, at
the rate of the slowest limit of all mail, or of the connections.  Limits for each sender, domain and so on
count for what is parked (`LineEstimate.drained_ns`), lanes not at all: the order of their turns is not seen.
Cost: that of the limits, whatever the number of messages.  Instants are boottime in nanoseconds.
"""

from typing import NamedTuple

from relay.status.estimate.eta import state_of
from relay.status.estimate.expected import Outlook


class Load(NamedTuple):
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0

    def plus(self, other: "Load") -> "Load":
        return Load(*(one + its for one, its in zip(self, other, strict=True)))

    def minus(self, other: "Load") -> "Load":
        return Load(*(max(0, one - its) for one, its in zip(self, other, strict=True)))

    def part(self, number: int, of: int) -> "Load":
        return Load(*(one * number // of for one in self))


class _LimitRate(NamedTuple):
    unit: int
    """Which field of a `Load` the limit counts."""
    room: int
    slots: int
    """N."""
    span_ns: int

    def wait_ns(self, load: Load) -> int:
        return max(0, load[self.unit] - self.room) * self.span_ns // self.slots


_UNITS = {"messages": 0, "recipients": 1, "bytes": 2}


class Pace:
    def __init__(self, outlook: Outlook, first: Load, last_ns: int) -> None:
        """`first` is what the estimate sent, until `last_ns`."""
        self._now_ns, self._first = outlook.now_ns, first
        # Where all that was estimated goes by another line, nothing else tells of a pause.
        self._last_ns = max(last_ns, outlook.now_ns, outlook.paused_until_ns)
        self._of_message_ns = outlook.transaction_ns // max(1, outlook.connections)
        self._rates = []
        for limit in outlook.limits:
            if limit.for_each is None and limit.unit in _UNITS:
                gauge, unit = state_of(limit, outlook.now_ns), _UNITS[limit.unit]
                slots = max(1, gauge.count)
                room = gauge.room(None, outlook.now_ns)
                self._rates.append(_LimitRate(unit, room, slots, limit.span_ns))
        # Pauses, back-offs and the like, which no rate knows.
        self._more_ns = self._last_ns - self._now_ns - self._wait_ns(first)

    def at_ns(self, behind: Load) -> int:
        """Return when so much of what stands behind the estimate will have gone."""
        wait_ns = self._wait_ns(self._first.plus(behind)) + self._more_ns
        return max(self._last_ns, self._now_ns + wait_ns)

    def _wait_ns(self, load: Load) -> int:
        waits_ns = [rate.wait_ns(load) for rate in self._rates]
        return max([*waits_ns, load.messages * self._of_message_ns])
