"""An edit of the lanes in slices: whatever happens in between, nothing leaves the order or is there twice."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay.mail.envelope import QueueId
from relay.queue import scheduler as scheduler_module
from relay.queue.lanes import DEFAULT_LANE, Lane, Price
from relay.queue.queued import NO_REASON, origin_of
from relay.queue.scheduler import SLICE, Queued, Scheduler, State
from relay.queue.sender_pauses import FIRST_REST_NS

NONE: tuple[Lane, ...] = ()
TWO = (Lane("a", 3), Lane(DEFAULT_LANE, 1))
THREE = (Lane("a", 1), Lane("b", 2, patience_ns=50), Lane(DEFAULT_LANE, 1))
edits = st.tuples(st.sampled_from([NONE, TWO, THREE]), st.sampled_from([Price(), Price(5), Price(1, 2)]))
names = st.sampled_from(["a", "b", DEFAULT_LANE])
senders = st.sampled_from(["x@a.example", "y@a.example", "z@a.example"])


def a_message(number: int, sender: str, lane: str) -> Queued:
    return Queued(QueueId(f"{number:016d}"), origin_of(sender, lane=lane), 100, 0, 1)


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


class Edits(RuleBasedStateMachine):
    """A queue that is edited, and moves slice by slice, while all else goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(scheduler_module, "SLICE", 2)
        self.queue = Scheduler()
        self.now_ns = 0
        self.count = 0
        self.calm: list[QueueId] = []
        """Nothing happened to those since they came, in that order."""
        self.active: list[QueueId] = []

    def teardown(self) -> None:
        self.patch.undo()

    @rule(sender=senders, lane=names)
    def come(self, sender: str, lane: str) -> None:
        self.count += 1
        message = a_message(self.count, sender, lane)
        self.queue.add(message)
        self.calm.append(message.queue_id)

    @rule()
    def take(self) -> None:
        if (queued := self.queue.next_ready(self.now_ns)) is not None:
            assert queued.queue_id not in self.active
            self.active.append(queued.queue_id)
            self.touch(queued.queue_id)

    @precondition(lambda self: self.active)
    @rule(end=st.sampled_from(["give back", "again", "postpone", "remove", "park"]))
    def end(self, end: str) -> None:
        queue_id = self.active.pop(0)
        match end:
            case "give back":
                self.queue.give_back(queue_id, NO_REASON)
            case "again":
                self.queue.again(queue_id, 1, NO_REASON)
            case "postpone":
                self.queue.postpone(queue_id, self.now_ns + 5, 1, NO_REASON)
            case "park":
                self.queue.park(queue_id, f"place {int(queue_id) % 3}", 10**18, NO_REASON)
            case _:
                self.queue.remove(queue_id)

    @rule(number=st.integers(0, 30), verb=st.sampled_from(["hold", "release", "move", "remove"]), lane=names)
    def operate(self, number: int, verb: str, lane: str) -> None:
        idle = [queued.queue_id for queued in self.queue if queued.state is not State.ACTIVE]
        if not idle:
            return
        queue_id = idle[number % len(idle)]
        self.touch(queue_id)
        if verb == "move":
            self.queue.move(queue_id, lane)
        else:
            getattr(self.queue, verb)(queue_id)

    @rule()
    def time_passes(self) -> None:
        self.now_ns += 7

    @rule(edit=edits)
    def edit(self, edit: tuple[tuple[Lane, ...], Price]) -> None:
        """Edit the lanes, perhaps while not all have moved by the edit before."""
        self.queue.arrange(*edit, 100)
        assert [lane.name for lane in edit[0]] == (
            [lane.name for lane in self.queue._order.lanes] if self.queue._has_lanes else []
        )

    def touch(self, queue_id: QueueId) -> None:
        if queue_id in self.calm:
            self.calm.remove(queue_id)

    @invariant()
    def all_that_wait_are_in_the_order_once(self) -> None:
        waiting = sorted(queued.queue_id for queued in self.queue if queued.state is State.WAITING)
        assert all(q.state is State.WAITING for q in self.queue if q.queue_id in self.queue._order)
        assert len(self.queue._order) <= len(waiting)
        due = [q.queue_id for q in self.queue if q.state is State.DEFERRED and q.due_at_ns <= self.now_ns]
        assert sorted(queued.queue_id for queued in drained(self.queue, self.now_ns)) == sorted(waiting + due)

    @invariant()
    def those_of_one_sender_in_one_lane_keep_their_order(self) -> None:
        lines: dict[tuple[str, str], list[QueueId]] = {}
        for queued in drained(self.queue, self.now_ns):
            if queued.queue_id in self.calm:
                home = self.queue.lane_of(queued)
                lines.setdefault((queued.reverse_path, home), []).append(queued.queue_id)
        for line in lines.values():
            assert line == sorted(line)


TestEdits = Edits.TestCase
TestEdits.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(senders, names), max_size=20), edits, edits, st.integers(0, 5))
def test_an_edit_in_slices_is_the_edit_in_one_go(
    came: list[tuple[str, str]],
    before: tuple[tuple[Lane, ...], Price],
    after: tuple[tuple[Lane, ...], Price],
    taken: int,
) -> None:
    queues = []
    for slice_of in (2, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler_module, "SLICE", slice_of)
            queue = Scheduler()
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_module, "SLICE", 1)
        queue = Scheduler()
        for number in range(8):
            queue.add(a_message(number, "x@a.example", "a"))
        assert queue.first_ready(5) is not None or queue.is_behind
        while queue.is_behind:
            queue.first_ready(5)
        queue.arrange(TWO, Price(), 100)
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
        queue.add(a_message(number, "x@a.example", "a"))
    queue.sender_pauses.begin("x@a.example", 0, "refused")
    taken = queue.next_ready(over_ns)
    assert taken is not None
    queue.arrange(TWO, Price(), 100)

    queue.give_back(taken.queue_id, NO_REASON)

    while queue.is_behind:
        queue.first_ready(over_ns)
    assert queue.first_ready(over_ns) is taken


def test_no_slice_is_longer_than_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Scheduler()
    for number in range(10 * SLICE):
        queue.add(a_message(number, f"{number % 7}@a.example", "a"))
    assert queue.next_ready(0) is not None

    queue.arrange(TWO, Price(), 100)

    lengths, counted = [], _counting(queue, monkeypatch)
    while queue.first_ready(0) is None:
        assert queue.is_behind
        lengths.append(counted[0])
        counted[0] = 0
    assert sum(lengths) + counted[0] == 10 * SLICE - 1
    assert max(*lengths, counted[0]) <= SLICE
    assert len(lengths) >= 9


def _counting(queue: Scheduler, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how many messages were lined up."""
    counted = [0]
    line_up = queue._line_up_now

    def line_up_and_count(message: Queued) -> None:
        counted[0] += 1
        line_up(message)

    monkeypatch.setattr(queue, "_line_up_now", line_up_and_count)
    return counted
