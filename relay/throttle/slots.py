"""All that is known of an account's past, and the limits that judge it.  No disk.

Guarantees: a reservation occupies every window until it is settled, or until its deadline, at
which it counts as ended.  What ended is kept for as long as any policy could ask for it, in bounded
memory: the newest `HistoryBounds.exact_ends` to the nanosecond, older ones as `compaction` says.  Each reboot
moves the grid, so each rounds them *up* once more, by less than 1/1024 of their age.  So new limits
judge the same past (`judge_by`), and a sum never falls too early.

KEEP_NS is not a policy's longest period but the longest that can be written: processes with
different policies share one history, and none may drop what another needs.  Memory grows with the
logarithm of the age: about a thousand entries each time the age doubles, and as many again not yet merged.

The wall clock is read with each decision and question: a calendar's periods and hours are judged by what it
said of late (`wall`), so a step of it fills their windows anew.

Every method may be called from any thread; none touches the disk or blocks for long.
Instants are boottime of the current boot in nanoseconds.
"""

import heapq
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from threading import Lock
from typing import TypeVar

from relay.throttle.admission import (
    Grant,
    Request,
    TooLarge,
    Wait,
    choose,
    room_for_connections,
    shares_of,
    too_large,
    wait,
)
from relay.throttle.bounds import BOUNDS, HistoryBounds
from relay.throttle.compaction import merge, thinned
from relay.throttle.gauge import Gauge, Limited
from relay.throttle.history_format import (
    Begun,
    Charged,
    ClockReading,
    Ended,
    Highest,
    Record,
    Reserved,
    Share,
    Weights,
    charged_as,
)
from relay.throttle.limit import Limit
from relay.throttle.limit_hints import Tally
from relay.throttle.peaks import raised
from relay.throttle.wall import Times

Answer = TypeVar("Answer")

SHARE_BYTES = 40
"""How long a share is as written, about; after `HistoryBounds.most_shares` more they are thinned."""


