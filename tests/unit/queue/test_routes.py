"""Which upstream mail stands for, by the states of all in its route."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.queue.routes import (
    Availability,
    Because,
    Choice,
    Route,
    choose,
    is_better,
    next_listed,
)

UP, FOREVER = Availability(), None
A_B = Route(("a", "b"), failover_after_ns=15)


@pytest.mark.parametrize(
    ("a", "b", "now_ns", "choice"),
    [
        (UP, UP, 0, Choice("a")),
        (UP, Availability(0), 99, Choice("a")),
        (Availability(10), UP, 24, Choice("a", until_ns=25)),
        (Availability(10), UP, 25, Choice("b", Because.FAILOVER, "a")),
        (Availability(10, is_proving=True), UP, 25, Choice("b", Because.FAILOVER, "a")),
        (Availability(10), Availability(20), 30, Choice("b", Because.FAILOVER, "a", until_ns=35)),
        (Availability(10), Availability(20), 35, Choice("a", Because.ALL_DOWN)),
        (Availability(10), Availability(0), 24, Choice("a", until_ns=25)),
        (Availability(10), Availability(0), 25, Choice("a", Because.ALL_DOWN)),
    ],
)
def test_the_next_upstream_is_used_once_the_one_before_is_down_for_long(
    a: Availability, b: Availability, now_ns: int, choice: Choice
) -> None:
    assert choose(A_B, {"a": a, "b": b}, now_ns) == choice


def test_without_failover_mail_waits_for_the_preferred_one() -> None:
    assert choose(Route(("a", "b")), {"a": Availability(0), "b": UP}, 10**18) == Choice("a")


def test_an_upstream_that_left_the_policy_is_passed_over() -> None:
    assert choose(A_B, {"b": UP}, 0) == Choice("b")
    assert choose(A_B, {"c": UP}, 0) == Choice("a", Because.ALL_DOWN)


def test_only_a_preferred_upstream_or_any_for_one_that_is_down_is_better() -> None:
    states = {"a": Availability(0, is_proving=True), "b": UP, "c": Availability(0)}
    route = Route(("a", "b", "c"), 1)
    assert is_better(route, "a", "b", states)
    assert not is_better(route, "c", "b", states)
    assert is_better(route, "b", "c", states)
    assert not is_better(route, "x", "b", states)
    assert next_listed(route, "a", states) == "b"
    assert next_listed(route, "b", states) is None


standings = st.builds(Availability, st.none() | st.integers(0, 50), st.booleans())


@given(
    st.permutations(["a", "b", "c"]),
    st.none() | st.integers(1, 30),
    st.fixed_dictionaries(dict.fromkeys("abc", standings)),
    st.integers(0, 100),
)
def test_an_answer_holds_until_its_instant_and_no_longer(
    names: list[str], failover_ns: int | None, states: dict[str, Availability], now_ns: int
) -> None:
    route = Route(tuple(names), failover_ns)
    choice = choose(route, states, now_ns)
    for later_ns in range(now_ns, 140):
        again = choose(route, states, later_ns)
        if choice.until_ns is not None and later_ns >= choice.until_ns:
            assert again != choice
            break
        assert again == choice
