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
    Cell,
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
CELLS = {
    Happening.PAUSE: {
        Health.UNTRIED: "paused: slow count more rest record tell_paused learn",
        Health.USED: "paused: slow count more rest record tell_paused learn",
        Health.PROVING: "paused: slow_again count more rest record tell_paused learn",
        Health.PAUSED: "paused: slow lengthen",
        Health.REFUSED: "refused: slow",
        Health.BARRED: "barred: slow",
        Health.DOUBTED: "doubted: slow",
        Health.UNCOUNTED: "uncounted: slow put_off record",
    },
    Happening.STOP: {
        Health.UNTRIED: "refused: slow count more rest record tell_stopped",
        Health.USED: "refused: slow count more rest record tell_stopped",
        Health.PROVING: "refused: slow_again count more rest record tell_stopped",
        Health.PAUSED: "refused: slow more rest record tell_stopped",
        Health.REFUSED: "refused: slow",
        Health.BARRED: "barred: slow",
        Health.DOUBTED: "doubted: slow",
        Health.UNCOUNTED: "uncounted: slow put_off record",
    },
    Happening.BAR: {
        Health.UNTRIED: "barred: slow settle count more rest record tell_stopped",
        Health.USED: "barred: slow settle count more rest record tell_stopped",
        Health.PROVING: "barred: slow_again settle count more rest record tell_stopped",
        Health.PAUSED: "barred: slow settle more rest record tell_stopped",
        Health.REFUSED: "barred: slow settle more rest record tell_stopped",
        Health.BARRED: "barred: slow",
        Health.DOUBTED: "barred: slow settle more rest record tell_stopped",
        Health.UNCOUNTED: "uncounted: slow settle put_off record",
    },
    Happening.DOUBT: {
        Health.UNTRIED: "doubted: slow count doubt more rest record tell_stopped",
        Health.USED: "doubted: slow count doubt more rest record tell_stopped",
        Health.PROVING: "doubted: slow_again count doubt more rest record tell_stopped",
        Health.PAUSED: "doubted: slow doubt more rest record tell_stopped",
        Health.REFUSED: "doubted: slow doubt more rest record tell_stopped",
        Health.BARRED: "barred: slow",
        Health.DOUBTED: "doubted: slow",
        Health.UNCOUNTED: "uncounted: slow put_off record",
    },
    Happening.PROOF: {
        Health.UNTRIED: "used: trust",
        Health.USED: "used: trust",
        Health.PROVING: "used: trust settle record tell_resumed",
        Health.PAUSED: "paused: trust settle record",
        Health.REFUSED: "refused: trust record",
        Health.BARRED: "barred: trust record",
        Health.DOUBTED: "doubted: trust record",
        Health.UNCOUNTED: "uncounted: trust record",
    },
    Happening.ANSWER: {
        Health.UNTRIED: "used:",
        Health.USED: "used:",
        Health.PROVING: "proving:",
        Health.PAUSED: "paused:",
        Health.REFUSED: "refused:",
        Health.BARRED: "barred:",
        Health.DOUBTED: "doubted:",
        Health.UNCOUNTED: "uncounted:",
    },
    Happening.OVER: {
        Health.UNTRIED: "untried:",
        Health.USED: "used:",
        Health.PROVING: "proving:",
        Health.PAUSED: "proving: end record tell_proving",
        Health.REFUSED: "proving: end record tell_proving",
        Health.BARRED: "barred: look_later record",
        Health.DOUBTED: "proving: end record tell_proving",
        Health.UNCOUNTED: "uncounted:",
    },
    Happening.RESUME: {
        Health.UNTRIED: "untried:",
        Health.USED: "used:",
        Health.PROVING: "proving: settle anew record",
        Health.PAUSED: "proving: settle anew end record tell_proving",
        Health.REFUSED: "proving: settle anew end record tell_proving",
        Health.BARRED: "proving: settle anew end record tell_proving",
        Health.DOUBTED: "proving: settle anew end record tell_proving",
        Health.UNCOUNTED: "proving: settle anew end record tell_proving",
    },
    Happening.EDIT: {
        Health.UNTRIED: "untried:",
        Health.USED: "used:",
        Health.PROVING: "proving: settle anew record",
        Health.PAUSED: "proving: settle anew end record tell_proving",
        Health.REFUSED: "proving: settle anew end record tell_proving",
        Health.BARRED: "proving: settle anew end record tell_proving",
        Health.DOUBTED: "proving: settle anew end record tell_proving",
        Health.UNCOUNTED: "proving: settle anew end record tell_proving",
    },
    Happening.FAULT: {
        Health.UNTRIED: "uncounted: count rest record tell_stopped",
        Health.USED: "uncounted: count rest record tell_stopped",
        Health.PROVING: "uncounted: count rest record tell_stopped",
        Health.PAUSED: "paused:",
        Health.REFUSED: "refused:",
        Health.BARRED: "barred:",
        Health.DOUBTED: "doubted:",
        Health.UNCOUNTED: "uncounted: look_later record",
    },
    Happening.SOUND: {
        Health.UNTRIED: "untried:",
        Health.USED: "used:",
        Health.PROVING: "proving:",
        Health.PAUSED: "paused:",
        Health.REFUSED: "refused:",
        Health.BARRED: "barred:",
        Health.DOUBTED: "doubted:",
        Health.UNCOUNTED: "proving: end record tell_proving hear",
    },
    Happening.RESTART: {
        Health.UNTRIED: "untried:",
        Health.USED: "untried:",
        Health.PROVING: "proving: slow_again",
        Health.PAUSED: "paused: slow_again count rest record tell_paused",
        Health.REFUSED: "proving: slow_again",
        Health.BARRED: "barred: slow_again count rest record tell_stopped",
        Health.DOUBTED: "doubted: slow_again count rest record tell_stopped",
        Health.UNCOUNTED: "proving: slow_again",
    },
    Happening.LATE_RESTART: {
        Health.UNTRIED: "untried:",
        Health.USED: "untried:",
        Health.PROVING: "proving: slow_again",
        Health.PAUSED: "proving: slow_again",
        Health.REFUSED: "proving: slow_again",
        Health.BARRED: "barred: slow_again count rest record tell_stopped",
        Health.DOUBTED: "proving: slow_again",
        Health.UNCOUNTED: "proving: slow_again",
    },
    Happening.KEEP_FOR: {
        Health.UNTRIED: "untried:",
        Health.USED: "used:",
        Health.PROVING: "proving:",
        Health.PAUSED: "paused:",
        Health.REFUSED: "refused:",
        Health.BARRED: "barred:",
        Health.DOUBTED: "doubted:",
        Health.UNCOUNTED: "uncounted:",
    },
    Happening.KEEP: {
        Health.UNTRIED: "untried:",
        Health.USED: "used:",
        Health.PROVING: "proving:",
        Health.PAUSED: "paused:",
        Health.REFUSED: "refused:",
        Health.BARRED: "barred:",
        Health.DOUBTED: "doubted:",
        Health.UNCOUNTED: "uncounted:",
    },
    Happening.LAPSE: {
        Health.UNTRIED: "untried:",
        Health.USED: "used:",
        Health.PROVING: "proving:",
        Health.PAUSED: "paused:",
        Health.REFUSED: "refused:",
        Health.BARRED: "barred:",
        Health.DOUBTED: "doubted:",
        Health.UNCOUNTED: "uncounted:",
    },
    Happening.LEAVE: {
        Health.UNTRIED: "proving: record tell_proving",
        Health.USED: "proving: record tell_proving",
        Health.PROVING: "proving:",
        Health.PAUSED: "paused:",
        Health.REFUSED: "refused:",
        Health.BARRED: "barred:",
        Health.DOUBTED: "doubted:",
        Health.UNCOUNTED: "uncounted:",
    },
}
"""What the health is then, and what is done."""
CASES = list(product(Health, Happening))
RESTARTS = (Happening.RESTART, Happening.LATE_RESTART)


