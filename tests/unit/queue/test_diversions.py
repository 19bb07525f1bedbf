"""What is told of routes: each change once, each beginning with its end."""

from hypothesis import given
from hypothesis import strategies as st

from relay.queue.diversions import Diversion, Diversions, Turn
from relay.queue.routes import Availability, Because, Choice, Route, choose

ROUTE = Route(("a", "b", "c"), 10)
OTHER = Route(("a", "b"), 10)
PREFERRED, TO_B = Choice("a"), Choice("b", Because.FAILOVER, "a")


def shown(turns: list[Turn]) -> list[tuple[str, str, str]]:
    return [(turn.diversion.because, turn.diversion.upstream, turn.back_to) for turn in turns]


def test_a_failover_is_told_once_and_its_end_once() -> None:
    known = Diversions()
    known.use([ROUTE])
    for choice in (PREFERRED, TO_B, TO_B._replace(until_ns=7), TO_B, PREFERRED, PREFERRED):
        known.chose(ROUTE, choice, 3)

    assert shown(known.turns()) == [("failover", "b", ""), ("failover", "b", "a")]
    assert not known
    assert known.of(ROUTE) == ()


def test_the_next_stand_in_is_told_without_an_end_between() -> None:
    known = Diversions()
    known.use([ROUTE])
    all_down = Choice("a", Because.ALL_DOWN)
    for choice in (TO_B, Choice("c", Because.FAILOVER, "b"), all_down, PREFERRED):
        known.chose(ROUTE, choice, 0)

    assert shown(known.turns()) == [
        ("failover", "b", ""),
        ("failover", "c", ""),
        ("all_down", "a", ""),
        ("all_down", "a", "a"),
    ]


def test_spilling_lasts_as_long_as_mail_is_moved_or_there() -> None:
    known = Diversions()
    known.use([ROUTE])
    spill = Choice("b", Because.SPILL, "a")
    known.spilled(ROUTE, spill, 1)
    known.spilled(ROUTE, spill, 2)
    known.looked(lambda _route, _to: False)
    assert known.of(ROUTE) == (Diversion("b", Because.SPILL, "a", 1),)
    known.looked(lambda route, to: (route, to) == (ROUTE, "b"))
    assert shown(known.turns()) == [("spill", "b", "")]

    known.looked(lambda _route, _to: False)
    assert shown(known.turns()) == [("spill", "b", "a")]


def test_a_route_that_an_edit_takes_away_is_told_as_over() -> None:
    known = Diversions()
    known.use([ROUTE, OTHER])
    known.chose(ROUTE, TO_B, 0)
    known.chose(OTHER, TO_B, 0)
    known.spilled(ROUTE, Choice("c", Because.SPILL, "b"), 0)
    known.turns()
    known.use([OTHER])

    assert shown(known.turns()) == [("failover", "b", "a"), ("spill", "c", "b")]
    assert known.of(OTHER) == (Diversion("b", Because.FAILOVER, "a", 0),)


DOWN_SINCE = st.one_of(st.none(), st.integers(0, 30))


@given(st.lists(st.tuples(DOWN_SINCE, DOWN_SINCE, DOWN_SINCE), max_size=20))
def test_what_is_told_adds_up_to_where_mail_goes(states: list[tuple[int | None, ...]]) -> None:
    known, told = Diversions(), ("a", Because.PREFERRED)
    known.use([ROUTE])
    for downs in states:
        standings = {name: Availability(down) for name, down in zip("abc", downs, strict=True)}
        choice = choose(ROUTE, standings, 20)
        known.chose(ROUTE, choice, 20)
        turns = known.turns()
        assert len(turns) <= 1
        for turn in turns:
            its = turn.diversion
            told = (turn.back_to, Because.PREFERRED) if turn.is_over else (its.upstream, its.because)
        assert told == (choice.upstream, choice.because)
