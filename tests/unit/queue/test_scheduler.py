"""The order of the queue, held against a list that is searched anew each time."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from relay.mail.envelope import QueueId
from relay.queue.queued import NO_REASON, origin_of
from relay.queue.scheduler import Queued, Scheduler, State
from relay.queue.sender_pauses import FIRST_REST_NS, LONGEST_REST_NS
from relay.verdicts.decision import back_off_ns
from tests.unit.queue.test_counts import assert_counted

MINUTE_NS = 60 * 10**9


def a_message(number: int, state: State = State.WAITING, due_at_ns: int = 0) -> Queued:
    name = QueueId(f"{number:016d}")
    return Queued(name, origin_of("a@b.example"), 100, 0, 1, state=state, due_at_ns=due_at_ns)


def from_sender(number: int, reverse_path: str) -> Queued:
    return Queued(QueueId(f"{number:016d}"), origin_of(reverse_path), 100, 0, 1)


def test_mail_of_a_paused_sender_comes_back_behind_its_rest() -> None:
    scheduler = Scheduler()
    for number, sender in enumerate(["bad", "good", "bad", "bad"]):
        scheduler.add(from_sender(number, sender))

    until_ns = scheduler.sender_pauses.begin("bad", 0, "553 not yours")

    good = scheduler.next_ready(0)
    assert good is not None
    assert good.reverse_path == "good"
    assert scheduler.next_ready(until_ns - 1) is None
    assert {queued.reason for queued in scheduler if queued.reverse_path == "bad"} == {"553 not yours"}
    assert scheduler.next_due_at_ns() == until_ns
    assert [scheduler.next_ready(until_ns) is not None for _ in range(4)] == [True, True, True, False]


def test_a_sender_rests_however_it_is_spelled() -> None:
    spellings = ["bad@x.example", '"bad"@X.example', '"\\bad"@x.example']
    scheduler = Scheduler()
    scheduler.sender_pauses.begin(from_sender(9, spellings[0]).sender, 0, "553 not yours")
    for number, sender in enumerate([*spellings, "good@x.example"]):
        scheduler.add(from_sender(number, sender))

    first = scheduler.next_ready(0)
    assert first is not None
    assert first.reverse_path == "good@x.example"


def test_a_sender_that_is_refused_again_rests_longer_up_to_a_bound() -> None:
    scheduler = Scheduler()
    lengths_ns, now_ns = [], 0
    for _ in range(10):
        lengths_ns.append(scheduler.sender_pauses.begin("bad", now_ns, "no") - now_ns)
        now_ns += lengths_ns[-1]

    assert lengths_ns[:3] == [FIRST_REST_NS, 2 * FIRST_REST_NS, 4 * FIRST_REST_NS]
    assert lengths_ns[-1] == LONGEST_REST_NS


def test_a_rest_is_no_age_until_it_is_over_or_the_sender_is_trusted() -> None:
    pauses = Scheduler().sender_pauses
    pauses.begin("bad", 5, "no")
    assert pauses.rests_of("bad") == ((5, 5 + FIRST_REST_NS),)
    pauses.end("bad", 100)
    pauses.begin("bad", 200, "no", ages=True)
    assert pauses.rests_of("bad") == ((5, 100),), "of the shield's rests nothing is known"
    assert pauses.senders() == {"bad": 200 + FIRST_REST_NS}
    pauses.end("bad", 300)
    assert pauses.rests_of("bad") == ((5, 100),)
    assert pauses.senders() == {}
    assert pauses.rests_of("good") == ()


@given(st.integers(0, 10**18), st.integers(1, 10**15), st.integers(1, 10**15))
def test_the_back_off_is_the_age_between_its_bounds(age_ns: int, one_ns: int, other_ns: int) -> None:
    least, most = sorted((one_ns, other_ns))

    waits_ns = back_off_ns(age_ns, least, most)

    assert least <= waits_ns <= most
    assert waits_ns == age_ns or age_ns < least or age_ns > most


class Order(RuleBasedStateMachine):
    """The scheduler against a plain list of names in the order in which they may go."""

    active = Bundle("active")

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.line: list[QueueId] = []
        self.deferred: dict[QueueId, int] = {}
        self.held: set[QueueId] = set()
        self.now_ns = 0
        self.count = 0

    def _wake(self) -> None:
        due = sorted((at, name) for name, at in self.deferred.items() if at <= self.now_ns)
        for _, name in due:
            del self.deferred[name]
            self.line.append(name)

    @rule()
    def arrives(self) -> None:
        self.count += 1
        self.scheduler.add(a_message(self.count))
        self.line.append(QueueId(f"{self.count:016d}"))

    @rule(span_ns=st.integers(1, 100))
    def passes(self, span_ns: int) -> None:
        self.now_ns += span_ns
        self.scheduler.has_ready(self.now_ns)
        self._wake()

    @rule(target=active)
    def takes(self) -> QueueId | None:
        self._wake()
        taken = self.scheduler.next_ready(self.now_ns)
        expected = self.line.pop(0) if self.line else None
        assert (taken.queue_id if taken else None) == expected
        return expected

    @rule(name=consumes(active))
    def gives_back(self, name: QueueId | None) -> None:
        if name is not None:
            self.scheduler.give_back(name, NO_REASON)
            self.line.insert(0, name)

    @rule(name=consumes(active), wait_ns=st.integers(1, 100))
    def postpones(self, name: QueueId | None, wait_ns: int) -> None:
        if name is not None:
            self.scheduler.postpone(name, self.now_ns + wait_ns, 1, NO_REASON)
            self.deferred[name] = self.now_ns + wait_ns

    @rule(name=consumes(active))
    def comes_again(self, name: QueueId | None) -> None:
        if name is not None:
            self.scheduler.again(name, 1, NO_REASON)
            self.line.append(name)

    @rule(name=consumes(active))
    def is_removed(self, name: QueueId | None) -> None:
        if name is not None:
            self.scheduler.remove(name)

    @rule(name=consumes(active))
    def is_held(self, name: QueueId | None) -> None:
        if name is not None:
            self.scheduler.hold(name)
            self.held.add(name)

    @rule(data=st.data())
    def is_released(self, data: st.DataObject) -> None:
        if self.held:
            name = data.draw(st.sampled_from(sorted(self.held)))
            self.held.discard(name)
            self.scheduler.release(name)
            self.line.append(name)

    @invariant()
    def all_are_counted(self) -> None:
        assert_counted(self.scheduler)

    @invariant()
    def the_next_due_is_the_earliest(self) -> None:
        assert self.scheduler.next_due_at_ns() == min(self.deferred.values(), default=None)


TestOrder = Order.TestCase
