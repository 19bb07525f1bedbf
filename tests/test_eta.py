"""The estimate agrees with a window that is simulated slot by slot."""

import heapq

from hypothesis import given
from hypothesis import strategies as st

from relay.eta import Room, drain_in_ns, starts_in_ns

T = 1_000


@st.composite
def known_rooms(draw: st.DrawFn) -> Room:
    """Rooms of which every opening is known."""
    opens = tuple(sorted(draw(st.lists(st.integers(1, T), max_size=12))))
    return Room("messages", draw(st.integers(1, 10)), len(opens), T, opens)


@st.composite
def rooms(draw: st.DrawFn) -> Room:
    """Rooms of which only the first openings are known."""
    room = draw(known_rooms())
    return Room("messages", room.count, room.used, T, room.opens_in_ns[: draw(st.integers(0, room.used))])


def simulated_starts(waiting: int, room: Room) -> list[int]:
    """Start each as soon as fewer than N slots are occupied; each occupies its slot for T."""
    occupied = list(room.opens_in_ns)
    heapq.heapify(occupied)
    now, starts = 0, []
    for _ in range(waiting):
        while len(occupied) >= room.count:
            now = heapq.heappop(occupied)
        starts.append(now)
        heapq.heappush(occupied, now + T)
    return starts


@given(known_rooms(), st.integers(1, 60))
def test_the_estimate_is_exact_where_every_opening_is_known(room: Room, waiting: int) -> None:
    assert [starts_in_ns(nth, room) for nth in range(1, waiting + 1)] == simulated_starts(waiting, room)


@given(rooms(), st.integers(1, 60))
def test_nobody_starts_before_somebody_in_front_and_nobody_later_than_a_round_each(
    room: Room, waiting: int
) -> None:
    starts = [starts_in_ns(nth, room) for nth in range(waiting + 1)]

    assert starts == sorted(starts)
    assert starts[-1] <= (1 + (waiting - 1) // room.count) * T


def test_nothing_waiting_has_gone_already() -> None:
    assert drain_in_ns(0, 0, [Room("messages", 1, 1, T, (5,))]) == 0


def test_without_limits_all_may_go_at_once() -> None:
    assert drain_in_ns(1_000, 9_000, []) == 0


def test_the_tightest_limit_decides_and_each_counts_its_own_unit() -> None:
    per_message, per_recipient = Room("messages", 10, 0, T), Room("recipients", 10, 0, T)

    assert drain_in_ns(10, 50, [per_message]) == 0
    assert drain_in_ns(10, 50, [per_message, per_recipient]) == 4 * T


def test_four_hundred_messages_at_eight_a_minute_take_fifty_rounds() -> None:
    room = Room("messages", 8, 8, T, (300,))

    assert 49 * T < drain_in_ns(400, 400, [room]) <= 50 * T
