"""Requests to a token server.  An answer is a token or a reason, and shows no secret.

tests/unit/sender/oauth tests sharing, rotation and refused tokens.
"""

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from relay.clock import SECOND_NS, SystemClock
from relay.policy.model import OAuth2
from relay.policy.secrets import AccountSecrets
from relay.upstream.oauth.login import (
    DeviceCode,
    LoginClient,
    LoginFailed,
    begin_in_browser,
    finish_in_browser,
    wait_for_consent,
)
from relay.upstream.oauth.token_server import (
    DEFAULT_LIFE_SECONDS,
    LONGEST_LIFE_SECONDS,
    Denied,
    Granted,
    TokenAnswer,
    TokenRequest,
    ask,
    read_answer,
    request_json,
    token_in,
    token_request,
)
from relay.upstream.oauth.tokens import Tokens
from tests.fakes.clock import FakeClock
from tests.fakes.token_server import CLIENT, SECRET, SERVICE_ACCOUNT, USER, TokenServer

GRANTED = 200, b'{"access_token": "a", "refresh_token": "r", "token_type": "Bearer"}', ""


def oauth2(server: TokenServer, grant: str) -> OAuth2:
    keys: dict[str, dict[str, str]] = {
        "refresh_token": {"client_id": CLIENT, "refresh_token_file": "/r"},
        "client_credentials": {"client_id": CLIENT, "client_secret_file": "/s"},
        "service_account": {"key_file": "/k"},
    }
    url = f"{server.url}/token"
    return OAuth2.model_validate({"grant": grant, "token_url": url, "scope": "smtp", **keys[grant]})


async def asked(settings: OAuth2, secrets: AccountSecrets) -> TokenAnswer:
    seconds = SystemClock().wall_ns() // SECOND_NS
    return token_in(await request_json(ask, token_request(settings, secrets, USER, seconds)))


async def test_each_grant_gets_a_token() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain).decode()
    public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    account = {"client_email": SERVICE_ACCOUNT, "private_key": private, "private_key_id": "k1"}
    with TokenServer(public_key=public.decode()) as server:
        for grant, secrets in {
            "refresh_token": AccountSecrets(client_secret=SECRET, refresh_token=server.refresh_token()),
            "client_credentials": AccountSecrets(client_secret=SECRET),
            "service_account": AccountSecrets(service_account=json.dumps(account)),
        }.items():
            answer = await asked(oauth2(server, grant), secrets)
            assert isinstance(answer, Granted), answer
            assert bool(answer.refresh_token) == (grant == "refresh_token")
        assert [sorted(form) for form in server.requests] == [
            ["client_id", "client_secret", "grant_type", "refresh_token", "scope"],
            ["client_id", "client_secret", "grant_type", "scope"],
            ["assertion", "grant_type"],
        ]


async def test_a_client_without_a_secret_gets_a_token() -> None:
    with TokenServer(secret=None) as server:
        secrets = AccountSecrets(refresh_token=server.refresh_token())
        assert isinstance(await asked(oauth2(server, "refresh_token"), secrets), Granted)


async def test_a_secret_follows_no_redirect() -> None:
    with TokenServer() as server, TokenServer() as other:
        server.failures.append((307, b"", {"Location": f"{other.url}/token"}))
        answer = await asked(oauth2(server, "client_credentials"), AccountSecrets(client_secret=SECRET))
        assert isinstance(answer, Denied)
        assert not answer.is_final
        assert other.requests == []


class Owner:
    """Owns the secrets; another process replaces the refresh token while the server refuses the old one."""

    def __init__(self, refresh_token: str) -> None:
        self.refresh_token, self.asked = refresh_token, list[str]()

    async def ask(self, request: TokenRequest) -> tuple[int, bytes, str]:
        self.asked += parse_qs(request.form)["refresh_token"]
        await asyncio.sleep(0)
        if self.asked == ["old"]:
            self.refresh_token = "r"
            return 400, b'{"error": "invalid_grant"}', ""
        return GRANTED

    async def secrets(self) -> AccountSecrets:
        return AccountSecrets(refresh_token=self.refresh_token)

    async def record_refresh_token(self, old: str, new: str) -> str:
        raise AssertionError(f"{new} took the place of {old}")

    def answered(self, answer: TokenAnswer) -> None:
        assert answer == Granted("a", DEFAULT_LIFE_SECONDS)

    def tokens(self, clock: FakeClock) -> Tokens:
        return Tokens(
            _browser(),
            USER,
            self.ask,
            clock,
            secrets=self.secrets,
            record=self.record_refresh_token,
            on_answer=self.answered,
        )


