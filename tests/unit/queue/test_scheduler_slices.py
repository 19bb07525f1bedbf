"""A look at what goes next is cut into slices: none is long, and the order is that of a look in one go."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay.mail.envelope import QueueId
from relay.queue.lanes import DEFAULT_LANE, Lane, Price
from relay.queue.queued import NO_REASON, origin_of
from relay.queue.scheduler import SLICE, Queued, Scheduler, State
from relay.queue.sender_pauses import FIRST_REST_NS
from tests.unit.queue.test_counts import assert_counted

LANES: tuple[Lane, ...] = (Lane("a", 3), Lane("b", 1, patience_ns=20), Lane(DEFAULT_LANE, 1))
MANY = 10 * SLICE
IN_ONE_GO = 10**6
BAD = "bad@x.example"
senders = st.sampled_from([BAD, "y@x.example", "z@x.example"])
lanes = st.sampled_from(["a", "b", DEFAULT_LANE])


def a_message(number: int, sender: str = BAD, lane: str = DEFAULT_LANE, due_at_ns: int = 0) -> Queued:
    state = State.DEFERRED if due_at_ns else State.WAITING
    name = QueueId(f"{number:016d}")
    return Queued(name, origin_of(sender, lane=lane), 100, 0, 1, state=state, due_at_ns=due_at_ns)


def a_queue(*, due_at_ns: int = 0) -> Scheduler:
    queue = Scheduler()
    for number in range(MANY):
        queue.add(a_message(number, due_at_ns=due_at_ns))
    return queue


def count_of(queue: Scheduler, state: State) -> int:
    return sum(queued.state is state for queued in queue)


def slices_of(queue: Scheduler, now_ns: int, state: State) -> list[int]:
    """Look until it is known who is next; return how many came into a state with each look."""
    lengths, before = [], count_of(queue, state)
    while True:
        found = queue.first_ready(now_ns)
        after = count_of(queue, state)
        lengths.append(after - before)
        before = after
        if not queue.is_behind:
            return lengths
        assert found is None
        assert queue.next_due_at_ns() == 0


def test_no_look_is_long_when_all_back_offs_end_at_once() -> None:
    lengths = slices_of(a_queue(due_at_ns=100), 100, State.WAITING)
    assert sum(lengths) == MANY
    assert max(lengths) <= SLICE


class Slices(RuleBasedStateMachine):
    """To a queue that looks in slices happens what happens to one that looks in one go.

    Mail comes, goes and is operated on also between two slices, unless a sender rests.  What changes who
    may go (a rest, a place, the time) comes before a look or after it, as it does for the other one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sliced, self.whole = Scheduler(slice_of=2), Scheduler(slice_of=IN_ONE_GO)
        self.queues = (self.sliced, self.whole)
        self.now_ns = 1
        self.count = 0
        self.active: list[QueueId] = []

    def is_level(self) -> bool:
        return not self.sliced.is_behind

    def may_meddle(self) -> bool:
        # Of a resting sender's mail so much is passed over as stands before who goes next.  So what goes
        # ahead of it between two slices leaves some in its place that the other queue passed over.
        return self.is_level() or not self.whole.sender_pauses.senders()

    @precondition(may_meddle)
    @rule(sender=senders, lane=lanes, wait_ns=st.sampled_from([0, 5, 50]), many=st.integers(1, 5))
    def come(self, sender: str, lane: str, wait_ns: int, many: int) -> None:
        due_at_ns = self.now_ns + wait_ns if wait_ns else 0
        for _ in range(many):
            self.count += 1
            for queue in self.queues:
                queue.add(a_message(self.count, sender, lane, due_at_ns))

    @rule()
    def look(self) -> None:
        self.whole.first_ready(self.now_ns)
        self.sliced.first_ready(self.now_ns)

    @precondition(is_level)
    @rule(span_ns=st.sampled_from([7, FIRST_REST_NS]))
    def time_passes(self, span_ns: int) -> None:
        self.now_ns += span_ns
        self.look()

    @rule()
    def take(self) -> None:
        expected = self.whole.next_ready(self.now_ns)
        while (queued := self.sliced.next_ready(self.now_ns)) is None and self.sliced.is_behind:
            assert self.sliced.next_due_at_ns() == 0
        assert (queued and queued.queue_id) == (expected and expected.queue_id)
        if queued is not None:
            self.active.append(queued.queue_id)

    @precondition(lambda self: self.active and self.may_meddle())
    @rule(end=st.sampled_from(["give back", "again", "postpone", "remove", "park"]))
    def end(self, end: str) -> None:
        queue_id = self.active.pop(0)
        for queue in self.queues:
            match end:
                case "give back":
                    queue.give_back(queue_id, NO_REASON)
                case "again":
                    queue.again(queue_id, 1, NO_REASON)
                case "postpone":
                    queue.postpone(queue_id, self.now_ns + 5, 1, NO_REASON)
                case "park":
                    queue.park(queue_id, f"place {int(queue_id) % 2}", self.now_ns + 5, NO_REASON)
                case _:
                    queue.remove(queue_id)

    @precondition(may_meddle)
    @rule(number=st.integers(0, 30), verb=st.sampled_from(["hold", "release", "remove"]))
    def operate(self, number: int, verb: str) -> None:
        idle = [queued.queue_id for queued in self.whole if queued.queue_id not in self.active]
        both = [queue.get(idle[number % len(idle)]) for queue in self.queues if idle]
        # One that is due and not moved yet may be released: then it goes behind the others that are due.
        if len({queued.state for queued in both if queued is not None}) == 1:
            for queue in self.queues:
                getattr(queue, verb)(idle[number % len(idle)])

    @precondition(may_meddle)
    @rule(number=st.integers(0, 30), verbs=st.sampled_from([("hold", "release"), ("add",)]))
    def operate_at_once(self, number: int, verbs: tuple[str, ...]) -> None:
        """Move a message that waits to the end of the line, between two slices perhaps."""
        idle = [queued.queue_id for queued in self.whole if queued.state is State.WAITING]
        both = [queue.get(idle[number % len(idle)]) for queue in self.queues if idle]
        if all(queued and queued.state is State.WAITING for queued in both):
            for queue, queued in zip(self.queues, both, strict=False):
                assert queued is not None
                for verb in verbs:
                    getattr(queue, verb)(queued if verb == "add" else queued.queue_id)

    @precondition(is_level)
    @rule(number=st.integers(0, 30), is_trusted=st.booleans())
    def operate_slowly(self, number: int, *, is_trusted: bool) -> None:
        """Have an operator's verb on a message fail, after a while: it comes back as it was."""
        idle = [queued for queued in self.whole if queued.queue_id not in self.active]
        for queue in self.queues if idle else ():
            queued = queue.get(idle[number % len(idle)].queue_id)
            assert queued is not None
            before = queue.seize(queued.queue_id)
            if is_trusted:
                queue.trust_sender(queued.sender, self.now_ns)
            while queue.first_ready(self.now_ns) is None and queue.is_behind:
                pass
            assert before is not None
            queue.put_back(queued.queue_id, before)

    @precondition(is_level)
    @rule(sender=senders)
    def rest(self, sender: str) -> None:
        for queue in self.queues:
            queue.sender_pauses.begin(sender, self.now_ns, "553 not yours")

    @precondition(is_level)
    @rule(sender=senders)
    def trust(self, sender: str) -> None:
        for queue in self.queues:
            queue.trust_sender(sender, self.now_ns)

    @precondition(is_level)
    @rule(room=st.integers(0, 3))
    def ask_places(self, room: int) -> None:
        for queue in self.queues:
            for place in queue.places_due(self.now_ns):
                queue.let_leave(place, room, self.now_ns + 9)

    @precondition(is_level)
    @rule(edit=st.sampled_from([(), LANES]))
    def edit(self, edit: tuple[Lane, ...]) -> None:
        for queue in self.queues:
            queue.arrange(edit, Price(), 100)

    @precondition(is_level)
    @invariant()
    def each_message_stands_as_in_the_other_one(self) -> None:
        def seen(queue: Scheduler) -> list[tuple[object, ...]]:
            return [(q.queue_id, q.state, q.due_at_ns, q.ready_at_ns, q.place, q.turn) for q in queue]

        assert seen(self.sliced) == seen(self.whole)

    @invariant()
    def all_are_counted(self) -> None:
        for queue in self.queues:
            assert_counted(queue)


