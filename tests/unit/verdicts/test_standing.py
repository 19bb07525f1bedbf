"""The table of what changes the state of an upstream: each cell, and what holds for all of them."""

from itertools import product
from pathlib import Path

import pytest

from relay.smtp.reply import Phase
from relay.verdicts.outcome import Answer
from relay.verdicts.standing import (
    GRAVITY,
    RESTING,
    STOPPED,
    TABLE,
    Cell,
    Effect,
    Happening,
    Standing,
    goes_on,
    refusal,
)
from relay.verdicts.verdict import Layer, Rule, Ruling, Scope, Verdict
from tests.unit.verdicts.states_page import page

ROOT = Path(__file__).parents[3]
CELLS = {
    Happening.PAUSE: {
        Standing.USED: "paused: slow count more rest record tell_paused learn",
        Standing.PROVING: "paused: slow_again count more rest record tell_paused learn",
        Standing.PAUSED: "paused: slow lengthen",
        Standing.REFUSED: "refused: slow",
        Standing.BARRED: "barred: slow",
        Standing.DOUBTED: "doubted: slow",
        Standing.UNCOUNTED: "uncounted: slow put_off record",
    },
    Happening.STOP: {
        Standing.USED: "refused: slow count more rest record tell_stopped",
        Standing.PROVING: "refused: slow_again count more rest record tell_stopped",
        Standing.PAUSED: "refused: slow more rest record tell_stopped",
        Standing.REFUSED: "refused: slow",
        Standing.BARRED: "barred: slow",
        Standing.DOUBTED: "doubted: slow",
        Standing.UNCOUNTED: "uncounted: slow put_off record",
    },
    Happening.BAR: {
        Standing.USED: "barred: slow settle count more rest record tell_stopped",
        Standing.PROVING: "barred: slow_again settle count more rest record tell_stopped",
        Standing.PAUSED: "barred: slow settle more rest record tell_stopped",
        Standing.REFUSED: "barred: slow settle more rest record tell_stopped",
        Standing.BARRED: "barred: slow",
        Standing.DOUBTED: "barred: slow settle more rest record tell_stopped",
        Standing.UNCOUNTED: "uncounted: slow settle put_off record",
    },
    Happening.DOUBT: {
        Standing.USED: "doubted: slow count doubt more rest record tell_stopped",
        Standing.PROVING: "doubted: slow_again count doubt more rest record tell_stopped",
        Standing.PAUSED: "doubted: slow doubt more rest record tell_stopped",
        Standing.REFUSED: "doubted: slow doubt more rest record tell_stopped",
        Standing.BARRED: "barred: slow",
        Standing.DOUBTED: "doubted: slow",
        Standing.UNCOUNTED: "uncounted: slow put_off record",
    },
    Happening.PROOF: {
        Standing.USED: "used: trust",
        Standing.PROVING: "used: trust settle record",
        Standing.PAUSED: "paused: trust settle record",
        Standing.REFUSED: "refused: trust record",
        Standing.BARRED: "barred: trust record",
        Standing.DOUBTED: "doubted: trust record",
        Standing.UNCOUNTED: "uncounted: trust record",
    },
    Happening.OVER: {
        Standing.USED: "used:",
        Standing.PROVING: "proving:",
        Standing.PAUSED: "proving: end record tell_resumed",
        Standing.REFUSED: "proving: end record tell_resumed",
        Standing.BARRED: "barred: look_later record",
        Standing.DOUBTED: "proving: end record tell_resumed",
        Standing.UNCOUNTED: "uncounted:",
    },
    Happening.RESUME: {
        Standing.USED: "used:",
        Standing.PROVING: "proving: settle record",
        Standing.PAUSED: "proving: settle end record tell_resumed",
        Standing.REFUSED: "proving: settle end record tell_resumed",
        Standing.BARRED: "proving: settle end record tell_resumed",
        Standing.DOUBTED: "proving: settle end record tell_resumed",
        Standing.UNCOUNTED: "proving: settle end record tell_resumed",
    },
    Happening.FAULT: {
        Standing.USED: "uncounted: count rest record tell_stopped",
        Standing.PROVING: "uncounted: count rest record tell_stopped",
        Standing.PAUSED: "paused:",
        Standing.REFUSED: "refused:",
        Standing.BARRED: "barred:",
        Standing.DOUBTED: "doubted:",
        Standing.UNCOUNTED: "uncounted: look_later record",
    },
    Happening.SOUND: {
        Standing.USED: "used:",
        Standing.PROVING: "proving:",
        Standing.PAUSED: "paused:",
        Standing.REFUSED: "refused:",
        Standing.BARRED: "barred:",
        Standing.DOUBTED: "doubted:",
        Standing.UNCOUNTED: "proving: end record tell_resumed hear",
    },
    Happening.RESTART: {
        Standing.USED: "used:",
        Standing.PROVING: "proving: slow_again",
        Standing.PAUSED: "paused: slow_again count rest record tell_paused",
        Standing.REFUSED: "proving: slow_again",
        Standing.BARRED: "barred: slow_again count rest record tell_stopped",
        Standing.DOUBTED: "doubted: slow_again count rest record tell_stopped",
        Standing.UNCOUNTED: "proving: slow_again",
    },
    Happening.LATE_RESTART: {
        Standing.USED: "used:",
        Standing.PROVING: "proving: slow_again",
        Standing.PAUSED: "proving: slow_again",
        Standing.REFUSED: "proving: slow_again",
        Standing.BARRED: "barred: slow_again count rest record tell_stopped",
        Standing.DOUBTED: "proving: slow_again",
        Standing.UNCOUNTED: "proving: slow_again",
    },
}
"""What the standing is then, and what is done."""
CASES = list(product(Standing, Happening))
RESTARTS = (Happening.RESTART, Happening.LATE_RESTART)


