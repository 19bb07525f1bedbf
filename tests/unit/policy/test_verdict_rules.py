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
from tests.unit.policy.reading import only_fault, parse


def with_verdict(rule: str) -> str:
    return SMALL + f"    verdicts:\n      - {rule}\n"


@pytest.mark.parametrize(
    ("rule", "column", "key", "words"),
    [
        ("{code: 550, verdict: pauze}", 30, "verdict", "expected defer recipient, defer message, later"),
        ("{code: 550}", 9, "verdict", "this key is required"),
        ("{code: 250, verdict: pause}", 16, "code", "a reply code that refuses"),
        ("{code: 55, verdict: pause}", 16, "code", "a reply code that refuses"),
        ("{code: [550, 6xx], verdict: pause}", 22, "code[1]", "a reply code that refuses"),
        ("{enhanced: '5.7', verdict: pause}", 20, "enhanced", "an enhanced code such as"),
        (
            "{code: 550, but_not_enhanced: 5.7, verdict: pause}",
            39,
            "but_not_enhanced",
            "an enhanced code such as",
        ),
        ("{text: '', verdict: pause}", 16, "text", "a phrase of at most 200"),
        ("{text: ' * ', verdict: pause}", 16, "text", "a phrase of at most 200"),
        ("{text: [], verdict: pause}", 16, "text", "at least one"),
        ("{phase: end, code: 550, verdict: pause}", 17, "phase", "expected connect, ehlo"),
        (
            "{phase: auth, code: 550, verdict: bounce message}",
            43,
            "verdict",
            "before MAIL no message is at fault",
        ),
        ("{phase: [mail, connect], code: 4xx, verdict: later}", 54, "verdict", "before MAIL no message"),
        ("{phase: mail, code: 452, verdict: later}", 43, "verdict", "only in phase rcpt"),
        ("{phase: mail, verdict: pause}", 32, "verdict", "without a condition matches every refusal"),
        ("{code: 550, verdict: pause, wait: 5}", 43, "wait", "a duration with a unit"),
        ("{code: 550, verdict: pause, texts: x}", 37, "?", "unknown key; did you mean text?"),
        ("{code: 550, verdict: pause, probe: often}", 44, "probe", "expected true or false"),
        (
            "{code: 550, verdict: bounce message, wait: 5m}",
            52,
            "wait",
            "bounce message has no rest: wait and probe",
        ),
        (
            "{wait: 5m, code: 450, verdict: defer recipient}",
            16,
            "wait",
            "belong to pause, pause sender and stop",
        ),
        ("{code: 450, phase: rcpt, verdict: later, wait: 5m}", 56, "wait", "later has no rest"),
        ("{code: 450, verdict: defer message, probe: false}", 52, "probe", "defer message has no rest"),
    ],
)
def test_a_wrong_rule_is_told_at_its_place(rule: str, column: int, key: str, words: str) -> None:
    fault = only_fault(with_verdict(rule))

    assert (fault.line, fault.column) == (11, column)
    assert fault.key == f"upstreams.isp.verdicts[0].{key}"
    assert words in fault.message


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
        ('{text: "a * b", verdict: pause}', Phase.EOD, "550 a  few   b", True),
        ('{text: "a*b", verdict: pause}', Phase.EOD, "550 a" + "x" * 80 + "b", True),
        ('{text: "a*b", verdict: pause}', Phase.EOD, "550 a" + "x" * 81 + "b", False),
        ('{text: "1.5 (a+)", verdict: pause}', Phase.EOD, "550 1.5 (a+)", True),
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

    assert all(rule.source for rule in shipped)
    for rule in shipped:
        name, _, line = rule.place.partition(":")
        path = {file.name: file for file in (RULES_FILE, PROVIDERS_FILE)}[name]
        assert path.read_text().splitlines()[int(line) - 1].lstrip().startswith("- {"), rule.place