class Slots:
    def __init__(self, bounds: HistoryBounds = BOUNDS) -> None:
        self._bounds = bounds
        self._mutex = Lock()
        self._limits: list[Limit] = []
        self._guard_ns: int | None = None
        self._gauges: list[Gauge] = []
        self._has_keys = False
        self._now_ns = 0
        """The latest instant that is known to have come."""
        self._times = Times(bounds=bounds)
        self._in_flight: dict[int, Reserved] = {}
        self._own: set[int] = set()
        """Other processes' reservations are not here: those may have died and never settle."""
        self._deadlines: list[tuple[int, int]] = []
        """A heap of (deadline, id); a settled id stays in it until its deadline."""
        self._ended: list[Charged] = []
        self._shares_bytes = 0
        self._highest: list[Highest] = []
        self._merge_above = bounds.exact_ends + bounds.merged_at_once
        self._thin_above_bytes = bounds.most_shares * SHARE_BYTES
        self._last_id = 0
        self._unwritten: list[Record] = []

    def judge_by(self, limits: Sequence[Limit], guard_ns: int | None) -> None:
        """Unchanged limits keep their windows; new ones are filled with what is known."""
        with self._mutex:
            before, self._gauges = self._gauges, []
            self._limits, self._guard_ns = list(limits), guard_ns
            self._has_keys = any(limit.for_each is not None for limit in limits)
            for limit, same in _heirs(before, limits, guard_ns):
                if same is not None:
                    same.go_on_as(limit)
                self._gauges.append(same or self._filled(limit, guard_ns))

    def time_is(self, now_ns: int, wall_ns: int | None = None) -> None:
        """Know the present instant by both clocks; None: the wall clock was not read."""
        with self._mutex:
            self._now_ns = max(self._now_ns, now_ns)
            if wall_ns is not None:
                self._times.read(now_ns, wall_ns)
                self._fill_by_the_clock()

    def reset(self, records: Iterable[Record]) -> None:
        """Forget all but these records and what is not written yet."""
        with self._mutex:
            self._in_flight, self._deadlines, self._ended, self._shares_bytes = {}, [], [], 0
            self._highest = []
            # The windows are filled at the end, once: most reservations have ended by then.
            self._gauges = []
            self._apply(records)
            self._apply(self._unwritten)
            self._gauges = [self._filled(limit, self._guard_ns) for limit in self._limits]

    def learn(self, records: Iterable[Record]) -> None:
        with self._mutex:
            self._apply(records)
            self._fill_by_the_clock()
        self._stay_bounded(self._now_ns)

    def settle(self, record: Ended | Charged) -> None:
        with self._mutex:
            self._apply([record])
            self._unwritten.append(record)

    def unwritten(self) -> list[Record]:
        with self._mutex:
            return list(self._unwritten)

    def written(self, count: int) -> None:
        """Forget the first `count` of `unwritten`: they are durable."""
        with self._mutex:
            del self._unwritten[:count]

    def reserve(self, request: Request, transaction_ns: int, now_ns: int) -> Grant | Wait | TooLarge:
        """Occupy one message, and as many of its recipients as there is room for, in all windows or none."""
        self._stay_bounded(now_ns)
        with self._mutex:
            self._advance(now_ns)
            # What opened since, by a later look at the clock, must not be given away as of before.
            now_ns = self._now_ns
            chosen = choose(self._gauges, request, now_ns)
            if not chosen:
                return too_large(self._gauges, request, now_ns) or wait(self._gauges, request, now_ns)
            shares = shares_of(self._gauges, request, chosen) if self._has_keys or request.lane else ()
            weights = 1, len(chosen), 0
            reserved = self._occupy(transaction_ns, now_ns, weights, shares, request.size_bytes)
            return Grant(reserved, chosen)

    def reserve_connection(self, transaction_ns: int, now_ns: int) -> Reserved | Wait:
        with self._mutex:
            self._advance(now_ns)
            now_ns = self._now_ns
            _, until_ns, label = room_for_connections(self._gauges, now_ns)
            if until_ns > now_ns:
                return Wait(until_ns, label)
            return self._occupy(transaction_ns, now_ns, (0, 0, 1))

    def ask(
        self, question: Callable[[Sequence[Gauge], int], Answer], now_ns: int, wall_ns: int | None = None
    ) -> Answer:
        self.time_is(now_ns, wall_ns)
        with self._mutex:
            self._advance(now_ns)
            return question(self._gauges, now_ns)

    def leaves_in_ns(self, span_ns: int, now_ns: int) -> int | None:
        with self._mutex:
            self._advance(now_ns)
            index = bisect_right(self._ended, now_ns - span_ns, key=_ended_at)
            return None if index == len(self._ended) else self._ended[index].ended_at_ns + span_ns - now_ns

    def tally(self, span_ns: int, now_ns: int) -> Tally:
        with self._mutex:
            self._advance(now_ns)
            index = bisect_right(self._ended, now_ns - span_ns, key=_ended_at)
            return _sum_of(self._ended[index:], now_ns)

    def peak(self, span_ns: int, now_ns: int) -> Tally:
        with self._mutex:
            index = bisect_right(self._ended, now_ns - span_ns, key=_ended_at)
            return _peak_of(self._ended[:index], span_ns)

    def limited(self, transaction_ns: int, now_ns: int) -> tuple[Limited, ...]:
        with self._mutex:
            self._advance(now_ns)
            ends = self._likely_ends(transaction_ns, now_ns)
            return tuple(gauge.limited(ends, now_ns) for gauge in self._gauges)

    def limited_under(
        self, limits: Sequence[Limit], guard_ns: int | None, transaction_ns: int, now_ns: int
    ) -> tuple[Limited, ...]:
        """Return what `limited` would after `judge_by`, and change nothing."""
        with self._mutex:
            self._advance(now_ns)
            ends = self._likely_ends(transaction_ns, now_ns)
            found = []
            for limit, same in _heirs(self._gauges, limits, guard_ns):
                held = (same or self._filled(limit, guard_ns)).limited(ends, now_ns)
                held = replace(held, label=limit.label, count=limit.count)
                found.append(replace(held, open_hours=limit.open_hours, rise=limit.rise))
            return tuple(found)

    def records(self, now_ns: int) -> list[Record]:
        """Return what a new file has to say: everything known, merged where it is old."""
        self._stay_bounded(now_ns, at_once=True)
        with self._mutex:
            self._advance(now_ns)
            begun_at_ns = self._times.begun_at_ns
            front = [*([] if begun_at_ns is None else [Begun(begun_at_ns)]), *self._times.readings]
            return [*front, *self._highest, *self._ended, *self._in_flight.values()]

    def has_others(self) -> bool:
        """Whether another process has something in flight, whose end only the file will tell."""
        with self._mutex:
            return not self._in_flight.keys() <= self._own

    @property
    def kept(self) -> int:
        """How many records `records` would give, or a few more."""
        front = 1 + len(self._times.readings) + len(self._highest)
        return front + len(self._ended) + len(self._in_flight)

    @property
    def shares_bytes(self) -> int:
        return self._shares_bytes

    def _occupy(
        self,
        transaction_ns: int,
        now_ns: int,
        weights: Weights,
        shares: tuple[Share, ...] = (),
        size_bytes: int = 0,
    ) -> Reserved:
        reservation_id = max(now_ns, self._last_id + 1)
        reserved = Reserved(reservation_id, now_ns + transaction_ns, *weights, shares, size_bytes)
        self._own.add(reservation_id)
        self._start(reserved)
        return reserved

    def _likely_ends(self, transaction_ns: int, now_ns: int) -> list[tuple[Reserved, int]]:
        return [(r, self._likely_end(r, transaction_ns, now_ns)) for r in self._in_flight.values()]

    def _likely_end(self, reserved: Reserved, transaction_ns: int, now_ns: int) -> int:
        # Its id is the instant of the reservation.
        likely_ns = max(now_ns, reserved.id + (0 if reserved.connections else transaction_ns))
        return likely_ns if reserved.id in self._own else reserved.deadline_ns

    def _filled(self, limit: Limit, guard_ns: int | None) -> Gauge:
        gauge = Gauge(limit, guard_ns, self._times, self._now_ns, self._bounds.most_entries)
        for reserved in self._in_flight.values():
            gauge.start(reserved, self._now_ns)
        for charged in self._ended:
            gauge.charge(charged, self._now_ns)
        return gauge

    def _fill_by_the_clock(self) -> None:
        """Fill those gauges anew that the wall clock, as it was read, fits no longer."""
        for index, gauge in enumerate(self._gauges):
            if not gauge.fits(self._now_ns):
                self._gauges[index] = self._filled(self._limits[index], self._guard_ns)
                self._gauges[index].take_most_of(gauge)

    def _apply(self, records: Iterable[Record]) -> None:
        for record in records:
            match record:
                case Reserved():
                    self._start(record)
                case Ended():
                    # An unknown id is one that ended before: by its deadline, or in an older group.
                    if (reserved := self._in_flight.pop(record.id, None)) is not None:
                        self._end(reserved, record.ended_at_ns)
                case Highest():
                    self._highest.append(record)
                case ClockReading():
                    self._times.readings.add(record)
                case Begun(at_ns):
                    self._times.began(at_ns)
                case Charged():
                    self._keep(record)
                    for gauge in self._gauges:
                        gauge.charge(record, self._now_ns)

    def _start(self, reserved: Reserved) -> None:
        self._in_flight[reserved.id] = reserved
        self._last_id = max(self._last_id, reserved.id)
        self._times.began(reserved.id)
        heapq.heappush(self._deadlines, (reserved.deadline_ns, reserved.id))
        for gauge in self._gauges:
            gauge.start(reserved, self._now_ns)

    def _end(self, reserved: Reserved, ended_at_ns: int) -> None:
        self._own.discard(reserved.id)
        self._keep(charged_as(reserved, ended_at_ns))
        for gauge in self._gauges:
            gauge.end(reserved, ended_at_ns)

    def _keep(self, charged: Charged) -> None:
        if charged.started_at_ns is not None:
            # Its id: given again at the same instant, the end of one would be taken for that of the other.
            self._last_id = max(self._last_id, charged.started_at_ns)
        self._times.began(charged.ended_at_ns if charged.started_at_ns is None else charged.started_at_ns)
        if not self._ended or self._ended[-1].ended_at_ns <= charged.ended_at_ns:
            self._ended.append(charged)
        else:
            insort(self._ended, charged, key=_ended_at)
        if charged.shares:
            self._shares_bytes += _length(charged)

    def _advance(self, now_ns: int) -> None:
        self._now_ns = max(self._now_ns, now_ns)
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            deadline_ns, reservation_id = heapq.heappop(self._deadlines)
            if (reserved := self._in_flight.pop(reservation_id, None)) is not None:
                self._end(reserved, deadline_ns)
        if len(self._deadlines) > 2 * (len(self._in_flight) + self._bounds.merged_at_once):
            self._deadlines = [(each.deadline_ns, each.id) for each in self._in_flight.values()]
            heapq.heapify(self._deadlines)

    def _stay_bounded(self, now_ns: int, *, at_once: bool = False) -> None:
        """Merge old ends once there are many, or at once; before that, count what limits held.

        Everything that any process reserved before `now_ns` must be known.
        """
        has_room = len(self._ended) <= self._merge_above and self._shares_bytes <= self._thin_above_bytes
        if has_room and not at_once:
            return
        with self._mutex:
            self._advance(now_ns)
            if (
                len(self._ended) <= self._bounds.exact_ends
                and sum(len(each.shares) for each in self._ended) <= self._bounds.most_shares
            ):
                # Few shares, but long ones: they are not to be counted again at each decision.
                few_more_bytes = self._bounds.most_shares * SHARE_BYTES // 4
                self._thin_above_bytes = max(self._thin_above_bytes, self._shares_bytes + few_more_bytes)
                return
            known: list[Record] = [*self._times.readings, *self._ended, *self._in_flight.values()]
            before, limits = self._highest, self._limits
        # Takes a while, in which others may look, and settle: what ends only now counts as in flight.
        counted = raised(before, limits, known, now_ns)
        with self._mutex:
            self._highest = counted
            self._merge(now_ns)

    def _merge(self, now_ns: int) -> None:
        split = max(0, len(self._ended) - self._bounds.exact_ends)
        merged = merge(self._ended[:split], now_ns, self._bounds.parts)
        self._ended = sorted([*merged, *self._ended[split:]], key=_ended_at)
        if self._shares_bytes:
            self._ended = thinned(self._ended, self._bounds.most_shares, now_ns)
            self._shares_bytes = sum(map(_length, self._ended)) + sum(map(_length, self._in_flight.values()))
        self._times.readings.forget(now_ns)
        # The more is kept, the longer a merge takes, and the more decisions share its cost.
        self._merge_above = len(self._ended) + max(self._bounds.merged_at_once, len(self._ended))
        self._thin_above_bytes = self._shares_bytes + self._bounds.most_shares * SHARE_BYTES


