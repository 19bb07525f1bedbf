"""The whole queue: a line for each upstream account, and the line of each message.  Pure: no clock.

A message whose recipients go by several routes is in the queue in parts; every other message is one part.
A part stands in one line at a time, as `relay.queue.routes.choose` says, and moves when the choice changes.
`set_availability` and `use` report a change, `move_on` moves parts, `next_look_ns` returns when time alone
moves one.  Lines are independent: what delays the mail of one upstream delays no other mail.

Guarantees:
- an active part moves only once it is no longer active;
- a part that can never go through an upstream (`exclude_upstream`) does not return there before an edit;
- a part that has waited in a line for its route's `spill_after` goes to the next usable upstream;
- no call looks at more than `SLICE` messages, except a copy of the list of all, and `counts`.

An upstream that proves itself while its mail goes elsewhere gets one message at a time, as the probe: the
oldest that may go there, or one that just came or came back.  A probe that is refused, or waits for a key,
goes back to the front of its sender's others.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from typing import Any

from relay.mail.envelope import QueueId
from relay.queue.lines import Sums, TimedHeap, earliest, total
from relay.queue.queued import NO_REASON, NOWHERE, Queued, State, WaitReason
from relay.queue.routes import Availability, Because, Choice, Route, choose, is_better, next_listed
from relay.queue.upstream_queue import AT_ONCE_NS, SLICE, KeysOf, UpstreamQueue

PROBE_SOUGHT_NS = 15 * 10**9
"""How often all parts are looked at while an upstream proves itself: its probe may have proven nothing."""
_FURTHEST_FIRST = (State.ACTIVE, State.WAITING, State.DEFERRED, State.HELD, State.REPORTING)


class Queues:
    def __init__(self, keys_of: KeysOf = lambda _: ()) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called when `move_on` has something to do."""
        self.on_routed: Callable[[Route, Choice, Because], None] = lambda _route, _choice, _before: None
        """Called once when mail of a route goes elsewhere than before, with the reason of the choice before.

        For spilled mail it is called only when spilling begins.
        """
        self.owners: Counter[tuple[str, str]] = Counter()
        """How many messages each owner has: (user, "") with a login, ("", client) without."""
        self._lines = defaultdict[str, UpstreamQueue](lambda: UpstreamQueue(keys_of, self._notice))
        self._parts: dict[QueueId, tuple[Queued, ...]] = {}
        """The parts of each message, in order of arrival; the first part counts as the message."""
        self._default = Route(("",))
        self._routes: tuple[Route, ...] = ()
        self._availabilities: dict[str, Availability] = {}
        self._proving: list[str] = []
        self._choices: dict[Route, Choice] = {}
        """The choice of each route; only a walk changes it."""
        self._walk: deque[Queued] = deque()
        """Parts to look at: all parts after a change, and those that just became able to move."""
        self._looks: TimedHeap[Queued] = TimedHeap(lambda _, part: part.upstream != "")
        """When time alone may move a part."""
        self._unfit: dict[Queued, frozenset[str]] = {}
        """The upstreams that can never take a part under this policy."""
        self._walks_at_ns: int | None = None
        """When all parts are looked at again."""

    def line(self, upstream: str) -> UpstreamQueue:
        return self._lines[upstream]

    def line_of(self, part: Queued) -> UpstreamQueue:
        return self.line(part.upstream)

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Queued]:
        return chain.from_iterable(self._parts.values())

    def __contains__(self, queue_id: QueueId) -> bool:
        return queue_id in self._parts

    def ids(self) -> list[QueueId]:
        """Return the id of each message; quick, as no message is looked at."""
        return list(self._parts)

    def parts(self, queue_id: QueueId) -> tuple[Queued, ...]:
        """Return the parts of a message, one if it is whole; the first counts as the message."""
        return self._parts.get(queue_id, ())

    @property
    def names(self) -> list[str]:
        """Return the upstreams whose lines have mail."""
        return [name for name, line in self._lines.items() if len(line)]

    def counts(self, state: State) -> dict[str, Sums]:
        """Return the sums of a state by lane; lanes without mail are left out.

        The oldest message of a lane is the first that came: the search mostly ends near the beginning.
        """
        found = dict[str, Sums]()
        for lane, sums in chain.from_iterable(line.counts.of(state) for line in self._lines.values()):
            found[lane] = total([found.get(lane, Sums()), sums])
        sought = set(found)
        for part in takewhile(lambda _: sought, self):
            if part.state is state and part.lane in sought:
                found[part.lane] = found[part.lane]._replace(oldest_arrived_at_ns=part.arrived_at_ns)
                sought.remove(part.lane)
        return found

    def state_of(self, queue_id: QueueId) -> State | None:
        """Return the state of a message: that of its most advanced part; None for an absent message."""
        return min((part.state for part in self.parts(queue_id)), key=_FURTHEST_FIRST.index, default=None)

    def where(self) -> Mapping[Route, Mapping[str, int]]:
        """Return how many parts of each route stand in each line."""
        found = defaultdict[Route, Counter[str]](Counter)
        for name, line in self._lines.items():
            for route, count in line.counts.by_route().items():
                found[route or self._default][name] += count
        return found

    def add(self, *parts: Queued, now_ns: int) -> None:
        self._parts[parts[0].queue_id] = parts
        self._own(parts[0], 1)
        for part in parts:
            part.is_counted = part is parts[0]
            # A new message stands there since its arrival.
            is_new = part.choice is NOWHERE
            self._enter(part, self._choose(part, now_ns), part.arrived_at_ns if is_new else now_ns)

    def remove(self, queue_id: QueueId) -> None:
        """Forget all parts of a message; absent ids are ignored."""
        for part in self.parts(queue_id):
            self.end_part(part)

    def end_part(self, part: Queued) -> None:
        """Forget a part whose recipients are done; the message keeps its other parts."""
        if not part.upstream:
            return
        self._take_out(part)
        if left := [each for each in self.parts(part.queue_id) if each is not part]:
            self._parts[part.queue_id] = tuple(left)
            self.line_of(left[0]).update(left[0], is_counted=True)
        else:
            del self._parts[part.queue_id]
            self._own(part, -1)

    def owe_report(self, queue_id: QueueId, why: WaitReason) -> None:
        """Keep a message that only owes its report; it is sent nowhere."""
        for other in self.parts(queue_id)[1:]:
            self.end_part(other)
        for part in self.parts(queue_id):
            self.line_of(part).put(part, State.REPORTING, why=why, recipients_left=0)

    def seize(self, queue_id: QueueId) -> dict[Queued, State]:
        """Keep a message from being sent until `put_back`; return the earlier state of each part.

        Changes and returns nothing if a part is active.
        """
        before = {part: part.state for part in self.parts(queue_id)}
        if State.ACTIVE in before.values():
            return {}
        for part in before:
            self.line_of(part).put(part, State.ACTIVE)
        return before

    def put_back(self, queue_id: QueueId, states: Mapping[Queued, State], **changes: Any) -> None:
        """End `seize`: put each part that is still active into its earlier state, or another."""
        for part in self.parts(queue_id):
            if part in states:
                self.line_of(part).put_back(part, states[part], **changes)

    def exclude_upstream(self, part: Queued, why: WaitReason, now_ns: int) -> bool:
        """Send an active part through another upstream of its route, as it can never go through this one.

        Returns False, and changes nothing, if no other upstream may take it.
        """
        if not part.upstream:
            return True  # it ended
        if not self._availabilities.keys() & set(self._route(part).upstreams) - {part.upstream}:
            return False
        self._unfit[part] = self._unfit.get(part, frozenset()) | {part.upstream}
        self.line_of(part).give_back(part, why)
        self._look_at(part, now_ns)
        return True

    def use(self, upstreams: Sequence[str], routes: Iterable[Route]) -> None:
        """Use the upstreams and routes of another policy; the first upstream is the default."""
        self._default, self._routes = Route((upstreams[0],)), tuple(dict.fromkeys(routes))
        self._availabilities = {name: self._availabilities.get(name, Availability()) for name in upstreams}
        self._unfit.clear()
        self._change()

    def set_availability(self, upstream: str, availability: Availability) -> None:
        self.line(upstream).pauses = availability.pauses
        if self._availabilities.get(upstream, availability) != availability:
            self._availabilities[upstream] = availability
            self._change()

    def sort_anew(self, fresh: Sequence[Queued], now_ns: int) -> bool:
        """Use the lane and parts that an edit gives a message; return False while its old parts are active.

        `fresh` is the message as a start would load it.  It goes on like that, but the pauses that one of its
        parts waited for still count.
        """
        before = self.parts(fresh[0].queue_id)
        is_same = [(each.part, each.lane) for each in before] == [(each.part, each.lane) for each in fresh]
        if is_same or not before:
            return True
        if self.state_of(fresh[0].queue_id) is State.ACTIVE:
            return False
        for part in before:
            self._rest(part, now_ns)
        for part in fresh:
            part.paused_ns = max(each.paused_ns for each in before)
            part.either_paused_ns = max(each.either_paused_ns for each in before)
            part.choice, part.stands_since_ns = Choice(before[0].upstream), now_ns
            if part.state is State.DEFERRED:
                part.why = before[0].why
        for part in before:
            self._take_out(part)
        self._own(before[0], -1)
        self.add(*fresh, now_ns=now_ns)  # keeps its place in the order of arrival
        return True

    def next_look_ns(self) -> int | None:
        """Return when `move_on` has something to do although nothing happens; None: never."""
        return AT_ONCE_NS if self._walk else earliest(self._walks_at_ns, self._looks.first_ns())

    def move_on(self, now_ns: int) -> None:
        """Move parts to the lines where they belong by now, at most `SLICE` of them."""
        if self._walks_at_ns is not None and now_ns >= self._walks_at_ns:
            self._begin_walk(now_ns)
        for _ in range(SLICE):
            part = self._looks.pop_due(now_ns) or (self._walk.popleft() if self._walk else None)
            if part is None:
                break
            self._look_at(part, now_ns)

    def choice_of(self, route: Route, now_ns: int) -> Choice:
        """Return where mail of a route goes, apart from spilled and probing parts, as the last walk found.

        Returns the same object until it changes, because many parts share it.
        """
        if (choice := self._choices.get(route)) is None:
            choice = self._choices[route] = self._chosen(route, now_ns)
            self._walks_at_ns = earliest(self._walks_at_ns, choice.until_ns)
        return choice

    def _chosen(self, route: Route, now_ns: int) -> Choice:
        before = self._choices.get(route, Choice(route.upstreams[0], since_ns=now_ns))
        choice = choose(route, self._availabilities, now_ns)._replace(since_ns=before.since_ns)
        if (choice.upstream, choice.because) != (before.upstream, before.because):
            choice = choice._replace(since_ns=now_ns)
            if route in self._routes:
                self.on_routed(route, choice, before.because)
        return before if choice == before else choice

    def _change(self) -> None:
        self._proving = [name for name, each in self._availabilities.items() if each.is_proving]
        self._walks_at_ns = AT_ONCE_NS
        self.on_change()

    def _begin_walk(self, now_ns: int) -> None:
        present = self.where()
        routes = dict.fromkeys([*self._routes, *present])
        self._choices = {route: self._chosen(route, now_ns) for route in routes}
        untils_ns = [choice.until_ns for choice in self._choices.values()]
        is_settled = all(route.upstreams == (name,) for route, its in present.items() for name in its)
        if not is_settled and self._proving:
            untils_ns.append(now_ns + PROBE_SOUGHT_NS)
        self._walks_at_ns = earliest(*untils_ns)
        self._walk = deque(() if is_settled else self)

    def _notice(self, part: Queued) -> None:
        """Queue a look at a part that waits for its turn or is no longer active: it may belong elsewhere."""
        if part.state is State.ACTIVE:
            return
        route = self._route(part)
        if (spills_ns := _spills_ns(part, route)) is not None:
            self._looks.add(spills_ns, part)
        if route.upstreams != (part.upstream,):
            self._walk.append(part)
            self.on_change()

    def _look_at(self, part: Queued, now_ns: int) -> None:
        choice = self._choose(part, now_ns) if part.upstream else NOWHERE
        if choice.upstream == part.upstream:
            part.choice = choice
        elif part.state is not State.ACTIVE:
            self._move(part, choice, now_ns)

    def _move(self, part: Queued, choice: Choice, now_ns: int) -> None:
        self._rest(part, now_ns)
        if part.state is State.WAITING:
            part.why = NO_REASON
        route, was = part.part.route, part.choice
        if choice.because is Because.SPILL and route not in self.line(choice.upstream).counts.by_route():
            self.on_routed(route or self._default, choice, was.because)
        self.line_of(part).leave(part)
        self._enter(part, choice, now_ns, is_in_front=was.because is Because.PROBE)
        if was.because is Because.PROBE:
            # Another message probes next.
            self._parts[part.queue_id] = self._parts.pop(part.queue_id)

    def _enter(self, part: Queued, choice: Choice, since_ns: int, *, is_in_front: bool = False) -> None:
        part.choice, part.stands_since_ns = choice, since_ns
        self.line_of(part).enter(part, is_in_front=is_in_front)

    def _rest(self, part: Queued, now_ns: int) -> None:
        """Keep what counts in other lines too, when a part leaves its line."""
        part.paused_ns, part.either_paused_ns = self.line_of(part).rests_of(part, now_ns)
        part.refusals = 0

    def _take_out(self, part: Queued) -> None:
        self.line_of(part).leave(part)
        part.choice = NOWHERE
        self._unfit.pop(part, None)

    def _own(self, part: Queued, by: int) -> None:
        owner = part.origin.user, "" if part.origin.user else part.origin.client
        self.owners[owner] += by
        if not self.owners[owner]:
            del self.owners[owner]

    def _choose(self, part: Queued, now_ns: int) -> Choice:
        route = self._route(part)
        choice = self.choice_of(route, now_ns)
        stays = self._stays_spilled(part, route, choice)
        is_late = (spills_ns := _spills_ns(part, route)) is not None and now_ns >= spills_ns
        to = next_listed(route, part.upstream, self._availabilities) if is_late else None
        if to is not None and (stays or part.upstream == choice.upstream):
            return Choice(to, Because.SPILL, choice.upstream)
        if stays:
            return part.choice
        for name in self._proving if part.state is State.WAITING else ():
            line, is_probe = self.line(name), part.choice.because is Because.PROBE and part.upstream == name
            # A message that has to wait proves nothing; it goes back, and another one probes.
            if (
                is_better(route, name, choice.upstream, self._availabilities)
                and (is_probe or not (line.ready_count or line.counts.of(State.ACTIVE)))
                and line.has_room_for(part, now_ns)
            ):
                return part.choice if is_probe else Choice(name, Because.PROBE, part.upstream)
        preferred = (part.part.route or self._default).upstreams[0]
        if part in self._unfit and choice.because is Because.PREFERRED and choice.upstream != preferred:
            return choice._replace(because=Because.UNFIT, instead_of=preferred)
        return choice

    def _stays_spilled(self, part: Queued, route: Route, choice: Choice) -> bool:
        was_spilled = part.choice.because is Because.SPILL and part.choice.instead_of == choice.upstream
        may_spill = route.spill_after_ns is not None and part.upstream in route.upstreams
        known = self._availabilities.get(part.upstream)
        return was_spilled and may_spill and known is not None and known.is_usable

    def _route(self, part: Queued) -> Route:
        """Return the route of a part, without the upstreams that can never take it."""
        route = part.part.route or self._default
        if (unfit := self._unfit.get(part)) is None:
            return route
        return replace(route, upstreams=tuple(name for name in route.upstreams if name not in unfit))


def _spills_ns(part: Queued, route: Route) -> int | None:
    """Return when a part has waited too long in its line; None if it does not wait, or may wait forever."""
    if route.spill_after_ns is None or part.state is not State.WAITING or part.is_sitting_out:
        return None
    return max(part.ready_at_ns, part.stands_since_ns) + route.spill_after_ns
