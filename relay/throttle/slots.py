"""All that is known of an account's past, and the limits that judge it.  No disk.

Guarantees: a reservation occupies every window until it is settled, or until its
deadline, at which it counts as ended.  What ended is kept for as long as any policy
could ask for it, in bounded memory: the newest EXACT_ENDS to the nanosecond, older
ones merged with their instants rounded *up* by less than 1/1024 of their age (once for
each reboot that they live through, which moves the grid).  So new limits judge the same
past (`judge_by`), and a sum never falls too early.

KEEP_NS is no policy's longest period but the longest that can be written: processes
with different policies share one history, and none may drop what another needs.
It costs little, since memory grows with the logarithm of the age: about a
thousand entries each time the age doubles.

Every method may be called from any thread; none touches the disk or blocks for long.
Instants are boottime of the current boot in nanoseconds.
"""

import heapq
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Literal, NamedTuple, Protocol

from relay.policy.units import LONGEST_DURATION_NS
from relay.throttle.record import Charged, Ended, Record, Reserved
from relay.throttle.window import BUCKETS, EXACT_SLOTS, Window

KEEP_NS = 2 * LONGEST_DURATION_NS
"""The longest period and the longest guard that a policy can hold."""
EXACT_ENDS = 2 * EXACT_SLOTS
"""What an exact window admits in two spans, so that rounding what is older cannot reach into it."""
LONGEST_DEFAULT_GUARD_NS = 1_000_000_000
MOST_OPENINGS = 256
"""How many openings `usage` tells of, for an estimate of when a queue will have drained."""

Unit = Literal["messages", "recipients"]


class Limit(Protocol):
    """What the throttle needs of a limit in a policy."""

    @property
    def unit(self) -> Unit:
        """Return what is counted."""
        ...

    @property
    def count(self) -> int:
        """Return N, the most that any window may hold; at least 1."""
        ...

    @property
    def per_ns(self) -> int:
        """Return T, the length of the window."""
        ...

    @property
    def label(self) -> str:
        """Return how a status line names it."""
        ...


@dataclass(frozen=True, slots=True)
class Wait:
    """No room.  Ask again at `until_ns`, which is never later than when room opens."""

    until_ns: int
    """Boottime; always in the future."""
    limit_label: str
    """The limit that opens last."""


@dataclass(frozen=True, slots=True)
class Usage:
    """One limit, as a status line shows it."""

    label: str
    unit: Unit
    used: int
    """May be above `count` after an edit that lowered it."""
    count: int
    span_ns: int
    """The period and its guard."""
    opens_at_ns: int
    """Boottime at which there may be room for one more; now, if there is."""
    openings_ns: tuple[int, ...]
    """Boottime at which occupied slots open: the first ones, as far as known, one for each of `used`."""


class _Gauge(NamedTuple):
    label: str
    unit: Unit
    window: Window


