"""An order is left in the order in which its messages were ready, a few at a time."""

import gc
import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.queue import regrouping as regrouping_module
from relay.queue.lanes import DEFAULT_LANE, Order, smallest
from relay.queue.regrouping import RUN, Regrouping


def steps(regrouping: Regrouping) -> list[QueueId]:
    found = []
    while regrouping:
        if (queue_id := regrouping.step()) is not None:
            found.append(queue_id)
    return found


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(0, 30))
def test_messages_come_by_since_when_they_are_ready(sinces: list[int], begun: int) -> None:
    order, before = Order(), Order()
    before.add(QueueId("before"), DEFAULT_LANE, "a@x.example", 0)
    for number, since_ns in enumerate(sinces):
        order.add(QueueId(f"{number:03d}"), DEFAULT_LANE, "a@x.example", since_ns)
    since = {QueueId(f"{number:03d}"): since_ns for number, since_ns in enumerate(sinces)} | {
        QueueId("before"): 0
    }
    expected = [f"{number:03d}" for _, number in sorted((since, n) for n, since in enumerate(sinces))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regrouping_module, "AT_ONCE", 3)
        patch.setattr(regrouping_module, "RUN", 5)
        regrouping = Regrouping(order, since.get, Regrouping(before, since.get))
        came = [queue_id for _ in range(begun) if (queue_id := regrouping.step()) is not None]
        left = regrouping.left()

        assert came + left == [*expected, "before"]
        assert steps(regrouping) == left


def test_no_step_looks_at_more_than_a_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regrouping_module, "AT_ONCE", 3)
    looked_at: list[int] = []
    take_last = Order.take_last

    def counted(order: Order, most: int) -> list[QueueId]:
        before = len(order)
        taken = take_last(order, most)
        looked_at.append(before - len(order))
        return taken

    monkeypatch.setattr(Order, "take_last", counted)
    order = Order()
    for number in range(20):
        order.add(QueueId(f"{number:03d}"), DEFAULT_LANE, "a@x.example", 0)

    regrouping = Regrouping(order, lambda _queue_id: 0)
    assert looked_at == []
    assert len(steps(regrouping)) == 20
    assert (max(looked_at), sum(looked_at)) == (3, 20)


def test_no_object_of_a_message_is_the_collectors() -> None:
    order = Order()
    for number in range(4 * RUN):
        order.add(QueueId(f"{number:05d}"), DEFAULT_LANE, "a@x.example", number)
    regrouping = Regrouping(order, int)
    gc.collect()
    before = len(gc.get_objects())
    while len(order):
        assert regrouping.step() is None

    assert len(gc.get_objects()) - before < RUN // 10


@given(st.lists(st.integers(0, 50)), st.integers(0, 20))
def test_the_smallest_of_a_heap_are_found_in_order(numbers: list[int], most: int) -> None:
    heap = [(number,) for number in numbers]
    heapq.heapify(heap)

    assert smallest(heap, most) == sorted(heap)[:most]
