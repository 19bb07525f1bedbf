"""The list of ids, held against a plain list: whatever leaves from wherever, the order is as they came."""

import copy

from hypothesis import example, given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.queue.fifo import SPARE_ENTRIES, Fifo

acts = st.sampled_from(["add", "add", "add_first", "remove", "remove_first", "copy"])


@given(st.lists(st.tuples(acts, st.integers(0, 12)), max_size=200))
@example([("add", 0), ("add", 1), ("remove", 1), ("add_first", 1)])
def test_the_order_is_that_of_a_plain_list(steps: list[tuple[str, int]]) -> None:
    fifo, model = Fifo(), list[QueueId]()
    for act, number in steps:
        queue_id = QueueId(str(number))
        if act == "copy":
            before, fifo = fifo, fifo.copy()
            for each in model:
                before.remove(each)
        elif act == "remove_first" and model:
            fifo.remove(model.pop(0))
        elif act == "remove" and queue_id in model:
            fifo.remove(queue_id)
            model.remove(queue_id)
        elif act == "add" and queue_id not in model:
            fifo.add(queue_id)
            model.append(queue_id)
        elif act == "add_first" and queue_id not in model:
            fifo.add_first(queue_id)
            model.insert(0, queue_id)
        assert list(fifo) == model
        assert len(fifo) == len(model)
        assert not model or fifo.first == model[0]


@given(st.permutations(range(3 * SPARE_ENTRIES)), st.integers(0, SPARE_ENTRIES))
def test_what_is_gone_takes_no_memory(order: list[int], left: int) -> None:
    fifo = Fifo()
    for number in range(len(order)):
        fifo.add(QueueId(str(number)))
    for number in order[left:]:
        fifo.remove(QueueId(str(number)))
        assert len(fifo._ids) <= 2 * (2 * len(fifo) + SPARE_ENTRIES) + SPARE_ENTRIES

    assert list(fifo) == [QueueId(str(number)) for number in sorted(order[:left])]
    assert list(copy.deepcopy(fifo)) == list(fifo)


def test_what_leaves_from_the_end_leaves_no_entry_behind() -> None:
    fifo = Fifo()
    for number in range(1000):
        fifo.add(QueueId(f"{number}"))
    for number in range(999, 500, -1):
        fifo.remove(QueueId(f"{number}"))

    assert len(fifo._ids) == len(fifo) == 501
    assert fifo._gone is None
