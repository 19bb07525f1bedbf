"""Mail that is kept out of the order, by doubt, rest, lane, place or pause: each comes back, once."""

from relay.mail.envelope import QueueId
from relay.queue.lanes import DEFAULT_LANE, Lane
from relay.queue.queued import NO_REASON, WaitReason, origin_of
from relay.queue.scheduler import Queued, Scheduler, State

LANES = (Lane("list", 20, has_ceiling=True), Lane(DEFAULT_LANE, 80))


def _message(name: str, sender: str = "bad", lane: str = DEFAULT_LANE) -> Queued:
    return Queued(QueueId(name), origin_of(sender, lane=lane), 100, 0, 1)


def _take(scheduler: Scheduler, now_ns: int = 0) -> str:
    taken = []
    while (queued := scheduler.next_ready(now_ns)) is not None:
        taken.append(queued.queue_id)
    return "".join(taken)


def _of(names: str) -> Scheduler:
    scheduler = Scheduler()
    for name in names:
        scheduler.add(_message(name, ""))
    return scheduler


def _park(scheduler: Scheduler, names: str, place: str, due_at_ns: int) -> None:
    for name in names:
        scheduler.park(QueueId(name), place, due_at_ns, WaitReason("no room for its sender"))


def _leave(scheduler: Scheduler, now_ns: int, room: int) -> str:
    """Let so many leave each place that is due, and take all that may go."""
    for place in scheduler.places_due(now_ns):
        scheduler.let_leave(place, room, 10**9)
    return _take(scheduler, now_ns)


def test_the_parked_keep_back_nobody_else() -> None:
    scheduler = _of("abcd")
    assert _take(scheduler) == "abcd"

    _park(scheduler, "ac", "list", 100)
    scheduler.again(QueueId("b"), 1, NO_REASON)

    assert _take(scheduler) == "b"
    assert scheduler.next_due_at_ns() == 100
    parked = scheduler.get(QueueId("a"))
    assert parked is not None
    assert (parked.state, parked.reason) == (State.WAITING, "no room for its sender")


def test_as_many_leave_in_order_as_there_is_room_for() -> None:
    scheduler = _of("abcdx")
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
