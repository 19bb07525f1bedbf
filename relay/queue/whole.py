"""The whole queue: a line for each upstream account, and in which line each message stands.  Pure: no clock.

A message whose recipients go by several routes is in the queue in parts; every other message is one part.
A part stands in one line at a time, as `relay.queue.routes.choose` says, and moves when that changes:
`note` and `use` tell what changed, `move_on` moves, and `next_look_ns` is the next instant at which
time alone changes it.  Lines are independent, so what keeps one upstream's mail keeps no other's.

Guarantees:
- a part that is active moves only once it is not (it may just be sent);
- a part whose last transaction may still relay it stays with that upstream until the deadline;
- a part that can never go through an upstream (`pass_on`) is not asked for there again until an edit;
- the parts of a message are counted as one message;
- no call looks at more than `SLICE` messages, but for a copy of one line's list.

An upstream that proves itself while its mail goes elsewhere gets one message at a time, as the probe.  One
that it refuses goes ahead of the line that it was taken from.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

from relay.mail.envelope import QueueId
from relay.queue.counts import Owners, Sums, total
from relay.queue.diversions import Diversions
from relay.queue.pages import Pages
from relay.queue.queued import NO_REASON, NOWHERE, Queued, State, WaitReason
from relay.queue.routes import Availability, Because, Choice, Part, Route, Spilled, choose, is_better
from relay.queue.scheduler import SLICE, Scheduler

_NUMBERED = " "
"""Between a message's id and the number of a part, in the key of every part but the first."""
MOST_RESTED = 16
"""Waits for upstreams that were down, remembered of one part; the latest count."""


