"""The order of what is ready: its laws on any weights, and against a model that searches lists anew."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay.mail.envelope import QueueId
from relay.queue.lane_queue import LaneQueue
from relay.queue.lanes import DEFAULT_LANE, Arrangement, Lane, Price, turn_of
from relay.queue.queued import Queued, origin_of

WEIGHTS = st.lists(st.integers(1, 100), min_size=1, max_size=8)
BY_RECIPIENTS = Price(0, 1)


def a_message(name: str, lane: str = DEFAULT_LANE, sender: str = "s@x.example", since_ns: int = 0) -> Queued:
    return Queued(QueueId(name), origin_of(sender, lane=lane), 1, since_ns, 1)


def a_queue(*weights: int, patience_ns: int | None = None) -> LaneQueue:
    names = [DEFAULT_LANE, *"abcdefgh"]
    lanes = [Lane(name, weight, patience_ns) for name, weight in zip(names, weights, strict=False)]
    return LaneQueue(Arrangement(lanes, BY_RECIPIENTS, 100))


def fill(queue: LaneQueue, lane: str, count: int, sender: str = "s@x.example") -> None:
    for number in range(count):
        queue.add(a_message(f"{lane}{sender}{len(queue)}.{number}", lane, sender))


def take(queue: LaneQueue, count: int, now_ns: int = 0) -> list[Queued]:
    taken: list[Queued] = []
    while len(taken) < count and (turn := queue.next(now_ns)) is not None:
        queue.take(turn)
        taken.append(turn.message)
    return taken


def lanes_of(messages: list[Queued]) -> list[str]:
    return [each.lane for each in messages]


@given(WEIGHTS, st.integers(1, 400))
def test_each_lane_has_its_share_within_one_message(weights: list[int], count: int) -> None:
    queue = a_queue(*weights)
    names = [DEFAULT_LANE, *"abcdefgh"][: len(weights)]
    for name in names:
        fill(queue, name, count)

    went = lanes_of(take(queue, count))

    served = {name: went.count(name) for name in names}
    of_weight = dict(zip(names, weights, strict=True))
    for name in names:
        assert served[name] <= Fraction(count * of_weight[name], sum(weights)) + 1
        for other in names:
            # Counted in shares, nobody is behind anybody by more than one message of the other.
            ahead = Fraction(served[other], of_weight[other]) - Fraction(served[name], of_weight[name])
            assert ahead <= Fraction(1, of_weight[other])


def test_an_idle_lane_saves_nothing() -> None:
    queue = a_queue(50, 50)
    fill(queue, DEFAULT_LANE, 300)
    take(queue, 100)
    fill(queue, "a", 100)

    went = lanes_of(take(queue, 100))

    assert [went[number : number + 2].count("a") for number in range(0, 100, 2)] == [1] * 50


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_senders_of_a_lane_take_turns(counts: list[int]) -> None:
    queue = a_queue(1)
    names = [[f"{sender}.{n:02d}" for n in range(count)] for sender, count in enumerate(counts)]
    for sender, its in enumerate(names):
        for name in its:
            queue.add(a_message(name, sender=f"{sender}@x.example"))

    went = [each.queue_id for each in take(queue, sum(counts))]

    rounds = [[its[turn] for its in names if turn < len(its)] for turn in range(max(counts))]
    assert went == [name for each in rounds for name in each]


def test_without_lanes_first_come_is_first_served_whoever_it_is_from() -> None:
    queue = LaneQueue()
    for number, sender in enumerate("aaab"):
        queue.add(a_message(str(number), sender=f"{sender}@x.example"))

    assert [each.queue_id for each in take(queue, 5)] == ["0", "1", "2", "3"]


def test_overdue_mail_gets_half_of_what_goes_oldest_first() -> None:
    lanes = [Lane("a", 99), Lane("b", 1, patience_ns=10), Lane(DEFAULT_LANE, 1)]
    queue = LaneQueue(Arrangement(lanes, BY_RECIPIENTS, 100))
    fill(queue, "a", 100)
    for number in range(50):
        queue.add(a_message(f"b{number}", "b", f"{number}@x.example", number))
    take(queue, 1, now_ns=1000)

    went = [each.queue_id for each in take(queue, 40, 1000)]

    late = [name for name in went if name[0] == "b"]
    assert late == [f"b{number}" for number in range(len(late))]
    assert 19 <= len(late) <= 21
    queue.add(a_message("reset", sender="r@x.example", since_ns=1000))
    assert [each.queue_id for each in take(queue, 1, 1000)] == ["reset"]


@given(WEIGHTS, st.data())
def test_what_was_not_attempted_cost_its_lane_nothing(weights: list[int], data: st.DataObject) -> None:
    tried, untried = a_queue(*weights), a_queue(*weights)
    for queue in (tried, untried):
        for name in [DEFAULT_LANE, *"abcdefgh"][: len(weights)]:
            fill(queue, name, 40)
    before = data.draw(st.integers(0, 20))
    for queue in (tried, untried):
        for each in take(queue, before):
            queue.granted(each, 1)

    for _ in range(3):
        for message in reversed(take(tried, data.draw(st.integers(0, 6)))):
            tried.refund(message)
            tried.add(message, is_in_front=True, is_next=True)

    expected = [each.queue_id for each in take(untried, 400)]
    assert [each.queue_id for each in take(tried, 400)] == expected


def test_a_closed_lane_keeps_back_no_other() -> None:
    queue = a_queue(10, 90)
    fill(queue, DEFAULT_LANE, 30)
    fill(queue, "a", 30)
    queue.close("a", 9)

    assert lanes_of(take(queue, 20)) == [DEFAULT_LANE] * 20
    assert (queue.opens_ns(8), queue.opens_ns(9)) == (9, None)
    assert lanes_of(take(queue, 20, 9)).count("a") >= 17


def test_what_is_put_first_goes_before_all_lanes_until_it_is_granted() -> None:
    queue = a_queue(90, 10)
    fill(queue, DEFAULT_LANE, 9)
    wanted = a_message("wanted", "a")
    fill(queue, "a", 3)
    queue.add(wanted)
    queue.firsts[wanted] = None
    for _ in range(2):
        assert take(queue, 1) == [wanted]
        queue.refund(wanted)
        queue.add(wanted)
    assert take(queue, 1) == [wanted]
    queue.granted(wanted, 1)
    queue.add(wanted)
    assert take(queue, 1) != [wanted]


def test_mail_that_leaves_otherwise_than_by_its_turn_leaves_nothing_behind() -> None:
    queue = a_queue(1)
    messages = [a_message(f"{number:05d}") for number in range(5000)]
    for message in messages:
        queue.add(message)
    for message in messages[1:]:
        queue.remove(message)
    assert take(queue, 9) == messages[:1]


@pytest.mark.parametrize(
    ("reverse_path", "turn"),
    [
        ("Alice@Here.example", "alice@here.example"),
        ("list+bob=there.example@here.example", "list@here.example"),
        ("list-return-7-bob=there.example@here.example", "list-return-7@here.example"),
        ("prvs=0123abcdef=alice@here.example", "alice@here.example"),
        ("+@here.example", "+@here.example"),
        ('"\\a"@X.example', "a@x.example"),
        ("", ""),
    ],
)
def test_a_sender_that_names_each_recipient_is_one_sender(reverse_path: str, turn: str) -> None:
    assert turn_of(reverse_path) == turn


class Model:
    """One lane of the model: lists, searched anew."""

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.tag = Fraction(0)
        self.ring: list[tuple[str, list[Queued]]] = []
        self.is_closed = False

    def all(self) -> list[Queued]:
        return [name for _, its in self.ring for name in its]

    def put(self, message: Queued, *, is_in_front: bool = False, is_next: bool = False) -> None:
        sender = message.reverse_path
        if sender not in [each for each, _ in self.ring]:
            self.ring.append((sender, []))
        at = next(place for place, (each, _) in enumerate(self.ring) if each == sender)
        self.ring[at][1].insert(0 if is_in_front else len(self.ring[at][1]), message)
        if is_next:
            self.ring.insert(0, self.ring.pop(at))

    def drop(self, message: Queued, *, turns: bool = False) -> None:
        for place, (sender, its) in enumerate(self.ring):
            if message in its:
                its.remove(message)
                if turns or not its:
                    del self.ring[place]
                if turns and its:
                    self.ring.append((sender, its))
                return


class AnyOrder(RuleBasedStateMachine):
    """Whatever is added, taken, given back, removed and closed: the order is that of the model."""

    WEIGHTS = (("a", 50), ("b", 20), (DEFAULT_LANE, 30))
    PATIENCE_NS = 40

    def __init__(self) -> None:
        super().__init__()
        lanes = [Lane(name, weight, self.PATIENCE_NS) for name, weight in self.WEIGHTS]
        self.queue = LaneQueue(Arrangement(lanes, BY_RECIPIENTS, 100))
        self.lanes = {name: Model(weight) for name, weight in self.WEIGHTS}
        self.late = Model(100)
        self.entered: dict[Queued, int] = {}
        self.taken: list[tuple[Queued, Model, Model, int, Fraction, Fraction]] = []
        self.tag = Fraction(0)
        self.now_ns = self.count = 0

    def model_of(self, message: Queued) -> Model:
        return self.lanes.get(message.lane, self.lanes[DEFAULT_LANE])

    @rule(
        lane=st.sampled_from(["a", "b", DEFAULT_LANE, "gone"]),
        sender=st.sampled_from("xyz"),
        is_in_front=st.booleans(),
        recipients=st.integers(1, 5),
    )
    def comes(self, lane: str, sender: str, recipients: int, *, is_in_front: bool) -> None:
        self.count += 1
        message = a_message(f"{self.count:03d}", lane, sender, self.now_ns)
        message.recipients_left = recipients
        self.queue.add(message, is_in_front=is_in_front)
        self.entered[message] = self.count
        self.model_of(message).put(message, is_in_front=is_in_front)

    @rule(span_ns=st.integers(1, 30))
    def passes(self, span_ns: int) -> None:
        self.now_ns += span_ns

    @rule()
    def goes(self) -> None:
        expected, turn = self._expected(), self.queue.next(self.now_ns)
        assert (turn.message if turn else None) is (expected[0] if expected else None)
        if expected is None or turn is None:
            return
        self.queue.take(turn)
        message, model, flow = expected
        cost = message.recipients_left
        # The lines that turn are those of senders: one that had its turn goes to the end.
        model.drop(message, turns=flow is model)
        before, self.tag = self.tag, max(flow.tag, self.tag)
        flow.tag = self.tag + Fraction(cost, flow.weight)
        self.taken.append((message, model, flow, cost, before, self.tag))

    @precondition(lambda self: self.taken)
    @rule(cost=st.integers(1, 5))
    def has_gone(self, cost: int) -> None:
        message, _, flow, before, _, _ = self.taken.pop()
        self.queue.granted(message, cost)
        self.queue.refund(message)
        flow.tag += Fraction(cost - before, flow.weight)

    @precondition(lambda self: self.taken)
    @rule()
    def is_given_back(self) -> None:
        message, model, flow, cost, before, tag = self.taken.pop()
        self.queue.refund(message)
        self.queue.add(message, is_in_front=True, is_next=True)
        model.put(message, is_in_front=True, is_next=True)
        flow.tag -= Fraction(cost, flow.weight)
        self.tag = before if self.tag == tag else self.tag

    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        ready = sorted(
            (each for model in self.lanes.values() for each in model.all()), key=lambda q: q.queue_id
        )
        if ready:
            message = data.draw(st.sampled_from(ready))
            self.queue.remove(message)
            for model in self.lanes.values():
                model.drop(message)

    @rule(lane=st.sampled_from(["a", "b"]), is_closed=st.booleans())
    def closes(self, lane: str, *, is_closed: bool) -> None:
        self.queue.close(lane, 10**9 if is_closed else 0)
        self.lanes[lane].is_closed = is_closed

    def _expected(self) -> tuple[Queued, Model, Model] | None:
        """Return what goes next, its lane, and what is charged."""
        able = [model for model in self.lanes.values() if model.all() and not model.is_closed]
        if not able:
            return None
        model = min(able, key=lambda each: max(each.tag, self.tag))
        if max(self.late.tag, self.tag) < max(model.tag, self.tag):
            oldest = [(min(each.all(), key=lambda q: (q.since_ns, self.entered[q])), each) for each in able]
            message, of = min(oldest, key=lambda each: each[0].since_ns)
            if message.since_ns + self.PATIENCE_NS <= self.now_ns:
                return message, of, self.late
        return model.ring[0][1][0], model, model

    @invariant()
    def nobody_is_forgotten(self) -> None:
        ready = [each for model in self.lanes.values() for each in model.all()]
        assert len(self.queue) == len(ready)
        assert set(self.queue) == set(ready)


TestAnyOrder = AnyOrder.TestCase
