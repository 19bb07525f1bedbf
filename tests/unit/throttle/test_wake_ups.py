"""Nothing wakes before its time: one look at each instant that matters, and who is looked at then goes."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.queue.queued import NO_REASON, origin_of
from relay.queue.scheduler import Queued, Scheduler
from relay.throttle import admission
from relay.throttle.admission import Grant, Place, Request, Wait
from relay.throttle.gauge import Gauge
from relay.throttle.history_format import Ended
from relay.throttle.slots import Slots
from tests.unit.throttle.limits import TRANSACTION_NS, PerPeriod, messages

MAIL = [*["list@x.example"] * 40, *["news@y.example"] * 25, "owner@x.example"]


def _room_at(place: Place, gauges: Sequence[Gauge], now_ns: int) -> tuple[int, int]:
    return admission.room_at(gauges, place, now_ns)


class Beats:
    """The dispatcher's order of asking, with instant transactions and a clock that jumps where it is told."""

    def __init__(self, limits: list[PerPeriod]) -> None:
        self.slots = Slots()
        self.slots.judge_by(limits, 0)
        self.scheduler = Scheduler()
        self.now_ns = 0
        self.went: list[tuple[int, str]] = []
        self.refused: Counter[str] = Counter()
        self.idle_wake_ups = 0
        for number, sender in enumerate(MAIL):
            self.scheduler.add(Queued(QueueId(f"{number:04d} {sender}"), origin_of(sender), 1, 0, 1))

    def run(self) -> None:
        """Beat until everything went."""
        while len(self.went) < len(MAIL):
            before = len(self.went)
            until_ns = self._beat()
            while until_ns is None:
                until_ns = self._beat()
            self.idle_wake_ups += len(self.went) == before
            assert until_ns > self.now_ns
            self.now_ns = until_ns

    def _beat(self) -> int | None:
        """Try one message; return when to look again where there is none, None for at once."""
        for place in self.scheduler.places_due(self.now_ns):
            assert isinstance(place, Place)
            self.scheduler.let_leave(place, *self.slots.ask(partial(_room_at, place), self.now_ns))
        room = self.slots.ask(admission.room, self.now_ns)
        if room == 0:
            return self.slots.ask(lambda gauges, now_ns: admission.opens_at(gauges, 1, now_ns), self.now_ns)
        queued = self.scheduler.next_ready(self.now_ns)
        if queued is None:
            return self.scheduler.next_due_at_ns() or 2**62
        answer = self.slots.reserve(Request(1, sender=queued.reverse_path), TRANSACTION_NS, self.now_ns)
        if isinstance(answer, Wait):
            assert answer.place is not None
            self.refused[queued.queue_id] += 1
            self.scheduler.park(queued.queue_id, answer.place, answer.until_ns, NO_REASON)
        elif isinstance(answer, Grant):
            self.slots.settle(Ended(answer.reserved.id, self.now_ns))
            self.went.append((self.now_ns, queued.queue_id))
        return None


@pytest.mark.parametrize(
    "limits",
    [
        [messages(1, 10, "sender")],
        [messages(3, 10, "sender")],
        [messages(2, 10, "sender"), messages(9, 60)],
        [messages(2, 10, "sender"), messages(5, 25, "sender"), messages(30, 100)],
    ],
)
def test_each_message_is_looked_at_twice_in_all(limits: list[PerPeriod]) -> None:
    beats = Beats(limits)

    beats.run()

    # Refused at most once, on arrival.
    assert set(beats.refused.values()) == {1}
    assert beats.idle_wake_ups == 0
    for sender in set(MAIL):
        ids = [queue_id for _, queue_id in beats.went if queue_id.endswith(sender)]
        assert ids == sorted(ids)


def test_with_one_limit_every_slot_is_used_the_instant_it_opens() -> None:
    beats = Beats([messages(1, 10, "sender")])

    beats.run()

    by_list = [at_ns for at_ns, queue_id in beats.went if queue_id.endswith("list@x.example")]
    assert by_list == [number * 10 * SECOND_NS for number in range(40)]
    assert beats.went[2][1].endswith("owner@x.example")
    assert beats.went[2][0] == 0