@pytest.mark.parametrize(("standing", "happening"), CASES, ids=[f"{s}-{h.name}" for s, h in CASES])
def test_each_cell_is_as_written_here(standing: Standing, happening: Happening) -> None:
    after, _, effects = CELLS[happening][standing].partition(":")

    assert TABLE[standing, happening] == Cell(
        Standing(after), tuple(Effect[name.upper()] for name in effects.split())
    )


def test_the_table_has_a_cell_for_each_and_no_other() -> None:
    assert sorted(TABLE) == sorted(CASES)


def test_the_page_is_made_of_the_table_as_it_is() -> None:
    """If not: make docs."""
    assert (ROOT / "docs" / "states.md").read_text() == page()


@pytest.mark.parametrize("standing", Standing)
@pytest.mark.parametrize("happening", GRAVITY)
def test_after_a_refusal_about_us_nothing_is_sent(standing: Standing, happening: Happening) -> None:
    assert TABLE[standing, happening].standing in RESTING


@pytest.mark.parametrize("standing", Standing)
def test_a_graver_refusal_is_never_followed_by_a_lighter_state(standing: Standing) -> None:
    order = (Standing.PAUSED, Standing.REFUSED, Standing.DOUBTED, Standing.BARRED, Standing.UNCOUNTED)
    before = order.index(standing) if standing in order else -1
    for happening in GRAVITY:
        assert order.index(TABLE[standing, happening].standing) >= max(before, GRAVITY.index(happening))


def test_only_what_went_well_makes_an_upstream_used() -> None:
    ways = {
        (standing, happening)
        for (standing, happening), cell in TABLE.items()
        if cell.standing is Standing.USED and standing is not Standing.USED
    }
    assert ways == {(Standing.PROVING, Happening.PROOF)}


def test_where_no_probe_is_allowed_only_somebody_ends_it() -> None:
    ways = {h for h in Happening if TABLE[Standing.BARRED, h].standing is not Standing.BARRED}
    assert ways == {Happening.RESUME}


def test_what_the_shield_asks_no_restart_answers_in_its_time() -> None:
    settles = {h for h in Happening if Effect.SETTLE in TABLE[Standing.DOUBTED, h].effects}
    assert settles == {Happening.RESUME, Happening.BAR}
    assert TABLE[Standing.DOUBTED, Happening.RESTART].standing is Standing.DOUBTED


def test_only_a_sound_history_or_somebody_ends_a_fault_of_it() -> None:
    ways = {
        h
        for h in set(Happening) - set(RESTARTS)
        if TABLE[Standing.UNCOUNTED, h].standing is not Standing.UNCOUNTED
    }
    assert ways == {Happening.SOUND, Happening.RESUME}


@pytest.mark.parametrize(("standing", "happening"), CASES, ids=[f"{s}-{h.name}" for s, h in CASES])
def test_what_begins_a_rest_is_counted_told_and_kept(standing: Standing, happening: Happening) -> None:
    after, effects = TABLE[standing, happening]
    is_new = (after in RESTING and standing not in RESTING) or (after in RESTING and happening in RESTARTS)

    assert (Effect.COUNT in effects) == is_new
    if is_new or (after is not standing and after in RESTING):
        tells = Effect.TELL_STOPPED if after in STOPPED else Effect.TELL_PAUSED
        assert effects.index(Effect.REST) < effects.index(Effect.RECORD) < effects.index(tells)


@pytest.mark.parametrize(("standing", "happening"), CASES, ids=[f"{s}-{h.name}" for s, h in CASES])
def test_the_end_of_a_rest_is_told_and_kept(standing: Standing, happening: Happening) -> None:
    after, effects = TABLE[standing, happening]
    is_over = standing in RESTING and after not in RESTING and happening not in RESTARTS

    assert (Effect.END in effects) == is_over
    if is_over:
        assert effects.index(Effect.END) < effects.index(Effect.RECORD) < effects.index(Effect.TELL_RESUMED)


def test_a_restart_goes_on_with_pauses_and_what_somebody_must_end() -> None:
    assert {s for s in Standing if goes_on(s)} == {Standing.PAUSED, Standing.BARRED, Standing.DOUBTED}


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
