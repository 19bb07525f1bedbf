"""Rules about replies as YAML: what the owner may write, and what is wrong at which place; what we ship."""

import pytest

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
from tests.unit.policy.corpus import parsed
from tests.unit.policy.examples import SMALL
from tests.unit.policy.reading import parse


def with_verdict(rule: str) -> str:
    return SMALL + f"    verdicts:\n      - {rule}\n"


def judge(rule: str) -> Judge:
    return Judge(rules_of("isp", parse(with_verdict(rule)).upstreams["isp"]))


@pytest.mark.parametrize(
    ("rule", "phase", "reply", "matches"),
    [
        ('{phase: mail, code: 550, text: "quota", verdict: pause}', Phase.MAIL, "550 Over QUOTA", True),
        ('{phase: mail, code: 550, text: "quota", verdict: pause}', Phase.RCPT, "550 over quota", False),
        ('{phase: mail, code: 550, text: "quota", verdict: pause}', Phase.MAIL, "551 over quota", False),
        ("{code: 5xx, verdict: defer message}", Phase.EOD, "571 no", True),
        ("{code: 5xx, verdict: defer message}", Phase.EOD, "451 no", False),
        ("{enhanced: x.7.x, verdict: pause}", Phase.EOD, "550 5.7.606 no", True),
        ("{enhanced: x.7.x, verdict: pause}", Phase.EOD, "550 5.17.1 no", False),
        ('{text: "1.5 (a+)", verdict: pause}', Phase.EOD, "550 1x5 aaa", False),
        ("{text: [one, two], but_not: [three], verdict: pause}", Phase.EOD, "550 two", True),
        ("{text: [one, two], but_not: [three], verdict: pause}", Phase.EOD, "550 two three", False),
        ("{code: 5xx, but_not_enhanced: [x.2.1], verdict: stop}", Phase.EOD, "550 5.2.1 no", False),
        ("{code: 5xx, but_not_enhanced: [x.2.1], verdict: stop}", Phase.EOD, "550 5.2.11 no", True),
        ("{code: 5xx, but_not_enhanced: [x.2.1], verdict: stop}", Phase.EOD, "550 no", True),
    ],
)
def test_an_owners_rule_is_asked_first(rule: str, phase: Phase, reply: str, matches: bool) -> None:
    assert (judge(rule).ruling(phase, parsed(reply)).layer is Layer.OPERATOR) == matches


def test_a_provider_is_asked_by_name_behind_another_host() -> None:
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
