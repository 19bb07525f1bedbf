"""The order of what is ready: its laws on any weights, and against a model that searches lists anew."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay.mail.envelope import QueueId
from relay.queue.lanes import DEFAULT_LANE, Lane, Order, turn_of

WEIGHTS = st.lists(st.integers(1, 100), min_size=1, max_size=8)


def _order(*weights: int, patience_ns: int | None = None) -> Order:
    names = [DEFAULT_LANE, *"abcdefgh"]
    return Order([Lane(name, w, patience_ns) for name, w in zip(names, weights, strict=False)])


def _fill(order: Order, lane: str, count: int, sender: str = "s@x.example", since_ns: int = 0) -> None:
    for number in range(count):
        order.add(QueueId(f"{lane}{sender}{len(order)}.{number}"), lane, sender, since_ns)


def _take(order: Order, count: int, now_ns: int = 0) -> list[str]:
    """Take so many, and return the lane of each by the first letter of its name."""
    taken = [order.take(now_ns, 1) for _ in range(count)]
    return [each[0] if each[:7] != DEFAULT_LANE else DEFAULT_LANE for each in taken if each is not None]


def _rest_of(order: Order, now_ns: int = 0) -> list[QueueId]:
    """Take all that may go."""
    taken: list[QueueId] = []
    while (name := order.take(now_ns, 1 + len(taken) % 3)) is not None:
        taken.append(name)
    return taken


@given(WEIGHTS, st.integers(1, 400))
def test_each_lane_has_its_share_within_one_message(weights: list[int], count: int) -> None:
    order = _order(*weights)
    names = [lane.name for lane in order.lanes]
    for name in names:
        _fill(order, name, count)

    went = _take(order, count)

    served = {name: went.count(name) for name in names}
    of_weight = dict(zip(names, weights, strict=True))
    for name in names:
        assert served[name] <= Fraction(count * of_weight[name], sum(weights)) + 1
        for other in names:
            # Counted in shares, nobody is behind anybody by more than one message of the other.
            ahead = Fraction(served[other], of_weight[other]) - Fraction(served[name], of_weight[name])
            assert ahead <= Fraction(1, of_weight[other])


def test_an_idle_lane_saves_nothing() -> None:
    order = _order(50, 50)
    _fill(order, DEFAULT_LANE, 300)
    _take(order, 100)
    _fill(order, "a", 100)

    went = _take(order, 100)

    assert 49 <= went.count("a") <= 51
    assert [went[number : number + 2].count("a") for number in range(0, 100, 2)] == [1] * 50


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_senders_of_a_lane_take_turns(counts: list[int]) -> None:
    order = _order(1)
    names = [[QueueId(f"{sender}.{n:02d}") for n in range(count)] for sender, count in enumerate(counts)]
    for sender, its in enumerate(names):
        for name in its:
            order.add(name, DEFAULT_LANE, f"{sender}@x.example", 0)

    went = [order.take(0, 1) for _ in range(sum(counts))]

    rounds = [[its[turn] for its in names if turn < len(its)] for turn in range(max(counts))]
    assert went == [name for each in rounds for name in each]


def test_without_lanes_first_come_is_first_served_whoever_it_is_from() -> None:
    order = Order()
    for number, sender in enumerate("aaab"):
        order.add(QueueId(str(number)), DEFAULT_LANE, f"{sender}@x.example", 0)

    assert [order.take(0, 1) for _ in range(5)] == ["0", "1", "2", "3", None]


def test_overdue_mail_gets_half_of_what_goes_oldest_first() -> None:
    order = Order([Lane("a", 99), Lane("b", 1, patience_ns=10), Lane(DEFAULT_LANE, 1)])
    _fill(order, "a", 100)
    for number in range(50):
        order.add(QueueId(f"b{number}"), "b", f"{number}@x.example", number)
    _take(order, 1, now_ns=1000)

    went = [order.take(1000, 1) or "" for _ in range(40)]

    late = [name for name in went if name[0] == "b"]
    assert late == [f"b{number}" for number in range(len(late))]
    assert 19 <= len(late) <= 21
    order.add(QueueId("reset"), DEFAULT_LANE, "r@x.example", 1000)
    assert order.take(1000, 1) == "reset"


def test_a_lane_at_its_ceiling_keeps_back_no_other_lane() -> None:
    order = _order(10, 90)
    _fill(order, DEFAULT_LANE, 100)
    _fill(order, "a", 100)
    order.let("a", 0)

    assert _take(order, 20) == [DEFAULT_LANE] * 20
    assert order.most({DEFAULT_LANE: 3, "a": 3}) == 83
    order.let("a", 3)
    assert _take(order, 4).count("a") == 3
    order.let("a", None)
    assert _take(order, 20).count("a") >= 17


@given(WEIGHTS, st.data())
def test_what_was_not_attempted_cost_its_lane_nothing(weights: list[int], data: st.DataObject) -> None:
    order = _order(*weights)
    for lane in order.lanes:
        _fill(order, lane.name, 40)
    _take(order, data.draw(st.integers(0, 20)))
    expected = _rest_of(order.copy())

    tried: list[tuple[QueueId, str]] = []
    for _ in range(data.draw(st.integers(0, 6))):
        queue_id = order.take(0, 1)
        assert queue_id is not None
        tried.append((queue_id, DEFAULT_LANE if queue_id.startswith(DEFAULT_LANE) else queue_id[0]))
    for queue_id, name in reversed(tried):
        order.refund(queue_id)
        order.add_ahead(queue_id, name, 0)

    assert _rest_of(order) == expected


@pytest.mark.parametrize(
    ("reverse_path", "turn"),
    [
        ("Alice@Here.example", "alice@here.example"),
        ("list+bob=there.example@here.example", "list@here.example"),
        ("list-return-7-bob=there.example@here.example", "list-return-7@here.example"),
        ("prvs=0123abcdef=alice@here.example", "alice@here.example"),
        ("+@here.example", "+@here.example"),
        ("", ""),
    ],
)
def test_a_sender_that_names_each_recipient_is_one_sender(reverse_path: str, turn: str) -> None:
    assert turn_of(reverse_path) == turn


def test_spellings_of_one_sender_have_one_turn() -> None:
    order = _order(1)
    for sender in ("a@x.example", '"a"@x.example', '"\\a"@X.example'):
        _fill(order, DEFAULT_LANE, 2, sender)
    _fill(order, DEFAULT_LANE, 2, "b@x.example")

    taken = [order.take(0, 1) or "" for _ in range(4)]

    assert sum("b@x.example" in each for each in taken) == 2


class Model:
    """One lane of the model: lists, searched anew."""

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.tag = Fraction(0)
        self.went = -1
        self.ahead: list[str] = []
        self.ring: list[tuple[str, list[str]]] = []
        self.fronts: set[str] = set()
        self.room: int | None = None

    def all(self) -> list[str]:
        return [*self.ahead, *(name for _, its in self.ring for name in its)]

    def line_of(self, sender: str) -> list[str]:
        if sender not in [each for each, _ in self.ring]:
            self.ring.append((sender, []))
        return next(its for each, its in self.ring if each == sender)

    def is_in_front(self, name: str) -> bool:
        return name in self.fronts and name not in self.ahead

    def next(self) -> str:
        return self.ahead[0] if self.ahead else self.ring[0][1][0]

    def drop(self, name: str, *, turns: bool) -> None:
        if name in self.ahead:
            self.ahead.remove(name)
            return
        for place, (sender, its) in enumerate(self.ring):
            if name in its:
                its.remove(name)
                del self.ring[place]
                if its:
                    self.ring.insert(len(self.ring) if turns else place, (sender, its))
                return


class AnyOrder(RuleBasedStateMachine):
    """Whatever is added, taken, given back, removed and closed: the order is that of the model."""

    WEIGHTS = (("a", 50), ("b", 20), (DEFAULT_LANE, 30))
    PATIENCE_NS = 40

    def __init__(self) -> None:
        super().__init__()
        self.order = Order([Lane(name, weight, self.PATIENCE_NS) for name, weight in self.WEIGHTS])
        self.lanes = {name: Model(weight) for name, weight in self.WEIGHTS}
        self.late = Model(100)
        self.since: dict[str, tuple[int, int]] = {}
        self.taken: list[tuple[str, Model, Model, int, int, int, tuple[Fraction, Fraction]]] = []
        self.tag = Fraction(0)
        self.now_ns = self.count = 0

    @rule(lane=st.sampled_from(["a", "b", DEFAULT_LANE, "gone"]), sender=st.sampled_from("xyz"))
    def comes(self, lane: str, sender: str) -> None:
        self.count += 1
        name = QueueId(f"{self.count:03d}")
        self.order.add(name, lane, sender, self.now_ns)
        model = self.lanes.get(lane, self.lanes[DEFAULT_LANE])
        self.since[name] = (self.now_ns, self.count)
        model.line_of(sender).append(name)

    @rule(lane=st.sampled_from(["a", "b", DEFAULT_LANE]), sender=st.sampled_from("xyz"))
    def stands_in_front(self, lane: str, sender: str) -> None:
        self.count += 1
        name = QueueId(f"{self.count:03d}")
        self.order.add_in_front(name, lane, sender, self.now_ns)
        self.since[name] = (self.now_ns, self.count)
        model = self.lanes[lane]
        its = model.line_of(sender)
        its.insert(sum(each in model.fronts for each in its), name)
        model.fronts.add(name)

    @rule(span_ns=st.integers(1, 30))
    def passes(self, span_ns: int) -> None:
        self.now_ns += span_ns

    @rule(cost=st.integers(1, 5))
    def goes(self, cost: int) -> None:
        expected = self._expected()
        assert self.order.first(self.now_ns) == (expected[0] if expected else None)
        assert self.order.take(self.now_ns, cost) == (expected[0] if expected else None)
        if expected is None:
            return
        name, model, flow = expected
        model.drop(name, turns=flow is model)
        tag_before, self.tag = self.tag, max(flow.tag, self.tag)
        flow.tag = self.tag + Fraction(cost, flow.weight)
        self.count += 1
        before, flow.went = flow.went, self.count
        if model.room is not None:
            model.room -= 1
        self.taken.append((name, model, flow, cost, before, flow.went, (tag_before, self.tag)))

    @precondition(lambda self: self.taken)
    @rule(cost=st.integers(1, 5))
    def has_gone(self, cost: int) -> None:
        name, _, flow, before, _, _, _ = self.taken.pop()
        self.order.charge(QueueId(name), cost)
        self.order.refund(QueueId(name))
        flow.tag += Fraction(cost - before, flow.weight)

    @precondition(lambda self: self.taken)
    @rule(is_first=st.booleans())
    def is_given_back(self, is_first: bool) -> None:
        name, model, flow, cost, before, went, (tag_before, tag) = self.taken.pop()
        self.order.refund(QueueId(name))
        lane = next(each for each, its in self.lanes.items() if its is model)
        self.order.add_ahead(QueueId(name), lane, self.since[name][0], is_first=is_first)
        flow.tag -= Fraction(cost, flow.weight)
        self.tag = tag_before if self.tag == tag else self.tag
        flow.went = before if flow.went == went else flow.went
        model.room = None if model.room is None else model.room + 1
        model.ahead.insert(0 if is_first else len(model.ahead), name)
        self.count += 1
        self.since[name] = (self.since[name][0], self.count)

    @rule(data=st.data())
    def is_removed(self, data: st.DataObject) -> None:
        ready = [name for model in self.lanes.values() for name in model.all()]
        if ready:
            name = data.draw(st.sampled_from(sorted(ready)))
            self.order.remove(QueueId(name))
            for model in self.lanes.values():
                model.drop(name, turns=False)

    @rule(lane=st.sampled_from(["a", "b"]), room=st.none() | st.integers(0, 3))
    def is_let(self, lane: str, room: int | None) -> None:
        self.order.let(lane, room)
        self.lanes[lane].room = room

    def _expected(self) -> tuple[str, Model, Model] | None:
        """Return what goes next, its lane, and what is charged."""
        able = [model for model in self.lanes.values() if model.all() and model.room != 0]
        if not able:
            return None
        model = min(able, key=lambda each: (max(each.tag, self.tag), each.went))
        rank = (max(self.late.tag, self.tag), self.late.went)
        if rank < (max(model.tag, self.tag), model.went):
            # Of one instant, within a lane as they came; the lanes by the ids.
            oldest = [(min(each.all(), key=lambda name: self.since[name]), each) for each in able]
            late = [(self.since[name][0], name, each) for name, each in oldest]
            since_ns, name, of = min(late, key=lambda each: each[:2])
            if since_ns + self.PATIENCE_NS <= self.now_ns:
                return name, of, self.late
        return model.next(), model, model

    @invariant()
    def nobody_is_forgotten(self) -> None:
        ready = sorted(name for model in self.lanes.values() for name in model.all())
        assert len(self.order) == len(ready)
        fronts = {name for model in self.lanes.values() for name in model.all() if model.is_in_front(name)}
        taken_apart = self.order.copy()
        in_line = taken_apart.take_last(len(ready))
        assert len(taken_apart) == 0
        assert sorted([*in_line, *self.order.ahead()]) == sorted({*ready} - fronts)
        for lane, model in self.lanes.items():
            assert self.order.length(lane) == len(model.all())


TestAnyOrder = AnyOrder.TestCase