TestSlices = Slices.TestCase
TestSlices.settings = settings(stateful_step_count=40)


EDITS = st.tuples(st.sampled_from([(), LANES[::2], LANES]), st.sampled_from([Price(), Price(5), Price(1, 2)]))


def drained(queue: Scheduler, now_ns: int) -> list[Queued]:
    """Return all that may go, in order, of a copy."""
    copied = copy.deepcopy(queue)
    gone: list[Queued] = []
    while True:
        for place in copied.places_due(10**18):
            copied.let_leave(place, 1000, 0)
        if (queued := copied.next_ready(now_ns)) is not None:
            gone.append(queued)
        elif not copied.is_behind:
            return gone


@given(st.lists(st.tuples(senders, lanes), max_size=20), EDITS, EDITS, st.integers(0, 5))
def test_an_edit_in_slices_is_the_edit_in_one_go(
    came: list[tuple[str, str]],
    before: tuple[tuple[Lane, ...], Price],
    after: tuple[tuple[Lane, ...], Price],
    taken: int,
) -> None:
    queues = []
    for slice_of in (2, IN_ONE_GO):
        queue = Scheduler(slice_of=slice_of)
        queue.arrange(*before, 100)
        for number, (sender, lane) in enumerate(came):
            queue.add(a_message(number, sender, lane))
        for queued in [queue.next_ready(0) for _ in range(taken)]:
            if queued is not None:
                queue.give_back(queued.queue_id, NO_REASON)
        queue.arrange(*after, 100)
        queues.append([queued.queue_id for queued in drained(queue, 0)])
    assert queues[0] == queues[1]


