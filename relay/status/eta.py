"""When each message that waits will have gone, and what keeps it until then.  Pure.

The throttle decides exactly, message by message, on its own history; this foretells it, with a
clock of its own.  Who is next is for a copy of the queue to say: lanes with their shares and
patience, senders in turn, places, back-offs, senders that rest.  Whether it may go is told by
the rules of the throttle and the heart, gone through once more here: all limits together,
recipients as weights, a window for each key, ceilings of lanes, pauses and the one message that
proves an upstream well, messages that go in parts, so many transactions at once.

Exact as long as nothing surprising happens: no refusal, no new mail, no edit, every
transaction as long as the last ones on average.  A connection counts from when it is needed,
where in truth some are opened early, so limits on connections are estimated only.

Cost: linear in the messages, times the lanes, times the logarithm of a window; no time at all
where nothing waits.  Instants are boottime in nanoseconds.

Does not: read a clock, or change what it is given.
"""

import heapq
from collections.abc import Sequence
from typing import cast

from relay.mail.envelope import QueueId
from relay.queue.queued import Queued, State
from relay.queue.scheduler import Scheduler
from relay.status.eta_gauge import FutureGauge
from relay.throttle.expected import (
    BACK_OFF,
    CONNECTIONS,
    NEXT,
    RESTS,
    Foretold,
    Mail,
    Outlook,
    Place,
    ceiling_words,
    limit_words,
)
from relay.verdicts.decision import back_off_ns
from relay.verdicts.slow_start import Foreseen

MOST_AT_ONCE = 64
"""Messages decided on at once."""


def foretell(mails: Sequence[Mail], outlook: Outlook, line: Scheduler | None = None) -> list[Foretold]:
    """Return what to expect of each of these.

    `line` is a copy of the queue that has copies of them all, and is used up; without one they are
    in the order in which they came.  One that is not in the line yet joins its end when its time comes.
    """
    if line is None:
        mails = [mail._replace(queue_id=QueueId(str(index))) for index, mail in enumerate(mails)]
        line = _line_of(mails, outlook.now_ns)
    return _Future(mails, outlook, line).run()


def _line_of(mails: Sequence[Mail], now_ns: int) -> Scheduler:
    line = Scheduler()
    for mail in mails:
        state = State.DEFERRED if mail.joins_at_ns > now_ns else State.WAITING
        line.add(Queued(mail.queue_id, mail.reverse_path, 0, 0, 0, mail.recipients, state, mail.joins_at_ns))
    return line