def _heirs(
    before: Iterable[Gauge], limits: Sequence[Limit], guard_ns: int | None
) -> Iterator[tuple[Limit, Gauge | None]]:
    """Yield each limit with the gauge that may go on as it: none is of two limits.

    What such a gauge knows is exact; of older ends memory has no more than whereabouts they were.
    """
    left = list(before)
    for limit in limits:
        same = next((gauge for gauge in left if gauge.may_go_on_as(limit, guard_ns)), None)
        if same is not None:
            left.remove(same)
        yield limit, same


def _ended_at(charged: Charged) -> int:
    return charged.ended_at_ns


def _length(record: Reserved | Charged) -> int:
    return sum(len(share.for_each) + len(share.key) + 10 for share in record.shares)


def _sum_of(charges: Sequence[Charged], now_ns: int) -> Tally:
    held = [0, 0, 0]
    for charged in charges:
        _add(held, charged, 1)
    # A start that was not kept is taken for the end.
    starts_ns = (each.ended_at_ns if each.started_at_ns is None else each.started_at_ns for each in charges)
    messages, recipients, connections = held
    return Tally(messages, recipients, connections, now_ns - min([now_ns, *starts_ns]))


def _peak_of(charges: Sequence[Charged], span_ns: int) -> Tally:
    """Return the most, of each unit, that ended within any `span_ns`; merged ends are left out.

    `charges` ascend.
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
    for index, weight in enumerate(charged.weights):
        held[index] += sign * weight
