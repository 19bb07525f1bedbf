"""The known slots of one account, and the limits that judge them.  Pure.

The book changes by events (`apply`, `reset`) and by time (`advance`).  Slots that are decided and not durable
yet are in `granted`.  They count from then on; `keep` takes them as durable, `forget` drops them.

A slot is in flight until it ends, or until its deadline, when it counts as ended.  Ended slots are kept for
as long as any policy can need them.  So an edit (`judge_by`) judges the same past by other limits, and relays
with different policies can share one history: none drops what another needs.

Memory holds what the history holds.  A history that has become long is replaced by `events`, in which old
slots are merged (`compacted`), so both stay bounded.  The newest `exact` slots stay as they are, within half
of `most_shares`.  Older slots with the same kinds of shares become one, with a sum for each key, if their
ends lie within 1/parts of their age; it ends with the *last* of them.  So no weight becomes free too early.
If all shares exceed `most_shares`, the oldest merged slots lose theirs.  A slot without shares counts for
every key.  So no key ever counts for less, or for a shorter time, than before.  Windows are filled from the
slots that are kept, so the same bound holds for them.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add, attrgetter

from relay.clock import LONGEST_DURATION_NS
from relay.throttle.admission import Admission, Request, Reservation, TooLarge, Wait, admit, shares_of
from relay.throttle.history import Ended, Event, Share, Slot
from relay.throttle.limit import Limit, LimitState, Usage

KEEP_NS = 2 * LONGEST_DURATION_NS
"""The longest period plus the longest guard that a policy can hold."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of the past is kept, and how exactly."""

    exact: int = 8192
    """A limit with N up to half of this is exact: rounding moves no slot older than two spans into it."""
    parts: int = 1024
    """Larger limits waste less than 1/parts of their span."""
    most_shares: int = 400_000
    """About 80 MB: at most half for exact slots, the rest for merged slots."""


BOUNDS = Bounds()
end_of = attrgetter("until_ns")


