"""When each message that waits will have gone, and what keeps it until then.  Pure.

The throttle decides exactly, message by message, on its own history; this foretells it, by
going through the order in which messages will leave, with a clock of its own and the rules
of the throttle and the queue: all limits together, recipients as weights, a window for each
key, pauses and the one message that proves an upstream well, back-offs, senders that rest,
messages that go in parts, so many transactions at once.

Exact as long as nothing surprising happens: no refusal, no new mail, no edit, every
transaction as long as the last ones on average.  A connection counts from when it is needed,
where in truth some are opened early, so limits on connections are estimated only.

Cost: linear in the messages, times the logarithm of a window; no time at all where nothing
waits.  Instants are boottime in nanoseconds.

Does not: read a clock, or change what it is given.
"""

import heapq
from collections import deque
from collections.abc import Sequence

from relay.eta_gauge import FutureGauge
from relay.outlook import (
    BACK_OFF,
    CONNECTIONS,
    NEXT,
    RESTS,
    Foretold,
    Mail,
    Outlook,
    Place,
    limit_words,
)

MOST_AT_ONCE = 64
"""Messages decided on at once."""


def foretell(mails: Sequence[Mail], outlook: Outlook) -> list[Foretold]:
    """Return what to expect of each of these, which are in the order in which they will leave.

    One that is not in the line yet joins its end when its time comes.
    """
    return _Future(mails, outlook).run()


