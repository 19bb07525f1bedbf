"""Whatever phrases an owner writes, a reply of the greatest length is judged at once."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.text import MAX_TEXT_CHARACTERS
from relay.policy.rules import VerdictRule
from relay.policy.shipped import provider_rules, providers, standard_rules
from relay.smtp.reply import Phase, Reply
from relay.verdicts.phrases import Phrases
from relay.verdicts.verdict import ABOUT_US, Judge, Layer

FAR = "x" * 80


def matches(phrase: str, text: str) -> bool:
    rule = VerdictRule.model_validate({"text": phrase, "verdict": "pause"}).rule(Layer.OPERATOR, "here")
    return Judge([rule]).ruling(Phase.MAIL, Reply(550, None, text, (text,))).rule is not None


@pytest.mark.parametrize("phrase", ["a*" * 99 + "b", "a*" * 3 + "b", "ab*" * 60 + "c"])
def test_no_phrase_hangs_on_a_long_reply(phrase: str) -> None:
    text = ("ab" if "ab" in phrase else "a") * (MAX_TEXT_CHARACTERS // 2)
    before = time.process_time()

    assert not matches(phrase, text)

    # A regular expression that goes back takes 17 s for three gaps, and years for ten.
    assert time.process_time() - before < 1


@pytest.mark.parametrize(
    ("phrase", "text", "expected"),
    [
        ("over*quota", "OVER  the Quota", True),
        ("over*quota", f"over{FAR}quota", True),
        ("over*quota", f"over{FAR}xquota", False),
        ("over*quota", "quota over", False),
        ("over*quota", f"over {FAR} over quota", True),
        # The first place at which a middle part fits is not the one from which the last is in reach.
        ("a*b*c", f"a b {'x' * 70} b {'x' * 70} c", True),
        ("a*b*c", f"a b {'x' * 90} c", False),
        ("a**b", f"a{FAR}{FAR}b", True),
        ("*over*", "is over", True),
        (".", "no dot here", False),
    ],
)
def test_a_star_is_at_most_eighty_characters(phrase: str, text: str, expected: bool) -> None:
    assert matches(phrase, text) is expected


@given(st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=3), st.text("ab", max_size=12))
def test_a_phrase_matches_where_its_parts_stand_in_order(parts: list[str], text: str) -> None:
    at, is_there = 0, True
    for part in parts:
        found = text.find(part, at)
        is_there, at = is_there and found >= 0, found + len(part)

    assert matches("*".join(parts), text) is is_there


def test_phrases_that_say_the_same_are_the_same() -> None:
    """Else every edit of a policy would judge a pause anew, and end it."""
    assert Phrases(["too * many"]) == Phrases(["too * many"])
    assert Phrases(["too * many"]) != Phrases(["too many"])
    assert len({Phrases(["a"]), Phrases(["a"])}) == 1


@pytest.mark.parametrize(
    ("phrase", "text", "expected"),
    [
        ("mail quota", "your outmail quota", False),
        ("mail quota", "outmail quota, or mail quota", True),
        ("mail quota", "<mail quota>", True),
        ("*quota", "outmail quota", True),
        ("mail*quota", "mail overquota", True),
        ("mail", "mailbox", True),
        ("[stf]", "is[stf]", True),
    ],
)
def test_a_phrase_may_have_to_begin_a_word(phrase: str, text: str, expected: bool) -> None:
    assert Phrases([phrase], begin_words=True).are_in(text) is expected


@pytest.mark.parametrize("phase", [Phase.RCPT, Phase.EOD])
@pytest.mark.parametrize(
    "text", ["your outmail quota was exceeded", "your hourly limit for workshops is 20 messages per hour"]
)
def test_a_part_of_a_word_makes_no_bounce_of_a_refusal_of_us(text: str, phase: Phase) -> None:
    ruling = Judge(standard_rules()).ruling(phase, Reply(554, None, text, (text,)))

    assert ruling.verdict in ABOUT_US


def test_only_a_phrase_about_us_is_found_inside_a_word() -> None:
    for rule in [*standard_rules(), *(rule for name in providers() for rule in provider_rules(name))]:
        is_about_us = rule.verdict in ABOUT_US
        for phrases, is_found in ((rule.text, is_about_us), (rule.but_not, not is_about_us)):
            if phrases is None:
                continue
            for parts in phrases._phrases:
                alone = Phrases(["*".join(parts)], begin_words=phrases._begin_words)
                assert alone.are_in("x" + "".join(parts)) is (is_found or not parts[0][0].isalnum())


def test_an_owners_phrase_is_found_wherever_it_stands() -> None:
    assert matches("mail quota", "your outmail quota")
    assert matches("quota", "overquota")
