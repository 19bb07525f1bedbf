"""The estimate agrees with a window that is simulated slot by slot, and keeps the queue's own rules."""

import heapq

from hypothesis import given
from hypothesis import strategies as st
from relay.throttle.limit_state import Limited

from relay.status.estimate.eta import foretell
from relay.status.estimate.expected import Foretold, Mail, Outlook

T = 1_000
NOW = 10_000


@st.composite
def limits(draw: st.DrawFn) -> Limited:
    opens = draw(st.lists(st.integers(NOW + 1, NOW + T), max_size=12))
    return Limited("few", "messages", draw(st.integers(1, 10)), T, tuple((at, 1) for at in sorted(opens)))


def simulated_starts(waiting: int, limit: Limited, transaction: int) -> list[int]:
    """Start each as soon as fewer than N slots are occupied; each occupies its slot until T after its end."""
    occupied = [at for at, _ in limit.shared]
    heapq.heapify(occupied)
    now, starts = NOW, []
    for _ in range(waiting):
        while occupied and occupied[0] <= now:
            heapq.heappop(occupied)
        while len(occupied) >= limit.count:
            now = heapq.heappop(occupied)
        starts.append(now)
        heapq.heappush(occupied, now + transaction + T)
    return starts


@given(limits(), st.integers(1, 60), st.integers(0, 50))
def test_the_estimate_is_what_a_window_does_slot_by_slot(
    limit: Limited, waiting: int, transaction: int
) -> None:
    outlook = Outlook(NOW, (limit,), connections=1000, transaction_ns=transaction)

    foretold = foretell([Mail(1)] * waiting, outlook)

    starts = simulated_starts(waiting, limit, transaction)
    assert [each.eta_ns for each in foretold] == [start + transaction for start in starts]
    assert [each.held_by for each in foretold] == ["limit few" if start > NOW else "" for start in starts]


@given(st.lists(limits(), max_size=3), st.lists(st.integers(1, 5), max_size=20))
def test_no_other_limit_makes_anything_earlier_and_nobody_overtakes(
    of_all: list[Limited], recipients: list[int]
) -> None:
    mails = [Mail(count) for count in recipients]
    all_of_them = foretell(mails, Outlook(NOW, tuple(of_all), connections=100))

    assert [each.eta_ns for each in all_of_them] == sorted(each.eta_ns for each in all_of_them)
    for limit in of_all:
        alone = foretell(mails, Outlook(NOW, (limit,), connections=100))
        assert all(a.eta_ns <= b.eta_ns for a, b in zip(alone, all_of_them, strict=True))


def test_without_limits_all_may_go_at_once_as_far_as_connections_go() -> None:
    foretold = foretell([Mail(1)] * 5, Outlook(NOW, connections=2, transaction_ns=10))

    assert [each.eta_ns - NOW for each in foretold] == [10, 10, 20, 20, 30]
    assert [each.held_by for each in foretold] == ["", "", "connections", "connections", "connections"]


def test_after_a_pause_one_proves_the_upstream_for_all() -> None:
    outlook = Outlook(
        NOW, connections=5, transaction_ns=10, paused_until_ns=NOW + 700, pause="pause: 421 busy"
    )

    assert foretell([Mail(1)] * 3, outlook) == [
        Foretold(NOW + 710, "pause: 421 busy"),
        Foretold(NOW + 720, "pause: 421 busy"),
        Foretold(NOW + 720, "pause: 421 busy"),
    ]