class _Future:
    """The course of things from now on."""

    def __init__(self, mails: Sequence[Mail], outlook: Outlook) -> None:
        self._mails, self._outlook = mails, outlook
        self._at_ns = outlook.now_ns
        gauges = [(limit, FutureGauge(limit)) for limit in outlook.limits]
        self._for_all = [g for limit, g in gauges if limit.unit != "connections" and limit.for_each is None]
        self._for_each = [g for limit, g in gauges if limit.for_each is not None]
        self._of_connections = [g for limit, g in gauges if limit.unit == "connections"]
        self._left = [mail.recipients for mail in mails]
        self._joined_ns = [max(mail.joins_at_ns, outlook.now_ns) for mail in mails]
        self._until_then = [mail.until_then for mail in mails]
        self._domains = [mail.domains or (("", mail.recipients),) for mail in mails] if self._for_each else []
        self._parked_for: dict[int, str] = {}
        self._line: deque[int] = deque()
        self._joining: list[tuple[int, int, int]] = []
        self._entries = 0
        self._places: dict[Place, list[tuple[int, int]]] = {}
        self._turns = {index: mail.turn for index, mail in enumerate(mails) if mail.turn}
        self._last_turn = max(self._turns.values(), default=0)
        self._due_ns: dict[Place, int] = {}
        self._places_due: list[tuple[int, int, Place]] = []
        self._may_leave: dict[Place, int] = {}
        """Places that are due, and how many may leave of each."""
        # With how many transactions each connection has carried.
        self._busy = [(end_ns, 1) for end_ns in sorted(outlook.ends_ns)]
        self._idle: list[tuple[int, int]] = [(outlook.now_ns, 1)] * outlook.idle
        self._is_proving = outlook.is_proving or bool(outlook.pause)
        self._proven_at_ns = outlook.now_ns
        self._in_second_round: set[int] = set()
        self._rests = dict(outlook.rests_until_ns)
        self._waited_ns: dict[str, int] = {}
        self._longest = NEXT
        self._foretold = [Foretold(outlook.now_ns, NEXT)] * len(mails)

    def run(self) -> list[Foretold]:
        """Let it happen."""
        for place, due_ns in self._outlook.places:
            if place not in self._due_ns:
                self._set_due(place, due_ns)
        for index, mail in enumerate(self._mails):
            if mail.place is not None:
                label = next((g.label for g in self._for_each if g.for_each == mail.place[0]), mail.place[0])
                self._park(index, mail.place, limit_words(label, mail.place[1]))
            elif mail.joins_at_ns > self._at_ns:
                self._join_at(mail.joins_at_ns, index)
            else:
                self._line.append(index)
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
        while self._joining and self._joining[0][0] <= at_ns:
            self._line.append(heapq.heappop(self._joining)[2])
        if self._due_ns:
            self._ask_places(at_ns)
        if not self._line and not self._may_leave:
            return self._idles()
        most = min(self._free_connections(at_ns), self._room(at_ns))
        taken: list[int] = []
        while len(taken) < most and (index := self._first()) is not None:
            if not self._sits_out(index, at_ns):
                taken.append(index)
        for position, index in enumerate(taken):
            if any(gauge.shared.occupied >= gauge.count for gauge in self._for_all):
                # Once one has to wait for what all need, so do all behind it.
                self._line.extendleft(reversed(taken[position:]))
                break
            self._attempt(index, at_ns)
        return True

    def _idles(self) -> bool:
        """Go to when the next message comes."""
        heaps = (self._joining, self._places_due)
        next_ns = min((heap[0][0] for heap in heaps if heap), default=None)
        if next_ns is None:
            return False
        self._at_ns = next_ns
        return True

    def _wait_until(self, until_ns: int, for_what: str) -> None:
        if until_ns <= self._at_ns:
            return
        waited_ns = self._waited_ns[for_what] = self._waited_ns.get(for_what, 0) + until_ns - self._at_ns
        if waited_ns >= self._waited_ns.get(self._longest, 0):
            self._longest = for_what
        self._at_ns = until_ns

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
                self._wait_until(opens_ns, limit_words(gauge.label))
                return 0
            most = min(most, gauge.count - gauge.shared.occupied)
        return most

    def _ask_places(self, at_ns: int) -> None:
        """Find out how many may leave of each place that is due."""
        while self._places_due and self._places_due[0][0] <= at_ns:
            due_ns, _, place = heapq.heappop(self._places_due)
            if self._due_ns.get(place) == due_ns:
                self._may_leave[place] = 0
        for place in list(self._may_leave):
            if not self._places.get(place):
                self._may_leave.pop(place)
                self._due_ns.pop(place)
                self._places.pop(place, None)
                continue
            gauges = [gauge for gauge in self._for_each if gauge.for_each == place[0]]
            # One that names other domains too may be tried: only asking tells.
            least = 1 if place[0] == "recipient_domain" or not gauges else 0
            room = max(least, min((gauge.room(place[1], at_ns) for gauge in gauges), default=least))
            if room:
                self._may_leave[place] = room
            else:
                self._set_due(place, max(gauge.key_opens_at(place[1], at_ns) for gauge in gauges))

    def _first(self) -> int | None:
        """Take who is the next: of a place where there is room, else of the line."""
        for place, room in self._may_leave.items():
            if room and (parked := self._places[place]):
                self._may_leave[place] = room - 1
                return heapq.heappop(parked)[1]
        return self._line.popleft() if self._line else None

    def _sits_out(self, index: int, at_ns: int) -> bool:
        """Let a message wait whose sender rests, or has one under way that proves it welcome."""
        reverse_path = self._mails[index].reverse_path
        until_ns = self._rests.get(reverse_path) if self._rests else None
        if until_ns is None:
            return False
        if until_ns <= at_ns:
            self._rests[reverse_path] = at_ns + self._outlook.transaction_ns
            return False
        self._leave(index)
        self._set_aside(index, until_ns, RESTS)
        return True

    def _attempt(self, index: int, at_ns: int) -> None:
        """Start a transaction for what there is room for, or park the message."""
        most = min(self._left[index], self._outlook.max_recipients)
        for gauge in self._for_all:
            if gauge.is_recipients:
                most = min(most, gauge.count - gauge.shared.occupied)
        shares: dict[str, int] = {}
        if self._for_each:
            most, shares = self._choose(index, most, at_ns)
            if most < 1:
                self._wait_in_place(index, at_ns)
                return
        end_ns = at_ns + self._outlook.transaction_ns
        self._occupy(index, most, shares, end_ns)
        self._connect(at_ns, end_ns)
        if self._is_proving:
            self._is_proving, self._proven_at_ns = False, end_ns
        self._left[index] -= most
        if self._left[index]:
            self._leave(index)
            self._join_at(end_ns, index)
        elif self._mails[index].tried and index not in self._in_second_round:
            self._begin_second_round(index, end_ns)
        else:
            self._foretold[index] = Foretold(end_ns, self._held_by(index, at_ns))

    def _begin_second_round(self, index: int, end_ns: int) -> None:
        """Let those that were deferred in this round go after a back-off, as long as the message is old."""
        mail, (shortest_ns, longest_ns) = self._mails[index], self._outlook.back_off_ns
        age_ns = mail.age_ns + end_ns - max(self._outlook.now_ns, self._outlook.paused_until_ns)
        self._in_second_round.add(index)
        self._left[index] = mail.tried
        if self._for_each:
            self._domains[index] = mail.tried_domains
        self._leave(index)
        self._set_aside(index, end_ns + max(shortest_ns, min(longest_ns, age_ns)), BACK_OFF)

    def _set_aside(self, index: int, until_ns: int, for_what: str) -> None:
        self._joined_ns[index], self._until_then[index] = until_ns, for_what
        self._join_at(until_ns, index)

    def _occupy(self, index: int, recipients: int, shares: dict[str, int], end_ns: int) -> None:
        for gauge in self._for_all:
            gauge.shared.occupy(end_ns + gauge.span_ns, recipients if gauge.is_recipients else 1)
        for gauge in self._for_each:
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

    def _wait_in_place(self, index: int, at_ns: int) -> None:
        """Park a message at the place that opens last of those that it needs."""
        opens: dict[Place, tuple[int, str]] = {}
        for gauge in self._for_each:
            is_domain = gauge.for_each == "recipient_domain"
            keys = [d for d, _ in self._domains[index]] if is_domain else [self._key(index, gauge)]
            for key in dict.fromkeys(keys):
                place = (gauge.for_each or "sender", key)
                opened = gauge.key_opens_at(key, at_ns), gauge.label
                opens[place] = max(opened, opens.get(place, opened))
        of_domains = [place for place in opens if place[0] == "recipient_domain"]
        # The first of its recipients that may go takes it along; all else has to be open.
        needed = [place for place in opens if place[0] != "recipient_domain"]
        needed += [min(of_domains, key=lambda place: opens[place])] if of_domains else []
        place = max(needed, key=lambda place: opens[place])
        due_ns, label = opens[place]
        self._park(index, place, limit_words(label, place[1]))
        self._set_due(place, max(due_ns, at_ns + 1))

    def _park(self, index: int, place: Place, for_what: str) -> None:
        self._parked_for[index] = for_what
        # Whoever was tried and has to wait again keeps its turn.
        if index not in self._turns:
            self._last_turn += 1
            self._turns[index] = self._last_turn
        heapq.heappush(self._places.setdefault(place, []), (self._turns[index], index))

    def _leave(self, index: int) -> None:
        """Forget that a message was parked: it comes to the end of the line next time."""
        self._parked_for.pop(index, None)
        self._turns.pop(index, None)

    def _set_due(self, place: Place, due_ns: int) -> None:
        self._may_leave.pop(place, None)
        self._due_ns[place] = due_ns
        self._entries += 1
        heapq.heappush(self._places_due, (due_ns, self._entries, place))

    def _join_at(self, at_ns: int, index: int) -> None:
        self._entries += 1
        heapq.heappush(self._joining, (at_ns, self._entries, index))

    def _held_by(self, index: int, started_ns: int) -> str:
        if started_ns <= self._outlook.now_ns:
            return NEXT
        if (for_what := self._parked_for.get(index)) is not None:
            return for_what
        joined_ns = self._joined_ns[index]
        if joined_ns - self._outlook.now_ns >= started_ns - joined_ns:
            return self._until_then[index]
        return self._longest

    def _key(self, index: int, gauge: FutureGauge) -> str:
        mail = self._mails[index]
        match gauge.for_each:
            case "sender":
                return mail.sender
            case "sender_domain":
                return mail.sender_domain
            case _:
                return mail.client
