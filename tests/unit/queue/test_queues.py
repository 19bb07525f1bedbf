"""The whole queue: no message is lost between the lines, and none moves that may be in a transaction."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relay.mail.envelope import QueueId
from relay.queue.lanes import Arrangement, Lane
from relay.queue.queued import DEFAULT_LANE, NO_REASON, Queued, State, WaitReason, origin_of
from relay.queue.queues import PROBE_SOUGHT_NS, Queues
from relay.queue.routes import Availability, Because, Choice, Part, Route, choose, next_listed
from relay.queue.upstream_queue import AT_ONCE_NS, ThrottledMessage
from relay.verdicts.account import FOREVER_NS

NAMES = ("a", "b", "c")
FATES = ("back", "done", "deferred", "lost", "again", "unfit")
ANSWERS = ("goes", "goes", "goes", "account", "sender", "sender", "lane", "again", "deferred", "unfit")
"""What becomes of a part that was taken: a grant, a wait for one of these, or no reservation at all."""
LANES = Arrangement((Lane("fast", 60), Lane(DEFAULT_LANE, 40)))
ROUTES = (
    Route(("a", "b"), 15),
    Route(("b", "c", "a"), 40),
    Route(("c",)),
    Route(("b", "a")),
    Route(("a", "c"), 15, spill_after_ns=30),
)


def message(number: int, *parts: Part, at_ns: int = 0, sender: str = "") -> list[Queued]:
    queue_id = QueueId(f"{number:016d}")
    user = "ann" if number % 3 else ""
    origin = origin_of(sender or f"s{number % 50}@x", user=user, lane=("fast", DEFAULT_LANE)[number % 2])
    return [Queued(queue_id, origin, 10, at_ns, 2, part=part) for part in parts]


def parts_of(routes: list[Route]) -> list[Part]:
    """Return the parts of a message that has one recipient for each of these routes."""
    if len(routes) == 1:
        return [Part(routes[0])]
    return [Part(route, frozenset([index])) for index, route in enumerate(routes)]


class AnyQueue(RuleBasedStateMachine):
    """Upstreams go down, prove themselves and are well; mail comes, goes and waits; time passes."""

    @initialize()
    def begin(self) -> None:
        self.queue = Queues(lambda part: [part.sender])
        for name in NAMES:
            self.queue.line(name).arrange(LANES)
        self.queue.on_change = self.changed
        self.queue.on_routed = self.is_routed
        self.is_changed = False
        self.queue.use(NAMES, ROUTES)
        self.now_ns = 0
        self.number = 0
        self.states = dict.fromkeys(NAMES, Availability())
        self.left: dict[QueueId, int] = {}
        """The number of unfinished parts of each message."""
        self.routes: dict[QueueId, list[Route]] = {}
        """The routes that the last edit gave each message."""
        self.told = {route: (route.upstreams[0], Because.PREFERRED) for route in ROUTES}
        self.active: dict[Queued, str] = {}
        """Parts in a transaction, and their upstream."""
        self.put_off = set[QueueId]()
        """Messages that an edit could not sort yet."""
        self.paused_ns = Counter[Queued]()
        """How long the upstream of each part was down while the part stood there."""
        self.unfit = defaultdict[Queued, set[str]](set)
        """The upstreams that can never take a part."""

    def changed(self) -> None:
        self.is_changed = True

    @rule(
        count=st.integers(1, 4),
        routes=st.lists(st.sampled_from(ROUTES), min_size=1, max_size=3, unique=True),
    )
    def comes(self, count: int, routes: list[Route]) -> None:
        for _ in range(count):
            self.number += 1
            its = message(self.number, *parts_of(routes), at_ns=self.now_ns)
            self.left[its[0].queue_id], self.routes[its[0].queue_id] = len(its), routes
            self.queue.add(*its, now_ns=self.now_ns)

    @rule(name=st.sampled_from(NAMES), state=st.sampled_from(["well", "down", "proving", "down"]))
    def is_seen(self, name: str, state: str) -> None:
        since_ns, _, pauses = self.states[name]
        if since_ns is not None:
            pauses = pauses[:-1]
        began_ns = self.now_ns if since_ns is None else since_ns
        if state == "well":
            pauses = pauses if since_ns is None else (*pauses, (began_ns, self.now_ns))
            self.states[name] = Availability(pauses=pauses)
        else:
            self.states[name] = Availability(
                began_ns, is_proving=state == "proving", pauses=(*pauses, (began_ns, FOREVER_NS))
            )
        self.queue.set_availability(name, self.states[name])
        self.look()

    @rule(
        most=st.integers(0, 3),
        fates=st.lists(st.sampled_from(FATES), max_size=4),
        answers=st.lists(st.sampled_from(ANSWERS), min_size=9, max_size=9),
    )
    def works(self, most: int, fates: list[str], answers: list[str]) -> None:
        for part, fate in zip(list(self.active), fates, strict=False):
            del self.active[part]
            if part.queue_id in self.left:  # otherwise another part removed the message
                self._ends(part, fate)
                self._settle()
        for name, state in self.states.items():
            may_take = most if state.down_since_ns is None else int(state.is_proving)
            if state.is_usable and not (state.is_proving and name in self.active.values()):
                line, waits = self.queue.line(name), list[ThrottledMessage]()
                for part, answer in zip(line.take(may_take, self.now_ns), answers, strict=False):
                    assert part not in self.active
                    assert part.why is NO_REASON, "it waits for nothing any more"
                    if answer == "goes":
                        line.granted(part, 1)
                        self.active[part] = name
                    elif answer in FATES:
                        self._ends(part, answer)
                    else:
                        keys = {"sender": part.sender, "lane": ("lane", line.lane_of(part))}
                        waits.append(
                            ThrottledMessage(part, self.now_ns + 25, keys.get(answer), WaitReason("no room"))
                        )
                line.wait(waits)

    def _ends(self, part: Queued, fate: str) -> None:
        line, line_name = self.queue.line_of(part), part.upstream
        match fate:
            case "done" if self.left[part.queue_id] > 1:
                self.left[part.queue_id] -= 1
                self.queue.end_part(part)
            case "done" | "lost":
                del self.left[part.queue_id]
                self.queue.remove(part.queue_id)
            case "back":
                line.give_back(part, NO_REASON)
            case "again":
                line.put_back(part, State.WAITING, ready_at_ns=self.now_ns)
            case "unfit" if self.queue.exclude_upstream(part, NO_REASON, self.now_ns):
                self.unfit[part].add(line_name)
            case _:
                line.put_back(part, State.DEFERRED, due_at_ns=self.now_ns + 5)

    @precondition(lambda self: self.left)
    @rule(which=st.integers(0), is_released=st.booleans())
    def is_held_by_hand(self, which: int, *, is_released: bool) -> None:
        queue_id = list(self.left)[which % len(self.left)]
        if before := self.queue.seize(queue_id):
            self.queue.put_back(queue_id, dict.fromkeys(before, State.HELD))
            assert self.queue.state_of(queue_id) is State.HELD
            if is_released:
                self._is_released(queue_id)

    def _is_released(self, queue_id: QueueId) -> None:
        before = self.queue.seize(queue_id)
        self.queue.put_back(queue_id, dict.fromkeys(before, State.WAITING), ready_at_ns=self.now_ns)

    @precondition(lambda self: self.left)
    @rule(which=st.integers(0), routes=st.lists(st.sampled_from(ROUTES), min_size=1, max_size=2, unique=True))
    def is_routed_anew(self, which: int, routes: list[Route]) -> None:
        queue_id = list(self.left)[which % len(self.left)]
        self.routes[queue_id] = routes
        self._sort(queue_id)
        self._settle()

    def _sort(self, queue_id: QueueId) -> None:
        before = self.queue.parts(queue_id)
        states = {part.state for part in before}
        fresh = message(int(queue_id), *parts_of(self.routes[queue_id]))
        for part in fresh:
            # As in the spool: a hold is of the whole message, and a message in parts has no next attempt.
            if State.HELD in states:
                part.state = State.HELD
            elif len(fresh) == 1 and states == {State.DEFERRED}:
                part.state, part.due_at_ns = State.DEFERRED, before[0].due_at_ns
        if not self.queue.sort_anew(fresh, self.now_ns):
            self.put_off.add(fresh[0].queue_id)
        after = self.queue.parts(queue_id)
        if State.ACTIVE in states or not before:
            assert after == before, "put off, or gone"
            return
        # If parts were joined or divided, the longest wait of them counts.
        longest_ns = max(self.paused_ns[part] for part in before)
        for part in after if after != before else ():
            its_ns = self.queue.line_of(part).rests_of(part, self.now_ns)[0]
            self.paused_ns[part] = longest_ns if len(before) == 1 else min(longest_ns, its_ns)
        self.left[queue_id] = len(after)
        if State.HELD in states:
            assert {part.state for part in after} == {State.HELD}
        elif len(after) == 1:
            assert (after[0].state is State.DEFERRED) is (states == {State.DEFERRED})

    @rule(
        name=st.sampled_from(NAMES),
        number=st.integers(0, 9),
        act=st.sampled_from(["arrange", "anew", "rest"]),
    )
    def is_edited_or_refuses_a_sender(self, name: str, number: int, act: str) -> None:
        line = self.queue.line(name)
        match act:
            case "arrange":
                line.arrange(LANES if number % 2 else Arrangement())
            case "anew":
                line.ask_anew()
            case "rest":
                line.sender_pauses.begin(f"s{number}@x", self.now_ns, "no", asked_ns=20)

    @rule(by_ns=st.sampled_from([20, 1, 10, 40]))
    def time_passes(self, by_ns: int) -> None:
        # Sleep like the sender: to each instant that the queue names, and no other.
        until_ns = self.now_ns + by_ns
        while (at_ns := self.queue.next_look_ns()) is not None and at_ns <= until_ns:
            self._wait(max(self.now_ns, at_ns))
            self.look()
            if self.queue.next_look_ns() == at_ns:
                break
        self._wait(until_ns)

    def _wait(self, until_ns: int) -> None:
        for part in self.queue:
            if self.states[part.upstream].down_since_ns is not None:
                self.paused_ns[part] += until_ns - self.now_ns
        self.now_ns = until_ns

    @rule()
    def look(self) -> None:
        self.is_changed = True
        self._settle()
        self._is_told()

    def _settle(self) -> None:
        """Look as often as the queue asks, like the sender; then check that all is in its place."""
        # A message that was active at an edit is sorted a moment later, whether anything changed or not.
        put_off, self.put_off = self.put_off, set()
        for queue_id in put_off:
            self._sort(queue_id)
        while self.is_changed:
            self.is_changed = False
            self.queue.move_on(self.now_ns)
            self.is_changed = self.is_changed or self.queue.next_look_ns() == AT_ONCE_NS
        self._is_in_place()

    def is_routed(self, route: Route, choice: Choice, before: Because) -> None:
        if choice.because is Because.SPILL:
            assert choice.upstream not in self.queue.where().get(route, {}), "told once"
            return
        assert self.told[route] != (choice.upstream, choice.because)
        assert before is self.told[route][1]
        self.told[route] = choice.upstream, choice.because

    def _is_told(self) -> None:
        """Check that the routes that were told are those by which mail goes."""
        for route, told in self.told.items():
            choice = self.queue.choice_of(route, self.now_ns)
            assert told == (choice.upstream, choice.because)

    def _is_in_place(self) -> None:
        """Check that every part stands where its route says, unless it may not move or is a probe."""
        probes = Counter[str]()
        for part in self.queue:
            route = part.part.route
            assert route is not None
            if part.state is State.ACTIVE:
                continue
            is_active = self.queue.state_of(part.queue_id) is State.ACTIVE
            assert is_active or route in self.routes[part.queue_id]
            fit = tuple(name for name in route.upstreams if name not in self.unfit[part])
            choice, route = part.choice, replace(route, upstreams=fit)
            assert part.upstream in fit
            if choice.because is Because.PROBE:
                probes[part.upstream] += 1
                assert self.states[part.upstream].is_proving
            elif choice.because is Because.SPILL:
                assert route.spill_after_ns is not None
                assert choice.instead_of == choose(route, self.states, self.now_ns).upstream
                assert self.states[part.upstream].is_usable
            else:
                assert part.upstream == choose(route, self.states, self.now_ns).upstream
                # Mail of a paused sender waits for the end of the pause, and does not spill.
                waits = part.state is State.WAITING and not part.is_sitting_out
                may_spill = waits and route.spill_after_ns is not None
                if may_spill and next_listed(route, part.upstream, self.states) is not None:
                    since_ns = max(part.ready_at_ns, part.stands_since_ns)
                    assert self.now_ns < since_ns + (route.spill_after_ns or 0)
        assert all(count == 1 for count in probes.values())

    @invariant()
    def nothing_is_lost_or_twice(self) -> None:
        assert len(list(self.queue)) == len(set(self.queue))
        assert Counter(part.queue_id for part in self.queue) == self.left
        assert len(self.queue) == len(self.left)
        waiting = sum(sums.messages for state in State for sums in self.queue.counts(state).values())
        assert waiting == len(self.left), "each message is counted once, in however many parts"
        counted = sum(sums.recipients for state in State for sums in self.queue.counts(state).values())
        assert counted == sum(part.recipients_left for part in self.queue)
        users = Counter("ann" if int(queue_id) % 3 else "" for queue_id in self.left)
        assert dict(self.queue.owners) == {(user, ""): count for user, count in users.items()}

    @invariant()
    def what_waited_for_an_upstream_that_was_down_is_no_age(self) -> None:
        for part in self.queue:
            paused_ns, either_paused_ns = self.queue.line_of(part).rests_of(part, self.now_ns)
            assert paused_ns == self.paused_ns[part] <= either_paused_ns

    @invariant()
    def what_is_under_way_stays(self) -> None:
        for part, name in self.active.items():
            if part.queue_id in self.left:
                assert part.state is State.ACTIVE
                assert part.upstream == name

    def teardown(self) -> None:
        """Let all mail go: no message is forgotten, and none waits for ever."""
        for name in NAMES:
            self.queue.set_availability(name, Availability())
        for part in self.active:
            self.queue.line_of(part).give_back(part, NO_REASON)
        for queue_id in self.queue.ids():
            self._is_released(queue_id)
        for _ in range(500):
            settle(self.queue, self.now_ns)
            looks_ns = [self.queue.next_look_ns()]
            for name in NAMES:
                line = self.queue.line(name)
                for part in line.take(3, self.now_ns):
                    line.granted(part, 1)
                    self.queue.end_part(part)
                looks_ns.append(self.now_ns if line.first(self.now_ns) else line.next_look_ns())
            self.now_ns = max(self.now_ns, min((each for each in looks_ns if each is not None), default=0))
        assert len(self.queue) == 0
        assert [self.queue.line(name).next_look_ns() for name in NAMES] == [None] * 3


AnyQueue.TestCase.settings = settings(max_examples=max(50, settings().max_examples), stateful_step_count=50)
TestAnyQueue = AnyQueue.TestCase


def settle(queue: Queues, now_ns: int) -> None:
    while (at_ns := queue.next_look_ns()) is not None and at_ns <= now_ns:
        queue.move_on(now_ns)


DOWN, A_B = Availability(down_since_ns=0), Route(("a", "b"), 15)


def failed_over(*numbers: int, sender: str = "") -> Queues:
    """Return a queue whose mail goes by b, because a is down; each sender is a key."""
    queue = Queues(lambda part: [part.sender])
    queue.use(("a", "b"), (A_B,))
    queue.set_availability("a", DOWN)
    for number in numbers:
        queue.add(*message(number, Part(A_B), sender=sender), now_ns=20)
    return queue


def prove(queue: Queues, now_ns: int) -> None:
    queue.set_availability("a", DOWN._replace(is_proving=True))
    settle(queue, now_ns)


def test_a_long_queue_moves_in_slices_and_in_order() -> None:
    queue = Queues()
    queue.use(NAMES, ROUTES)
    for number in range(2500):
        queue.add(*message(number, Part(ROUTES[0])), now_ns=0)
    queue.set_availability("a", Availability(0))
    settle(queue, 0)
    assert (len(queue.line("a")), queue.next_look_ns()) == (2500, 15)
    queue.move_on(15)
    assert len(queue.line("b")) == 1000, "no look takes longer for a long queue"
    settle(queue, 15)
    order = [each.queue_id for each in queue.line("b").take(3000, 15)]
    assert (len(order), order) == (2500, sorted(order))


def test_a_part_that_an_upstream_can_never_take_fails_over_from_the_next_one_in_time() -> None:
    queue, route = Queues(), Route(NAMES, 15)
    queue.use(NAMES, (route,))
    queue.add(*message(1, Part(route)), now_ns=0)
    (part,) = queue.line("a").take(1, 0)
    assert queue.exclude_upstream(part, NO_REASON, 0)
    assert part.upstream == "b"
    queue.set_availability("b", DOWN)
    settle(queue, 0)
    assert queue.next_look_ns() == 15
    settle(queue, 15)
    assert part.upstream == "c"


def test_mail_without_a_route_counts_with_the_route_of_the_default_upstream() -> None:
    queue, route = Queues(), Route(("a",))
    queue.use(("a",), (route,))
    queue.add(*message(1, Part(route)), now_ns=0)
    queue.add(*message(2, Part()), now_ns=0)
    assert queue.where() == {route: {"a": 2}}


def test_the_oldest_message_of_a_lane_is_the_first_one_that_still_waits() -> None:
    queue, (part, other) = (
        Queues(),
        message(1, Part(ROUTES[0], frozenset([0])), Part(ROUTES[2], frozenset([1]))),
    )
    queue.use(NAMES, ROUTES)
    queue.add(part, other, now_ns=0)
    (later,) = message(2, Part(ROUTES[2]), at_ns=7)
    queue.add(later, now_ns=20)
    assert queue.line("c").take(1, 20) == [other]
    queue.remove(part.queue_id)
    assert [its.oldest_arrived_at_ns for its in queue.counts(State.WAITING).values()] == [7]


def test_a_refused_probe_returns_to_its_place_and_another_message_probes_next() -> None:
    queue, probed = failed_over(*range(4)), []
    for _ in range(3):
        prove(queue, 30)
        (probe,) = queue.line("a").take(9, 30)
        assert probe.choice.because is Because.PROBE
        probed.append(int(probe.queue_id))
        queue.line("a").give_back(probe, NO_REASON)
        queue.set_availability("a", DOWN)
        settle(queue, 30)
        assert not len(queue.line("a"))

    assert probed == [0, 1, 2]
    went = [int(each.queue_id) for each in queue.line("b").take(4, 40)]
    assert (sorted(went[:3]), went[3]) == ([0, 1, 2], 3)


@pytest.mark.parametrize("lost_by", ["deferred", "sender paused", "removed"])
def test_the_oldest_message_elsewhere_probes_if_the_first_candidate_proves_nothing(lost_by: str) -> None:
    queue = failed_over(1, 2, 3)
    line = queue.line("a")
    queue.add(*message(9, Part(Route(("a",))), sender="s@x"), now_ns=20)
    if lost_by == "sender paused":
        line.sender_pauses.begin("s@x", 20, "553 not yours")
    prove(queue, 30)
    for first in line.take(9, 30):
        if lost_by == "removed":
            queue.remove(first.queue_id)
        line.put_back(first, State.DEFERRED, due_at_ns=10**12)
    settle(queue, 40)
    assert queue.next_look_ns() == 30 + PROBE_SOUGHT_NS
    settle(queue, 30 + PROBE_SOUGHT_NS)
    (probe,) = line.take(9, 30 + PROBE_SOUGHT_NS)
    assert (int(probe.queue_id), probe.choice.because) == (1, Because.PROBE)
    line.give_back(probe, NO_REASON)
    settle(queue, 31 + PROBE_SOUGHT_NS)
    assert line.take(9, 31 + PROBE_SOUGHT_NS) == [probe], "one at a time"


@pytest.mark.parametrize("key", [None, ("lane", DEFAULT_LANE)])
def test_a_probe_without_room_goes_back_where_mail_goes(key: tuple[str, str] | None) -> None:
    queue = failed_over(1, 2)
    queue.line("a").arrange(Arrangement())
    prove(queue, 30)
    (probe,) = queue.line("a").take(9, 30)
    queue.line("a").wait([ThrottledMessage(probe, 10**12, key, WaitReason("no room"))])
    for now_ns in (30, 30 + PROBE_SOUGHT_NS):
        settle(queue, now_ns)
        assert [part.upstream for part in queue] == ["b", "b"]
    settle(queue, 10**12 + PROBE_SOUGHT_NS)
    assert len(queue.line("a").take(9, 10**12 + PROBE_SOUGHT_NS)) == 1


def test_a_probe_that_waits_for_a_key_gives_way_to_a_message_of_another_sender() -> None:
    queue = failed_over(1, 2)
    prove(queue, 30)
    (first,) = queue.line("a").take(9, 30)
    queue.line("a").wait([ThrottledMessage(first, 10**12, first.sender, WaitReason("no room"))])
    settle(queue, 30)
    assert first.upstream == "b"
    settle(queue, 30 + PROBE_SOUGHT_NS)
    (second,) = queue.line("a").take(9, 30 + PROBE_SOUGHT_NS)
    assert (first.sender, second.sender) == ("s1@x", "s2@x")
    assert second.choice.because is Because.PROBE


def test_a_probe_that_an_edit_divides_probes_with_one_of_its_parts() -> None:
    queue, other = failed_over(1), Route(("a", "b"), 16)
    prove(queue, 30)
    queue.use(("a", "b"), (A_B, other))
    queue.sort_anew(message(1, Part(A_B, frozenset([0])), Part(other, frozenset([1]))), 30)
    settle(queue, 30)
    assert [(part.upstream, part.choice.because) for part in queue] == [
        ("a", Because.PROBE),
        ("b", Because.FAILOVER),
    ]


def test_mail_that_an_edit_sorts_anew_does_not_spill_before_its_time() -> None:
    queue, old, new = Queues(), Route(("a", "b"), spill_after_ns=30), Route(("a", "b"), 15, spill_after_ns=30)
    queue.use(("a", "b"), (old,))
    queue.add(*message(1, Part(old), at_ns=1000), now_ns=1000)
    queue.use(("a", "b"), (new,))
    queue.sort_anew(message(1, Part(new), at_ns=1000), 1001)
    settle(queue, 1001)
    assert [part.upstream for part in queue] == ["a"]
    settle(queue, 1031)
    assert [part.upstream for part in queue] == ["b"]


def test_mail_of_a_paused_sender_does_not_probe_before_the_pause_ends() -> None:
    queue = failed_over(1, 2, 3, sender="s@x")
    until_ns = queue.line("a").sender_pauses.begin("s@x", 20, "553 not yours")
    prove(queue, 30)
    assert len(queue.line("a")) == 0
    queue.add(*message(4, Part(A_B), sender="s@x"), now_ns=until_ns)
    assert [part.choice.because for part in queue.line("a").take(9, until_ns)] == [Because.PROBE]


def test_a_move_to_another_upstream_forgets_refusals_and_the_senders_pause() -> None:
    queue = Queues()
    queue.use(("a", "b"), (A_B,))
    queue.add(*message(1, Part(A_B), sender="s@x"), now_ns=0)
    line = queue.line("a")
    (part,) = line.take(1, 0)
    line.sender_pauses.begin("s@x", 0, "553 not yours")
    part.tried, part.refusals = frozenset([0]), 2
    line.give_back(part, WaitReason("553 not yours"))
    assert line.take(1, 0) == []
    assert part.is_sitting_out
    queue.set_availability("a", Availability(0, pauses=((0, 99),)))
    settle(queue, 15)
    assert (part.upstream, part.why) == ("b", NO_REASON)
    assert (part.tried, part.refusals, part.paused_ns, part.either_paused_ns) == (frozenset([0]), 0, 15, 15)
