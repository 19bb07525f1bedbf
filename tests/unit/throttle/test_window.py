"""The arithmetic of one window, against a model that keeps every slot."""

from hypothesis import given
from hypothesis import strategies as st

from relay.throttle.window import BUCKETS, EXACT_SLOTS, Window


def _fill(window: Window, ended_at_ns: int, weight: int = 1) -> None:
    window.start(weight)
    window.end(weight, ended_at_ns)


def test_mail_in_flight_may_open_a_span_from_now() -> None:
    window = Window(2, period_ns=100, guard_ns=0)
    _fill(window, ended_at_ns=30)
    window.start(1)

    assert (window.opens_at(1, 50), window.opens_at(2, 50)) == (130, 150)


@given(
    count=st.integers(1, 12),
    period_ns=st.integers(1, 30),
    guard_ns=st.integers(0, 5),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 40)), max_size=40),
)
def test_occupied_is_what_a_list_of_all_slots_says(
    count: int, period_ns: int, guard_ns: int, steps: list[tuple[int, int, int]]
) -> None:
    window = Window(count, period_ns, guard_ns)
    slots: list[tuple[int, int]] = []
    now_ns = 100

    for passed_ns, weight, age_ns in steps:
        now_ns += passed_ns
        if weight:
            _fill(window, now_ns - age_ns, weight)
            slots.append((now_ns - age_ns, weight))
        occupied = sum(weight for at_ns, weight in slots if at_ns + period_ns + guard_ns > now_ns)

        assert window.occupied(now_ns) == occupied
        opens_at_ns = window.opens_at(1, now_ns)
        later = [at_ns + period_ns + guard_ns for at_ns, _ in slots]
        fits = [
            instant
            for instant in [now_ns, *sorted(each for each in later if each > now_ns)]
            if sum(w for at_ns, w in slots if at_ns + period_ns + guard_ns > instant) < count
        ]
        assert opens_at_ns == fits[0]


@given(
    ages_ns=st.lists(st.integers(0, 10**9), min_size=1, max_size=50),
    count=st.integers(EXACT_SLOTS + 1, 10**7),
)
def test_a_large_window_wastes_at_most_one_bucket(ages_ns: list[int], count: int) -> None:
    window = Window(count, period_ns=10**9, guard_ns=0)
    for age_ns in ages_ns:
        _fill(window, -age_ns)

    exact = sorted(10**9 - age_ns for age_ns in ages_ns)
    rounded = [opens_ns for opens_ns, weight in window.ends() for _ in range(weight)]
    assert len(rounded) == len(exact)
    assert all(
        opens_ns <= told_ns <= opens_ns + 10**9 // BUCKETS
        for opens_ns, told_ns in zip(exact, rounded, strict=True)
    )


def test_memory_of_a_window_of_a_million_is_bounded() -> None:
    window = Window(1_000_000, period_ns=86_400 * 10**9, guard_ns=0)
    for number in range(100_000):
        _fill(window, number * 86_400 * 10**9 // 100_000)

    assert len(list(window.ends())) <= BUCKETS + 2
