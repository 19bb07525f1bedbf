"""The queue by lanes: what is given back, parked, held, moved and edited keeps to its lane."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.queue.lanes import DEFAULT_LANE, Lane, Price
from relay.queue.parking import MOST_PLACES
from relay.queue.queued import NO_REASON, WaitReason, origin_of
from relay.queue.scheduler import Queued, Scheduler, State
from tests.unit.queue.test_counts import assert_counted

LANES = (Lane("fast", 60), Lane("list", 20, has_ceiling=True), Lane(DEFAULT_LANE, 20))


def _message(name: str, lane: str = DEFAULT_LANE, sender: str = "a@b.example", recipients: int = 1) -> Queued:
    return Queued(QueueId(name), origin_of(sender, lane=lane), 100, 0, recipients)


def _scheduler(*messages: Queued, lanes: tuple[Lane, ...] = LANES) -> Scheduler:
    scheduler = Scheduler()
    scheduler.arrange(lanes, Price(), 100)
    for message in messages:
        scheduler.add(message)
    return scheduler


def _take(scheduler: Scheduler, now_ns: int = 0, most: int = 100) -> list[str]:
    taken: list[str] = []
    while len(taken) < most and (queued := scheduler.next_ready(now_ns)) is not None:
        taken.append(queued.queue_id)
    return taken


def test_what_was_given_back_is_first_of_its_lane() -> None:
    scheduler = _scheduler(*[_message(f"l{number}", "list") for number in range(3)])
    assert _take(scheduler, most=1) == ["l0"]
    scheduler.give_back(QueueId("l0"), WaitReason("no room"))

    scheduler.add(_message("f", "fast"))

    assert _take(scheduler) == ["f", "l0", "l1", "l2"]


def test_an_overdue_message_is_overdue_for_one_transaction() -> None:
    lanes = (Lane("a", 99), Lane(DEFAULT_LANE, 1, patience_ns=100))
    scheduler = _scheduler(_message("large", recipients=1000), lanes=lanes)
    for number in range(50):
        scheduler.add(_message(f"a{number}", "a"))
    assert "large" in _take(scheduler, 1000, most=3)
    scheduler.reserved(QueueId("large"), 1)

    scheduler.again(QueueId("large"), 999, NO_REASON)

    assert "large" not in _take(scheduler, 1099, most=40)
    assert "large" in _take(scheduler, 1100, most=3)


def test_a_lane_without_room_is_due_when_it_has_some() -> None:
    scheduler = _scheduler(_message("l0", "list"), _message("l1", "list"), _message("d"))
    assert scheduler.with_ceiling() == ("list",)

    waits = scheduler.let_lane("list", 0, 500)

    assert waits is scheduler.get(QueueId("l0"))
    assert (scheduler.most_ready, scheduler.next_due_at_ns()) == (1, 500)
    # Something else may go.
    assert scheduler.closed_lanes() == []
    assert _take(scheduler) == ["d"]
    assert scheduler.closed_lanes() == ["list"]
    assert not scheduler.has_ready(10**18)
    assert scheduler.let_lane("list", 1, 500) is None
    assert scheduler.next_due_at_ns() is None
    assert _take(scheduler) == ["l0"]
    assert scheduler.let_lane("list", None, 0) is None
    assert _take(scheduler) == ["l1"]
    assert scheduler.let_lane("list", 0, 900) is None
    assert scheduler.next_due_at_ns() is None


def test_senders_take_turns_also_with_one_that_was_parked() -> None:
    scheduler = _scheduler(*[_message(f"a{number}", sender="a@x.example") for number in range(9)])
    for name in _take(scheduler):
        scheduler.park(QueueId(name), "a", 100, NO_REASON)
    for number in range(9):
        scheduler.add(_message(f"b{number}", sender="b@x.example"))
    # One that comes while others of its sender are parked goes behind them.
    scheduler.add(_message("late", sender="a@x.example"))

    for place in scheduler.places_due(100):
        scheduler.let_leave(place, 3, 0)

    assert _take(scheduler, 100) == [
        "b0",
        "a0",
        "b1",
        "a1",
        "b2",
        "a2",
        "b3",
        "late",
        *(f"b{n}" for n in range(4, 9)),
    ]


def _ask(scheduler: Scheduler, now_ns: int, room: int = 1) -> int:
    """Let so many leave each place that is due, as the dispatcher does; return how many were asked."""
    asked = 0
    while scheduler.has_places_due(now_ns):
        places = scheduler.places_due(now_ns)
        assert len(places) <= MOST_PLACES
        for place in places:
            scheduler.let_leave(place, room, 0)
        asked += len(places)
    return asked


def test_places_of_a_closed_lane_hide_no_others() -> None:
    count = 5 * MOST_PLACES
    scheduler = _scheduler(*[_message(f"l{n}", "list", f"l{n}@x.example") for n in range(count)])
    scheduler.add(_message("reset", "fast", "noreply@x.example"))
    for name in _take(scheduler, most=count + 1):
        due_at_ns = 200 if name == "reset" else 100
        scheduler.park(QueueId(name), f"sender of {name}", due_at_ns, NO_REASON)

    assert scheduler.let_lane("list", 0, 10**9) is None
    assert _ask(scheduler, 100) == count
    assert scheduler.let_lane("list", 0, 10**9) is not None
    assert (scheduler.most_ready, scheduler.next_due_at_ns()) == (0, 200)
    assert (scheduler.closed_lanes(), scheduler.next_place()) == (["list"], "sender of reset")
    assert _ask(scheduler, 200) == 1
    assert (scheduler.most_ready, scheduler.next_place()) == (1, None)
    assert _take(scheduler, 200) == ["reset"]

    # Nothing is asked, and nothing wakes, until the lane may give something again.
    assert _ask(scheduler, 10**9 - 1) == 0
    assert scheduler.next_due_at_ns() == 10**9
    assert scheduler.let_lane("list", 3, 0) is None
    assert (scheduler.most_ready, len(_take(scheduler, 10**9))) == (3, 3)


def test_in_one_place_too_a_closed_lane_keeps_back_no_other() -> None:
    scheduler = _scheduler(
        *[_message(f"l{n}", "list") for n in range(3)], *[_message(f"d{n}") for n in range(3)]
    )
    for name in sorted(_take(scheduler), reverse=True):
        scheduler.park(QueueId(name), "their client", 100, NO_REASON)
    scheduler.let_lane("list", 0, 10**9)

    assert _ask(scheduler, 100, room=2) == 1

    assert _take(scheduler, 100) == ["d2", "d1"]
    assert scheduler.next_due_at_ns() == 0
    scheduler.let_lane("list", None, 0)
    # Not more than may leave, whichever lane they are of.
    assert _ask(scheduler, 100, room=2) == 1
    assert _take(scheduler, 100) == ["l2", "d0"]


def test_an_edit_keeps_the_order_of_arrival() -> None:
    scheduler = _scheduler(
        _message("a", "list", "x@x"), _message("b", "list", "y@x"), _message("c", "fast"), lanes=()
    )
    scheduler.arrange(LANES, Price(), 100)
    assert _take(scheduler, most=2) == ["c", "a"]
    scheduler.give_back(QueueId("a"), NO_REASON)

    scheduler.arrange((Lane(DEFAULT_LANE),), Price(), 100)
    scheduler.add(_message("d", "list", "y@x"))

    assert _take(scheduler) == ["a", "b", "d"]


def test_a_message_moves_to_another_lane_wherever_it_stands() -> None:
    scheduler = _scheduler(*[_message(name) for name in ("ready", "active", "parked", "held")])
    assert sorted(_take(scheduler)) == ["active", "held", "parked", "ready"]
    scheduler.give_back(QueueId("ready"), NO_REASON)
    scheduler.park(QueueId("parked"), "place", 100, NO_REASON)
    scheduler.hold(QueueId("held"))

    for name in ("ready", "active", "parked", "held", "nobody"):
        scheduler.move(QueueId(name), "fast")

    assert {queued.lane for queued in scheduler} == {"fast"}
    assert _take(scheduler) == ["ready"]
    scheduler.give_back(QueueId("active"), NO_REASON)
    scheduler.release(QueueId("held"))
    assert scheduler.let_lane("list", 0, 0) is None
    for place in scheduler.places_due(100):
        scheduler.let_leave(place, 1, 0)
    assert _take(scheduler, 100) == ["active", "parked", "held"]


def test_a_lane_is_charged_for_what_is_sent_by_recipients() -> None:
    lanes = (Lane("a", 50), Lane(DEFAULT_LANE, 50))
    scheduler = Scheduler()
    scheduler.arrange(lanes, Price(0, 1), 5)
    scheduler.add(_message("large", "a", recipients=1000))
    for number in range(20):
        scheduler.add(_message(f"d{number}"))

    assert _take(scheduler, most=1) == ["large"]
    scheduler.give_back(QueueId("large"), NO_REASON)
    assert _take(scheduler, most=1) == ["large"]
    scheduler.reserved(QueueId("large"), 3)
    scheduler.again(QueueId("large"), 997, NO_REASON)

    assert _take(scheduler, most=4) == ["d0", "d1", "d2", "large"]


ACTS = "park back again hold release remove defer move arrange let take seize halt"
STEPS = st.tuples(
    st.sampled_from(ACTS.split()),
    st.sampled_from("abcdef"),
    st.sampled_from(["fast", "list", DEFAULT_LANE]),
    st.integers(0, 30),
)


@given(st.lists(STEPS, max_size=60))
def test_whatever_happens_nobody_is_forgotten_and_nobody_goes_twice(
    steps: list[tuple[str, str, str, int]],
) -> None:
    scheduler = _scheduler(*[_message(name, "list") for name in "abcdef"])
    active: list[QueueId] = []
    now_ns = 0
    for act, letter, lane, by_ns in steps:
        now_ns += by_ns // 3
        if not _acted(scheduler, act, QueueId(letter), lane, by_ns):
            if act == "take":
                queued = scheduler.next_ready(now_ns)
                active += [queued.queue_id] if queued else []
            elif active:
                _go_on(scheduler, active.pop(), act, by_ns, now_ns)
        active = [name for name in active if (it := scheduler.get(name)) and it.state is State.ACTIVE]
        for place in scheduler.places_due(now_ns):
            scheduler.let_leave(place, by_ns % 3, now_ns + 1 + by_ns)
        has_ready = scheduler.has_ready(now_ns)
        would_go = _take(copy.deepcopy(scheduler), now_ns)
        assert_counted(scheduler)
        assert len(would_go) == len(set(would_go))
        assert scheduler.most_ready >= len(would_go) >= has_ready

    for name in active:
        scheduler.give_back(name, NO_REASON)
    expected = sorted(queued.queue_id for queued in scheduler if queued.state is not State.HELD)
    went: list[str] = []
    for _ in range(9):
        scheduler.let_lane("list", None, 0)
        now_ns = max(now_ns, scheduler.next_due_at_ns() or 0)
        for place in scheduler.places_due(now_ns):
            scheduler.let_leave(place, 9, 0)
        went += _take(scheduler, now_ns)
    assert sorted(went) == expected
    assert scheduler.next_due_at_ns() is None


def _acted(scheduler: Scheduler, act: str, name: QueueId, lane: str, by_ns: int) -> bool:
    """Do something that needs nobody to be active; return whether it was that."""
    match act:
        case "move":
            scheduler.move(name, lane)
        case "arrange":
            scheduler.arrange(LANES if by_ns % 2 else (), Price(), 100)
        case "let":
            for each in scheduler.with_ceiling():
                scheduler.let_lane(each, by_ns % 3, by_ns)
        case "seize" | "halt":
            _seize(scheduler, name, State.HELD if act == "halt" else State.WAITING, by_ns)
        case "hold" | "release" | "remove":
            getattr(scheduler, act)(name)
        case _:
            return False
    return True


def _seize(scheduler: Scheduler, name: QueueId, becomes: State, by_ns: int) -> None:
    """Do as the operator does: nobody sends a message meanwhile, then it is put back or held."""
    message = scheduler.get(name)
    if message is None or message.state is not State.WAITING:
        return
    scheduler.seize(name)
    if by_ns % 2:
        scheduler.has_ready(0)
    scheduler.put_back(name, becomes)


def _go_on(scheduler: Scheduler, name: QueueId, act: str, by_ns: int, now_ns: int) -> None:
    """Have something become of a message that was taken."""
    match act:
        case "park":
            scheduler.park(name, f"place {by_ns % 2}", now_ns + by_ns, NO_REASON)
        case "back":
            scheduler.give_back(name, NO_REASON)
        case "again":
            scheduler.reserved(name, 1)
            scheduler.again(name, 1, NO_REASON)
        case _:
            scheduler.postpone(name, now_ns + by_ns, 1, NO_REASON)