class Book:
    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self._bounds = bounds
        self.policy_limits: Sequence[Limit] = ()
        self.limits: list[LimitState] = []
        self.now_ns = 0
        self.in_flight: dict[int, Slot] = {}
        self.ended: list[Slot] = []
        """Ascending by their ends."""
        self.last_id = 0
        """The highest id in the history; 0 if nothing was ever recorded."""
        self.granted: list[Slot] = []
        """Decided, and not durable yet."""

    def judge_by(self, limits: Sequence[Limit]) -> None:
        self.policy_limits = limits
        self.limits = [LimitState(limit) for limit in limits]
        for state in self.limits:
            for slot in [*self.slots(), *self.granted]:
                state.charge(slot, self.now_ns)

    def advance(self, now_ns: int) -> None:
        """Set the time, unless it is later already.  A slot past its deadline ends at its deadline."""
        self.now_ns = max(self.now_ns, now_ns)
        for slot in [slot for slot in self.in_flight.values() if slot.until_ns <= self.now_ns]:
            self._end(slot.id, slot.until_ns)

    def reset(self, events: Iterable[Event], now_ns: int) -> None:
        """Replace the whole past by these events, as of `now_ns`."""
        self.now_ns = max(self.now_ns, now_ns)
        self.in_flight, self.ended = {}, []
        # Fill the windows once, at the end: most slots have ended by then.
        self.limits = []
        self.apply(events)
        self.judge_by(self.policy_limits)
        self.advance(now_ns)

    def apply(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Slot():
                    self.last_id = max(self.last_id, event.id)
                    if event.is_open:
                        self.in_flight[event.id] = event
                    else:
                        insort(self.ended, event, key=end_of)
                    for state in self.limits:
                        state.charge(event, self.now_ns)
                case Ended(slot_id, at_ns):
                    # An unknown id belongs to a slot that ended before, by its deadline.
                    self._end(slot_id, at_ns)

    def decide(self, requests: Sequence[Request], transaction_ns: int) -> list[Admission]:
        answers: list[Admission] = []
        waiting: Wait | None = None
        for request in requests:
            answer = waiting or self._decide(request, transaction_ns)
            if isinstance(answer, Wait) and answer.place is None:
                waiting = answer
            answers.append(answer)
        return answers

    def decide_connection(self, opening_ns: int) -> Reservation | Wait:
        limits = [state for state in self.limits if state.unit == "connections"]
        waits = [Wait(state.opens_at(None, self.now_ns), state.limit) for state in limits]
        if waits and (last := max(waits, key=lambda wait: wait.until_ns)).until_ns > self.now_ns:
            return last
        return Reservation(self._grant(opening_ns, (0, 0, 1, 0), ()))

    def keep(self) -> None:
        """Take the slots that are only decided as durable."""
        self.in_flight |= {slot.id: slot for slot in self.granted}
        self.last_id += len(self.granted)
        self.granted = []

    def forget(self) -> None:
        """Drop the slots that are only decided, since their commit failed."""
        if self.granted:
            self.granted = []
            self.judge_by(self.policy_limits)

    def events(self) -> list[Slot]:
        """Compact the past, and return all that a new history needs."""
        self.ended = compacted(self.ended, self.now_ns, self._bounds)
        self.judge_by(self.policy_limits)
        return self.slots()

    def slots(self) -> list[Slot]:
        return [*self.ended, *self.in_flight.values()]

    def usage(self, transaction_ns: int, keys: Mapping[str, str | None]) -> list[Usage]:
        """Answer as `View.usage`; `keys` has the key to tell of, by the label of the limit."""
        ends = [
            (slot, max(self.now_ns, slot.started_at_ns + (0 if slot.connections else transaction_ns)))
            for slot in self.in_flight.values()
        ]
        return [state.usage(ends, self.now_ns, keys.get(state.limit.label)) for state in self.limits]

    def oldest_leaves_in_ns(self, span_ns: int) -> int | None:
        index = bisect_right(self.ended, self.now_ns - span_ns, key=end_of)
        return None if index == len(self.ended) else self.ended[index].until_ns + span_ns - self.now_ns

    def _decide(self, request: Request, transaction_ns: int) -> Admission:
        chosen = admit(self.limits, request, self.now_ns)
        if isinstance(chosen, Wait | TooLarge):
            return chosen
        weights, shares = (1, len(chosen), 0, request.size_bytes), shares_of(self.limits, request, chosen)
        return Reservation(self._grant(transaction_ns, weights, shares), chosen)

    def _grant(self, span_ns: int, weights: tuple[int, int, int, int], shares: tuple[Share, ...]) -> Slot:
        slot_id = self.last_id + len(self.granted) + 1
        slot = Slot(slot_id, self.now_ns, self.now_ns + span_ns, *weights, shares)
        self.granted.append(slot)
        for state in self.limits:
            state.charge(slot, self.now_ns)
        return slot

    def _end(self, slot_id: int, at_ns: int) -> None:
        if (slot := self.in_flight.pop(slot_id, None)) is None:
            return
        for state in self.limits:
            state.end(slot, at_ns)
        insort(self.ended, slot.ended(at_ns), key=end_of)


def book_of(events: Iterable[Event], now_ns: int, limits: Sequence[Limit]) -> Book:
    """Return a book that knows these events, as of `now_ns`."""
    book = Book()
    book.judge_by(limits)
    book.reset(events, now_ns)
    return book


def compacted(ended: Sequence[Slot], now_ns: int, bounds: Bounds = BOUNDS) -> list[Slot]:
    """Return what to keep of slots that have ended.  Argument and result ascend by their ends."""
    split, spare = len(ended), bounds.most_shares // 2
    while split > max(0, len(ended) - bounds.exact) and spare >= len(ended[split - 1].shares):
        split -= 1
        spare -= len(ended[split].shares)
    together: dict[tuple[int, int, frozenset[str]], list[Slot]] = {}
    for slot in ended[:split]:
        if (age_ns := now_ns - slot.until_ns) <= KEEP_NS:
            # A power of two, so that slots of almost the same age have the same grain.
            grain_ns = 1 << max(0, (age_ns // bounds.parts).bit_length() - 1)
            kinds = frozenset([share.for_each for share in slot.shares])
            together.setdefault((grain_ns, slot.until_ns // grain_ns, kinds), []).append(slot)
    merged, spare = [], spare + bounds.most_shares // 2
    for slot in sorted(map(_sum, together.values()), key=end_of, reverse=True):
        spare -= len(slot.shares)
        merged.append(slot if spare >= 0 else slot._replace(shares=()))
    return [*reversed(merged), *ended[split:]]


def _sum(slots: Sequence[Slot]) -> Slot:
    """Add slots with the same kinds of shares up to one that ends with the last."""
    shares: dict[tuple[str, str], Share] = {}
    for for_each, key, *weights in [share for slot in slots for share in slot.shares]:
        sums = shares.get((for_each, key), (0, 0, 0, 0, 0))[2:]
        shares[for_each, key] = Share(for_each, key, *map(add, sums, weights))
    return Slot(
        max(slot.id for slot in slots),
        min(slot.started_at_ns for slot in slots),
        slots[-1].until_ns,
        sum(slot.messages for slot in slots),
        sum(slot.recipients for slot in slots),
        sum(slot.connections for slot in slots),
        sum(slot.bytes for slot in slots),
        tuple(shares.values()),
        is_open=False,
    )
