"""Whatever phrases an owner writes, a reply of the greatest length is judged at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.policy.rules import VerdictRule
from relay.smtp.reply import Phase, Reply
from relay.verdicts.verdict import Judge, Layer
from relay.verdicts.wording import Phrases

FAR = "x" * 80


def matches(phrase: str, text: str) -> bool:
    rule = VerdictRule.model_validate({"text": phrase, "verdict": "pause"}).rule(Layer.OPERATOR, "here")
    return Judge([rule]).ruling(Phase.MAIL, Reply(550, None, text, (text,))).rule is not None


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
    assert Phrases((phrase,), begin_words=True).are_in(text) is expected