class _Future:
    """The course of things from now on."""

    def __init__(self, mails: Sequence[Mail], outlook: Outlook, line: Scheduler) -> None:
        self._mails, self._outlook, self._line = mails, outlook, line
        self._indices = {mail.queue_id: index for index, mail in enumerate(mails)}
        self._at_ns = outlook.now_ns
        gauges = [FutureGauge(limit) for limit in outlook.limits]
        self._of_connections = [g for g in gauges if g.unit == "connections"]
        self._for_all = [g for g in gauges if g.unit != "connections" and g.for_each is None]
        self._for_each = [g for g in gauges if g.for_each not in (None, "lane")]
        self._of_lane: dict[str, list[FutureGauge]] = {}
        for gauge in gauges:
            if gauge.for_each == "lane" and gauge.only is not None:
                self._of_lane.setdefault(gauge.only, []).append(gauge)
        self._left = [mail.recipients for mail in mails]
        self._joined_ns = [max(mail.joins_at_ns, outlook.now_ns) for mail in mails]
        self._until_then = [mail.until_then for mail in mails]
        self._domains = [mail.domains or (("", mail.recipients),) for mail in mails] if self._for_each else []
        self._ends: list[tuple[int, int, int]] = []
        """A heap of when parts of a message will have gone, of which others are left."""
        self._proofs: list[tuple[int, str]] = []
        """A heap of when a sender that rested will have proven well."""
        self._entries = 0
        # With how many transactions each connection has carried.
        self._busy = [(end_ns, 1) for end_ns in sorted(outlook.ends_ns)]
        self._idle: list[tuple[int, int]] = [(outlook.now_ns, 1)] * outlook.idle
        # Whichever is under way proves it, but for a pause that it does not end.
        self._is_proving = bool(outlook.pause) or (outlook.is_proving and not outlook.ends_ns)
        self._proven_at_ns = min(outlook.ends_ns, default=0) if outlook.is_proving else outlook.now_ns
        self._slow_start = Foreseen(outlook.taken, zip(outlook.ends_ns, outlook.carried, strict=False))
        self._in_second_round: set[int] = set()
        self._rests = set(outlook.rests_until_ns)
        self._waited_ns: dict[str, int] = {}
        self._asked_ns, self._closed = -1, list[str]()
        self._closed_ns: dict[str, int] = {}  # for how long each lane has been at its ceiling
        self._longest = NEXT
        self._foretold = [Foretold(outlook.now_ns, NEXT)] * len(mails)

    def run(self) -> list[Foretold]:
        """Let it happen."""
        for sender, until_ns in self._outlook.rests_until_ns.items():
            self._line.sender_pauses.foresee(sender, until_ns, RESTS)
        taken = []
        for index, mail in enumerate(self._mails):
            if mail.is_under_way:
                self._ends_at(max(mail.joins_at_ns, self._at_ns), index)
            elif (queued := self._line.get(mail.queue_id)) is not None and queued.state is State.ACTIVE:
                taken.append(mail.queue_id)
        # Whoever was taken and is not on its way yet is next.
        for queue_id in reversed(taken):
            self._line.give_back(queue_id, NEXT)
        if self._outlook.pause:
            self._wait_until(self._outlook.paused_until_ns, self._outlook.pause)
        while self._beats():
            pass
        return self._foretold

    def _beats(self) -> bool:
        """Start what can start, or find that time has to pass first; False where nothing is left.

        As the heart does it: what is taken at once is decided in that order.
        """
        at_ns = self._at_ns
        if self._asked_ns == at_ns and self._ends and self._ends[0][0] <= at_ns:
            # Also what takes no time ends after the look that follows its start.
            self._ask(at_ns)
        self._end(at_ns)
        self._ask(at_ns)
        if not self._line.has_ready(at_ns):
            return self._line.is_behind or self._idles()
        most = min(self._free_connections(at_ns), self._room(at_ns), self._line.most_ready)
        taken: list[Queued] = []
        while len(taken) < most and (queued := self._line.next_ready(at_ns)) is not None:
            taken.append(queued)
            if queued.sender in self._rests:
                # Its others wait until this one has proven it well.
                self._line.sender_pauses.foresee(queued.sender, at_ns + self._outlook.transaction_ns, RESTS)
        given: list[tuple[Queued, int]] = []
        for queued in taken:
            # Once one has to wait for what all need, so do all behind it.
            is_full = any(gauge.shared.occupied >= gauge.count for gauge in self._for_all)
            index = self._indices[queued.queue_id]
            given.append((queued, 0 if is_full else self._attempt(queued, index, at_ns)))
        for queued, recipients in reversed(given):
            if recipients:
                self._goes(queued, self._indices[queued.queue_id], recipients, at_ns)
            else:  # unless it was parked
                self._line.give_back(queued.queue_id, queued.reason)
        return True

    def _end(self, at_ns: int) -> None:
        """Let those go on of which a part went."""
        while self._proofs and self._proofs[0][0] <= at_ns:
            self._line.sender_pauses.end(heapq.heappop(self._proofs)[1], at_ns)
        if not self._is_proving and at_ns >= self._proven_at_ns:
            self._line.trust()
        while self._ends and self._ends[0][0] <= at_ns:
            index = heapq.heappop(self._ends)[2]
            tried = 0 if index in self._in_second_round else self._mails[index].tried
            self._line.again(self._mails[index].queue_id, self._left[index] + tried, NEXT)

    def _ask(self, at_ns: int) -> None:
        """Find out how many may go of each lane with a ceiling, and leave each place that is due."""
        self._asked_ns, self._closed = at_ns, []
        for lane in self._line.with_ceiling():
            gauges = self._of_lane.get(lane, [])
            room = min((max(0, gauge.room(lane, at_ns)) for gauge in gauges), default=None)
            opens_ns = max((gauge.key_opens_at(lane, at_ns) for gauge in gauges), default=at_ns)
            if self._line.let_lane(lane, room, opens_ns) is not None:
                self._closed.append(lane)
        while self._line.has_places_due(at_ns):
            for place in self._line.places_due(at_ns):
                kind, key = cast(Place, place)
                gauges = [gauge for gauge in self._for_each if gauge.for_each == kind]
                # One that names other domains too may be tried: only asking tells.
                least = 1 if kind == "recipient_domain" or not gauges else 0
                room = max(least, min((gauge.room(key, at_ns) for gauge in gauges), default=least))
                opens_ns = max((gauge.key_opens_at(key, at_ns) for gauge in gauges), default=at_ns)
                self._line.let_leave(place, room, max(opens_ns, at_ns + 1))

    def _idles(self) -> bool:
        """Go to when the next message comes."""
        due_ns = self._line.next_due_at_ns()
        dues = [at for at in (due_ns, self._ends[0][0] if self._ends else None) if at is not None]
        if not dues:
            return False
        self._pass_until(max(min(dues), self._at_ns + 1))
        return True

    def _pass_until(self, until_ns: int) -> None:
        for lane in self._closed:
            self._closed_ns[lane] = self._closed_ns.get(lane, 0) + until_ns - self._at_ns
        self._at_ns = until_ns

    def _wait_until(self, until_ns: int, for_what: str) -> None:
        if until_ns <= self._at_ns:
            return
        waited_ns = self._waited_ns[for_what] = self._waited_ns.get(for_what, 0) + until_ns - self._at_ns
        if waited_ns >= self._waited_ns.get(self._longest, 0):
            self._longest = for_what
        self._pass_until(until_ns)

    def _free_connections(self, at_ns: int) -> int:
        """Return how many transactions may start, as far as connections go; wait where none may."""
        busy = self._busy
        while busy and busy[0][0] <= at_ns:
            since_ns, carried = heapq.heappop(busy)
            if self._of_connections and carried < self._outlook.max_messages:
                self._idle.append((since_ns, carried))
        is_proving = self._is_proving or at_ns < self._proven_at_ns
        free = (1 if is_proving else self._outlook.connections) - len(busy)
        if free < 1:
            self._wait_until(busy[0][0], CONNECTIONS)
            return 0
        if not self._of_connections:
            return free
        while self._idle and at_ns - self._idle[-1][0] >= self._outlook.idle_ns:
            self._idle.pop()
        for gauge in self._of_connections:
            opens_ns = at_ns if self._idle else gauge.opens_at(at_ns)
            if opens_ns > at_ns:
                self._wait_until(min(opens_ns, busy[0][0]) if busy else opens_ns, limit_words(gauge.label))
                return 0
            free = min(free, len(self._idle) + gauge.count - gauge.shared.used(at_ns))
        return free

    def _room(self, at_ns: int) -> int:
        """Return how many may start by the limits that have one window for all; wait where none may."""
        most = MOST_AT_ONCE
        for gauge in self._for_all:
            if (opens_ns := gauge.opens_at(at_ns)) > at_ns:
                # As far as the next end, at which the heart too looks who is next.
                ends_ns = self._busy[0][0] if self._busy else opens_ns
                self._wait_until(min(opens_ns, ends_ns), limit_words(gauge.label))
                return 0
            most = min(most, gauge.count - gauge.shared.occupied)
        return most

    def _attempt(self, queued: Queued, index: int, at_ns: int) -> int:
        """Decide for how many recipients there is room; park a message whose own key has none."""
        most = min(self._left[index], self._slow_start.largest(self._outlook.max_recipients, at_ns))
        for gauge in self._for_all:
            if gauge.is_recipients:
                most = min(most, gauge.count - gauge.shared.occupied)
        lane = self._line.lane_of(queued)
        for gauge in self._of_lane.get(lane, ()):
            room = gauge.room(lane, at_ns)
            most = min(most, room if gauge.is_recipients or room < 1 else most)
        shares: dict[str, int] = {}
        if self._for_each:
            most, shares = self._choose(index, most, at_ns)
        if most < 1:
            self._wait_in_place(queued, index, lane, at_ns)
            return 0
        end_ns = at_ns + self._outlook.transaction_ns
        self._occupy(index, lane, most, shares, end_ns)
        self._connect(at_ns, end_ns)
        self._slow_start.goes(most, end_ns)
        return most

    def _goes(self, queued: Queued, index: int, recipients: int, at_ns: int) -> None:
        """Have a transaction begin for so many recipients, and know what becomes of the message."""
        end_ns = at_ns + self._outlook.transaction_ns
        self._line.reserved(queued.queue_id, recipients)
        if queued.sender in self._rests:
            self._rests.remove(queued.sender)
            heapq.heappush(self._proofs, (end_ns, queued.sender))
        if self._is_proving:
            self._is_proving, self._proven_at_ns = False, end_ns
        self._left[index] -= recipients
        if self._left[index]:
            self._ends_at(end_ns, index)
        elif self._mails[index].tried and index not in self._in_second_round:
            self._begin_second_round(index, end_ns)
        else:
            self._foretold[index] = Foretold(end_ns, self._held_by(queued, index, at_ns))
            self._line.remove(queued.queue_id)

    def _begin_second_round(self, index: int, end_ns: int) -> None:
        """Let those that were deferred in this round go after a back-off, as long as the message is old."""
        mail, (shortest_ns, longest_ns) = self._mails[index], self._outlook.back_off_ns
        age_ns = mail.age_ns + end_ns - max(self._outlook.now_ns, self._outlook.paused_until_ns)
        self._in_second_round.add(index)
        self._left[index] = mail.tried
        if self._for_each:
            self._domains[index] = mail.tried_domains
        until_ns = end_ns + back_off_ns(age_ns, shortest_ns, longest_ns)
        self._joined_ns[index], self._until_then[index] = until_ns, BACK_OFF
        self._line.postpone(mail.queue_id, until_ns, mail.tried, NEXT)

    def _occupy(self, index: int, lane: str, recipients: int, shares: dict[str, int], end_ns: int) -> None:
        for gauge in self._for_all:
            gauge.shared.occupy(end_ns + gauge.span_ns, recipients if gauge.is_recipients else 1)
        for gauge in (*self._for_each, *self._of_lane.get(lane, ())):
            if gauge.for_each == "recipient_domain":
                for domain, count in shares.items():
                    gauge.occupy(domain, end_ns + gauge.span_ns, count if gauge.is_recipients else 1)
            else:
                weight = recipients if gauge.is_recipients else 1
                gauge.occupy(self._key(index, gauge), end_ns + gauge.span_ns, weight)

    def _connect(self, at_ns: int, end_ns: int) -> None:
        carried = 0
        if self._idle:
            carried = self._idle.pop()[1]
        else:
            for gauge in self._of_connections:
                gauge.shared.occupy(at_ns + gauge.span_ns, 1)
        heapq.heappush(self._busy, (end_ns, carried + 1))

    def _choose(self, index: int, most: int, at_ns: int) -> tuple[int, dict[str, int]]:
        """Return for how many recipients there is room in every window of its keys, and of which domains."""
        by_domain = []
        for gauge in self._for_each:
            if gauge.for_each == "recipient_domain":
                by_domain.append(gauge)
                continue
            room = gauge.room(self._key(index, gauge), at_ns)
            most = min(most, room if gauge.is_recipients or room < 1 else most)
        if not by_domain or most < 1:
            return most, {}
        shares: dict[str, int] = {}
        left: list[tuple[str, int]] = []
        total = 0
        for domain, count in self._domains[index]:
            rooms = [
                gauge.room(domain, at_ns) - (shares.get(domain, 0) if gauge.is_recipients else 0)
                for gauge in by_domain
            ]
            # However many it names of a domain, it is one message there.
            wide = [
                room if g.is_recipients or room < 1 else count
                for g, room in zip(by_domain, rooms, strict=True)
            ]
            chosen = max(0, min(count, most - total, *wide))
            if chosen:
                shares[domain] = shares.get(domain, 0) + chosen
                total += chosen
            if chosen < count:
                left.append((domain, count - chosen))
        self._domains[index] = tuple(left)
        return total, shares

    def _wait_in_place(self, queued: Queued, index: int, lane: str, at_ns: int) -> None:
        """Park a message at the place that opens last of those that it needs, unless that is its lane."""
        opens: dict[Place, tuple[int, str]] = {}
        for gauge in (*self._for_each, *self._of_lane.get(lane, ())):
            is_domain = gauge.for_each == "recipient_domain"
            keys = [d for d, _ in self._domains[index]] if is_domain else [self._key(index, gauge)]
            for key in dict.fromkeys(keys):
                place: Place = (gauge.for_each or "sender", key)
                opened = gauge.key_opens_at(key, at_ns), gauge.label
                opens[place] = max(opened, opens.get(place, opened))
        of_domains = [place for place in opens if place[0] == "recipient_domain"]
        # The first of its recipients that may go takes it along; all else has to be open.
        needed = [place for place in opens if place[0] != "recipient_domain"]
        needed += [min(of_domains, key=lambda place: opens[place])] if of_domains else []
        place = max(needed, key=lambda place: opens[place])
        due_ns, label = opens[place]
        if place[0] == "lane":
            return
        self._line.park(queued.queue_id, place, max(due_ns, at_ns + 1), limit_words(label, place[1]))

    def _ends_at(self, at_ns: int, index: int) -> None:
        self._entries += 1
        heapq.heappush(self._ends, (at_ns, self._entries, index))

    def _held_by(self, queued: Queued, index: int, started_ns: int) -> str:
        if started_ns <= self._outlook.now_ns:
            return NEXT
        joined_ns = self._joined_ns[index]
        if queued.reason == RESTS:
            joined_ns, self._until_then[index] = queued.due_at_ns, RESTS
        lane = self._line.lane_of(queued)
        closed_ns = self._closed_ns.get(lane, 0)
        if closed_ns and 2 * closed_ns >= started_ns - self._outlook.now_ns:
            return ceiling_words(lane)
        if queued.reason not in (NEXT, RESTS):
            return queued.reason
        if joined_ns - self._outlook.now_ns >= started_ns - joined_ns:
            return self._until_then[index]
        return self._longest

    def _key(self, index: int, gauge: FutureGauge) -> str:
        mail = self._mails[index]
        match gauge.for_each:
            case "lane":
                return gauge.only or ""
            case "sender":
                return mail.sender
            case "sender_domain":
                return mail.sender_domain
            case _:
                return mail.client
