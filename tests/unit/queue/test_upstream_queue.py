"""The line of one upstream: what each verb does, and how messages wait for room in limits."""

from collections.abc import Callable, Hashable

import pytest

from relay.mail.envelope import QueueId
from relay.queue.lanes import Arrangement, Lane
from relay.queue.queued import (
    DEFAULT_LANE,
    NO_REASON,
    Queued,
    State,
    WaitReason,
    origin_of,
)
from relay.queue.routes import Choice
from relay.queue.sender_pauses import FIRST_REST_NS
from relay.queue.upstream_queue import ThrottledMessage, UpstreamQueue

LANES = Arrangement((Lane("fast", 60), Lane("list", 20), Lane(DEFAULT_LANE, 20)))
W, A, D, H, R = State.WAITING, State.ACTIVE, State.DEFERRED, State.HELD, State.REPORTING


def a_message(name: str, sender: str = "a@b.example", lane: str = DEFAULT_LANE, state: State = W) -> Queued:
    origin = origin_of(sender, lane=lane)
    return Queued(QueueId(name), origin, 100, 0, 1, state, due_at_ns=100, choice=Choice("isp"))


def key_of(message: Queued) -> list[Hashable]:
    return [message.sender]


def a_line(*messages: Queued, by: Arrangement | None = None) -> UpstreamQueue:
    line = UpstreamQueue(key_of)
    if by is not None:
        line.arrange(by)
    for message in messages:
        line.enter(message)
    return line


def names(messages: list[Queued]) -> str:
    return "".join(each.queue_id for each in messages)


def waits(message: Queued, until_ns: int, key: Hashable = None) -> ThrottledMessage:
    return ThrottledMessage(message, until_ns, key, WaitReason("no room"))


Verb = Callable[[UpstreamQueue, Queued], object]
VERBS: dict[str, tuple[Verb, tuple[State, ...]]] = {
    "take": (lambda line, _: line.take(1, 0), (A, A, D, H, R)),
    "give back": (lambda line, message: line.give_back(message, NO_REASON), (W, W, D, H, R)),
    "wait": (lambda line, message: line.wait([waits(message, 100, "key")]), (W, W, D, H, R)),
    "again": (lambda line, message: line.put_back(message, W), (W, W, D, H, R)),
    "postpone": (lambda line, message: line.put_back(message, D, due_at_ns=100), (W, D, D, H, R)),
    "put back": (lambda line, message: line.put_back(message, H), (W, H, D, H, R)),
    "hold": (lambda line, message: line.put(message, H), (H, H, H, H, H)),
    "seize": (lambda line, message: line.put(message, A), (A, A, A, A, A)),
}
"""Each verb, and the state that follows WAITING, ACTIVE, DEFERRED, HELD and REPORTING."""


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_does_to_each_state_what_the_table_says(verb: str, state: State) -> None:
    message = a_message("a", state=state)
    line = a_line(message)

    does, becomes = VERBS[verb]
    does(line, message)

    after = becomes[list(State).index(state)]
    assert message.state is after
    # The message goes now exactly if its state allows it.
    goes_later = verb == "wait" and state is A
    assert line.take(9, 0) == ([message] if after is W and not goes_later else [])


def test_no_verb_brings_back_a_message_that_left() -> None:
    message = a_message("a")
    line = a_line(message)
    line.take(1, 0)
    line.leave(message)
    message.choice = Choice("")
    for verb, (does, _) in VERBS.items():
        if verb not in ("hold", "seize"):
            does(line, message)
    assert (line.take(9, 10**9), len(line), line.next_look_ns()) == ([], 0, None)


def test_give_back_goes_first_put_back_goes_last_and_a_deferred_message_waits_for_its_back_off() -> None:
    a, b, c, _ = messages = [a_message(name) for name in "abcd"]
    line = a_line(*messages)
    assert names(line.take(3, 0)) == "abc"
    line.put_back(a, W)
    line.put_back(c, D, due_at_ns=50)
    line.give_back(b, NO_REASON)
    assert names(line.take(9, 49)) == "bda"
    assert line.next_look_ns() == 50
    assert line.take(9, 50) == [c]


def test_a_full_account_is_asked_again_only_for_a_new_first_message_or_after_an_edit() -> None:
    a, b = a_message("a"), a_message("b")
    line = a_line(a, b)
    assert names(line.take(2, 0)) == "ab"
    line.wait([waits(a, 50), waits(b, 50)])
    assert (line.take(2, 49), line.next_look_ns()) == ([], 50)
    assert names(line.take(2, 50)) == "ab"
    line.wait([waits(a, 90), waits(b, 90)])
    assert line.first(60) is None
    changes = []
    line.on_change = lambda: changes.append(1)
    line.put(a, H)
    assert changes
    assert names(line.take(2, 60)) == "b"
    line.wait([waits(b, 90)])
    line.ask_anew()
    assert names(line.take(2, 61)) == "b"


def test_messages_of_a_full_key_wait_in_order_and_delay_no_other() -> None:
    line = a_line(*[a_message(name, "k") for name in "abcd"], a_message("x"))
    taken = line.take(2, 0)
    line.wait([waits(each, 100, "k") for each in taken])

    assert names(line.take(9, 1)) == "x"
    # The messages behind them joined the wait without being asked for.
    assert (line.take(9, 99), line.next_look_ns()) == ([], 100)
    line.enter(a_message("e", "k"))
    assert line.take(9, 99) == []
    (first,) = line.take(9, 100)
    assert names([first]) == "a"
    line.wait([waits(first, 200, "k")])
    went = ""
    while taken := line.take(9, 200):
        went += names(taken)
        line.granted(taken[0], 1)
    assert went == "abcde"