class Queue:
    def __init__(self) -> None:
        self._lines: dict[str, Scheduler] = {}
        self._pages = Pages()
        self._siblings: dict[QueueId, list[Queued]] = {}
        """The parts of messages that have several."""
        self.owners = Owners()
        self.diversions = Diversions()
        self._default = Route(("",))
        self._routes: tuple[Route, ...] = ()
        self._standings: dict[str, Availability] = {}
        self._choices: dict[Route, Choice] = {}
        """As of the last time that they were asked: equal ones are one object."""
        self._present: Counter[tuple[str, Route | None]] = Counter()
        """How many parts of each route stand in each line."""
        self._walk: deque[Queued] = deque()
        """Parts yet to be looked at."""
        self._late: dict[QueueId, Queued] = {}
        """Parts that were active when they should have moved."""
        self._probes: dict[str, Queued] = {}
        """Of each upstream that proves itself, the last part that was sent to show it."""
        self._unsorted: dict[QueueId, None] = {}
        """Messages whose parts an edit changes, and which were active then."""
        self._unknown: list[tuple[int, QueueId]] = []
        """A heap, by when the last transaction of a part cannot relay it any more."""
        self._unfit: dict[QueueId, frozenset[str]] = {}
        """By part, the upstreams that can never take it, as the policy is."""
        self._is_stale = False
        self._choose_anew_at_ns: int | None = None

    def line(self, upstream: str) -> Scheduler:
        if (line := self._lines.get(upstream)) is None:
            line = self._lines[upstream] = Scheduler(self._pages)
        return line

    def use(self, upstreams: Sequence[str], routes: Iterable[Route]) -> None:
        """Go by another policy's upstreams, the first the default, and routes."""
        self._default, self._routes = Route((upstreams[0],)), tuple(routes)
        self._standings = {name: self._standings.get(name, Availability()) for name in upstreams}
        self.diversions.use(self._routes)
        self._unfit.clear()
        self._is_stale = True

    def note(self, upstream: str, standing: Availability) -> bool:
        """Hear of an upstream's state; return whether it is another than before."""
        if self._standings.get(upstream, standing) == standing:
            return False
        self._standings[upstream] = standing
        if not standing.is_proving:
            self._probes.pop(upstream, None)
        self._is_stale = True
        return True

    @property
    def standings(self) -> Mapping[str, Availability]:
        return self._standings

    def __len__(self) -> int:
        """Return how many messages there are, in however many parts."""
        further = sum(len(its) - 1 for its in self._siblings.values())
        return sum(map(len, self._lines.values())) - further

    def __iter__(self) -> Iterator[Queued]:
        """Yield every part."""
        return chain.from_iterable(self._lines.values())

    def keys(self) -> list[QueueId]:
        """Return the key of each part; quick, as no message is looked at.  `queue_id_of` takes one."""
        return list(chain.from_iterable(line.keys() for line in self._lines.values()))

    def __contains__(self, queue_id: QueueId) -> bool:
        return self.get(queue_id) is not None

    def get(self, queue_id: QueueId) -> Queued | None:
        """Return a message, or the part of it that counts as the message."""
        if (its := self._siblings.get(queue_id)) is not None:
            return its[0]
        return self._part(queue_id)

    def parts(self, queue_id: QueueId) -> tuple[Queued, ...]:
        if (its := self._siblings.get(queue_id)) is not None:
            return tuple(its)
        message = self.get(queue_id)
        return () if message is None else (message,)

    @property
    def names(self) -> list[str]:
        """Return the upstreams whose lines have mail."""
        return [name for name, line in self._lines.items() if len(line)]

    def line_of(self, part: Queued) -> Scheduler:
        return self.line(part.upstream)

    def lane_of(self, part: Queued) -> str:
        return self.line_of(part).lane_of(part)

    def counts(self, state: State) -> dict[str, Sums]:
        """Return the sums of a state by lane; lanes without mail are left out."""
        sums: dict[str, list[Sums]] = {}
        for line in self._lines.values():
            for lane, its in line.counts.of(state).items():
                sums.setdefault(lane, []).append(its)
        return {lane: total(its) for lane, its in sums.items()}

    def add(self, *parts: Queued, now_ns: int) -> None:
        """Take in a message: one part, or all of them."""
        self.owners.add(parts[0])
        if len(parts) > 1:
            self._siblings[parts[0].queue_id] = list(parts)
        for number, part in enumerate(parts):
            if number:
                part.key, part.is_counted = QueueId(f"{part.queue_id}{_NUMBERED}{number}"), False
            part.enter_page(self._pages)
            # Mail that just came in stands there since it came in.
            is_new = part.choice is NOWHERE
            self._enter(part, self._choose(part, now_ns), part.arrived_at_ns if is_new else now_ns)

    def remove(self, queue_id: QueueId) -> None:
        """Forget a message, all its parts; absent ids are ignored."""
        parts = self.parts(queue_id)
        if parts:
            self.owners.remove(parts[0])
        for part in parts:
            self._unfit.pop(part.key, None)
            self._leave(part)
            self.line_of(part).remove(part.key)
            part.leave_page()
        self._siblings.pop(queue_id, None)

    def end_part(self, part: Queued) -> None:
        """Forget a part whose recipients are done; the message goes on with its others."""
        self._unfit.pop(part.key, None)
        self._leave(part)
        self.line_of(part).remove(part.key)
        part.leave_page()
        if (its := self._siblings.get(part.queue_id)) is None:
            self.owners.remove(part)
            return
        its[:] = [each for each in its if each is not part]
        if not its:
            del self._siblings[part.queue_id]
            self.owners.remove(part)
        elif not its[0].is_counted:
            its[0].is_counted = True
            self.line_of(its[0]).counts.note(its[0])

    def state_of(self, queue_id: QueueId) -> State | None:
        """Return the state of a message: that of the part which is furthest on its way."""
        states = {part.state for part in self.parts(queue_id)}
        return next((state for state in _FURTHEST_FIRST if state in states), None)

    def warned(self, queue_id: QueueId) -> None:
        for part in self.parts(queue_id):
            self.line_of(part).warned(part.key)

    def owe_report(self, part: Queued, why: WaitReason) -> None:
        """Keep a message of which only the report is left; it is sent nowhere."""
        for other in self.parts(part.queue_id):
            if other is not part:
                self.end_part(other)
        if all(each is not part for each in self.parts(part.queue_id)):
            self.owners.add(part)
            part.enter_page(self._pages)
            part.choice = self._choose(part, 0)
            self._present[part.upstream, part.part.route] += 1
        self.line_of(part).owe_report(part, why)

    def seize(self, queue_id: QueueId) -> dict[QueueId, State]:
        """Keep a message from being sent until `put_back`; return the state of each part before.

        Nothing where a part is active.
        """
        parts = self.parts(queue_id)
        if any(part.state is State.ACTIVE for part in parts):
            return {}
        before = {part.key: part.state for part in parts}
        for part in parts:
            self.line_of(part).seize(part.key)
        return before

    def put_back(self, queue_id: QueueId, before: Mapping[QueueId, State]) -> None:
        """End `seize`: put each part that is still active into its state before."""
        for part in self.parts(queue_id):
            if part.key in before:
                self.line_of(part).put_back(part.key, before[part.key])

    def hold(self, queue_id: QueueId, why: WaitReason) -> None:
        for part in self.parts(queue_id):
            self.line_of(part).hold(part.key)
            self.line_of(part).explain(part.key, why)
            if part.choice.because is Because.PROBE:
                # It shows nothing now: it is to wait where its route says.
                self._late[part.key] = part

    def release(self, queue_id: QueueId) -> None:
        """Put a held or deferred message at the end of its lines, to be attempted at once."""
        for part in self.parts(queue_id):
            self.line_of(part).release(part.key)

    def go_first(self, queue_id: QueueId) -> None:
        """Have a message that waits go before all others of the lines where it stands."""
        for part in self.parts(queue_id):
            self.line_of(part).go_first(part.key)

    def stay_unknown(self, part: Queued, until_ns: int) -> None:
        """Keep a part with its upstream, which may still relay it until an instant."""
        part.past = part.past.but(unknown_until_ns=max(part.past.unknown_until_ns, until_ns))
        heapq.heappush(self._unknown, (part.past.unknown_until_ns, part.key))
        self._late[part.key] = part

    def pass_on(self, part: Queued, why: WaitReason, now_ns: int) -> bool:
        """Have an active part go through another upstream of its route, as it can never go through this one.

        Returns False, and changes nothing, where no other may take it, or this one may have taken it.
        """
        others = set(self._route(part).upstreams).intersection(self._standings) - {part.upstream}
        if not others or part.past.unknown_until_ns > now_ns:
            return False
        self._unfit[part.key] = self._unfit.get(part.key, frozenset()) | {part.upstream}
        self.line_of(part).give_back(part.key, why)
        self._look_at(part, now_ns)
        return True

    def put(self, part: Queued, now_ns: int) -> None:
        """Hear that a part is back from a transaction: it may stand elsewhere by now."""
        if self._choose(part, now_ns).upstream != part.upstream:
            self._late[part.key] = part

    def sort_anew(self, fresh: Sequence[Queued], now_ns: int) -> None:
        """Go by the lane and parts that an edit gives a message; put off while it is active in other parts.

        `fresh` is the message as a start would find it; of the parts there are, what is known goes on.
        """
        queue_id, lane = fresh[0].queue_id, fresh[0].lane
        before = self.parts(queue_id)
        for part in before:
            self.line_of(part).move(part.key, lane)
        if [part.part for part in before] == [part.part for part in fresh] or not before:
            return
        is_one = len(before) == len(fresh) == 1 and before[0].part.indices == fresh[0].part.indices
        # Under another sender nothing is known of it, and another sender's pause does not hold it.
        if is_one and before[0].sender == fresh[0].sender:
            self._leave(before[0])
            before[0].part, before[0].origin = fresh[0].part, fresh[0].origin
            self._present[before[0].upstream, before[0].part.route] += 1
            self._late[before[0].key] = before[0]
            return
        if any(part.state is State.ACTIVE for part in before):
            # What its transaction comes to is settled for the recipients that it was begun for.
            self._unsorted[queue_id] = None
            return
        self.remove(queue_id)
        for part in fresh:
            _carry_over(part, before)
        self.add(*fresh, now_ns=now_ns)
        for part in fresh:
            if part.past.unknown_until_ns > now_ns:
                heapq.heappush(self._unknown, (part.past.unknown_until_ns, part.key))

    def sortable(self) -> list[QueueId]:
        """Return the messages that `sort_anew` put off and that are active no more, to be read anew."""
        ready = [queue_id for queue_id in self._unsorted if self.state_of(queue_id) is not State.ACTIVE]
        for queue_id in ready:
            del self._unsorted[queue_id]
        return ready

    @property
    def spills_after_ns(self) -> int | None:
        """Return the shortest `spill_after` of the routes; None where no mail is ever spilled."""
        return min((r.spill_after_ns for r in self._routes if r.spill_after_ns is not None), default=None)

    def spill(self, spilled: Spilled, now_ns: int) -> bool:
        """Have a part that waits go through another upstream of its route; False if it need not any more.

        The look may be older than an edit: the part goes by the route that it has now.
        """
        part, standing = self._part(spilled.key), self._standings.get(spilled.to)
        if part is None or part.state is not State.WAITING or part.past.unknown_until_ns > now_ns:
            return False
        route = self._route(part)
        if route.spill_after_ns is None or spilled.to not in route.upstreams:
            return False
        preferred = self.choice_of(route, now_ns).upstream
        if standing is None or not standing.is_usable or spilled.to == part.upstream:
            return False
        is_back = spilled.to == preferred
        choice = Choice(
            spilled.to, Because.PREFERRED if is_back else Because.SPILL, "" if is_back else preferred
        )
        self._move(part, choice, now_ns)
        if not is_back:
            self.diversions.spilled(part.part.route or self._default, choice, now_ns)
        return True

    def spill_looked(self, now_ns: int) -> bool:
        """Hear that a look for mail to spill is over; return whether there are turns to tell."""

        def is_there(route: Route, upstream: str) -> bool:
            is_elsewhere = self.choice_of(route, now_ns).upstream != upstream
            return is_elsewhere and self._present[upstream, route] > 0

        self.diversions.looked(is_there)
        return bool(self.diversions)

    def where(self) -> dict[Route, dict[str, int]]:
        """Return how many messages of each route stand in each line; one in parts counts for each part."""
        found: dict[Route, dict[str, int]] = {}
        for (name, route), count in self._present.items():
            found.setdefault(route or self._default, {})[name] = count
        return found

    @property
    def is_behind(self) -> bool:
        """Whether `move_on` has more to do at once."""
        return self._is_stale or bool(self._walk)

    @property
    def wants_look(self) -> bool:
        """Whether the end of a transaction is a reason to call `move_on`."""
        if self._late or self._unsorted:
            return True
        for standing in self._standings.values():  # noqa: SIM110 - at each end of one: no generator
            if standing.is_proving:
                return True
        return False

    def next_look_ns(self) -> int | None:
        """Return when `move_on` has something to do though nothing happens; None: never."""
        dues = [] if self._choose_anew_at_ns is None else [self._choose_anew_at_ns]
        return min([*dues, *(until_ns for until_ns, _ in self._unknown[:1])], default=None)

    def move_on(self, now_ns: int) -> None:
        """Move parts to the lines where they stand by now."""
        if self._is_stale or (self._choose_anew_at_ns is not None and now_ns >= self._choose_anew_at_ns):
            self._is_stale = False
            self._begin_walk(now_ns)
        for _ in range(min(SLICE, len(self._walk))):
            self._look_at(self._walk.popleft(), now_ns)
        while self._unknown and self._unknown[0][0] <= now_ns:
            _, key = heapq.heappop(self._unknown)
            if (part := self._part(key)) is not None:
                self._late[key] = part
        late, self._late = self._late, {}
        for part in late.values():
            self._look_at(part, now_ns)
        self._send_probes(now_ns)

    def choice(self, part: Queued, now_ns: int) -> Choice:
        """Return why a part stands where it does, for showing."""
        choice = self._choose(part, now_ns)
        return choice if choice.upstream == part.upstream else part.choice

    def upstream_at(self, part: Queued, at_ns: int) -> str:
        """Return where a part stands at an instant if the states of the upstreams stay as they are."""
        return self._choose(part, at_ns).upstream

    def _begin_walk(self, now_ns: int) -> None:
        """Have everything looked at that is of a route which leads to another line now."""
        self._choices = {}
        present = list(self._present)
        choices = {route: self.choice_of(route or self._default, now_ns) for _, route in present}
        untils = [each.until_ns for each in choices.values()]
        for route in dict.fromkeys(self._routes):
            choice = self.choice_of(route, now_ns)
            self.diversions.chose(route, choice, now_ns)
            untils.append(choice.until_ns)
        self._choose_anew_at_ns = min((each for each in untils if each is not None), default=None)
        lines = {name: None for name, route in present if choices[route].upstream != name}
        self._walk = deque(chain.from_iterable(list(self._lines[name]) for name in lines))

    def _look_at(self, part: Queued, now_ns: int) -> None:
        line = self.line_of(part)
        if line.get(part.key) is not part:
            return  # it ended
        choice = self._choose(part, now_ns)
        if choice.upstream == part.upstream:
            part.choice = choice
        elif part.state is State.ACTIVE:
            self._late[part.key] = part
        else:
            self._move(part, choice, now_ns)

    def _move(self, part: Queued, choice: Choice, now_ns: int) -> None:
        if self.line_of(part).leave(part.key) is None:
            return
        down_since_ns = self._standings.get(part.upstream, Availability()).down_since_ns
        if down_since_ns is not None:
            waited = max(down_since_ns, part.stands_since_ns), now_ns
            part.past = part.past.but(rested=(*part.past.rested[1 - MOST_RESTED :], waited))
        self._leave(part)
        # A refused probe keeps its place: it was chosen because it waits longest.
        is_back = part.choice.because is Because.PROBE and part.choice.instead_of == choice.upstream
        self._enter(part, choice, now_ns)
        if is_back:
            self.line(choice.upstream).go_ahead(part.key)

    def _send_probes(self, now_ns: int) -> None:
        for name, standing in self._standings.items():
            if standing.is_proving and not self._has_candidate(name):
                part = self._probe_for(name)
                if part is not None:
                    self._move(part, Choice(name, Because.PROBE, part.upstream), now_ns)

    def _probe_for(self, name: str) -> Queued | None:
        """Return the first part that waits elsewhere and would rather go through an upstream."""
        for line, route in self._present:
            if is_better(route or self._default, name, line, self._standings):
                for part in islice(self._lines[line], SLICE):
                    is_free = part.state is State.WAITING and not part.past.unknown_until_ns
                    is_fit = part.part.route == route and name in self._route(part).upstreams
                    if is_free and is_fit:
                        return part
        return None

    def _has_candidate(self, name: str) -> bool:
        counts = self.line(name).counts
        return counts.members(State.WAITING) + counts.members(State.ACTIVE) > 0

    def _choose(self, part: Queued, now_ns: int) -> Choice:
        if now_ns < part.past.unknown_until_ns:
            return Choice(part.upstream, Because.UNKNOWN, part.choice.instead_of, part.past.unknown_until_ns)
        route = self._route(part)
        choice = self.choice_of(route, now_ns)
        if part.choice.because is Because.PROBE and self._is_probe(part, route, choice):
            return part.choice
        if part.choice.because is Because.SPILL and self._is_spilled(part, route, choice):
            return part.choice
        if part.state is State.WAITING and not part.upstream:
            for name, standing in self._standings.items():
                is_wanted = standing.is_proving and is_better(route, name, choice.upstream, self._standings)
                if is_wanted and not self._has_candidate(name):
                    return Choice(name, Because.PROBE)
        preferred = (part.part.route or self._default).upstreams[0]
        is_diverted = choice.because is Because.PREFERRED and choice.upstream != preferred
        if is_diverted and part.key in self._unfit:
            return choice._replace(because=Because.UNFIT, instead_of=preferred)
        return choice

    def _is_spilled(self, part: Queued, route: Route, choice: Choice) -> bool:
        """Return whether a part that was spilled still stands where it was spilled to."""
        standing = self._standings.get(part.upstream)
        is_usable = standing is not None and standing.is_usable and part.upstream in route.upstreams
        return is_usable and route.spill_after_ns is not None and choice.upstream == part.choice.instead_of

    def _is_probe(self, part: Queued, route: Route, choice: Choice) -> bool:
        """Return whether a probe may still show what it was sent for."""
        is_to_go = part.state in (State.WAITING, State.ACTIVE) and self._probes.get(part.upstream) is part
        return is_to_go and is_better(route, part.upstream, choice.upstream, self._standings)

    def choice_of(self, route: Route, now_ns: int) -> Choice:
        """Return where mail of a route stands now, but for what is spilled, probes or is unknown."""
        choice, before = choose(route, self._standings, now_ns), self._choices.get(route)
        if before == choice:
            return before
        self._choices[route] = choice
        return choice

    def _route(self, part: Queued) -> Route:
        """Return the route of a part, without the upstreams that can never take it."""
        route, unfit = part.part.route or self._default, self._unfit.get(part.key)
        if unfit is None:
            return route
        return replace(route, upstreams=tuple(name for name in route.upstreams if name not in unfit))

    def _enter(self, part: Queued, choice: Choice, since_ns: int) -> None:
        part.choice, part.stands_since_ns = choice, since_ns
        if choice.because is Because.PROBE:
            self._probes[choice.upstream] = part
        self._present[choice.upstream, part.part.route] += 1
        self.line(choice.upstream).add(part)

    def _leave(self, part: Queued) -> None:
        where = part.upstream, part.part.route
        self._present[where] -= 1
        if self._present[where] <= 0:
            del self._present[where]

    def _part(self, key: QueueId) -> Queued | None:
        for line in self._lines.values():
            if (found := line.get(key)) is not None:
                return found
        return None


