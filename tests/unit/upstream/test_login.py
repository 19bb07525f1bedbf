"""Authentication: which mechanism, only once, and no secret in anything that is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SystemClock
from relay.policy.model import Mechanism, Tls, TokenMechanism
from relay.smtp.reply import Phase
from relay.smtp.sasl import BearerToken
from relay.upstream.connection import UpstreamServer, UpstreamUnavailable, open_connection
from relay.upstream.login import AnyMechanism, choose
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.upstream.sessions import account, connected

USER, PASSWORD = "mjd@example.com", "s3cret & p\xe4ss"
TOKEN_USER, TOKEN = "news,list=1@example.com", "eyJ0eXAiOiJKV1QiLCJhbGciOi.s3cret-token_~+/=="
TOKENS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)
LONG = TOKEN + 1100 * "x"
MECHANISMS = [Mechanism.PLAIN, Mechanism.LOGIN, Mechanism.CRAM_MD5]
BOTH_FOR_TOKENS = frozenset({"xoauth2", "oauthbearer"})
EVERYTHING = frozenset({"plain", "login", "cram-md5", "xoauth2", "gssapi"})


@pytest.mark.parametrize(
    ("offered", "wanted", "is_encrypted", "expected"),
    [
        (EVERYTHING, Mechanism.AUTO, True, Mechanism.PLAIN),
        (EVERYTHING, Mechanism.AUTO, False, Mechanism.CRAM_MD5),
        (frozenset({"login", "cram-md5"}), Mechanism.AUTO, True, Mechanism.LOGIN),
        (frozenset({"cram-md5"}), Mechanism.AUTO, True, Mechanism.CRAM_MD5),
        (frozenset({"login", "plain"}), Mechanism.AUTO, False, Mechanism.PLAIN),
        (EVERYTHING, Mechanism.LOGIN, True, Mechanism.LOGIN),
        (EVERYTHING, Mechanism.CRAM_MD5, True, Mechanism.CRAM_MD5),
        (frozenset({"plain"}), Mechanism.LOGIN, True, None),
        (frozenset({"xoauth2", "gssapi"}), Mechanism.AUTO, True, None),
        (frozenset(), Mechanism.AUTO, False, None),
        (BOTH_FOR_TOKENS, TokenMechanism.AUTO, True, TokenMechanism.OAUTHBEARER),
        (BOTH_FOR_TOKENS, TokenMechanism.XOAUTH2, True, TokenMechanism.XOAUTH2),
        (EVERYTHING, TokenMechanism.AUTO, True, TokenMechanism.XOAUTH2),
        (EVERYTHING, TokenMechanism.OAUTHBEARER, True, None),
        (frozenset({"plain", "login"}), TokenMechanism.AUTO, True, None),
    ],
)
def test_choice(
    offered: frozenset[str], wanted: AnyMechanism, is_encrypted: bool, expected: AnyMechanism | None
) -> None:
    assert choose(offered, wanted, is_encrypted=is_encrypted) is expected


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_every_mechanism_logs_in(mechanism: Mechanism) -> None:
    async with Smarthost(accounts={USER: PASSWORD}) as host:
        async with connected(account(host, user=USER, password=PASSWORD, mechanism=mechanism)) as connection:
            assert connection.is_usable

        assert host.sessions[0].user == USER
        assert host.commands[1].startswith(f"AUTH {mechanism.value.upper()}")


@pytest.mark.parametrize("mechanism", [Mechanism.AUTO, *MECHANISMS])
async def test_a_refused_login_is_the_only_one(mechanism: Mechanism) -> None:
    async with Smarthost(accounts={USER: "another"}) as host:
        with pytest.raises(UpstreamUnavailable) as caught:
            async with connected(account(host, user=USER, password=PASSWORD, mechanism=mechanism)):
                pass

        answer = caught.value.answer
        assert (answer.verdict, answer.phase, answer.status) == (Verdict.STOP, Phase.AUTH, "5.7.8")
        assert sum(command.startswith("AUTH ") for command in host.commands) == 1
        assert len(host.sessions) == 1


@pytest.mark.parametrize(
    "offered", [(), ("XOAUTH2",), ("LOGIN", "CRAM-MD5")], ids=["none", "other", "not the one"]
)
async def test_without_the_mechanism_no_login_is_tried(offered: tuple[str, ...]) -> None:
    wanted = Mechanism.PLAIN if len(offered) > 1 else Mechanism.AUTO
    async with Smarthost(accounts={USER: PASSWORD}, mechanisms=offered) as host:
        with pytest.raises(UpstreamUnavailable, match="no usable mechanism") as caught:
            async with connected(account(host, user=USER, password=PASSWORD, mechanism=wanted)):
                pass

        assert caught.value.answer.phase is Phase.AUTH
        assert host.commands == ["EHLO client.example"]


@pytest.mark.parametrize(
    "end", ["535 5.7.8 no: {}\r\n", "535-{}\r\n535 no\r\n", "{}\r\n", "421 {}\r\n", "235x{}\r\n"]
)
async def test_what_the_upstream_repeats_of_a_password_is_not_shown(end: str) -> None:
    script = Script(auth=end.format("hunter2").encode())
    async with Smarthost(script, accounts={USER: "hunter2"}) as host:
        with pytest.raises(UpstreamUnavailable) as caught:
            async with connected(account(host, user=USER, password="hunter2", mechanism=Mechanism.PLAIN)):
                pass

        assert caught.value.answer.phase is Phase.AUTH
        assert "hunter2" not in repr(caught.value.answer) + str(caught.value)


async def test_a_challenge_that_is_none_ends_the_login() -> None:
    script = Script(challenge="334 x")
    async with Smarthost(script, accounts={USER: PASSWORD}) as host:
        with pytest.raises(UpstreamUnavailable, match="challenge") as caught:
            async with connected(account(host, user=USER, password=PASSWORD, mechanism=Mechanism.CRAM_MD5)):
                pass

        assert caught.value.answer.verdict is Verdict.PAUSE
        assert host.commands[1:] == ["AUTH CRAM-MD5"]


@pytest.mark.parametrize(
    "prompt", ["334", "334 ", "334 VXNlciBOYW1lAA==", "334 Username:", "334 2.0.0 go on"]
)
@pytest.mark.parametrize("welcome", [b"235\r\n", b"235 \r\n", b"235-2.7.0 a\r\n235 2.7.0 b\r\n"])
async def test_a_login_is_asked_for_in_any_words(prompt: str, welcome: bytes) -> None:
    script = Script(challenge=prompt, auth=welcome)
    async with (
        Smarthost(script, accounts={USER: PASSWORD}) as host,
        connected(account(host, user=USER, password=PASSWORD, mechanism=Mechanism.LOGIN)),
    ):
        assert host.sessions[0].user == USER


def token_host(good: str = TOKEN) -> Smarthost:
    return Smarthost(
        mechanisms=["XOAUTH2", "OAUTHBEARER"],
        is_token=lambda token: (token.name, token.token) == (TOKEN_USER, good),
    )


def token_account(
    port: int, mechanism: TokenMechanism = TokenMechanism.AUTO, token: str = TOKEN
) -> UpstreamServer:
    bearer = BearerToken(TOKEN_USER, token, "127.0.0.1", port)
    return UpstreamServer(
        "127.0.0.1", port, Tls.NONE, "client.example", user=TOKEN_USER, mechanism=mechanism, token=bearer
    )


@pytest.mark.parametrize("token", [TOKEN, LONG], ids=["short", "long"])
@pytest.mark.parametrize("mechanism", TokenMechanism)
async def test_a_token_logs_in_by_each_mechanism(mechanism: TokenMechanism, token: str) -> None:
    async with token_host(token) as host:
        connection = await open_connection(token_account(host.port, mechanism, token), SystemClock())
        assert connection.is_usable
        await connection.close()


@pytest.mark.parametrize("token", [TOKEN, LONG], ids=["short", "long"])
@pytest.mark.parametrize("mechanism", TokenMechanism)
async def test_a_refused_token_stops(mechanism: TokenMechanism, token: str) -> None:
    async with token_host("another") as host:
        with pytest.raises(UpstreamUnavailable) as caught:
            await open_connection(token_account(host.port, mechanism, token), SystemClock())

    answer = caught.value.answer
    assert (answer.verdict, answer.phase, str(answer.reply)) == (Verdict.STOP, Phase.AUTH, "535 5.7.8")


@given(token=TOKENS.filter(lambda text: len(text) >= 8))
def test_no_repr_shows_a_token(token: str) -> None:
    assert token not in repr(BearerToken("u", token, "mail.example", 587))
    assert token not in repr(token_account(587, token=token))
