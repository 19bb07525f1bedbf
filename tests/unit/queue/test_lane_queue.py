"""The laws of the order of ready messages, for any weights of lanes."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.queue.lanes import Arrangement, Lane, LaneQueue
from relay.queue.queued import DEFAULT_LANE, Queued, origin_of, turn_of

NAMES = [DEFAULT_LANE, *"abcdefgh"]
WEIGHTS = st.lists(st.integers(1, 100), min_size=1, max_size=8)
BY_RECIPIENTS = 0, 1


def a_message(name: str, lane: str = DEFAULT_LANE, sender: str = "s@x.example", since_ns: int = 0) -> Queued:
    return Queued(QueueId(name), origin_of(sender, lane=lane), 1, since_ns, 1)


def a_queue(*weights: int) -> LaneQueue:
    lanes = [Lane(name, weight) for name, weight in zip(NAMES, weights, strict=False)]
    return LaneQueue(Arrangement(lanes, *BY_RECIPIENTS, 100))


def fill(queue: LaneQueue, lane: str, count: int, sender: str = "s@x.example") -> None:
    for number in range(count):
        queue.add(a_message(f"{lane}{sender}{len(queue)}.{number}", lane, sender))


def take(queue: LaneQueue, count: int, now_ns: int = 0, closed: str = "") -> list[Queued]:
    taken: list[Queued] = []
    while len(taken) < count and (turn := queue.next(now_ns, closed)) is not None:
        queue.take(turn)
        taken.append(turn.message)
    return taken


def lanes_of(messages: list[Queued]) -> list[str]:
    return [each.lane for each in messages]


@given(WEIGHTS, st.integers(1, 400))
def test_each_lane_has_its_share_within_one_message(weights: list[int], count: int) -> None:
    queue = a_queue(*weights)
    names = NAMES[: len(weights)]
    for name in names:
        fill(queue, name, count)

    went = lanes_of(take(queue, count))

    served = {name: went.count(name) for name in names}
    of_weight = dict(zip(names, weights, strict=True))
    for name in names:
        assert served[name] <= Fraction(count * of_weight[name], sum(weights)) + 1
        for other in names:
            # Counted in shares, no lane is behind another by more than one message of the other.
            ahead = Fraction(served[other], of_weight[other]) - Fraction(served[name], of_weight[name])
            assert ahead <= Fraction(1, of_weight[other])


def test_an_idle_lane_earns_no_credit() -> None:
    queue = a_queue(50, 50)
    fill(queue, DEFAULT_LANE, 300)
    for each in take(queue, 100):
        queue.granted(each, 1)
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


@given(WEIGHTS, st.data())
def test_a_refunded_message_costs_its_lane_nothing(weights: list[int], data: st.DataObject) -> None:
    tried, untried = a_queue(*weights), a_queue(*weights)
    for queue in (tried, untried):
        for name in NAMES[: len(weights)]:
            fill(queue, name, 20)
            fill(queue, name, 20, "t@x.example")
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


def test_a_lane_pays_only_for_the_recipients_that_are_granted() -> None:
    queue, went = a_queue(50, 50), list[str]()
    for number in range(10):
        for name, recipients in ((DEFAULT_LANE, 1), ("a", 100)):
            message = a_message(f"{name}{number}", name)
            message.recipients_left = recipients
            queue.add(message)
    for _ in range(10):
        (message,) = take(queue, 1)
        queue.granted(message, 1)
        went.append(message.lane)
    assert went.count("a") == 5


def test_overdue_mail_gets_half_of_what_goes_oldest_first() -> None:
    lanes = [Lane("a", 99), Lane("b", 1, patience_ns=10), Lane(DEFAULT_LANE, 1)]
    queue = LaneQueue(Arrangement(lanes, *BY_RECIPIENTS, 100))
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
def test_variable_envelope_addresses_count_as_one_sender(reverse_path: str, turn: str) -> None:
    assert turn_of(reverse_path) == turn
