"""Those who are kept out of the order, by doubt, by rest or by their lane: each comes back, in turn, once."""

import sys
from types import FrameType
from typing import Any

from relay.mail.envelope import QueueId
from relay.queue.lanes import DEFAULT_LANE, Lane, Price
from relay.queue.queued import WaitReason, origin_of
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


def test_out_of_doubt_the_often_refused_go_in_order_too() -> None:
    scheduler = Scheduler()
    for name in "abc":
        scheduler.add(_message(name))
    for _ in "abc":
        refused = scheduler.next_ready(0)
        assert refused is not None
        refused.past = refused.past.but(refusals=REFUSALS_IN_PLACE)
        scheduler.again(refused.queue_id, 1, WaitReason("421 no"))
    scheduler.doubt("bad")
    scheduler.add(_message("x", "good"))
    assert _first(scheduler) == "x"

    scheduler.trust()

    assert _take(scheduler) == "abc"


def test_a_held_message_stays_held_when_its_sender_is_welcome_again() -> None:
    scheduler = Scheduler()
    for name in "abc":
        scheduler.add(_message(name))
    until_ns = scheduler.sender_pauses.begin("bad", 0, "553 not yours")
    assert _take(scheduler) == ""
    held = scheduler.get(QueueId("b"))
    assert held is not None
    # As the operator does it: seized, and held once the disk knows.
    held.state = State.ACTIVE
    held.state = State.HELD
    scheduler.hold(QueueId("c"))

    scheduler.trust_sender("bad", until_ns)

    assert _take(scheduler, until_ns) == "a"
    assert held.state is State.HELD
    for name in "bc":
        scheduler.release(QueueId(name))
    assert _take(scheduler, until_ns) == "bc"


def _lines_of_trust(others: int) -> int:
    """Return how many lines run when one sender is welcome again, of so many others whose mail waits too."""
    scheduler = Scheduler()
    for name in ("a", *(f"other{number}" for number in range(others))):
        scheduler.add(_message(name, sender=name))
        scheduler.sender_pauses.begin(name, 0, "553 not yours")
    assert _take(scheduler) == ""
    lines = 0

    def count(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        scheduler.trust_sender("a", 1)
    finally:
        sys.settrace(before)
    assert _take(scheduler, 1) == "a"
    return lines


def test_trusting_a_sender_costs_no_more_in_a_long_queue() -> None:
    assert _lines_of_trust(others=1000) == _lines_of_trust(others=2)


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


def test_what_is_not_sent_is_no_part_of_its_lanes_share() -> None:
    scheduler = Scheduler()
    scheduler.arrange((Lane("a", 50), Lane(DEFAULT_LANE, 50)), Price(), 100)
    scheduler.add(_message("unfit", lane="a"))
    assert _take(scheduler) == "unfit"
    # No slot was used for it; its report waits for hours, in which others go.
    for name in "0123456789":
        scheduler.add(_message(name))
    for name in _take(scheduler):
        scheduler.reserved(QueueId(name), 1)
        scheduler.remove(QueueId(name))

    scheduler.remove(QueueId("unfit"))

    for name in "abcd":
        scheduler.add(_message(name, lane="a"))
        scheduler.add(_message(name.upper()))
    # Who had nothing to send has saved nothing.
    assert _take(scheduler) == "aAbBcCdD"


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
