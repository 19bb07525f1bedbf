"""A limit: at most N of a unit in any window of length T; and the slots that occupy it.  Pure.

The limits of an upstream, the ceilings of its lanes and the cap on reports all have this shape.

The rule.  A slot is occupied from its reservation until one span after its transaction *ended*.  A span is
the period T plus a guard.  A transaction may start only if occupied + its weight <= N.  The interval is
half-open, and defined here only: a slot that ended at e is free at every now >= e + span.

The proof.  Suppose the upstream counted more than N in some half-open window of length T.  It counts a
transaction at some instant between our start and our end of it; we never learn which.  Let s be the start of
the transaction that started last; it was counted at c >= s.  Each other one was counted after c - T, so it
ended after c - T >= s - T: at s it was in flight, or had ended less than T ago.  So at s all the others were
occupied, and together with the last one they weighed more than N: it would not have started.
If slots were stamped at their start instead, an upstream with slow replies would see 17 of 10.

A limit with `for_each` has a window for each sender, domain, client, user or lane.  The window of the key
None counts for every key: it holds the slots that were recorded without this kind of key.  A key's room is N
less its own window and less the window of None.  A ceiling is a limit of kind `lane` with `only` one key.

Every `now_ns` is the true time or earlier.  A decision reads one number, never all N slots.  A query drops
the free slots of the windows that it reads.  Windows of other keys go when the history has become long: then
the book fills a new state from its merged past.  So the history bounds the memory, whatever N and T are.
"""

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from relay.mail.formats import period
from relay.policy.lane import ALL_PERCENT, Lanes, LimitSettings, Unit
from relay.policy.model import Upstream
from relay.throttle.history import Slot

ForEach = Literal["sender", "sender_domain", "recipient_domain", "client", "user", "lane"]
LONGEST_DEFAULT_GUARD_NS = 1_000_000_000
Opening = tuple[int, int]
"""An instant at which slots become free, and their weight."""


@dataclass(frozen=True, slots=True)
class Limit:
    unit: Unit
    count: int
    """N, at least 1."""
    per_ns: int
    """T."""
    label: str
    """Names the limit everywhere: `100 messages per 1h for each sender`, `1G per 24h`."""
    for_each: ForEach | None = None
    """The kind of key that has a window each; None: one window for everything."""
    only: str | None = None
    """The one key that the limit judges; None: every key."""
    guard_ns: int = 0
    """How much longer than T a slot is occupied after its end."""

    @property
    def span_ns(self) -> int:
        return self.per_ns + self.guard_ns

    @property
    def reason(self) -> str:
        """Why a message waits.  The estimates use it too, because reasons are counted by their text."""
        return f"limit {self.label}" if self.only is None else f"ceiling of lane {self.only}"

    def weights(self, slot: Slot) -> list[tuple[str | None, int]]:
        """Return what a slot weighs for each key, without zeros; the key None counts for every key."""
        # A unit is the name of its field; a share has no connections, as no limit on connections has keys.
        shares = self.for_each and [share for share in slot.shares if share.for_each == self.for_each]
        if not shares:
            weight = getattr(slot, self.unit)
            return [(None, weight)] if weight else []
        return [
            (share.key, weight)
            for share in shares
            if (weight := getattr(share, self.unit)) and self.only in (None, share.key)
        ]


