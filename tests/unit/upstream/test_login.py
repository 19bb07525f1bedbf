"""Authentication: the choice of the mechanism, a single login, and no secret in any output."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest

from relay.policy.model import Mechanism, TokenMechanism
from relay.smtp.reply import Phase
from relay.smtp.sasl import BearerToken, Credentials
from relay.upstream.connection import UpstreamServer, UpstreamUnavailable
from relay.upstream.login import AnyMechanism, choose
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.upstream.sessions import account, connected

USER, PASSWORD = "mjd@example.com", "s3cret & p\xe4ss"
TOKEN_USER, TOKEN = "news,list=1@example.com", "eyJ0eXAiOiJKV1QiLCJhbGciOi.s3cret-token_~+/=="
LONG = TOKEN + 1100 * "x"
PASSWORDS: tuple[Mechanism, ...] = ("plain", "login", "cram-md5")
TOKENS: tuple[AnyMechanism, ...] = get_args(TokenMechanism)
EVERYTHING = "plain login cram-md5 xoauth2 gssapi"


@pytest.mark.parametrize(
    ("offered", "wanted", "over", "expected"),
    [
        (EVERYTHING, "auto", "tls", "plain"),
        (EVERYTHING, "auto", "loopback", "cram-md5"),
        ("login cram-md5", "auto", "tls", "login"),
        ("login plain", "auto", "loopback", "plain"),
        ("plain", "login", "tls", None),
        ("xoauth2 gssapi", "auto", "tls", None),
        ("xoauth2 oauthbearer", "auto", "tls with a token", "oauthbearer"),
        (EVERYTHING, "auto", "tls with a token", "xoauth2"),
        (EVERYTHING, "oauthbearer", "tls with a token", None),
        ("plain login", "auto", "tls with a token", None),
    ],
)
def test_the_mechanism_follows_from_what_is_offered_and_wanted_and_from_tls_and_token(
    offered: str, wanted: AnyMechanism, over: str, expected: str | None
) -> None:
    is_encrypted, has_token = over != "loopback", "token" in over
    found = choose(frozenset(offered.split()), wanted, is_encrypted=is_encrypted, has_token=has_token)
    assert found == expected


def smarthost(
    script: Script | None = None, *, offers: Sequence[str] = (), secret: str = PASSWORD
) -> Smarthost:
    return Smarthost(
        script,
        accounts={USER: secret},
        mechanisms=offers or ("PLAIN", "LOGIN", "CRAM-MD5", "XOAUTH2", "OAUTHBEARER"),
        is_token=lambda token: (token.name, token.token) == (TOKEN_USER, secret),
    )


def server(host: Smarthost, mechanism: AnyMechanism, secret: str = PASSWORD) -> UpstreamServer:
    credentials: Credentials | BearerToken = Credentials(USER, secret)
    if mechanism not in PASSWORDS:
        credentials = BearerToken(TOKEN_USER, secret, "127.0.0.1", host.port)
    return replace(account(host), credentials=credentials, mechanism=mechanism)


async def refusal(opened: UpstreamServer, words: str | None = None) -> Answer:
    with pytest.raises(UpstreamUnavailable, match=words) as caught:
        async with connected(opened):
            pass
    answer = caught.value.answer
    assert answer.phase is Phase.AUTH
    its = opened.credentials
    assert its is not None
    secret = its.token if isinstance(its, BearerToken) else its.password
    assert not secret or secret not in repr(answer) + str(caught.value) + repr(opened)
    return answer


@pytest.mark.parametrize(
    ("mechanism", "secret"),
    [
        *((mechanism, PASSWORD) for mechanism in PASSWORDS),
        *((mechanism, token) for mechanism in TOKENS for token in (TOKEN, LONG)),
    ],
)
async def test_every_mechanism_logs_in(mechanism: AnyMechanism, secret: str) -> None:
    async with smarthost(secret=secret) as host, connected(server(host, mechanism, secret)) as connection:
        assert connection.is_usable
        said = host.commands[1].removeprefix("AUTH ").lower()
        assert mechanism == "auto" or said.startswith(mechanism)


@pytest.mark.parametrize("mechanism", [*PASSWORDS, *TOKENS])
async def test_a_refused_login_is_not_repeated(mechanism: AnyMechanism) -> None:
    async with smarthost(secret="another") as host:
        answer = await refusal(server(host, mechanism, TOKEN))

        assert (answer.verdict, answer.status) == (Verdict.STOP, "5.7.8")
        assert sum(command.startswith("AUTH ") for command in host.commands) == 1
        assert len(host.sessions) == 1


async def test_no_login_is_tried_without_a_usable_mechanism() -> None:
    async with smarthost(offers=("LOGIN", "CRAM-MD5")) as host:
        await refusal(server(host, "plain"), "no usable login mechanism")

        assert host.commands == ["EHLO client.example"]


@pytest.mark.parametrize(
    "end", ["535 5.7.8 no: {}\r\n", "535-{}\r\n535 no\r\n", "{}\r\n", "421 {}\r\n", "235x{}\r\n"]
)
async def test_a_password_that_the_upstream_repeats_is_not_shown(end: str) -> None:
    async with smarthost(Script(auth=end.format("hunter2").encode()), secret="hunter2") as host:
        await refusal(server(host, "plain", "hunter2"))


async def test_a_malformed_challenge_ends_the_login() -> None:
    async with smarthost(Script(challenge="334 x")) as host:
        answer = await refusal(server(host, "cram-md5"), "challenge")

        assert answer.verdict is Verdict.PAUSE
        assert host.commands[1:] == ["AUTH CRAM-MD5"]


@pytest.mark.parametrize("mechanism", PASSWORDS)
async def test_a_password_with_nul_is_not_sent(mechanism: Mechanism) -> None:
    async with smarthost() as host:
        await refusal(server(host, mechanism, "s3cret\0"), "NUL")

        assert host.commands == ["EHLO client.example"]


@pytest.mark.parametrize(
    ("prompt", "welcome"),
    [
        ("334", b"235\r\n"),
        ("334 ", b"235 \r\n"),
        ("334 VXNlciBOYW1lAA==", b"235-2.7.0 a\r\n235 2.7.0 b\r\n"),
        ("334 Username:", b"235 2.7.0 b\r\n"),
    ],
)
async def test_auth_login_accepts_any_prompt(prompt: str, welcome: bytes) -> None:
    script = Script(challenge=prompt, auth=welcome)
    async with smarthost(script) as host, connected(server(host, "login")):
        assert host.sessions[0].user == USER
