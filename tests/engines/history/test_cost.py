"""The cost of a decision, in executed lines of Python, and the bound on the memory of keys."""

import functools
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

from relay.clock import SECOND_NS
from relay.throttle.admission import Request, Reservation
from relay.throttle.book import KEEP_NS, Book, Bounds, book_of, compacted
from relay.throttle.history import Ended, Slot
from relay.throttle.limit import Window
from tests.engines.history.limits import TRANSACTION_NS, messages, recipients, throttle
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk

DAY_NS = 86_400 * SECOND_NS


def _lines_run(function: Callable[[], object]) -> int:
    """Count the executed lines of `relay/throttle`."""
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


def decide(book: Book, now_ns: int, request: Request) -> bool:
    """Decide about one message. If it may go, end its transaction at once."""
    book.advance(now_ns)
    (answer,) = book.decide([request], TRANSACTION_NS)
    if not isinstance(answer, Reservation):
        return False
    book.keep()
    book.apply([Ended(answer.slot.id, now_ns + 1)])
    return True


def _cost(count: int, most: int) -> float:
    """Return the average cost of a decision once all slots were used and one opens for each decision."""
    book = Book()
    book.judge_by([messages(count, seconds=86_400), recipients(10 * count, seconds=86_400)])
    gap_ns, now_ns, decisions = DAY_NS // count, 0, 200
    for _ in range(min(count, most)):
        assert decide(book, now_ns, Request(1))
        now_ns += gap_ns

    def run() -> None:
        for number in range(decisions):
            decide(book, max(DAY_NS, now_ns) + number * gap_ns, Request(1))

    return _lines_run(run) / decisions


@pytest.mark.parametrize(
    ("count", "most"), [(1_000, 1_000), pytest.param(1_000_000, 20_000, marks=pytest.mark.full)]
)
def test_a_decision_costs_the_same_for_every_n(count: int, most: int) -> None:
    assert _cost(count, most) < 1.5 * _cost(8, most)


def test_a_decision_costs_the_same_for_any_number_of_keys() -> None:
    costs = []
    for keys in (100, 2000):
        book = Book()
        book.judge_by([messages(5, seconds=60, for_each="sender")])
        for number in range(keys):
            assert decide(book, number, Request(1, sender=f"{number}@x.example"))
        costs.append(_lines_run(functools.partial(decide, book, keys, Request(1, sender="more@x.example"))))
    assert costs[1] < 1.3 * costs[0]


def test_usage_names_the_fullest_key_as_slots_expire(memory: ModelDisk, clock: FakeClock) -> None:
    account = throttle(Path("/history/isp"), memory, clock, [messages(50, seconds=60, for_each="sender")])
    for number in range(300):
        key = "ab"[number % 3 == 0] if number < 30 else f"{number}"
        (reservation,) = account.reserve([Request(1, sender=key)])
        assert isinstance(reservation, Reservation)
        account.settle(reservation, clock.boottime_ns())
        clock.advance(SECOND_NS // 10)

    assert [(usage.key, usage.used) for usage in account.usage()] == [("a", 20)]
    clock.advance(40 * SECOND_NS)
    assert account.usage()[0].used == 1


def test_expired_keys_are_forgotten_and_a_large_limit_keeps_few_instants() -> None:
    book = Book(Bounds(exact=50, parts=16, most_shares=200))
    book.judge_by([messages(900, 1600, "sender"), messages(900, 1600)])
    before = _things()
    for number in range(3000):
        assert decide(book, number * 2 * SECOND_NS, Request(1, sender=f"{number}"))
        if number % 100 == 0:
            book.events()  # as for a history that has become long

    assert _things() - before < 3000
    assert 800 <= book.limits[1].used(None, book.now_ns) <= 900


@pytest.mark.parametrize(("keys", "seconds"), [(1000, 60), (180, 3600)])
def test_old_slots_close_no_key_if_the_window_has_fewer_keys_than_the_bound(keys: int, seconds: int) -> None:
    book = Book(Bounds(exact=10, most_shares=200))
    book.judge_by([messages(5, seconds, "sender")])
    for number in range(keys):
        assert decide(book, number * SECOND_NS, Request(1, sender=f"{number}"))
        if number % 100 == 0:
            book.events()

    restarted = book_of(book.events(), book.now_ns, book.policy_limits)
    assert decide(restarted, book.now_ns + 1, Request(1, sender="another"))


def _things() -> int:
    """Count tuples and windows: openings, slots and shares are tuples."""
    gc.collect()
    return sum(isinstance(each, tuple | Window) for each in gc.get_objects())


def test_compaction_bounds_memory_and_moves_no_end_earlier_or_much_later() -> None:
    bounds, random = Bounds(exact=50), Random(0)
    slots = [
        Slot(number, at_ns, at_ns + 5, 1, 1, is_open=False)
        for number, at_ns in enumerate(sorted(random.randrange(KEEP_NS * 2) for _ in range(60_000)), 1)
    ]
    now_ns = slots[-1].until_ns
    kept = compacted(slots, now_ns, bounds)

    assert len(kept) < 6000
    assert kept[-50:] == slots[-50:]
    assert compacted(kept, now_ns, bounds) == kept
    for age_ns in (10**9, KEEP_NS // 7, KEEP_NS):
        least = sum(slot.messages for slot in slots if slot.until_ns > now_ns - age_ns)
        most = sum(slot.messages for slot in slots if slot.until_ns > now_ns - age_ns - age_ns // 512)
        assert least <= sum(slot.messages for slot in kept if slot.until_ns > now_ns - age_ns) <= most
