"""Messages that something of their own keeps back: out of the way of others, in order, never forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.queue.queued import NO_REASON, WaitReason, origin_of
from relay.queue.scheduler import Queued, Scheduler, State

NAMES = st.sampled_from("abcdefgh")


def _scheduler(names: str) -> Scheduler:
    scheduler = Scheduler()
    for name in names:
        scheduler.add(Queued(QueueId(name), origin_of(""), 1, 0, 1))
    return scheduler


def _take(scheduler: Scheduler, now_ns: int = 0) -> str:
    """Take all that may go now, and return their names."""
    taken = []
    while (queued := scheduler.next_ready(now_ns)) is not None:
        taken.append(queued.queue_id)
    return "".join(taken)


def _park(scheduler: Scheduler, names: str, place: str, due_at_ns: int) -> None:
    for name in names:
        scheduler.park(QueueId(name), place, due_at_ns, WaitReason("no room for its sender"))


def _leave(scheduler: Scheduler, now_ns: int, room: int, due_at_ns: int = 10**9) -> str:
    """Let so many leave each place that is due, and take all that may go."""
    for place in scheduler.places_due(now_ns):
        scheduler.let_leave(place, room, due_at_ns)
    return _take(scheduler, now_ns)


def test_the_parked_keep_back_nobody_else() -> None:
    scheduler = _scheduler("abcd")
    assert _take(scheduler) == "abcd"

    _park(scheduler, "ac", "list", 100)
    scheduler.again(QueueId("b"), 1, NO_REASON)

    assert _take(scheduler) == "b"
    assert scheduler.next_due_at_ns() == 100
    parked = scheduler.get(QueueId("a"))
    assert parked is not None
    assert (parked.state, parked.reason) == (State.WAITING, "no room for its sender")


def test_as_many_leave_in_order_as_there_is_room_for() -> None:
    scheduler = _scheduler("abcdx")
    assert scheduler.next_ready(0) is not None
    _park(scheduler, "a", "list", 100)
    for _ in "bcd":
        scheduler.next_ready(0)
    _park(scheduler, "bcd", "list", 200)

    assert _leave(scheduler, now_ns=199, room=9) == "x"
    scheduler.add(Queued(QueueId("y"), origin_of(""), 1, 0, 1))
    assert _leave(scheduler, now_ns=200, room=2) == "aby"
    # Tried in vain after all: it is first again.
    _park(scheduler, "b", "list", 300)
    assert _leave(scheduler, now_ns=300, room=3) == "bcd"
    assert scheduler.next_due_at_ns() is None


def test_a_place_without_room_is_due_again_when_it_says() -> None:
    scheduler = _scheduler("a")
    _take(scheduler)
    _park(scheduler, "a", "list", 100)

    assert _leave(scheduler, now_ns=100, room=0, due_at_ns=150) == ""
    assert scheduler.next_due_at_ns() == 150
    assert _leave(scheduler, now_ns=149, room=5) == ""
    assert _leave(scheduler, now_ns=150, room=5) == "a"


def test_a_place_is_due_once_however_many_are_parked_there() -> None:
    scheduler = Scheduler()
    for number in range(1000):
        scheduler.add(Queued(QueueId(f"{number}"), origin_of(""), 1, 0, 1))
    while (queued := scheduler.next_ready(0)) is not None:
        scheduler.park(queued.queue_id, "list", 100, WaitReason("no room for its sender"))

    assert len(scheduler._parking._until) == 1
    assert scheduler.places_due(100) == ["list"]


def test_after_an_edit_every_place_is_asked_anew() -> None:
    scheduler = _scheduler("ab")
    _take(scheduler)
    _park(scheduler, "a", "one", 10**18)
    _park(scheduler, "b", "other", 10**18)

    scheduler.ask_anew()

    assert _leave(scheduler, now_ns=0, room=1) == "ab"


def test_what_is_held_or_removed_leaves_its_place_to_the_next() -> None:
    scheduler = _scheduler("abcd")
    _take(scheduler)
    _park(scheduler, "abcd", "list", 100)

    scheduler.hold(QueueId("a"))
    scheduler.remove(QueueId("b"))
    scheduler.hold(QueueId("c"))
    scheduler.release(QueueId("c"))

    assert _take(scheduler) == "c"
    assert _leave(scheduler, now_ns=100, room=1) == "d"
    scheduler.release(QueueId("a"))
    assert _take(scheduler) == "a"


def _go_on(scheduler: Scheduler, queued: Queued, act: str, place: str, due_at_ns: int) -> None:
    """Have something become of a message that was taken."""
    match act:
        case "park":
            scheduler.park(queued.queue_id, place, due_at_ns, NO_REASON)
        case "give back":
            scheduler.give_back(queued.queue_id, NO_REASON)
        case "again":
            scheduler.again(queued.queue_id, 1, NO_REASON)
        case _:
            scheduler.postpone(queued.queue_id, due_at_ns, 1, NO_REASON)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["park", "park", "give back", "hold", "release", "remove", "again", "defer"]),
            NAMES,
            st.sampled_from(["p", "q"]),
            st.integers(0, 30),
        ),
        max_size=60,
    )
)
def test_nobody_is_forgotten_and_nobody_goes_twice(steps: list[tuple[str, str, str, int]]) -> None:
    scheduler = _scheduler("abcdefgh")
    now_ns = 0
    for act, name, place, by_ns in steps:
        now_ns += by_ns // 3
        if act in {"hold", "release", "remove"}:
            getattr(scheduler, act)(QueueId(name))
        elif (queued := scheduler.next_ready(now_ns)) is not None:
            _go_on(scheduler, queued, act, place, now_ns + by_ns)
        for due in scheduler.places_due(now_ns):
            scheduler.let_leave(due, by_ns % 3, now_ns + 1 + by_ns)

    expected = sorted(queued.queue_id for queued in scheduler if queued.state is not State.HELD)
    went = _take(scheduler, now_ns)
    for _ in range(9):
        due_at_ns = scheduler.next_due_at_ns()
        now_ns = max(now_ns, due_at_ns or 0)
        went += _leave(scheduler, now_ns, room=8)
    assert sorted(went) == expected
    assert scheduler.next_due_at_ns() is None
