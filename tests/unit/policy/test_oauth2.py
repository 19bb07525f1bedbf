"""`auth.oauth2`: each grant has what it needs, URLs are safe, and providers fill in what they know."""

import json
from pathlib import Path

import pytest

from relay.policy.faults import PolicyError
from relay.policy.model import Policy
from relay.policy.oauth2 import OAuth2, TokenMechanism
from relay.policy.secrets import NotLoggedIn, read_secrets
from relay.policy.source import parse_policy, read_policy

SECRET_TWICE = "grant: client_credentials, client_id: c, client_secret_file: s, client_secret_env: S"
REFRESH = "grant: refresh_token, client_id: c, refresh_token_file: r"


def policy(oauth2: str, upstream: str = "host: mail.example", auth: str = "") -> Policy:
    text = f"""
spool: ./spool
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams:
  m365: {{{upstream}, limits: [], auth: {{user: u@example.com, oauth2: {{{oauth2}}}{auth}}}}}
"""
    return parse_policy(text.encode(), Path("/etc/relay/policy.yaml"))


def oauth2_of(found: Policy) -> OAuth2:
    auth = found.upstreams["m365"].auth
    assert auth is not None
    assert auth.oauth2 is not None
    return auth.oauth2


@pytest.mark.parametrize("auth", [", password_file: p", ", mechanism: plain"])
def test_it_takes_the_place_of_a_password(auth: str) -> None:
    with pytest.raises(PolicyError):
        policy(f"{REFRESH}, token_url: 'https://t.example/'", auth=auth)


def test_microsoft_needs_a_tenant_and_fills_in_the_rest() -> None:
    with pytest.raises(PolicyError, match="tenant"):
        policy(REFRESH, "provider: microsoft365")
    found = oauth2_of(policy(f"{REFRESH}, tenant: contoso.example", "provider: microsoft365"))

    assert found.token_url == "https://login.microsoftonline.com/contoso.example/oauth2/v2.0/token"
    assert found.device_url == "https://login.microsoftonline.com/contoso.example/oauth2/v2.0/devicecode"
    assert found.scope == "https://outlook.office.com/SMTP.Send offline_access"
    assert found.mechanism is TokenMechanism.XOAUTH2

    app = "grant: client_credentials, client_id: c, client_secret_file: s, tenant: contoso.example"
    assert oauth2_of(policy(app, "provider: microsoft365")).scope == "https://outlook.office365.com/.default"


@pytest.mark.parametrize("provider", ["gmail", "workspace", "workspace-relay"])
@pytest.mark.parametrize("grant", [REFRESH, "grant: service_account, key_file: k"])
def test_google_fills_in_all_but_the_client(provider: str, grant: str) -> None:
    found = oauth2_of(policy(grant, f"provider: {provider}"))

    assert (found.token_url, found.device_url) == ("https://oauth2.googleapis.com/token", None)
    assert found.scope == "https://mail.google.com/"


def _written(folder: Path, oauth2: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(f"""
spool: ./spool
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams:
  g: {{provider: gmail, auth: {{user: u@gmail.com, oauth2: {{{oauth2}}}}}}}
""")
    return path


def test_a_refresh_token_that_is_not_there_yet_is_no_fault(tmp_path: Path) -> None:
    found = read_policy(_written(tmp_path, REFRESH)).upstreams["g"].auth
    assert found is not None
    with pytest.raises(NotLoggedIn):
        read_secrets(found)

    (tmp_path / "r").touch(0o600)
    (tmp_path / "r").write_text("1//refresh\n")
    assert read_secrets(found).refresh_token == "1//refresh"
    assert "refresh" not in repr(read_secrets(found))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"client_email": "a"}',
        json.dumps({"client_email": 1, "private_key": "k"}),
        "[" * 60_000,
    ],
)
def test_a_key_file_that_is_none_is_a_fault(tmp_path: Path, content: str) -> None:
    (tmp_path / "k").touch(0o600)
    (tmp_path / "k").write_text(content)
    with pytest.raises(PolicyError, match="service account"):
        read_policy(_written(tmp_path, "grant: service_account, key_file: k"))


def test_no_token_crosses_the_network_in_the_clear() -> None:
    with pytest.raises(PolicyError, match="auth needs tls"):
        policy(f"{REFRESH}, token_url: 'https://t.example/'", "host: mail.example, tls: none")
