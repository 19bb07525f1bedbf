"""What a decision costs, in lines of Python that are run: the same for every N and any number of keys."""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from relay.clock import SECOND_NS
from relay.throttle import admission
from relay.throttle import slots as slots_room
from relay.throttle.admission import Grant, Request
from relay.throttle.gauge import KEY_ENTRIES
from relay.throttle.history_format import LONGEST_KEY, Ended
from relay.throttle.slots import Slots
from relay.throttle.window import COARSE_BUCKETS
from tests.unit.throttle.limits import TRANSACTION_NS, messages, recipients

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


def _filled(count: int, most: int) -> tuple[Slots, int]:
    """Return slots that have had so much of a day's limit, evenly, and the instant."""
    slots = Slots()
    slots.judge_by([messages(count, seconds=86_400), recipients(10 * count, seconds=86_400)], 0)
    gap_ns, now_ns = DAY_NS // count, 0
    for _ in range(min(count, most)):
        assert _decide(slots, now_ns, Request(1))
        now_ns += gap_ns
    return slots, now_ns


def _cost(count: int) -> float:
    """Return what a decision costs on the average, once every slot was used and one opens for each."""
    slots, now_ns = _filled(count, most=20_000)
    gap_ns = DAY_NS // count
    decisions = 400

    def decide() -> None:
        for number in range(decisions):
            _decide(slots, max(DAY_NS, now_ns) + number * gap_ns, Request(1))

    return _lines_run(decide) / decisions


def test_a_decision_costs_the_same_at_8_and_at_a_million() -> None:
    small = _cost(8)

    for count in (1_000, 1_000_000):
        assert _cost(count) < 1.5 * small


def test_a_refusal_costs_the_same_at_8_and_at_a_million() -> None:
    costs = []
    for count in (8, 1_000_000):
        slots = Slots()
        slots.judge_by([messages(count, seconds=86_400)], 0)
        for number in range(count if count == 8 else 20_000):
            _decide(slots, number, Request(1))
        slots.judge_by([messages(min(count, 20_000), seconds=86_400)], 0)
        refuse = functools.partial(_decide, slots, 30_000, Request(1))
        assert not refuse()
        costs.append(_lines_run(refuse))

    assert costs[1] < 1.5 * costs[0]


def test_a_new_key_costs_the_same_and_empty_keys_leave() -> None:
    costs = []
    for keys in (10, 2_000):
        slots = Slots()
        slots.judge_by([messages(5, seconds=60, for_each="sender")], 0)
        for number in range(keys):
            assert _decide(slots, number, Request(1, sender=f"{number}@x.example"))
        costs.append(_lines_run(functools.partial(_decide, slots, keys, Request(1, sender="more@x.example"))))

        (gauge,) = slots._gauges
        for number in range(keys):
            assert _decide(slots, 61 * SECOND_NS + number, Request(1, sender=f"new{number}@x.example"))
        # Each new one looked at two others: by now all of the old are gone.
        assert len(gauge._of_key) == keys
    assert costs[1] < 1.2 * costs[0]


def test_keys_beyond_the_bound_share_a_window_and_stay_under_n(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = 50
    monkeypatch.setattr("relay.throttle.gauge.MOST_ENTRIES", keys * (KEY_ENTRIES + 1))
    slots = Slots()
    slots.judge_by([messages(3, seconds=60, for_each="sender")], 0)
    for number in range(keys):
        assert _decide(slots, number, Request(1, sender=f"{number}"))

    assert not slots.ask(admission.usage, keys)[0].is_crowded
    went = [_decide(slots, keys + number, Request(1, sender=f"late{number}")) for number in range(5)]

    (gauge,) = slots._gauges
    assert went == [True, True, True, False, False]
    assert len(gauge._of_key) == keys
    assert slots.ask(admission.usage, keys + 5)[0].is_crowded
    # What is shared counts for those with a window too, for as long as it is there.
    assert not _decide(slots, keys + 9, Request(1, sender="7"))
    assert _decide(slots, 61 * SECOND_NS, Request(1, sender="late4"))
    assert not slots.ask(admission.usage, 61 * SECOND_NS)[0].is_crowded


def test_ten_thousand_domains_in_a_day_are_kept_apart() -> None:
    slots = Slots()
    slots.judge_by([messages(2, seconds=86_400, for_each="recipient_domain")], 0)
    for number in range(10_100):
        assert _decide(slots, number, Request(1, recipient_domains=(f"d{number}.example",)))
    assert _decide(slots, 20_000, Request(1, recipient_domains=("d0.example",)))

    (gauge,) = slots._gauges
    assert (gauge._kept.entries, len(gauge._of_key)) == (10_101, 10_100)
    assert slots.ask(admission.room, 20_001) is None
    assert slots.ask(admission.full, 20_001) == []
    # Whoever looks at a window whose slots are free lets go of them.
    assert slots.ask(admission.usage, 2 * DAY_NS)[0].used == 0
    assert gauge._kept.entries == 0


def test_where_memory_is_short_no_slot_is_free_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.throttle.gauge.MOST_ENTRIES", 2 * KEY_ENTRIES + 10)
    slots = Slots()
    slots.judge_by([messages(500, seconds=1600, for_each="sender")], 0)
    for number in range(400):
        assert _decide(slots, number * SECOND_NS, Request(1, sender="ab"[number % 2]))

    (gauge,) = slots._gauges
    assert gauge._kept.entries <= 10 + 2 * (COARSE_BUCKETS + 1)
    for now_s in range(1500, 2200):
        # Of "a" ended something every other second; a part of the span is 100 s.
        exact, late = (
            sum(at_s + 1600 >= each_s for at_s in range(0, 400, 2)) for each_s in (now_s, now_s - 100)
        )
        assert exact <= gauge.used("a", now_s * SECOND_NS) <= late


def test_long_keys_make_no_decision_look_at_all_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_room, "MOST_SHARES", 2000)
    slots = Slots()
    slots.judge_by([messages(9, 60, "recipient_domain")], 0)

    def decide(numbers: range) -> None:
        for number in numbers:
            domain = f"{number}.{'x' * LONGEST_KEY}"
            assert _decide(slots, number * SECOND_NS, Request(1, recipient_domains=(domain,)))

    few = _lines_run(lambda: decide(range(200)))
    decide(range(200, 1200))
    many = _lines_run(lambda: decide(range(1200, 1400)))

    assert many < 2 * few