def test_a_sender_whose_mail_waited_for_many_keys_takes_one_turn_at_a_time() -> None:
    line = UpstreamQueue(lambda message: [message.domain])
    line.arrange(LANES)
    bulk = [a_message("b", "bulk@x.example") for _ in range(6)]
    for number, message in enumerate(bulk):
        message.domain = f"{number}.example"
        line.enter(message)
    line.wait([waits(each, 100, each.domain) for each in line.take(6, 0)])
    for _ in range(3):
        line.enter(a_message("o", "other@x.example"))

    assert sorted(names(line.take(6, 100))) == [*"bbbooo"]


def test_a_message_that_leaves_its_key_lets_the_next_one_go() -> None:
    a, b, c = [a_message(name, "k") for name in "abc"]
    line = a_line(a, b, c)
    line.wait([waits(each, 100, "k") for each in line.take(3, 0)])
    line.put(a, H)
    # The new first message may need less room.
    assert names(line.take(9, 1)) == "b"
    line.give_back(b, NO_REASON)
    changes = []
    line.on_change = lambda: changes.append(1)
    line.leave(b)
    assert changes
    assert names(line.take(9, 2)) == "c"
    line.wait([waits(c, 100, "other")])
    assert line.take(9, 99) == []
    assert names(line.take(9, 100)) == "c"


def test_a_key_whose_last_message_left_is_asked_again_by_the_next() -> None:
    large, small = [a_message(name, "k") for name in ("large", "small")]
    line = a_line(large)
    line.wait([waits(each, 100, "k") for each in line.take(1, 0)])
    line.leave(large)
    line.enter(small)
    assert line.take(9, 1) == [small]
    line.wait([waits(small, 50, "k")])
    assert (line.take(9, 49), line.take(9, 50)) == ([], [small])


def test_a_grant_costs_the_same_in_a_long_line_behind_a_key_as_in_a_short_one() -> None:
    asked = 0

    def keys(message: Queued) -> list[Hashable]:
        nonlocal asked
        asked += 1
        return [message.sender]

    line = UpstreamQueue(keys)
    for number in range(20_000):
        line.enter(a_message(f"{number:06d}", "k"))
    (first,) = line.take(1, 0)
    line.wait([waits(first, 100, "k")])
    assert (line.take(9, 1), line.next_look_ns()) == ([], 0), "no look takes longer for a long queue"
    while line.next_look_ns() != 100:
        assert line.take(9, 1) == []
    asked, went = 0, list[str]()
    for _ in range(100):
        (taken,) = line.take(9, 100)
        line.granted(taken, 1)
        went.append(taken.queue_id)
    assert went == sorted(went)
    assert asked <= 200


def test_mail_of_a_paused_sender_waits_and_a_refused_message_delays_none_of_it() -> None:
    bad = [a_message(f"b{number}", "bad") for number in range(3)]
    line = a_line(*bad, a_message("g", "good"))
    assert line.take(1, 0) == bad[:1]
    line.granted(bad[0], 1)
    until_ns = line.sender_pauses.begin("bad", 0, "553 not yours")
    bad[0].refusals = 1
    line.give_back(bad[0], WaitReason("553 not yours"))

    assert names(line.take(9, 0)) == "g"
    assert {each.why.text for each in bad} == {"553 not yours"}
    assert all(each.is_sitting_out for each in bad)
    assert (until_ns, line.next_look_ns()) == (FIRST_REST_NS, FIRST_REST_NS)
    assert {each.queue_id for each in line.take(2, until_ns)} == {"b0", "b1"}
    line.trust_sender("bad", until_ns)
    line.granted(bad[1], 1)
    assert names(line.take(2, until_ns)) == "b2"


def test_mail_of_a_sender_that_is_trusted_again_goes_at_once() -> None:
    line = a_line(a_message("a"))
    line.sender_pauses.begin("a@b.example", 0, "553 not yours")
    assert line.take(9, 1) == []
    line.trust_sender("a@b.example", 2)
    assert names(line.take(9, 2)) == "a"


@pytest.mark.parametrize("verb", ["again", "back-off", "release"])
def test_the_patience_of_a_lane_counts_from_when_a_message_may_go(verb: str) -> None:
    lanes = (Lane("a", 99), Lane(DEFAULT_LANE, 1, patience_ns=100))
    large = a_message("large")
    line = a_line(large, by=Arrangement(lanes, 0, 1, 100))
    for number in range(50):
        line.enter(a_message(f"a{number}", lane="a"))
    assert large in line.take(3, 1000)
    line.granted(large, 1)
    match verb:
        case "again":
            line.put_back(large, W, ready_at_ns=1000)
        case "back-off":
            line.put_back(large, D, due_at_ns=1000)
        case "release":
            line.put(large, H)
            line.put(large, W, ready_at_ns=1000)

    assert large not in line.take(40, 1099)
    assert large in line.take(3, 1100)


def test_an_edit_of_lanes_keeps_the_order_of_arrival() -> None:
    messages = [a_message(f"{n:02d}", f"s{n % 3}", ("fast", "list")[n % 2]) for n in range(24)]
    for number, message in enumerate(messages):
        message.arrived_at_ns = message.ready_at_ns = number
    line = a_line(*messages, by=LANES)
    line.arrange(Arrangement())
    assert line.take(30, 0) == messages


def test_an_edit_of_limits_asks_again_for_every_waiting_message() -> None:
    keyed, listed = a_message("k", "k"), a_message("l", lane="list")
    line = a_line(keyed, listed, by=LANES)
    line.take(2, 0)
    line.wait([waits(keyed, 100, "k"), waits(listed, 100, ("lane", "list"))])
    assert line.take(2, 1) == []
    line.ask_anew()
    assert {*line.take(2, 1)} == {keyed, listed}
