"""The table of what changes the state of an upstream: each cell, and what holds for all of them."""

from itertools import product
from pathlib import Path

import pytest

from relay.smtp.reply import Phase
from relay.verdicts.health import (
    GRAVITY,
    RESTING,
    STOPPED,
    TABLE,
    Effect,
    Happening,
    Health,
    goes_on,
    refusal,
)
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Layer, Rule, Ruling, Scope, Verdict
from tests.unit.verdicts.states_page import page

ROOT = Path(__file__).parents[3]
CASES = list(product(Health, Happening))
RESTARTS = (Happening.RESTART, Happening.LATE_RESTART)


def test_the_page_is_made_of_the_table_as_it_is() -> None:
    """If not: make docs."""
    assert (ROOT / "docs" / "states.md").read_text() == page()


@pytest.mark.parametrize("health", Health)
@pytest.mark.parametrize("happening", GRAVITY)
def test_after_a_refusal_about_us_nothing_is_sent(health: Health, happening: Happening) -> None:
    assert TABLE[health, happening].health in RESTING


@pytest.mark.parametrize("health", Health)
def test_a_graver_refusal_is_never_followed_by_a_lighter_state(health: Health) -> None:
    order = (Health.PAUSED, Health.REFUSED, Health.DOUBTED, Health.BARRED, Health.UNCOUNTED)
    before = order.index(health) if health in order else -1
    for happening in GRAVITY:
        assert order.index(TABLE[health, happening].health) >= max(before, GRAVITY.index(happening))


def test_only_what_went_well_makes_an_upstream_used() -> None:
    ways = {
        (health, happening)
        for (health, happening), cell in TABLE.items()
        if cell.health is Health.USED and health not in (Health.USED, Health.UNTRIED)
    }
    assert ways == {(Health.PROVING, Happening.PROOF)}


def test_resumed_is_told_once_something_went_well_and_never_before() -> None:
    told = {cell for cell, (_, effects) in TABLE.items() if Effect.TELL_RESUMED in effects}
    assert told == {(Health.PROVING, Happening.PROOF)}


def test_where_no_probe_is_allowed_only_somebody_ends_it() -> None:
    ways = {h for h in Happening if TABLE[Health.BARRED, h].health is not Health.BARRED}
    assert ways == {Happening.RESUME, Happening.EDIT}


@pytest.mark.parametrize(("health", "happening"), CASES, ids=[f"{s}-{h.name}" for s, h in CASES])
def test_what_begins_a_rest_is_counted_told_and_kept(health: Health, happening: Happening) -> None:
    after, effects = TABLE[health, happening]
    is_new = (after in RESTING and health not in RESTING) or (after in RESTING and happening in RESTARTS)

    assert (Effect.COUNT in effects) == is_new
    if is_new or (after is not health and after in RESTING):
        tells = Effect.TELL_STOPPED if after in STOPPED else Effect.TELL_PAUSED
        assert effects.index(Effect.REST) < effects.index(Effect.RECORD) < effects.index(tells)


def test_a_restart_goes_on_with_pauses_and_what_somebody_must_end() -> None:
    assert {s for s in Health if goes_on(s)} == {Health.PAUSED, Health.BARRED, Health.DOUBTED}


@pytest.mark.parametrize(
    ("verdict", "may_probe", "is_doubted", "expected"),
    [
        (Verdict.PAUSE, True, False, Happening.PAUSE),
        (Verdict.PAUSE, False, False, Happening.PAUSE),
        (Verdict.STOP, True, False, Happening.STOP),
        (Verdict.STOP, True, True, Happening.DOUBT),
        (Verdict.STOP, False, False, Happening.BAR),
        (Verdict.STOP, False, True, Happening.BAR),
    ],
)
def test_a_refusal_is_told_by_its_verdict(
    verdict: Verdict, may_probe: bool, is_doubted: bool, expected: Happening
) -> None:
    rule = Rule(Layer.OPERATOR, verdict, Scope.UPSTREAM, "here", "test", may_probe=may_probe)
    ruling = Ruling(verdict, Scope.UPSTREAM, rule)
    assert refusal(Answer(verdict, Phase.MAIL, None, "no", ruling=ruling, is_doubted=is_doubted)) is expected
