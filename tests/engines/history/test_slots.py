"""What is known of the past: bounded, never rounded down, and the same for any limits."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.throttle import admission
from relay.throttle.admission import Request, TooLarge, Wait
from relay.throttle.bounds import BOUNDS
from relay.throttle.compaction import KEEP_NS
from relay.throttle.history_format import Charged, Ended, Record, Reserved
from relay.throttle.slots import Slots
from tests.engines.history.limits import TRANSACTION_NS, messages

DAY_NS = 86_400 * SECOND_NS


def _reserve(slots: Slots, recipients: int, transaction_ns: int, now_ns: int) -> Reserved | Wait:
    answer = slots.reserve(Request(recipients), transaction_ns, now_ns)
    assert not isinstance(answer, TooLarge)
    return answer if isinstance(answer, Wait) else answer.reserved


def _charged(slots: Slots, now_ns: int) -> list[Charged]:
    return [record for record in slots.records(now_ns) if isinstance(record, Charged)]


def test_an_end_is_counted_once_whoever_tells_of_it_and_however_often() -> None:
    slots = Slots()
    slots.judge_by([messages(3, seconds=10)], 0)
    reserved = _reserve(slots, 1, TRANSACTION_NS, now_ns=0)
    assert isinstance(reserved, Reserved)

    slots.settle(Ended(reserved.id, 5))
    slots.learn([Ended(reserved.id, 7), Ended(12345, 8)])

    assert slots.ask(admission.usage, 9)[0].used == 1
    assert slots.ask(admission.usage, 10 * SECOND_NS + 5)[0].used == 0


def test_ids_are_unique_though_the_clock_stands_still() -> None:
    slots = Slots()
    slots.judge_by([messages(50, seconds=1)], 0)

    answers = [_reserve(slots, 1, TRANSACTION_NS, now_ns=77) for _ in range(50)]

    assert len({answer.id for answer in answers if isinstance(answer, Reserved)}) == 50


def test_what_is_not_written_yet_outlives_a_reset() -> None:
    slots = Slots()
    slots.judge_by([messages(1, seconds=10)], 0)
    reserved = _reserve(slots, 1, TRANSACTION_NS, now_ns=0)
    assert isinstance(reserved, Reserved)
    slots.settle(Ended(reserved.id, 5))

    slots.reset([reserved])

    assert slots.ask(lambda gauges, now_ns: admission.opens_at(gauges, 1, now_ns), 6) == 10 * SECOND_NS + 5
    assert slots.unwritten() == [Ended(reserved.id, 5)]


WEIGHTS = (st.integers(1, 3), st.integers(1, 9), st.integers(0, 2))
ENDS = st.lists(st.tuples(st.integers(0, 399 * DAY_NS), *WEIGHTS), max_size=200)


@given(ENDS, st.lists(st.integers(0, 400 * DAY_NS), min_size=1, max_size=4))
def test_merging_never_moves_an_end_to_before_it_nor_past_now_nor_far(
    ends: list[tuple[int, int, int, int]], steps: list[int]
) -> None:
    slots = Slots()
    slots.judge_by([], 0)
    newer = [Charged(400 * DAY_NS, 1, 1)] * BOUNDS.exact_ends
    slots.reset([*(Charged(*each) for each in ends), *newer])

    now_ns = 400 * DAY_NS
    for step_ns in steps:
        now_ns += step_ns // 2
        told = _charged(slots, now_ns)[: -len(newer)]
        kept = [each for each in ends if now_ns - each[0] <= KEEP_NS]
        for units in (1, 2, 3):
            exact = sorted(each[0] for each in kept for _ in range(each[units]))
            rounded = sorted(
                each[0]
                for each in told
                for _ in range((each.messages, each.recipients, each.connections)[units - 1])
            )
            assert len(rounded) == len(exact)
            assert all(
                at_ns <= told_ns <= min(now_ns, at_ns + (now_ns - at_ns) // 1024)
                for at_ns, told_ns in zip(exact, rounded, strict=True)
            )


def test_the_newest_ends_are_kept_exactly() -> None:
    slots = Slots()
    ends: list[Record] = [Charged(number * 1_000_003, 1, 1) for number in range(2 * BOUNDS.exact_ends)]
    slots.reset(ends)

    told = _charged(slots, now_ns=2 * BOUNDS.exact_ends * 1_000_003)

    assert set(ends[-BOUNDS.exact_ends :]) <= set(told)
    assert len(told) < len(ends)
    assert all(earlier.ended_at_ns <= later.ended_at_ns for earlier, later in pairwise(told))


@pytest.mark.full
def test_memory_stays_bounded_at_millions_per_day() -> None:
    slots = Slots()
    slots.judge_by([messages(1_000_000, seconds=86_400)], 0)
    gap_ns = DAY_NS // 1_000_000
    most = 0

    for number in range(40_000):
        now_ns = number * gap_ns * 150
        reserved = _reserve(slots, 1, TRANSACTION_NS, now_ns)
        assert isinstance(reserved, Reserved)
        slots.settle(Ended(reserved.id, now_ns + 1))
        slots.written(1)
        most = max(most, slots.kept)

    # The exact ones and a thousand a doubling of the age; as many again before they are merged.
    assert most < 2 * (BOUNDS.exact_ends + 1024 * 4)
