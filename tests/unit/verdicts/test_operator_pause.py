"""The table of an operator's pause: each cell, and what holds for all of them."""

from itertools import product

import pytest

from relay.clock import SECOND_NS
from relay.verdicts.health import TABLE, USED, Effect, Happening, Health
from relay.verdicts.operator_pause import FOREVER_NS, LONGEST_BY, WORDS, PauseAsked, Word

CASES = list(product(Word, Happening))


def test_only_its_time_or_a_resume_ends_an_operators_pause() -> None:
    ends = {h for w, h in CASES if w is not Word.FREE and WORDS[w, h].word is Word.FREE}
    assert ends == {Happening.LAPSE, Happening.RESUME, Happening.LATE_RESTART}
    assert {h for h in Happening if WORDS[Word.LASTING, h].word is Word.FREE} == {Happening.RESUME}


def test_only_the_operator_begins_one() -> None:
    begins = {h for h in Happening if WORDS[Word.FREE, h].word is not Word.FREE}
    assert begins == {Happening.KEEP_FOR, Happening.KEEP}


@pytest.mark.parametrize("health", Health)
def test_a_pause_changes_no_state_and_its_end_has_it_proven(health: Health) -> None:
    for happening in (Happening.KEEP_FOR, Happening.KEEP, Happening.LAPSE):
        assert TABLE[health, happening] == (health, ())
    assert TABLE[health, Happening.LEAVE].health is (Health.PROVING if health in USED else health)


def test_a_second_word_is_kept_before_it_is_told() -> None:
    for word, happening in product(Word, (Happening.KEEP_FOR, Happening.KEEP)):
        effects = WORDS[word, happening].effects
        assert effects.index(Effect.KEEP_BACK) < effects.index(Effect.RECORD)
        assert effects.index(Effect.RECORD) < effects.index(Effect.TELL_KEPT_BACK)


def test_what_is_asked_for_begins_now() -> None:
    timed = PauseAsked("anna", 60 * SECOND_NS).begun(5, 0)
    lasting = PauseAsked("anna\n" + "x" * 99).begun(5, 0)

    assert (timed.until_ns, timed.word) == (60 * SECOND_NS + 5, Word.TIMED)
    assert timed.words == "by anna, since 1970-01-01T00:00:00Z"
    assert (lasting.until_ns, lasting.word) == (FOREVER_NS, Word.LASTING)
    assert lasting.by == ("anna " + "x" * 99)[:LONGEST_BY]


def test_another_boot_moves_the_end_of_one_that_has_an_end() -> None:
    assert PauseAsked("anna", 60).begun(5, 0).moved(-10, _as_arrivals).until_ns == 55
    assert PauseAsked("anna").begun(5, 0).moved(-10, _as_arrivals).until_ns == FOREVER_NS


def _as_arrivals(at_ns: int) -> int:
    return at_ns - 4