def queue_id_of(key: QueueId) -> QueueId:
    return QueueId(key.partition(_NUMBERED)[0])


_FURTHEST_FIRST = (State.ACTIVE, State.WAITING, State.DEFERRED, State.HELD, State.REPORTING)


def _carry_over(part: Queued, before: Sequence[Queued]) -> None:
    """Have a new part of a message go on from the parts that its recipients were in."""
    was = [each for each in before if _overlap(each.part, part.part)]
    states = {each.state for each in was}
    # An operator holds a message whole, also recipients that none of its parts still had.
    by_hand = next((each for each in before if each.state is State.HELD), None)
    if by_hand is not None:
        part.state = State.HELD
    elif states == {State.DEFERRED} and not any(each.is_sitting_out for each in was):
        part.state, part.due_at_ns = State.DEFERRED, max(each.due_at_ns for each in was)
    else:
        part.state, part.due_at_ns = State.WAITING, 0
    last = max(was, key=lambda each: each.past.unknown_until_ns, default=part)
    known = last.past
    part.past = part.past.but(unknown_until_ns=known.unknown_until_ns, rested=known.rested)
    part.choice = last.choice
    part.why = NO_REASON if part.state is State.WAITING else (by_hand or last).why
    part.is_warned = part.is_warned or any(each.is_warned for each in was)


def _overlap(one: Part, other: Part) -> bool:
    return one.indices is None or other.indices is None or not one.indices.isdisjoint(other.indices)