@pytest.mark.parametrize(("health", "happening"), CASES, ids=[f"{s}-{h.name}" for s, h in CASES])
def test_each_cell_is_as_written_here(health: Health, happening: Happening) -> None:
    after, _, effects = CELLS[happening][health].partition(":")

    assert TABLE[health, happening] == Cell(
        Health(after), tuple(Effect[name.upper()] for name in effects.split())
    )


def test_the_table_has_a_cell_for_each_and_no_other() -> None:
    assert sorted(TABLE) == sorted(CASES)


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


def test_only_a_restart_makes_an_upstream_untried() -> None:
    ways = {h for (_, h), cell in TABLE.items() if cell.health is Health.UNTRIED}
    others = {h for h in ways if TABLE[Health.USED, h].health is Health.UNTRIED}
    assert others == set(RESTARTS)
    assert {h for h in Happening if TABLE[Health.UNTRIED, h].health is Health.UNTRIED} == ways


def test_resumed_is_told_once_something_went_well_and_never_before() -> None:
    told = {cell for cell, (_, effects) in TABLE.items() if Effect.TELL_RESUMED in effects}
    assert told == {(Health.PROVING, Happening.PROOF)}


def test_whoever_acts_on_a_refusal_begins_its_doubling_anew() -> None:
    anew = {cell for cell, (_, effects) in TABLE.items() if Effect.ANEW in effects}
    acts = (Happening.RESUME, Happening.EDIT)
    assert anew == set(product({*RESTING, Health.PROVING}, acts))


