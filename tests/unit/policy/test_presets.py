"""Presets: each is a good upstream by itself, and what the owner writes wins."""

import re
from dataclasses import replace
from datetime import date

import pytest

from relay.policy.document import read_document
from relay.policy.model import Policy, Tls, Upstream
from relay.policy.provider_names import provider_names
from relay.policy.shipped import provider_of, provider_rules, providers
from relay.policy.written_out import policy_text
from relay.verdicts.verdict import Layer
from tests.unit.policy.examples import INTERFACE, SMALL, with_upstream
from tests.unit.policy.reading import only_fault, parse


def test_every_provider_can_be_named_and_no_other() -> None:
    assert tuple(providers()) == provider_names() != ()

    fault = only_fault(with_upstream("provider: gmial", "host: h.example"))
    assert (fault.line, fault.column, fault.key) == (7, 15, "upstreams.isp.provider")
    assert "gmail" in fault.message


@pytest.mark.parametrize("name", provider_names())
def test_a_preset_is_a_whole_upstream_with_its_source(name: str) -> None:
    provider = providers()[name]
    upstream = parse(with_upstream(f"provider: {name}")).upstreams["isp"]

    assert upstream.host == provider.preset["host"]
    assert upstream.tls is not Tls.NONE
    assert set(provider.preset) <= set(Upstream.model_fields)
    assert provider.source
    assert date.fromisoformat(provider.checked) >= date(2026, 1, 1)
    assert upstream.limits or re.search(r"write (?:the )?limits of", provider.note)
    if provider.hosts:
        assert provider_of(None, upstream.host) == name


@pytest.mark.parametrize("name", provider_names())
def test_what_the_owner_writes_wins(name: str) -> None:
    written = (
        "host: other.example",
        "port: 2525",
        "tls: implicit",
        "connections: 7",
        "limits: [{messages: 3, per: 1s}]",
    )
    with_provider = parse(with_upstream(f"provider: {name}", *written)).upstreams["isp"]
    without = parse(with_upstream(*written)).upstreams["isp"]

    ours = {"provider", "max_recipients"}
    assert with_provider.model_dump(exclude=ours) == without.model_dump(exclude=ours)


def test_a_fault_beside_a_preset_is_told_at_its_place() -> None:
    fault = only_fault(with_upstream("provider: gmail", "port: 99999"))

    assert (fault.line, fault.column, fault.key) == (8, 11, "upstreams.isp.port")


def test_without_a_host_and_a_provider_the_host_is_missing() -> None:
    assert only_fault(with_upstream("port: 25")).key == "upstreams.isp.host"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("smtp.gmail.com", "gmail"),
        ("SMTP.Gmail.Com.", "gmail"),
        ("email-smtp.eu-west-1.amazonaws.com", "ses"),
        ("contoso-com.mail.protection.outlook.com", "microsoft365"),
        ("smtp.ionos.co.uk", "gmx"),
        ("smtp.gmail.com.evil.example", None),
        ("notgmail.com", None),
        ("evilsmtp.gmail.com", None),
    ],
)
def test_a_provider_is_known_by_its_hosts(host: str, name: str | None) -> None:
    assert provider_of(None, host) == name


def test_the_rules_of_no_provider_are_none() -> None:
    assert provider_rules(None) == ()


VERDICTS = """\
    verdicts:
      - {phase: mail, code: 550, text: "quota", verdict: pause, wait: 90s}
      - {text: ["a \\"b\\"", "c: #d"], but_not: e, enhanced: x.4.5, verdict: stop, probe: false}
"""


@pytest.mark.parametrize(
    "text",
    [
        SMALL,
        SMALL + VERDICTS,
        with_upstream("provider: gmail"),
        with_upstream("provider: ses", "limits: [{recipients: 14, per: 1s}]"),
        INTERFACE,
        SMALL + "retry: {min: 1500ms, max: 1.5h, warn_after: null}\nhostname: a.example\n",
    ],
)
def test_a_policy_written_out_is_a_policy_that_means_the_same(text: str) -> None:
    policy = parse(text)

    shown = policy_text(policy, read_document(text.encode()).value())

    assert without_places(parse(shown)) == without_places(policy)
    assert policy_text(parse(shown), read_document(shown.encode()).value()).count("# default") == 0


def without_places(policy: Policy) -> dict[str, object]:
    return policy.model_dump()


def test_a_policy_written_out_tells_where_a_value_is_from() -> None:
    text = with_upstream("provider: gmail", "connections: 1")

    shown = policy_text(parse(text), read_document(text.encode()).value())

    assert re.search(r"(?m)^    host: \"smtp.gmail.com\"  # gmail, 2026-11-21: support.google.com", shown)
    assert re.search(r"(?m)^    connections: 1$", shown)
    assert re.search(r"(?m)^    idle: \"10s\"  # default$", shown)


def shown_rules(shown: str) -> list[str]:
    """Return the rules that stand as comments under `verdicts`, as they would be written there."""
    return [
        line.replace("    # - ", "      - ") for line in shown.splitlines() if line.startswith("    # - ")
    ]


@pytest.mark.parametrize("name", provider_names())
def test_a_policy_written_out_tells_where_each_rule_is_from(name: str) -> None:
    text = with_upstream(f"provider: {name}")
    shown = policy_text(parse(text), read_document(text.encode()).value())
    rules = shown_rules(shown)

    written = parse(with_upstream(f"provider: {name}", "verdicts:") + "\n".join(rules) + "\n").upstreams[
        "isp"
    ]
    assert [rule.rule(Layer.PROVIDER, "") for rule in written.verdicts] == [
        replace(rule, place="") for rule in provider_rules(name)
    ]
    assert [line.rpartition("  # ")[2] for line in rules] == [rule.place for rule in provider_rules(name)]
    lines = shown.splitlines()
    begin = lines.index("    verdicts: []  # default")
    assert lines[begin + 1] == f"    # asked next, those of {name}, {providers()[name].checked}:"
    assert lines[begin + 2 + len(rules)].startswith("    # asked last, those for any upstream: ")


def test_rules_known_by_the_host_are_told_after_the_owners() -> None:
    text = with_upstream("host: smtp.gmail.com") + VERDICTS

    lines = policy_text(parse(text), read_document(text.encode()).value()).splitlines()

    begin = next(at for at, line in enumerate(lines) if line.startswith("    verdicts: [{"))
    assert lines[begin + 1].startswith("    # asked next, those of gmail, known by its host, 2026-")
    assert len(shown_rules("\n".join(lines))) == len(provider_rules("gmail"))


def test_an_unknown_upstream_has_no_rules_of_a_provider() -> None:
    shown = policy_text(parse(SMALL), read_document(SMALL.encode()).value())

    assert shown_rules(shown) == []
    assert "asked next" not in shown
    assert "    # asked last, those for any upstream: " in shown
