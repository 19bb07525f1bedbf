"""Each grant at a real token server (authlib), and what an answer is: a token or a reason, with no secret."""

import json
from typing import Any

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
    begin,
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
    said_by,
    token_in,
    token_request,
)
from tests.fakes.clock import FakeClock
from tests.fakes.token_server import CLIENT, SECRET, SERVICE_ACCOUNT, USER, TokenServer

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
PUBLIC = (
    KEY.public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)


def oauth2(server: TokenServer, grant: str, **keys: Any) -> OAuth2:
    given: dict[str, Any] = {"grant": grant, "token_url": f"{server.url}/token", "scope": "smtp"}
    match grant:
        case "refresh_token":
            given |= {"client_id": CLIENT, "refresh_token_file": "/r", "device_url": f"{server.url}/device"}
        case "client_credentials":
            given |= {"client_id": CLIENT, "client_secret_file": "/s"}
        case "service_account":
            given |= {"key_file": "/k"}
    return OAuth2.model_validate({**given, **keys})


def account(private_key: str = PEM) -> str:
    return json.dumps({"client_email": SERVICE_ACCOUNT, "private_key": private_key, "private_key_id": "k1"})


async def asked(settings: OAuth2, secrets: AccountSecrets, user: str = USER) -> TokenAnswer:
    seconds = SystemClock().wall_ns() // 1_000_000_000
    return token_in(await said_by(ask, token_request(settings, secrets, user, seconds)))


async def test_each_grant_gets_a_token() -> None:
    with TokenServer(public_key=PUBLIC) as server:
        for grant, secrets in {
            "refresh_token": AccountSecrets(client_secret=SECRET, refresh_token=server.refresh_token()),
            "client_credentials": AccountSecrets(client_secret=SECRET),
            "service_account": AccountSecrets(service_account=account()),
        }.items():
            answer = await asked(oauth2(server, grant), secrets)
            assert isinstance(answer, Granted), answer
            assert bool(answer.refresh_token) == (grant == "refresh_token")
        assert [sorted(form) for form in server.requests] == [
            ["client_id", "client_secret", "grant_type", "refresh_token", "scope"],
            ["client_id", "client_secret", "grant_type", "scope"],
            ["assertion", "grant_type"],
        ]


@pytest.mark.parametrize("status", [301, 307])
async def test_a_secret_follows_no_redirect(status: int) -> None:
    with TokenServer() as server, TokenServer() as other:
        server.failures.append((status, b"", {"Location": f"{other.url}/token"}))
        answer = await asked(oauth2(server, "client_credentials"), AccountSecrets(client_secret=SECRET))
        assert isinstance(answer, Denied)
        assert not answer.is_final
        assert other.requests == []


class Person:
    """Consents after some polls; time is not waited for."""

    def __init__(self, server: TokenServer, polls: int = 2, *, says: bool = True) -> None:
        self.server, self.polls, self.says = server, polls, says
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self.polls:
            for code in self.server.devices.values():
                self.server.consents[code.get_user_code()] = self.says


@pytest.mark.parametrize("secret", [SECRET, ""])
async def test_a_code_becomes_a_refresh_token(secret: str) -> None:
    with TokenServer(secret=secret or None) as server:
        client = LoginClient(oauth2(server, "refresh_token"), secret, ask)
        code = await begin(client, SystemClock())
        assert code.url == f"{server.url}/activate"
        assert code.device_code not in repr(code)
        person = Person(server, 3)
        granted = await wait_for_consent(client, code, SystemClock(), person.sleep)

        assert granted.refresh_token
        assert person.slept == [1, 1, 1]


@pytest.mark.parametrize(
    ("status", "error", "slept"),
    [
        (429, "", [5, 120, 10]),
        (503, "", [5, 120, 10]),
        (429, "slow_down", [5, 120, 10]),
        (400, "authorization_pending", [5, 120, 5]),
    ],
)
async def test_a_code_is_asked_about_no_sooner_than_the_server_says(
    status: int, error: str, slept: list[int]
) -> None:
    clock, waited = FakeClock(), list[float]()
    answers = [
        (status, json.dumps({"error": error}).encode() if error else b"", "120"),
        (400, b'{"error": "authorization_pending"}', ""),
        (200, b'{"access_token": "a", "refresh_token": "r", "token_type": "Bearer"}', ""),
    ]

    async def answer(_: TokenRequest) -> tuple[int, bytes, str]:
        return answers.pop(0)

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    code = DeviceCode("https://t.example", "u", "d", clock.boottime_ns() + 900 * SECOND_NS, 5)
    await wait_for_consent(LoginClient(_browser(), "s", answer), code, clock, sleep)
    assert waited == slept


def _browser() -> OAuth2:
    return OAuth2.model_validate({
        "grant": "refresh_token", "client_id": "c", "refresh_token_file": "/r", "scope": "mail",
        "token_url": "https://t.example/token", "login_url": "https://t.example/auth",
    })  # fmt: skip


async def test_a_link_comes_back_as_a_refresh_token() -> None:
    forms: list[str] = []

    async def answer(request: Any) -> tuple[int, bytes, str]:
        forms.append(request.form)
        return 200, b'{"access_token": "a", "refresh_token": "r", "token_type": "Bearer"}', ""

    login = begin_in_browser(_browser(), USER)
    assert login.url.startswith("https://t.example/auth?response_type=code&client_id=c")
    assert "code_challenge_method=S256" in login.url
    assert login.verifier not in login.url
    client = LoginClient(_browser(), "s", answer)
    address = f" http://127.0.0.1:1/?state={login.state}&code=4/the-code&scope=mail\n"
    with pytest.raises(LoginFailed, match="of another login"):
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
            (3600, 3600), ("3599", 3599), (12.9, 12), (None, DEFAULT_LIFE_SECONDS),
            ("soon", DEFAULT_LIFE_SECONDS), (0, 0), (-1, 0), (10**30, LONGEST_LIFE_SECONDS))),
        *((200, {"access_token": token}, False) for token in (
            "", "a b", "\u00e9", "a\r\nb", "x" * 8193, 7, None)),
        # Only what the server refuses in OAuth's words a person has to mend.
        *((status, {"error": error}, True) for status, error in (
            (400, "invalid_grant"), (401, "invalid_client"), (403, "anything_else"))),
        *((status, {"error": error}, False) for status, error in (
            (400, "slow_down"), (503, "server_error"), (429, "invalid_grant"))),
        *((404, {}, False), (200, {}, False), (200, {"access_token": "a", "token_type": "mac"}, True)),
    ],
)  # fmt: skip
def test_an_answer_is_a_token_of_a_life_or_a_reason_that_may_be_final(
    status: int, fields: dict[str, Any], expected: int | bool
) -> None:
    found = token_in(read_answer(status, json.dumps(fields).encode()))

    if isinstance(found, Granted):
        assert found.life_seconds == expected
        assert repr(found) == f"Granted(life_seconds={expected})"
    else:
        assert found.is_final is expected
        assert found.error == fields.get("error", "")
