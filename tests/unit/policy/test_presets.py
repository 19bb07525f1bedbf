"""Presets: each is a good upstream by itself, and what the owner writes wins."""

import re
from datetime import date

import pytest

from relay.policy.model import OAuth2, Tls, Upstream
from relay.policy.shipped import provider_of, providers
from relay.policy.source import policy_text
from tests.unit.policy.examples import INTERFACE, SMALL, with_upstream
from tests.unit.policy.reading import faults, parse

REFRESH = "grant: refresh_token, client_id: c, refresh_token_file: r"


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


def oauth2_of(provider: str, oauth2: str) -> OAuth2:
    text = with_upstream(f"provider: {provider}", "limits: []", f"auth: {{user: u, oauth2: {{{oauth2}}}}}")
    auth = parse(text).upstreams["isp"].auth
    assert auth is not None
    assert auth.oauth2 is not None
    return auth.oauth2


def test_a_provider_fills_in_all_but_client_and_tenant() -> None:
    for grant in REFRESH, "grant: service_account, key_file: k":
        google = oauth2_of("workspace-relay", grant)
        assert google.token_url == "https://oauth2.googleapis.com/token"
        assert (google.device_url, google.scope) == (None, "https://mail.google.com/")
    found = oauth2_of("microsoft365", f"{REFRESH}, tenant: contoso.example")

    assert found.token_url == "https://login.microsoftonline.com/contoso.example/oauth2/v2.0/token"
    assert found.device_url == "https://login.microsoftonline.com/contoso.example/oauth2/v2.0/devicecode"
    assert (found.scope, found.mechanism) == (
        "https://outlook.office.com/SMTP.Send offline_access",
        "xoauth2",
    )
    app = "grant: client_credentials, client_id: c, client_secret_file: s, tenant: contoso.example"
    assert oauth2_of("microsoft365", app).scope == "https://outlook.office365.com/.default"
    without_tenant = faults(
        with_upstream("provider: microsoft365", f"auth: {{user: u, oauth2: {{{REFRESH}}}}}")
    )
    assert "microsoft365 needs tenant" in without_tenant[0].message


VERDICTS = """\
    verdicts:
      - {phase: mail, code: 550, text: "quota", verdict: pause, wait: 90s}
      - {text: ["a \\"b\\"", "c: #d"], but_not: e, enhanced: x.4.5, verdict: stop, probe: false}
"""


@pytest.mark.parametrize(
    "text",
    [
        SMALL + VERDICTS,
        with_upstream("provider: ses", "limits: [{recipients: 14, per: 1s}]"),
        INTERFACE,
        SMALL + "retry: {min: 1500ms, max: 1.5h, warn_after: null}\nhostname: a.example\n",
    ],
)
def test_a_policy_written_out_is_a_policy_that_means_the_same(text: str) -> None:
    policy = parse(text)

    assert parse(policy_text(policy)) == policy