class Slots:
    """What is in flight, what has ended, and what of it no disk has yet been told."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._limits: list[Limit] = []
        self._guard_ns: int | None = None
        self._gauges: list[_Gauge] = []
        self._in_flight: dict[int, Reserved] = {}
        self._deadlines: list[tuple[int, int]] = []
        """A heap of (deadline, id); what was settled meanwhile is not taken out of it."""
        self._ended: list[Charged] = []
        self._merge_above = EXACT_ENDS + EXACT_SLOTS
        self._last_id = 0
        self._unwritten: list[Record] = []

    def judge_by(self, limits: Sequence[Limit], guard_ns: int | None) -> None:
        """Replace the limits; what is known stays and fills the new windows."""
        with self._mutex:
            self._limits, self._guard_ns = list(limits), guard_ns
            self._fill_new_windows()

    def reset(self, records: Iterable[Record]) -> None:
        """Know only what these records say, in order, and what is not written yet."""
        with self._mutex:
            self._in_flight, self._deadlines, self._ended = {}, [], []
            # The windows are filled at the end, once: most reservations have ended by then.
            self._gauges = []
            self._apply(records)
            self._apply(self._unwritten)
            self._fill_new_windows()

    def learn(self, records: Iterable[Record]) -> None:
        """Add what others recorded."""
        with self._mutex:
            self._apply(records)

    def settle(self, record: Ended | Charged) -> None:
        """Know an end at once, and keep it for the next group that is written."""
        with self._mutex:
            self._apply([record])
            self._unwritten.append(record)

    def unwritten(self) -> list[Record]:
        """Return the ends that no group holds yet."""
        with self._mutex:
            return list(self._unwritten)

    def written(self, count: int) -> None:
        """Forget so many of the first of `unwritten`: they are durable."""
        with self._mutex:
            del self._unwritten[:count]

    def reserve(self, recipients: int, transaction_ns: int, now_ns: int) -> Reserved | Wait:
        """Occupy one message, and as many of the recipients as there is room for, in all windows or none."""
        with self._mutex:
            self._advance(now_ns)
            for gauge in self._gauges:
                if gauge.unit == "recipients":
                    recipients = min(recipients, gauge.window.room(now_ns))
            if recipients < 1 or any(gauge.window.room(now_ns) < 1 for gauge in self._gauges):
                opens = [(gauge.window.opens_at(1, now_ns), gauge.label) for gauge in self._gauges]
                until_ns, label = max(opens, key=lambda each: each[0])
                return Wait(until_ns, label)
            reserved = Reserved(
                max(now_ns, self._last_id + 1), now_ns + transaction_ns, messages=1, recipients=recipients
            )
            self._apply([reserved])
            return reserved

    def opens_at(self, recipients: int, now_ns: int) -> int:
        """Return the earliest instant at which a message with so many recipients may fit unsplit."""
        with self._mutex:
            self._advance(now_ns)
            return max(
                (gauge.window.opens_at(_weight(gauge, 1, recipients), now_ns) for gauge in self._gauges),
                default=now_ns,
            )

    def usage(self, now_ns: int) -> list[Usage]:
        """Return how full each window is, in the order of the limits."""
        with self._mutex:
            self._advance(now_ns)
            return [
                Usage(
                    label,
                    unit,
                    window.occupied(now_ns),
                    window.count,
                    window.span_ns,
                    window.opens_at(1, now_ns),
                    window.openings_ns(MOST_OPENINGS, now_ns),
                )
                for label, unit, window in self._gauges
            ]

    def records(self, now_ns: int) -> list[Record]:
        """Return what a new file has to say: everything known, merged where it is old."""
        with self._mutex:
            self._advance(now_ns)
            self._merge(now_ns)
            return [*self._ended, *self._in_flight.values()]

    @property
    def kept(self) -> int:
        """Return how many records `records` would give, or a few more."""
        return len(self._ended) + len(self._in_flight)

    def _fill_new_windows(self) -> None:
        self._gauges = [_gauge(limit, self._guard_ns) for limit in self._limits]
        for gauge in self._gauges:
            for reserved in self._in_flight.values():
                gauge.window.start(_weight(gauge, reserved.messages, reserved.recipients))
            for ended_at_ns, messages, recipients in self._ended:
                gauge.window.charge(_weight(gauge, messages, recipients), ended_at_ns)

    def _apply(self, records: Iterable[Record]) -> None:
        for record in records:
            match record:
                case Reserved():
                    self._start(record)
                case Ended():
                    # An unknown id is one that ended before: by its deadline, or in an older group.
                    if (reserved := self._in_flight.pop(record.id, None)) is not None:
                        self._end(reserved, record.ended_at_ns)
                case Charged():
                    self._keep(record)
                    for gauge in self._gauges:
                        weight = _weight(gauge, record.messages, record.recipients)
                        gauge.window.charge(weight, record.ended_at_ns)

    def _start(self, reserved: Reserved) -> None:
        self._in_flight[reserved.id] = reserved
        self._last_id = max(self._last_id, reserved.id)
        heapq.heappush(self._deadlines, (reserved.deadline_ns, reserved.id))
        for gauge in self._gauges:
            gauge.window.start(_weight(gauge, reserved.messages, reserved.recipients))

    def _end(self, reserved: Reserved, ended_at_ns: int) -> None:
        self._keep(Charged(ended_at_ns, reserved.messages, reserved.recipients))
        for gauge in self._gauges:
            gauge.window.end(_weight(gauge, reserved.messages, reserved.recipients), ended_at_ns)

    def _keep(self, charged: Charged) -> None:
        insort(self._ended, charged)

    def _advance(self, now_ns: int) -> None:
        """Count what passed its deadline as ended then, and keep memory bounded."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            deadline_ns, reservation_id = heapq.heappop(self._deadlines)
            if (reserved := self._in_flight.pop(reservation_id, None)) is not None:
                self._end(reserved, deadline_ns)
        if len(self._ended) > self._merge_above:
            self._merge(now_ns)
        if len(self._deadlines) > 2 * (len(self._in_flight) + EXACT_SLOTS):
            self._deadlines = [(each.deadline_ns, each.id) for each in self._in_flight.values()]
            heapq.heapify(self._deadlines)

    def _merge(self, now_ns: int) -> None:
        """Round old ends up and add up those that fall together; drop what no window can ask for."""
        split = max(0, len(self._ended) - EXACT_ENDS)
        merged: dict[int, list[int]] = {}
        for ended_at_ns, messages, recipients in self._ended[:split]:
            if now_ns - ended_at_ns > KEEP_NS:
                continue
            total = merged.setdefault(_rounded_up(ended_at_ns, now_ns - ended_at_ns), [0, 0])
            total[0] += messages
            total[1] += recipients
        old = [Charged(at_ns, messages, recipients) for at_ns, (messages, recipients) in merged.items()]
        self._ended = sorted([*old, *self._ended[split:]])
        self._merge_above = len(self._ended) + EXACT_SLOTS


def _weight(gauge: _Gauge, messages: int, recipients: int) -> int:
    return messages if gauge.unit == "messages" else recipients


def _gauge(limit: Limit, guard_ns: int | None) -> _Gauge:
    if guard_ns is None:
        guard_ns = min(limit.per_ns // 100, LONGEST_DEFAULT_GUARD_NS)
    return _Gauge(limit.label, limit.unit, Window(limit.count, limit.per_ns, guard_ns))


def _rounded_up(ended_at_ns: int, age_ns: int) -> int:
    """Return an instant rounded up by less than 1/1024 of its age, and never past now.

    The grain is a power of two, so that rounding again when it is older lands on the same
    grid: errors do not add up.
    """
    grain_ns = age_ns // BUCKETS
    if grain_ns < 2:
        return ended_at_ns
    grain_ns = 1 << (grain_ns.bit_length() - 1)
    return -(-ended_at_ns // grain_ns) * grain_ns