async def test_connections_share_a_request_and_no_token_is_used_shortly_before_its_end() -> None:
    owner, clock = Owner("r"), FakeClock()
    tokens = owner.tokens(clock)
    for pass_seconds, asked in ((0, 1), (DEFAULT_LIFE_SECONDS - 31, 1), (2, 2)):
        clock.advance(pass_seconds * SECOND_NS)
        assert await asyncio.gather(*(tokens.token() for _ in range(5))) == ["a"] * 5
        assert len(owner.asked) == asked


async def test_a_refresh_token_that_changed_during_the_request_is_tried() -> None:
    owner = Owner("old")
    assert await owner.tokens(FakeClock()).token() == "a"
    assert owner.asked == ["old", "r"]


@pytest.mark.parametrize(
    ("status", "error", "slept"),
    [
        (503, "", [5, 120, 10]),
        (429, "slow_down", [5, 120, 10]),
        (400, "authorization_pending", [5, 120, 5]),
    ],
)
async def test_a_device_code_is_polled_no_sooner_than_told(status: int, error: str, slept: list[int]) -> None:
    clock, waited = FakeClock(), list[float]()
    answers = [
        (status, json.dumps({"error": error}).encode() if error else b"", "120"),
        (400, b'{"error": "authorization_pending"}', ""),
        GRANTED,
    ]

    async def answer(_: TokenRequest) -> tuple[int, bytes, str]:
        return answers.pop(0)

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    code = DeviceCode("https://t.example", "u", "the-code", clock.boottime_ns() + 900 * SECOND_NS, 5)
    assert "the-code" not in repr(code)
    await wait_for_consent(LoginClient(_browser(), "s", answer), code, clock, sleep)
    assert waited == slept


def _browser() -> OAuth2:
    return OAuth2.model_validate({
        "grant": "refresh_token", "client_id": "c", "refresh_token_file": "/r", "scope": "mail",
        "token_url": "https://t.example/token", "login_url": "https://t.example/auth",
    })  # fmt: skip


async def test_the_address_after_a_browser_login_is_exchanged_for_a_refresh_token() -> None:
    forms: list[str] = []

    async def answer(request: TokenRequest) -> tuple[int, bytes, str]:
        forms.append(request.form)
        return GRANTED

    login = begin_in_browser(_browser(), USER)
    assert login.url.startswith("https://t.example/auth?response_type=code&client_id=c")
    assert "code_challenge_method=S256" in login.url
    assert login.verifier not in login.url
    client = LoginClient(_browser(), "s", answer)
    address = f" http://127.0.0.1:1/?state={login.state}&code=4/the-code&scope=mail\n"
    with pytest.raises(LoginFailed, match="another login"):
        await finish_in_browser(client, login, address.replace(login.state, "another"))
    assert not forms
    granted = await finish_in_browser(client, login, address)

    assert granted.refresh_token == "r"
    assert f"code_verifier={login.verifier}" in forms[0]
    assert "code=4%2Fthe-code" in forms[0]


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        *((200, {"access_token": "a", "expires_in": given}, life) for given, life in (
            ("3599", 3599), ("soon", DEFAULT_LIFE_SECONDS), (10**30, LONGEST_LIFE_SECONDS))),
        *((200, {"access_token": token}, False) for token in ("a b", "x" * 8193, None)),
        # A person has to act only if the server refuses with an OAuth error.
        *((status, {"error": error}, True) for status, error in (
            (400, "invalid_grant"), (401, "invalid_client"), (403, "anything_else"))),
        *((status, {"error": error}, False) for status, error in (
            (400, "slow_down"), (503, "server_error"), (429, "invalid_grant"))),
        *((404, {}, False), (200, {}, False), (200, {"access_token": "a", "token_type": "mac"}, True)),
    ],
)  # fmt: skip
def test_an_answer_is_a_token_with_a_lifetime_or_an_error_that_may_be_final(
    status: int, fields: dict[str, Any], expected: int | bool
) -> None:
    found = token_in(read_answer(status, json.dumps(fields).encode()))

    if isinstance(found, Granted):
        assert found.life_seconds == expected
        assert repr(found) == f"Granted(life_seconds={expected})"
    else:
        assert found.is_final is expected
        assert found.error == fields.get("error", "")