def limit_of(settings: LimitSettings, guard_ns: int | None = None) -> Limit:
    """Without `guard_ns` the guard is 1 % of T, at most a second."""
    guard_ns = min(settings.per_ns // 100, LONGEST_DEFAULT_GUARD_NS) if guard_ns is None else guard_ns
    its = settings.unit, settings.count, settings.per_ns, settings.label, settings.for_each
    return Limit(*its, guard_ns=guard_ns)


def with_ceilings(upstream: Upstream, lanes: Lanes) -> tuple[Limit, ...]:
    """Return the limits of an upstream, and the ceilings of lanes as limits for their key `lane`.

    Only limits over all mail have ceilings: a limit `for_each` sender has no total to take a part of.
    Limits of bytes have none: a message larger than its lane's part could never go.
    """
    found = [limit_of(each, upstream.guard_ns) for each in upstream.limits]
    for limit in tuple(found):
        for name, lane in lanes.items():
            if limit.for_each is None and limit.unit in ("messages", "recipients") and lane.ceiling:
                count = max(1, limit.count * lane.ceiling // ALL_PERCENT)
                label = f"{count} {limit.unit} per {period(limit.per_ns)} for lane {name}"
                found.append(replace(limit, count=count, label=label, for_each="lane", only=name))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a limit is; of a limit with keys, how full its fullest key is."""

    limit: Limit
    key: str | None
    """The fullest key, or the only key that the limit judges."""
    used: int
    """May exceed N after an edit that lowered it."""
    opens_at_ns: int
    """The earliest instant at which one more may fit; now if one fits."""
    openings: tuple[Opening, ...]
    """When the slots that are used become free, if those in flight take a given time; in no order."""


class Window:
    __slots__ = ("openings", "used")

    def __init__(self) -> None:
        self.used = 0
        """The weight of the slots in flight, and of the ended slots that are not freed yet."""
        self.openings: list[Opening] = []
        """Of the ended slots, ascending.  A list: with 200,000 keys, each deque would take 600 bytes."""

    def open_at(self, free_at_ns: int, weight: int) -> None:
        """Let `weight` of `used` become free at an instant."""
        openings = self.openings
        if not openings or openings[-1][0] < free_at_ns:
            openings.append((free_at_ns, weight))
            return
        index = bisect_left(openings, (free_at_ns,))
        if openings[index][0] == free_at_ns:
            openings[index] = free_at_ns, openings[index][1] + weight
        else:
            openings.insert(index, (free_at_ns, weight))

    def free(self, now_ns: int) -> None:
        """Drop the slots that are free by now."""
        if freed := bisect_left(self.openings, (now_ns + 1,)):
            self.used -= sum([weight for _, weight in self.openings[:freed]])
            del self.openings[:freed]


class LimitState:
    def __init__(self, limit: Limit) -> None:
        self.limit, self.unit, self.count = limit, limit.unit, limit.count
        self.for_each, self.only = limit.for_each, limit.only
        self.span_ns = limit.span_ns
        self._windows = defaultdict[str | None, Window](Window)

    def charge(self, slot: Slot, now_ns: int) -> None:
        """Count a slot, in flight or ended."""
        free_at_ns = slot.until_ns + self.span_ns
        if slot.is_open or free_at_ns > now_ns:
            for key, weight in self.limit.weights(slot):
                window = self._windows[key]
                window.used += weight
                if not slot.is_open:
                    window.open_at(free_at_ns, weight)

    def end(self, slot: Slot, at_ns: int) -> None:
        """Let a charged slot become free one span after `at_ns`."""
        for key, weight in self.limit.weights(slot):
            self._windows[key].open_at(at_ns + self.span_ns, weight)

    def used(self, key: str | None, now_ns: int) -> int:
        """Return the weight that counts against N for a key; for None, what counts for every key."""
        used = 0
        for each in {None, key}:
            if (window := self._windows.get(each)) is not None:
                window.free(now_ns)
                used += window.used
        return used

    def room(self, key: str | None, now_ns: int) -> int:
        return max(0, self.count - self.used(key, now_ns))

    def opens_at(self, key: str | None, now_ns: int, weight: int = 1) -> int:
        """Return the earliest instant at which `weight` may fit beside what is used.

        It is never too late: the first transaction in flight that stands in the way could end now.  A weight
        above N never fits and counts as N here; the caller answers it with `TooLarge`.
        """
        excess = self.used(key, now_ns) + min(weight, self.count) - self.count
        if excess <= 0:
            return now_ns
        for opens_at_ns, opening in heapq.merge(*self._openings({None, key})):
            excess -= opening
            if excess <= 0:
                return opens_at_ns
        return now_ns + self.span_ns

    def fullest_key(self, now_ns: int) -> str | None:
        """Return the key that uses the most of N; None if none does.  Needs no lock: a guess is enough."""
        fullest, most = None, 0
        for key, window in self._windows.copy().items():
            # Most keys are below the fullest even with their free slots, so few windows are summed.
            if key is not None and window.used > most:
                used = window.used - sum([weight for at_ns, weight in window.openings if at_ns <= now_ns])
                if used > most:
                    fullest, most = key, used
        return fullest

    def usage(self, in_flight: Iterable[tuple[Slot, int]], now_ns: int, key: str | None) -> Usage:
        """Return the usage by a key, as if slots in flight ended at the instants given with them."""
        key = self.only or key
        used, opens_at_ns = self.used(key, now_ns), self.opens_at(key, now_ns)
        openings = [opening for window in self._openings({None, key}) for opening in window]
        for slot, ends_ns in in_flight:
            weights = [weight for each, weight in self.limit.weights(slot) if each in (None, key)]
            openings += [(ends_ns + self.span_ns, weight) for weight in weights]
        return Usage(self.limit, key, used, opens_at_ns, tuple(openings))

    def _openings(self, keys: Iterable[str | None]) -> list[list[Opening]]:
        return [self._windows[key].openings for key in keys if key in self._windows]
