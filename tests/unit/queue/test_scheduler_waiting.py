"""Mail that is kept out of the order, by doubt, rest, lane, place or pause: each comes back, once."""

from relay.mail.envelope import QueueId
from relay.queue.lanes import DEFAULT_LANE, Lane, Price
from relay.queue.queued import NO_REASON, WaitReason, origin_of
from relay.queue.scheduler import Queued, Scheduler, State
from relay.queue.sender_pauses import PROOF_NS
from relay.verdicts.decision import REFUSALS_IN_PLACE

LANES = (Lane("list", 20, has_ceiling=True), Lane(DEFAULT_LANE, 80))


def _message(name: str, sender: str = "bad", lane: str = DEFAULT_LANE) -> Queued:
    return Queued(QueueId(name), origin_of(sender, lane=lane), 100, 0, 1)


def _take(scheduler: Scheduler, now_ns: int = 0) -> str:
    taken = []
    while (queued := scheduler.next_ready(now_ns)) is not None:
        taken.append(queued.queue_id)
    return "".join(taken)


def test_in_doubt_too_a_closed_lane_keeps_back_no_other() -> None:
    scheduler = Scheduler()
    scheduler.arrange(LANES, Price(), 100)
    for name, lane in ("a", "list"), ("b", "list"), ("c", DEFAULT_LANE):
        scheduler.add(_message(name, lane=lane))
    scheduler.doubt("bad")
    scheduler.add(_message("x", "good"))
    # Those that are not in doubt go first, and the others are aside.
    assert _first(scheduler) == "x"

    scheduler.let_lane("list", 0, 500)

    assert _first(scheduler) == "c"
    # And nobody of the closed lane is forgotten, or out of turn.
    assert not scheduler.has_ready(0)
    assert scheduler.next_due_at_ns() == 500
    scheduler.let_lane("list", None, 0)
    assert _take(scheduler, 500) == "ab"


def _first(scheduler: Scheduler) -> str:
    taken = scheduler.next_ready(0)
    assert taken is not None
    return taken.queue_id


def test_an_unattempted_proof_of_a_sender_loses_nothing() -> None:
    scheduler = Scheduler()
    scheduler.add(_message("a"))
    scheduler.add(_message("b"))
    until_ns = scheduler.sender_pauses.begin("bad", 0, "553 not yours")
    assert _take(scheduler) == ""
    assert _take(scheduler, until_ns) == "a"
    rested = scheduler.sender_pauses.rests_of("bad")

    scheduler.give_back(QueueId("a"), WaitReason("no room"))

    assert _take(scheduler, until_ns + 1) == "a"
    assert scheduler.sender_pauses.rests_of("bad") != rested
    # Its others still wait for what becomes of it.
    assert _take(scheduler, until_ns + PROOF_NS - 1) == ""
    # Unlike one that was: its sender's mail waits for the answer.
    scheduler.reserved(QueueId("a"), 1)
    scheduler.give_back(QueueId("a"), WaitReason("421 busy"))
    assert _take(scheduler, until_ns + PROOF_NS) == ""


def test_behind_a_closed_lane_the_refused_longest_ago_is_next() -> None:
    scheduler = Scheduler()
    scheduler.arrange(LANES, Price(), 100)
    for name in "abc":
        scheduler.add(_message(name, lane="list"))
    proved = ""
    for now_ns in range(1, 7):
        # The window opens for one, which is refused; then the lane has no room.
        scheduler.let_lane("list", 1, 0)
        refused = scheduler.next_ready(now_ns)
        assert refused is not None
        proved += refused.queue_id
        scheduler.reserved(refused.queue_id, 1)
        scheduler.doubt("bad")
        refused.past = refused.past.but(refusals=REFUSALS_IN_PLACE)
        scheduler.refused(refused.queue_id, 1, WaitReason("421 no"))
        scheduler.let_lane("list", 0, now_ns + 1)
        assert not scheduler.has_ready(now_ns)
        assert scheduler.next_due_at_ns() == now_ns + 1
    assert proved == "abcabc"


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
