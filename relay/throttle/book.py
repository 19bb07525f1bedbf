"""All that is known of an account's slots, and the limits that judge them.  Pure.

It changes by events that are durable (`apply`, `reset`), and by time (`advance`).  What is decided and
not durable yet is a draft beside them (`propose`, `decide`), which counts as well and is dropped when the
events are applied, or when they could not be made durable: what is known never holds more than what is
durable.

A slot occupies every window until it ends, or until its deadline, at which it counts as ended.  What
ended is kept for as long as any policy could ask for it, as `compaction` says; so an edit (`judge_by`)
judges the same past by other limits.  Relays with different policies share one history, and none drops
what another needs.
"""

import heapq
from bisect import bisect_right, insort
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from relay.throttle.admission import Grant, Request, TooLarge, Wait, choose, shares_of, too_large, wait
from relay.throttle.compaction import BOUNDS, Bounds, compacted, end_of
from relay.throttle.events import Ended, Event, Issued, Share, Slot
from relay.throttle.limit import Limit
from relay.throttle.limit_state import MOST_ENTRIES, Limited, LimitState


class LimitBook:
    def __init__(self, bounds: Bounds = BOUNDS, most_entries: int = MOST_ENTRIES) -> None:
        self._bounds, self._most_entries = bounds, most_entries
        self.judged: Sequence[Limit] = ()
        self._guard_ns: int | None = None
        self.limits: list[LimitState] = []
        self._has_keys = False
        self.now_ns = 0
        """When the last transaction was: nothing that is decided is decided as of later."""
        self.in_flight: dict[int, Slot] = {}
        self._deadlines: list[tuple[int, int]] = []
        """A heap of (deadline, id); the id of a slot that ended stays in it until its deadline."""
        self.ended: list[Slot] = []
        """Ascending by their ends."""
        self._shares = 0
        self._last_id = self._drafted = 0
        self._draft: list[Event] = []
        self._compact_above = bounds.exact + bounds.at_once
        self._compact_above_shares = bounds.most_shares

    def judge_by(self, limits: Sequence[Limit], guard_ns: int | None) -> None:
        """Unchanged limits keep their windows; new ones are filled with what is known."""
        draft = self.drop()
        heirs = list(self._heirs(limits, guard_ns))
        self.judged, self._guard_ns = tuple(limits), guard_ns
        self.limits = [same or self._filled(limit, guard_ns) for limit, same in heirs]
        for limit, state in zip(limits, self.limits, strict=True):
            state.go_on_as(limit)
        self._has_keys = any(limit.for_each is not None for limit in limits)
        self.propose(draft)

    def advance(self, now_ns: int) -> None:
        """Know that an instant has come, for what is decided from now on."""
        self.now_ns = max(self.now_ns, now_ns)
        self.expire(now_ns)

    def expire(self, now_ns: int) -> None:
        """Let what is past its deadline end, at that; but for what is known to have ended before."""
        if not self._deadlines or self._deadlines[0][0] > now_ns:
            return
        draft = self.drop()
        known = {event.id for event in draft if isinstance(event, Ended)}
        later = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            deadline_ns, slot_id = heapq.heappop(self._deadlines)
            if slot_id in known:
                later.append((deadline_ns, slot_id))
            else:
                self._end(slot_id, deadline_ns)
        for each in later:
            heapq.heappush(self._deadlines, each)
        self.propose(draft)

    def reset(self, events: Iterable[Event]) -> None:
        """Forget all but these events."""
        self.drop()
        self.in_flight, self._deadlines, self.ended, self._shares = {}, [], [], 0
        # The windows are filled at the end, once: most slots have ended by then.
        self.limits = []
        self.apply(events)
        self.limits = [self._filled(limit, self._guard_ns) for limit in self.judged]

    def apply(self, events: Iterable[Event]) -> None:
        """Learn what is durable, and drop what was only decided."""
        self.drop()
        for event in events:
            match event:
                case Slot(is_open=True):
                    self._start(event)
                case Slot():
                    self._last_id = max(self._last_id, event.id)
                    self._keep(event)
                    for state in self.limits:
                        state.charge(event, self.now_ns)
                case Ended(slot_id, at_ns):
                    # An unknown id is of a slot that ended before: by its deadline.
                    self._end(slot_id, at_ns)
                case Issued(slot_id):
                    self._last_id = max(self._last_id, slot_id)
        if len(self.ended) > self._compact_above or self._shares > self._compact_above_shares:
            self._compact()

    def propose(self, events: Iterable[Event]) -> None:
        """Count what is to become durable."""
        for event in events:
            match event:
                case Slot(is_open=True):
                    for state in self.limits:
                        state.propose_start(event)
                case Slot():
                    for state in self.limits:
                        state.propose_charge(event)
                case Ended(slot_id, at_ns) if (slot := self.in_flight.get(slot_id)) is not None:
                    for state in self.limits:
                        state.propose_end(slot, at_ns)
            self._draft.append(event)

    @property
    def draft(self) -> Sequence[Event]:
        return self._draft

    def drop(self) -> list[Event]:
        """Forget what was only decided, and return it."""
        draft, self._draft = self._draft, []
        self._drafted = 0
        if draft:
            for state in self.limits:
                state.drop()
        return draft

    def decide(self, request: Request, transaction_ns: int) -> Grant | Wait | TooLarge:
        """Propose a slot for one message, and as many of its recipients as there is room for; or none."""
        chosen = choose(self.limits, request, self.now_ns)
        if not chosen:
            return too_large(self.limits, request) or wait(self.limits, request, self.now_ns)
        shares = shares_of(self.limits, request, chosen) if self._has_keys or request.lane else ()
        return Grant(self._slot(transaction_ns, (1, len(chosen), 0), request.size_bytes, shares), chosen)

    def decide_connection(self, opening_ns: int) -> Grant | Wait:
        opens = [(s.opens_at(None, self.now_ns), s.label) for s in self.limits if s.unit == "connections"]
        until_ns, label = max(opens, default=(self.now_ns, ""))
        if until_ns > self.now_ns:
            return Wait(until_ns, label)
        return Grant(self._slot(opening_ns, (0, 0, 1)), ())

    def events(self) -> list[Event]:
        """Return what a history that begins anew has to say."""
        self._compact()
        return [Issued(self._last_id), *self.ended, *self.in_flight.values()]

    def slots(self) -> list[Slot]:
        return [*self.ended, *self.in_flight.values()]

    def limited(self, transaction_ns: int, own: Container[int], now_ns: int) -> tuple[Limited, ...]:
        """Return what occupies each limit, as if slots of `own` take so long, others until their deadline."""
        ends = self._likely_ends(transaction_ns, own, now_ns)
        return tuple(state.limited(ends, now_ns) for state in self.limits)

    def limited_under(
        self,
        limits: Sequence[Limit],
        guard_ns: int | None,
        transaction_ns: int,
        own: Container[int],
        now_ns: int,
    ) -> tuple[Limited, ...]:
        """Return what `limited` would after `judge_by`, and change nothing."""
        ends = self._likely_ends(transaction_ns, own, now_ns)
        found = []
        for limit, same in self._heirs(limits, guard_ns):
            held = (same or self._filled(limit, guard_ns)).limited(ends, now_ns)
            found.append(replace(held, label=limit.label, count=limit.count))
        return tuple(found)

    def leaves_in_ns(self, span_ns: int, now_ns: int) -> int | None:
        """Return how long until the oldest end of the last `span_ns` is that old; None without one."""
        index = bisect_right(self.ended, now_ns - span_ns, key=end_of)
        return None if index == len(self.ended) else self.ended[index].until_ns + span_ns - now_ns

    def _slot(
        self,
        span_ns: int,
        weights: tuple[int, int, int],
        size_bytes: int = 0,
        shares: tuple[Share, ...] = (),
    ) -> Slot:
        self._drafted += 1
        slot_id = self._last_id + self._drafted
        slot = Slot(slot_id, self.now_ns, self.now_ns + span_ns, *weights, size_bytes, shares)
        self.propose([slot])
        return slot

    def _likely_ends(self, transaction_ns: int, own: Container[int], now_ns: int) -> list[tuple[Slot, int]]:
        def likely_end(slot: Slot) -> int:
            took_ns = 0 if slot.connections else transaction_ns
            return max(now_ns, slot.started_at_ns + took_ns) if slot.id in own else slot.until_ns

        return [(slot, likely_end(slot)) for slot in self.in_flight.values()]

    def _heirs(
        self, limits: Sequence[Limit], guard_ns: int | None
    ) -> Iterator[tuple[Limit, LimitState | None]]:
        """Yield each limit with the state that may go on as it: none is of two limits."""
        left = list(self.limits)
        for limit in limits:
            same = next((state for state in left if state.may_go_on_as(limit, guard_ns)), None)
            if same is not None:
                left.remove(same)
            yield limit, same

    def _filled(self, limit: Limit, guard_ns: int | None) -> LimitState:
        state = LimitState(limit, guard_ns, self._most_entries)
        for slot in self.in_flight.values():
            state.start(slot, self.now_ns)
        for slot in self.ended:
            state.charge(slot, self.now_ns)
        return state

    def _start(self, slot: Slot) -> None:
        self._last_id = max(self._last_id, slot.id)
        self.in_flight[slot.id] = slot
        heapq.heappush(self._deadlines, (slot.until_ns, slot.id))
        if len(self._deadlines) > 2 * (len(self.in_flight) + self._bounds.at_once):
            self._deadlines = [(each.until_ns, each.id) for each in self.in_flight.values()]
            heapq.heapify(self._deadlines)
        for state in self.limits:
            state.start(slot, self.now_ns)

    def _end(self, slot_id: int, at_ns: int) -> None:
        if (slot := self.in_flight.pop(slot_id, None)) is None:
            return
        for state in self.limits:
            state.end(slot, at_ns)
        self._keep(slot.ended(at_ns))

    def _keep(self, slot: Slot) -> None:
        if not self.ended or self.ended[-1].until_ns <= slot.until_ns:
            self.ended.append(slot)
        else:
            insort(self.ended, slot, key=end_of)
        self._shares += len(slot.shares)

    def _compact(self) -> None:
        self.ended = compacted(self.ended, self.now_ns, self._bounds)
        self._shares = sum(len(slot.shares) for slot in self.ended)
        # The more is kept, the longer it takes, and the more decisions share its cost.
        self._compact_above = len(self.ended) + max(self._bounds.at_once, len(self.ended))
        self._compact_above_shares = max(self._bounds.most_shares, 2 * self._shares)
