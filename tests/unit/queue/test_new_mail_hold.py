"""What a pause holds of the mail that comes in, against a plain list of what should be held."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay.mail.envelope import QueueId
from relay.queue.queued import NO_REASON, NewMailHold, WaitReason, origin_of
from relay.queue.scheduler import Queued, Scheduler, State
from tests.unit.queue.test_counts import assert_counted

BY_HAND = WaitReason("held by the operator")


def came_in(number: int, at_ns: int, suffix: str = "", state: State = State.WAITING) -> Queued:
    return Queued(
        QueueId(f"{number:016d}{suffix}"), origin_of(f"s{number % 3}@b.example"), 1, at_ns, 1, state
    )


def test_what_was_there_before_and_our_own_notices_are_not_held() -> None:
    scheduler = Scheduler()
    assert scheduler.hold_new(NewMailHold("isp", 10))
    assert not scheduler.hold_new(NewMailHold("isp", 10))
    for number, (at_ns, suffix) in enumerate([(9, ""), (10, ""), (11, "r"), (11, "w"), (11, "r2"), (11, "")]):
        scheduler.add(came_in(number, at_ns, suffix))

    held = [queued for queued in scheduler if queued.state is State.HELD]
    assert [queued.queue_id for queued in held] == [f"{1:016d}", f"{5:016d}"]
    assert {queued.reason for queued in held} == {"held by the pause of isp"}


def test_what_an_operator_had_when_the_pause_ended_goes_on() -> None:
    scheduler = Scheduler()
    scheduler.hold_new(NewMailHold("isp", 0))
    scheduler.add(message := came_in(1, 5))
    before = scheduler.seize(message.queue_id)
    assert before is State.HELD

    scheduler.hold_new(None)
    scheduler.follow_hold([message.queue_id])
    scheduler.put_back(message.queue_id, before)

    assert scheduler.next_ready(9) is message


def test_what_waits_at_a_restart_is_held_before_it_can_go() -> None:
    scheduler = Scheduler()
    for number in range(4):
        scheduler.add(came_in(number, number))
    scheduler.hold_new(NewMailHold("isp", 2))
    scheduler.follow_hold([queued.queue_id for queued in scheduler] + [QueueId("gone")])

    gone = [scheduler.next_ready(9), scheduler.next_ready(9)]
    assert [queued and queued.arrived_at_ns for queued in gone] == [0, 1]
    assert scheduler.next_ready(9) is None


class Holding(RuleBasedStateMachine):
    """Mail comes in, is taken, held by hand and let go, and pauses begin and end."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.now_ns = self.count = 0
        self.since_ns: int | None = None
        self.by_hand: set[QueueId] = set()
        self.active: list[QueueId] = []

    def drawn(self, pick: int, *states: State) -> Queued | None:
        those = [queued for queued in self.scheduler if queued.state in states]
        return those[pick % len(those)] if those else None

    @rule(later_ns=st.integers(0, 3), is_notice=st.booleans())
    def comes_in(self, later_ns: int, is_notice: bool) -> None:
        self.now_ns += later_ns
        self.count += 1
        self.scheduler.add(came_in(self.count, self.now_ns, "r" if is_notice else ""))

    @rule()
    def is_taken(self) -> None:
        if (taken := self.scheduler.next_ready(self.now_ns)) is not None:
            self.active.append(taken.queue_id)

    @precondition(lambda self: self.active)
    @rule(pick=st.integers(0, 99), what=st.sampled_from(["give back", "again", "ends"]))
    def returns(self, pick: int, what: str) -> None:
        queue_id = self.active.pop(pick % len(self.active))
        match what:
            case "give back":
                self.scheduler.give_back(queue_id, NO_REASON)
            case "again":
                self.scheduler.again(queue_id, 1, NO_REASON)
            case _:
                self.scheduler.remove(queue_id)

    @rule(pick=st.integers(0, 99))
    def is_held_by_hand(self, pick: int) -> None:
        if (queued := self.drawn(pick, State.WAITING, State.HELD)) is not None:
            self.scheduler.seize(queued.queue_id)
            self.scheduler.hold(queued.queue_id)
            self.scheduler.explain(queued.queue_id, BY_HAND)
            self.by_hand.add(queued.queue_id)

    @rule(pick=st.integers(0, 99))
    def is_released_by_hand(self, pick: int) -> None:
        queued = self.drawn(pick, State.HELD)
        if queued is not None and queued.queue_id in self.by_hand:
            self.scheduler.release(queued.queue_id)
            self.by_hand.remove(queued.queue_id)

    @rule(holds_new=st.booleans(), slice_=st.integers(1, 3))
    def is_paused_or_resumed(self, holds_new: bool, slice_: int) -> None:
        # Transactions in flight are of mail that came in before.
        self.now_ns += 1
        self.since_ns = self.now_ns if holds_new else None
        self.scheduler.hold_new(None if self.since_ns is None else NewMailHold("isp", self.since_ns))
        queue_ids = [queued.queue_id for queued in self.scheduler]
        for start in range(0, len(queue_ids), slice_):
            self.scheduler.follow_hold(queue_ids[start : start + slice_])

    @invariant()
    def just_what_should_be_held_is(self) -> None:
        assert_counted(self.scheduler)
        for queued in self.scheduler:
            is_new = self.since_ns is not None and queued.arrived_at_ns >= self.since_ns
            by_pause = is_new and len(queued.queue_id) == 16
            if queued.queue_id in self.by_hand:
                assert (queued.state, queued.is_held_by_pause) == (State.HELD, False)
            elif queued.queue_id in self.active:
                assert queued.state is State.ACTIVE
            else:
                assert queued.is_held_by_pause == by_pause
                assert queued.state is (State.HELD if by_pause else State.WAITING)

    def teardown(self) -> None:
        self.is_paused_or_resumed(holds_new=False, slice_=2)
        left = {queued.queue_id for queued in self.scheduler} - self.by_hand - set(self.active)
        gone = set()
        while (taken := self.scheduler.next_ready(self.now_ns)) is not None:
            gone.add(taken.queue_id)
        assert gone == left


TestHolding = Holding.TestCase
