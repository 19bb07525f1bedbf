"""When each message that waits will have gone, and what keeps it until then.  Pure.

The queue is relayed once more, with a clock of its own: a twin of the scheduler says which
message is next, the throttle's states and rules say whether it may go, and `_Future` does
what the dispatcher does at each instant.  A transaction ends, the dispatcher looks at the
queue, and only then is the message settled; so it is here.

Exact as long as nothing surprising happens: no refusal, no new mail, no edit, every
transaction as long as the last ones on average.  A connection counts from when it is needed,
where in truth some are opened early, so limits on connections are estimated only.

Cost: linear in the messages, times the lanes, times the logarithm of a window.  Instants are
boottime in nanoseconds.  Does not: read a clock, or change what it is given.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from relay.mail.envelope import QueueId
from relay.queue.queued import NO_REASON, Queued, State, WaitKind, WaitReason, origin_of
from relay.status.estimate.expected import (
    BACK_OFF,
    CONNECTIONS,
    NEVER_NS,
    NEXT,
    RESTS,
    Foretold,
    Mail,
    Outlook,
    ceiling_words,
    limit_words,
)
from relay.status.estimate.replay.scheduler import Scheduler
from relay.status.estimate.replay.twin import Twin
from relay.throttle.admission import (
    Place,
    Request,
    Wait,
    choose,
    for_all,
    room_at,
    room_in,
    room_of,
    shares_of,
    too_large,
    wait,
)
from relay.throttle.events import Slot
from relay.throttle.limit_state import Limited, LimitState
from relay.verdicts.account import largest
from relay.verdicts.decision import back_off_ns

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
        origin = origin_of(mail.reverse_path)
        line.add(Twin(mail.queue_id, origin, 0, 0, mail.recipients, state, mail.joins_at_ns))
    return line


def state_of(limited: Limited, now_ns: int) -> LimitState:
    """Return a state of its own: later changes touch nothing else."""
    state = LimitState(limited, 0)
    for free_ns, weight in limited.shared:
        state.occupy(None, free_ns, weight, now_ns)
    for key, openings in limited.of_key.items():
        for free_ns, weight in openings:
            state.occupy(key, free_ns, weight, now_ns)
    return state


@dataclass(slots=True)
class _Course:
    mail: Mail
    left: int
    domains: tuple[str, ...]
    """One for each recipient that is left, where some limit asks for domains."""
    joined_ns: int
    until_then: str
    """What keeps it until it joins the line."""
    is_second_round: bool = False
    """Recipients that were deferred in this round are tried again."""
    foretold: Foretold | None = None


class _Transaction(NamedTuple):
    end_ns: int
    number: int
    """Of transactions that end together, the first begun is settled first."""
    course: _Course | None
    """None where nothing of its message is left."""
    reserved: Slot | None
    """None where the states know when its slots will be free."""
    recipients: int
    carried: int
    """Transactions on its connection, this one included; 0 where another entry stands for that."""


class _Future:
    def __init__(self, mails: Sequence[Mail], outlook: Outlook, line: Scheduler) -> None:
        self._outlook, self._line, self._at_ns = outlook, line, outlook.now_ns
        self._states = [state_of(limited, outlook.now_ns) for limited in outlook.limits]
        self._of_connections = [state for state in self._states if state.unit == "connections"]
        self._of_mail = [state for state in self._states if state.unit != "connections"]
        self._for_all = for_all(self._states)
        self._asks_domains = any(state.for_each == "recipient_domain" for state in self._states)
        self._courses = {
            mail.queue_id: _Course(
                mail,
                mail.recipients,
                self._each_domain(mail.domains or (("", mail.recipients),)),
                max(mail.joins_at_ns, outlook.now_ns),
                mail.until_then,
            )
            for mail in mails
        }
        self._under_way: list[_Transaction] = []
        """A heap."""
        self._busy = 0
        self._number = 0
        self._idle: list[tuple[int, int]] = [(outlook.now_ns, 1)] * outlook.idle
        """Idle since, and transactions carried, of each connection."""
        self._is_proving = bool(outlook.pause) or outlook.is_proving
        self._taken = outlook.taken
        self._rests = line.sender_pauses.senders()
        self._waited_ns = Counter[str]()
        self._closed: list[str] = []
        """Lanes at their ceilings."""
        self._closed_ns = Counter[str]()
        self._longest = NEXT

    def run(self) -> list[Foretold]:
        carried = (*self._outlook.carried, *(0 for _ in self._outlook.ends_ns))
        for end_ns, recipients in zip(self._outlook.ends_ns, carried, strict=False):
            self._begin(end_ns, None, None, recipients, 1)
        taken = []
        for course in self._courses.values():
            mail = course.mail
            if mail.is_under_way:
                # Its transaction is one of `ends_ns`.
                self._begin(max(mail.joins_at_ns, self._at_ns), course, None, 0, 0)
            elif (queued := self._line.get(mail.queue_id)) is not None and queued.state is State.ACTIVE:
                taken.append(mail.queue_id)
        # What was taken and is not on its way yet is next.
        for queue_id in reversed(taken):
            self._line.give_back(queue_id, NO_REASON)
        if self._outlook.pause:
            self._wait_until(self._outlook.paused_until_ns, self._outlook.pause)
        while self._passes():
            pass
        now = Foretold(self._outlook.now_ns, NEXT)
        return [course.foretold or now for course in self._courses.values()]

    def _passes(self) -> bool:
        """Return False if nothing is left to happen."""
        at_ns = self._at_ns
        ended: list[_Transaction] = []
        while self._under_way and self._under_way[0].end_ns <= at_ns:
            ended.append(heapq.heappop(self._under_way))
            self._end(ended[-1])
        has_begun, until_ns, for_what = self._beat(at_ns)
        for transaction in ended:
            self._settle(transaction)
        if has_begun or ended or self._line.is_behind:
            return True
        ends_ns = self._under_way[0].end_ns if self._under_way else None
        dues = [due_ns for due_ns in (until_ns, ends_ns) if due_ns is not None]
        if not dues:
            return False
        self._wait_until(max(min(dues), at_ns + 1), for_what)
        return True

    def _begin(
        self, end_ns: int, course: _Course | None, reserved: Slot | None, recipients: int, carried: int
    ) -> None:
        self._number += 1
        self._busy += carried > 0
        transaction = _Transaction(end_ns, self._number, course, reserved, recipients, carried)
        heapq.heappush(self._under_way, transaction)

    def _end(self, transaction: _Transaction) -> None:
        """Trust the upstream and the sender: every transaction goes well here."""
        if transaction.carried:
            self._busy -= 1
            if self._of_connections and transaction.carried < self._outlook.max_messages:
                self._idle.append((transaction.end_ns, transaction.carried))
        if transaction.reserved is not None:
            for state in self._of_mail:
                state.end(transaction.reserved, transaction.end_ns)
        if self._taken is not None:
            self._taken += transaction.recipients
        if transaction.end_ns > self._outlook.paused_until_ns:
            self._is_proving = False
        course = transaction.course
        queued = None if course is None else self._line.get(course.mail.queue_id)
        if queued is not None:
            self._line.trust_sender(queued.sender, transaction.end_ns)

    def _settle(self, transaction: _Transaction) -> None:
        if (course := transaction.course) is None:
            return
        mail = course.mail
        if course.left:
            tried = 0 if course.is_second_round else mail.tried
            self._line.again(mail.queue_id, course.left + tried, NO_REASON)
        elif mail.tried and not course.is_second_round:
            self._begin_second_round(course, transaction.end_ns)
        else:
            self._line.remove(mail.queue_id)

    def _begin_second_round(self, course: _Course, end_ns: int) -> None:
        """No recipient is tried again before the back-off of a message that old."""
        mail, (shortest_ns, longest_ns) = course.mail, self._outlook.back_off_ns
        age_ns = mail.age_ns + end_ns - max(self._outlook.now_ns, self._outlook.paused_until_ns)
        until_ns = end_ns + back_off_ns(age_ns, shortest_ns, longest_ns)
        course.is_second_round, course.left = True, mail.tried
        course.domains = self._each_domain(mail.tried_domains)
        course.joined_ns, course.until_then = until_ns, BACK_OFF
        self._line.postpone(mail.queue_id, until_ns, mail.tried, NO_REASON)

    def _beat(self, at_ns: int) -> tuple[bool, int | None, str]:
        """Return whether something started, else until when and for what to wait."""
        self._ask(at_ns)
        if not self._line.has_ready(at_ns):
            return False, self._line.next_due_at_ns(), NEXT
        room = min((room_of(state, None, at_ns) for state in self._for_all), default=MOST_AT_ONCE)
        if room < 1:
            return False, *self._opening(self._for_all, at_ns)
        most, opens_ns, for_what = self._free_connections(at_ns)
        if most < 1:
            return False, opens_ns, for_what
        most = min(most, room, MOST_AT_ONCE, self._line.most_ready)
        taken: list[Queued] = []
        while len(taken) < most and (queued := self._line.next_ready(at_ns)) is not None:
            taken.append(queued)
        if (full := self._reserve(taken, at_ns)) is not None:
            return False, full.until_ns, limit_words(full.limit_label)
        return True, None, NEXT

    def _ask(self, at_ns: int) -> None:
        self._closed = []
        for lane in self._line.with_ceiling():
            lane_room, opens_ns = room_in(self._states, lane, at_ns)
            if self._line.let_lane(lane, lane_room, opens_ns) is not None:
                self._closed.append(lane)
        while self._line.has_places_due(at_ns):
            for place in self._line.places_due(at_ns):
                room, opens_ns = room_at(self._states, cast(Place, place), at_ns)
                self._line.let_leave(place, room, max(opens_ns, at_ns + 1))

    def _free_connections(self, at_ns: int) -> tuple[int, int | None, str]:
        """Return how many transactions connections allow; if none, until when to wait and for what."""
        free = (1 if self._is_proving else self._outlook.connections) - self._busy
        if free < 1:
            return 0, None, CONNECTIONS
        if not self._of_connections:
            return free, None, NEXT
        self._idle = [each for each in self._idle if at_ns - each[0] < self._outlook.idle_ns]
        free = min(free, len(self._idle) + min(state.room(None, at_ns) for state in self._of_connections))
        if free > 0:
            return free, None, NEXT
        return 0, *self._opening(self._of_connections, at_ns)

    @staticmethod
    def _opening(states: Sequence[LimitState], at_ns: int) -> tuple[int, str]:
        """Return when all of some limits have room, and the limit that opens last."""
        opens_ns, label = max((state.opens_at(None, at_ns), state.label) for state in states)
        return opens_ns, limit_words(label)

    def _reserve(self, taken: Sequence[Queued], at_ns: int) -> Wait | None:
        """Decide in the messages' order, as the throttle does; return for what the first one waits."""
        is_full = False
        first: Wait | None = None
        decided: list[tuple[Queued, Slot | None]] = []
        for queued in taken:
            request = self._request(queued)
            # Once one has to wait for what all need, so do all behind it.
            chosen = [] if is_full else choose(self._states, request, at_ns)
            if chosen:
                decided.append((queued, self._occupy(request, chosen, at_ns)))
                self._go(queued, chosen, at_ns)
                continue
            if not is_full and (large := too_large(self._states, request)) is not None:
                # It is deferred again and again, and keeps back none.
                self._line.remove(queued.key)
                self._courses[queued.key].foretold = Foretold(NEVER_NS, limit_words(large.limit_label))
                continue
            why = None if is_full else wait(self._states, request, at_ns)
            if why is not None and why.place is not None and why.place.for_each != "lane":
                words = WaitReason(limit_words(why.limit_label, why.place.key))
                self._line.park(queued.key, why.place, max(why.until_ns, at_ns + 1), words)
                continue
            if why is not None and why.place is None and not decided:
                # Room for a byte, and not for its bytes.
                first = why
            is_full = is_full or why is None or why.place is None
            decided.append((queued, None))
        # As the dispatcher does it: what waits goes back to the front, the last one first.
        for queued, reserved in reversed(decided):
            if reserved is None:
                self._line.give_back(queued.key, queued.why)
                continue
            self._line.reserved(queued.key, reserved.recipients)
            course = self._courses[queued.key]
            self._begin(reserved.until_ns, course, reserved, reserved.recipients, self._connect(at_ns))
        return first

    def _request(self, queued: Queued) -> Request:
        course = self._courses[queued.key]
        mail, most = course.mail, largest(self._outlook.max_recipients, self._taken)
        lane = self._line.lane_of(queued)
        keys = mail.sender, mail.sender_domain, mail.client, mail.user
        return Request(course.left, *keys, lane, course.domains, most, queued.size_bytes)

    def _occupy(self, request: Request, chosen: Sequence[int], at_ns: int) -> Slot:
        self._number += 1
        shares = shares_of(self._states, request, chosen)
        end_ns = at_ns + self._outlook.transaction_ns
        reserved = Slot(self._number, at_ns, end_ns, 1, len(chosen), 0, request.size_bytes, shares)
        for state in self._of_mail:
            state.start(reserved, at_ns)
        return reserved

    def _go(self, queued: Queued, chosen: Sequence[int], at_ns: int) -> None:
        course = self._courses[queued.key]
        course.left -= len(chosen)
        if course.domains:
            gone = set(chosen)
            course.domains = tuple(d for position, d in enumerate(course.domains) if position not in gone)
        if not course.left and (course.is_second_round or not course.mail.tried):
            end_ns = at_ns + self._outlook.transaction_ns
            course.foretold = Foretold(end_ns, self._held_by(queued, course, at_ns))

    def _connect(self, at_ns: int) -> int:
        """Return the number of transactions on the connection of the next one, that one included."""
        if self._idle:
            return self._idle.pop()[1] + 1
        for state in self._of_connections:
            state.occupy(None, at_ns + state.span_ns, 1, at_ns)
        return 1

    def _wait_until(self, until_ns: int, for_what: str) -> None:
        span_ns = until_ns - self._at_ns
        if span_ns <= 0:
            return
        if for_what:
            self._waited_ns[for_what] += span_ns
            if self._waited_ns[for_what] >= self._waited_ns[self._longest]:
                self._longest = for_what
        for lane in self._closed:
            self._closed_ns[lane] += span_ns
        self._at_ns = until_ns

    def _held_by(self, queued: Queued, course: _Course, started_ns: int) -> str:
        now_ns = self._outlook.now_ns
        if started_ns <= now_ns:
            return NEXT
        joined_ns, lane = course.joined_ns, self._line.lane_of(queued)
        until_then = course.until_then
        if self._rests.get(queued.sender, 0) >= joined_ns < queued.ready_at_ns:
            joined_ns, until_then = queued.ready_at_ns, RESTS
        closed_ns = self._closed_ns[lane]
        if closed_ns and 2 * closed_ns >= started_ns - now_ns:
            return ceiling_words(lane)
        if queued.why.kind is WaitKind.WORDS and queued.reason:
            return queued.reason
        if joined_ns - now_ns >= started_ns - joined_ns:
            return until_then
        return self._longest

    def _each_domain(self, runs: Sequence[tuple[str, int]]) -> tuple[str, ...]:
        if not self._asks_domains:
            return ()
        return tuple(domain for domain, count in runs for _ in range(count))