def test_where_no_probe_is_allowed_only_somebody_ends_it() -> None:
    ways = {h for h in Happening if TABLE[Health.BARRED, h].health is not Health.BARRED}
    assert ways == {Happening.RESUME, Happening.EDIT}


def test_what_the_shield_asks_no_restart_answers_in_its_time() -> None:
    settles = {h for h in Happening if Effect.SETTLE in TABLE[Health.DOUBTED, h].effects}
    assert settles == {Happening.RESUME, Happening.EDIT, Happening.BAR}
    assert TABLE[Health.DOUBTED, Happening.RESTART].health is Health.DOUBTED


def test_only_a_sound_history_or_somebody_ends_a_fault_of_it() -> None:
    ways = {
        h for h in set(Happening) - set(RESTARTS) if TABLE[Health.UNCOUNTED, h].health is not Health.UNCOUNTED
    }
    assert ways == {Happening.SOUND, Happening.RESUME, Happening.EDIT}


@pytest.mark.parametrize(("health", "happening"), CASES, ids=[f"{s}-{h.name}" for s, h in CASES])
def test_what_begins_a_rest_is_counted_told_and_kept(health: Health, happening: Happening) -> None:
    after, effects = TABLE[health, happening]
    is_new = (after in RESTING and health not in RESTING) or (after in RESTING and happening in RESTARTS)

    assert (Effect.COUNT in effects) == is_new
    if is_new or (after is not health and after in RESTING):
        tells = Effect.TELL_STOPPED if after in STOPPED else Effect.TELL_PAUSED
        assert effects.index(Effect.REST) < effects.index(Effect.RECORD) < effects.index(tells)


@pytest.mark.parametrize(("health", "happening"), CASES, ids=[f"{s}-{h.name}" for s, h in CASES])
def test_the_end_of_a_rest_is_told_and_kept(health: Health, happening: Happening) -> None:
    after, effects = TABLE[health, happening]
    is_over = health in RESTING and after not in RESTING and happening not in RESTARTS

    assert (Effect.END in effects) == is_over
    if is_over:
        assert effects.index(Effect.END) < effects.index(Effect.RECORD) < effects.index(Effect.TELL_PROVING)


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


def test_a_refusal_that_no_rule_was_asked_of_allows_probes() -> None:
    assert refusal(Answer(Verdict.STOP, Phase.MAIL, None, "no")) is Happening.STOP
