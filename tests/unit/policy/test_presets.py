"""Presets: each is a good upstream by itself, and what the owner writes wins."""

import re
from datetime import date

import pytest

from relay.policy.differences import policy_text
from relay.policy.model import Tls, Upstream
from relay.policy.shipped import provider_of, providers
from tests.unit.policy.examples import INTERFACE, SMALL, with_upstream
from tests.unit.policy.reading import only_fault, parse


def test_every_provider_can_be_named_and_no_other() -> None:
    fault = only_fault(with_upstream("host: h.example", "limits: []", "provider: gmial"))
    assert (fault.line, fault.column, fault.key) == (9, 15, "upstreams.isp.provider")
    assert "gmail" in fault.message


@pytest.mark.parametrize("name", providers())
def test_a_preset_is_a_whole_upstream_with_its_source(name: str) -> None:
    provider = providers()[name]
    own = [] if "limits" in provider.preset else ["limits: []"]
    upstream = parse(with_upstream(f"provider: {name}", *own)).upstreams["isp"]

    assert upstream.host == provider.preset["host"]
    assert upstream.tls is not Tls.NONE
    assert set(provider.preset) <= set(Upstream.model_fields)
    assert provider.source
    assert date.fromisoformat(provider.checked) >= date(2026, 1, 1)
    assert upstream.limits or re.search(r"write (?:the )?limits of", provider.note)
    if provider.hosts:
        assert provider_of(None, upstream.host) == name


@pytest.mark.parametrize(
    ("host", "name"),
    [
        *(("smtp.gmail.com", "gmail"), ("SMTP.Gmail.Com.", "gmail")),
        ("email-smtp.eu-west-1.amazonaws.com", "ses"),
        *(("contoso-com.mail.protection.outlook.com", "microsoft365"), ("smtp.ionos.co.uk", "gmx")),
        *(("smtp.gmail.com.evil.example", None), ("notgmail.com", None), ("evilsmtp.gmail.com", None)),
    ],
)
def test_a_provider_is_known_by_its_hosts(host: str, name: str | None) -> None:
    assert provider_of(None, host) == name


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

    assert parse(policy_text(policy)) == policy
