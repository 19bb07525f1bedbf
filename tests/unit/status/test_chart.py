"""What the charts are drawn from, and their shapes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from relay.status.page import GAP, MINUTES, Samples, steps
from relay.status.snapshot import QueueCounts, QueueState, Snapshot
from tests.fakes.snapshots import a_limit, a_snapshot, an_upstream

KEY = ("isp", "8 messages per 60s")


def seen(used: int, waiting: int = 0) -> Snapshot:
    shown = a_snapshot(upstream=an_upstream(limits=(a_limit(used=used),)))
    return replace(shown, queue={QueueState.WAITING: QueueCounts(waiting)})


@given(st.lists(st.tuples(st.integers(0, 3 * MINUTES), st.integers(0, 9)), min_size=1, max_size=30))
def test_each_minute_of_the_day_has_its_highest_number(looks: list[tuple[int, int]]) -> None:
    samples, highest = Samples(), dict[int, int]()

    for minute, used in sorted(looks, key=lambda look: look[0]):
        samples.note(seen(used), minute)
        highest[minute] = max(used, highest.get(minute, 0))

    last = max(highest)
    expected = [highest.get(minute, GAP) for minute in range(last - MINUTES + 1, last + 1)]
    assert samples.day(KEY) == expected


def test_what_is_not_known_is_a_gap_in_the_line() -> None:
    line, area = "M0 48V48H60M120 0V0H180V24H240", "M0 48V48H60V48ZM120 48V0H180V24H240V48Z"

    assert steps([0, GAP, 4, 2], 4) == (line, area)
    assert steps([GAP, GAP], 4) == ("", "")
