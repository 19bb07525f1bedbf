"""What a decision costs, in lines of Python that are run, and what bounds the memory of keys."""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from relay.clock import SECOND_NS
from relay.throttle import admission
from relay.throttle.admission import Grant, Request
from relay.throttle.bounds import HistoryBounds
from relay.throttle.gauge import KEY_ENTRIES
from relay.throttle.history_format import Ended
from relay.throttle.slots import Slots
from tests.engines.history.limits import TRANSACTION_NS, messages, recipients

DAY_NS = 86_400 * SECOND_NS


def _lines_run(function: Callable[[], object]) -> int:
    """Count the lines that are run in the room of the throttle."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if "relay/throttle" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return lines


def _decide(slots: Slots, now_ns: int, request: Request) -> bool:
    """Decide about one message, and end it at once if it may go."""
    answer = slots.reserve(request, TRANSACTION_NS, now_ns)
    if not isinstance(answer, Grant):
        return False
    slots.settle(Ended(answer.reserved.id, now_ns + 1))
    slots.written(1)
    return True


def _cost(count: int, most: int) -> float:
    """Return what a decision costs on the average, once every slot was used and one opens for each."""
    slots = Slots()
    slots.judge_by([messages(count, seconds=86_400), recipients(10 * count, seconds=86_400)], 0)
    gap_ns, now_ns, decisions = DAY_NS // count, 0, 200
    for _ in range(min(count, most)):
        assert _decide(slots, now_ns, Request(1))
        now_ns += gap_ns

    def decide() -> None:
        for number in range(decisions):
            _decide(slots, max(DAY_NS, now_ns) + number * gap_ns, Request(1))

    return _lines_run(decide) / decisions


@pytest.mark.parametrize(
    ("count", "most"), [(1_000, 1_000), pytest.param(1_000_000, 20_000, marks=pytest.mark.full)]
)
def test_a_decision_costs_the_same_for_every_n(count: int, most: int) -> None:
    assert _cost(count, most) < 1.5 * _cost(8, most)


def test_a_new_key_costs_the_same_among_many() -> None:
    costs = []
    for keys in (10, 500):
        slots = Slots()
        slots.judge_by([messages(5, seconds=60, for_each="sender")], 0)
        for number in range(keys):
            assert _decide(slots, number, Request(1, sender=f"{number}@x.example"))
        costs.append(_lines_run(functools.partial(_decide, slots, keys, Request(1, sender="more@x.example"))))
    assert costs[1] < 1.2 * costs[0]


def test_keys_beyond_the_bound_share_a_window_and_stay_under_n() -> None:
    keys = 50
    slots = Slots(HistoryBounds(most_entries=keys * (KEY_ENTRIES + 1)))
    slots.judge_by([messages(3, seconds=60, for_each="sender")], 0)
    for number in range(keys):
        assert _decide(slots, number, Request(1, sender=f"{number}"))

    assert not slots.ask(admission.usage, keys)[0].is_crowded
    went = [_decide(slots, keys + number, Request(1, sender=f"late{number}")) for number in range(5)]

    assert went == [True, True, True, False, False]
    assert slots.ask(admission.usage, keys + 5)[0].is_crowded
    # What is shared counts for those with a window too, for as long as it is there.
    assert not _decide(slots, keys + 9, Request(1, sender="7"))
    assert _decide(slots, 61 * SECOND_NS, Request(1, sender="late4"))
    assert not slots.ask(admission.usage, 61 * SECOND_NS)[0].is_crowded


def test_where_memory_is_short_no_slot_is_free_early_nor_much_later() -> None:
    slots = Slots(HistoryBounds(most_entries=2 * KEY_ENTRIES + 10))
    slots.judge_by([messages(200, seconds=1600, for_each="sender")], 0)
    for number in range(400):
        assert _decide(slots, number * SECOND_NS, Request(1, sender="ab"[number % 2]))

    # Of each ended something every other second; a part of the span is 100 s.
    assert not _decide(slots, 1599 * SECOND_NS, Request(1, sender="a"))
    for now_s in range(1600, 2200, 7):
        (usage,) = slots.ask(admission.usage, now_s * SECOND_NS)
        exact, late = (sum(at_s + 1600 >= s for at_s in range(0, 400, 2)) for s in (now_s, now_s - 100))
        assert exact - 1 <= usage.used <= late