@given(st.integers(0, 12), st.lists(st.integers(0, 7), max_size=3, unique=True))
def test_what_is_released_in_an_edit_goes_last(steps: int, released: list[int]) -> None:
    queue = Scheduler(slice_of=1)
    for number in range(8):
        queue.add(a_message(number, BAD, "a"))
    assert queue.first_ready(5) is not None or queue.is_behind
    while queue.is_behind:
        queue.first_ready(5)
    queue.arrange(LANES, Price(), 100)
    for _ in range(steps):
        queue.first_ready(5)
    for number in released:
        queue.hold(QueueId(f"{number:016d}"))
        queue.release(QueueId(f"{number:016d}"))

    twin = queue.twin([copy.copy(queued) for queued in queue])

    expected = [*(number for number in range(8) if number not in released), *released]
    assert [int(queued.queue_id) for queued in drained(twin, 5)] == expected
    assert [int(queued.queue_id) for queued in drained(queue, 5)] == expected


def test_an_edit_of_lanes_keeps_no_sender_waiting_for_proof() -> None:
    """A message in hand was to prove that its sender's pause is over; then it is given back."""
    queue, over_ns = Scheduler(), FIRST_REST_NS + 1
    for number in range(3):
        queue.add(a_message(number, BAD, "a"))
    queue.sender_pauses.begin(BAD, 0, "refused")
    taken = queue.next_ready(over_ns)
    assert taken is not None
    queue.arrange(LANES, Price(), 100)

    queue.give_back(taken.queue_id, NO_REASON)

    while queue.is_behind:
        queue.first_ready(over_ns)
    assert queue.first_ready(over_ns) is taken
