"""The upstream that a route chooses, by the states of all its upstreams."""

import pytest

from relay.queue.routes import Availability, Because, Choice, Route, choose, is_better, next_listed

UP, DOWN = Availability(), Availability(0)
A_B = Route(("a", "b"), failover_after_ns=15)


@pytest.mark.parametrize(
    ("a", "b", "now_ns", "choice"),
    [
        (UP, UP, 0, Choice("a")),
        (UP, DOWN, 99, Choice("a")),
        (Availability(10), UP, 24, Choice("a", until_ns=25)),
        (Availability(10), UP, 25, Choice("b", Because.FAILOVER, "a")),
        (Availability(10, is_proving=True), UP, 25, Choice("b", Because.FAILOVER, "a")),
        (Availability(10), Availability(20), 30, Choice("b", Because.FAILOVER, "a", until_ns=35)),
        (Availability(10), Availability(20), 35, Choice("a", Because.ALL_DOWN)),
        (Availability(10), DOWN, 24, Choice("a", until_ns=25)),
        (Availability(10), DOWN, 25, Choice("a", Because.ALL_DOWN)),
        # An edit removed an upstream.
        (None, UP, 0, Choice("b")),
        (None, None, 0, Choice("a", Because.ALL_DOWN)),
    ],
)
def test_a_route_fails_over_once_its_upstream_is_down_long_enough(
    a: Availability | None, b: Availability | None, now_ns: int, choice: Choice
) -> None:
    standings = {name: state for name, state in (("a", a), ("b", b)) if state is not None}
    assert choose(A_B, standings, now_ns) == choice


def test_mail_waits_for_the_preferred_upstream_without_failover() -> None:
    assert choose(Route(("a", "b")), {"a": DOWN, "b": UP}, 10**18) == Choice("a")


def test_only_a_preferred_upstream_or_any_instead_of_a_down_one_is_better() -> None:
    states = {"a": Availability(0, is_proving=True), "b": UP, "c": DOWN}
    route = Route(("a", "b", "c"), 1)
    found = [is_better(route, *pair, states) for pair in (("a", "b"), ("b", "c"), ("c", "b"), ("x", "b"))]
    assert found == [True, True, False, False]
    assert [next_listed(route, name, states) for name in ("a", "b")] == ["b", None]
