"""Verdict rules in YAML: what an owner's rules match, how phrases match, and the sources of shipped rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.policy.shipped import (
    PROVIDERS_FILE,
    RULES_FILE,
    provider_rules,
    providers,
    rules_of,
    standard_rules,
)
from relay.smtp.reply import Phase
from relay.verdicts.verdict import Judge, Layer
from relay.verdicts.wording import Phrases
from tests.unit.policy.corpus import parsed
from tests.unit.policy.examples import SMALL, parse

FAR = "x" * 80


def judge(rule: str) -> Judge:
    return Judge(rules_of("isp", parse(SMALL + f"    verdicts: [{rule}]\n").upstreams["isp"]))


@pytest.mark.parametrize(
    ("rule", "phase", "reply", "matches"),
    [
        ('{phase: mail, code: 550, text: "quota", verdict: pause}', Phase.MAIL, "550 Over QUOTA", True),
        ('{phase: mail, code: 550, text: "quota", verdict: pause}', Phase.RCPT, "550 over quota", False),
        ('{phase: mail, code: 550, text: "quota", verdict: pause}', Phase.MAIL, "551 over quota", False),
        ("{code: 5xx, verdict: defer message}", Phase.EOD, "571 no", True),
        ("{enhanced: x.7.x, verdict: pause}", Phase.EOD, "550 5.7.606 no", True),
        ("{enhanced: x.7.x, verdict: pause}", Phase.EOD, "550 5.17.1 no", False),
        ('{text: "1.5 (a+)", verdict: pause}', Phase.EOD, "550 1x5 aaa", False),
        ("{text: [one, two], but_not: [three], verdict: pause}", Phase.EOD, "550 two", True),
        ("{text: [one, two], but_not: [three], verdict: pause}", Phase.EOD, "550 two three", False),
        ("{code: 5xx, but_not_enhanced: [x.2.1], verdict: stop}", Phase.EOD, "550 5.2.1 no", False),
        ("{code: 5xx, but_not_enhanced: [x.2.1], verdict: stop}", Phase.EOD, "550 5.2.11 no", True),
        ("{text: over*quota, verdict: pause}", Phase.EOD, "550 OVER  the Quota", True),
    ],
)
def test_an_owners_rule_that_matches_decides(rule: str, phase: Phase, reply: str, matches: bool) -> None:
    assert (judge(rule).ruling(phase, parsed(reply)).layer is Layer.OPERATOR) == matches


@pytest.mark.parametrize(
    ("phrase", "text", "expected"),
    [
        ("over*quota", f"over{FAR}quota", True),
        ("over*quota", f"over{FAR}xquota", False),
        ("over*quota", f"over {FAR} over quota", True),
        # The last part is within reach only of the second place of the middle part.
        ("a*b*c", f"a b {'x' * 70} b {'x' * 70} c", True),
        ("a*b*c", f"a b {'x' * 90} c", False),
        ("a**b", f"a{FAR}{FAR}b", True),
        ("*over*", "is over", True),
        ("mail quota", "your outmail quota", False),
        ("mail quota", "outmail quota, or mail quota", True),
        ("*quota", "outmail quota", True),
        ("mail", "mailbox", True),
        ("[stf]", "is[stf]", True),
    ],
)
def test_a_star_matches_at_most_80_characters_and_a_phrase_begins_a_word(
    phrase: str, text: str, expected: bool
) -> None:
    assert Phrases((phrase,), begin_words=True).are_in(text) is expected


@given(st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=3), st.text("ab", max_size=12))
def test_a_phrase_matches_if_its_parts_stand_in_order(parts: list[str], text: str) -> None:
    at, is_there = 0, True
    for part in parts:
        found = text.find(part, at)
        is_there, at = is_there and found >= 0, found + len(part)

    assert Phrases(("*".join(parts),)).are_in(text) is is_there


def test_a_named_providers_rules_apply_to_another_host() -> None:
    text = SMALL.replace("host: smtp.example.net", "host: 127.0.0.1\n    provider: dreamhost")
    upstream = parse(text).upstreams["isp"]

    ruling = Judge(rules_of("isp", upstream)).ruling(Phase.RCPT, parsed("550 quota exceeded"))

    assert (ruling.words, ruling.layer, ruling.may_probe) == ("pause", Layer.PROVIDER, False)


def test_every_shipped_rule_names_its_source_and_its_line() -> None:
    shipped = [*standard_rules(), *(rule for name in providers() for rule in provider_rules(name))]

    assert not [rule.place for rule in shipped if rule.source == "the owner of this relay"]
    for rule in shipped:
        name, _, line = rule.place.partition(":")
        path = {file.name: file for file in (RULES_FILE, PROVIDERS_FILE)}[name]
        assert path.read_text().splitlines()[int(line) - 1].lstrip().startswith("- {"), rule.place
