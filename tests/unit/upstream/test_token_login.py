"""Logging in with an access token at a strict smarthost: both mechanisms, and a refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SystemClock
from relay.policy.model import Mechanism, Tls
from relay.policy.oauth2 import TokenMechanism
from relay.smtp.reply import Phase
from relay.smtp.sasl import (
    BearerToken,
)
from relay.upstream.connection import Account, UpstreamUnavailable, open_connection
from relay.upstream.login import choose
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import Smarthost

USER, TOKEN = "news,list=1@example.com", "eyJ0eXAiOiJKV1QiLCJhbGciOi.s3cret-token_~+/=="
TOKENS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)


def smarthost(good: str = TOKEN) -> Smarthost:
    return Smarthost(
        mechanisms=["XOAUTH2", "OAUTHBEARER"],
        is_token=lambda token: (token.name, token.token) == (USER, good),
    )


def account(port: int, mechanism: TokenMechanism = TokenMechanism.AUTO, token: str = TOKEN) -> Account:
    bearer = BearerToken(USER, token, "127.0.0.1", port)
    return Account(
        "127.0.0.1", port, Tls.NONE, "client.example", user=USER, mechanism=mechanism, token=bearer
    )


@pytest.mark.parametrize(
    ("offered", "wanted", "expected"),
    [
        ({"xoauth2", "plain"}, TokenMechanism.AUTO, TokenMechanism.XOAUTH2),
        ({"xoauth2", "oauthbearer"}, TokenMechanism.AUTO, TokenMechanism.OAUTHBEARER),
        ({"xoauth2", "oauthbearer"}, TokenMechanism.XOAUTH2, TokenMechanism.XOAUTH2),
        ({"xoauth2"}, TokenMechanism.OAUTHBEARER, None),
        ({"plain", "login"}, TokenMechanism.AUTO, None),
        ({"xoauth2"}, Mechanism.AUTO, None),
    ],
)
def test_choice(
    offered: set[str], wanted: Mechanism | TokenMechanism, expected: TokenMechanism | None
) -> None:
    assert choose(frozenset(offered), wanted, is_encrypted=True) is expected


LONG = TOKEN + 1100 * "x"


@pytest.mark.parametrize("token", [TOKEN, LONG], ids=["short", "long"])
@pytest.mark.parametrize("mechanism", TokenMechanism)
async def test_each_mechanism_logs_in(mechanism: TokenMechanism, token: str) -> None:
    async with smarthost(token) as host:
        connection = await open_connection(account(host.port, mechanism, token), SystemClock())
        assert connection.is_usable
        await connection.close()


@pytest.mark.parametrize("token", [TOKEN, LONG], ids=["short", "long"])
@pytest.mark.parametrize("mechanism", TokenMechanism)
async def test_a_refused_token_stops(mechanism: TokenMechanism, token: str) -> None:
    async with smarthost("another") as host:
        with pytest.raises(UpstreamUnavailable) as caught:
            await open_connection(account(host.port, mechanism, token), SystemClock())

    answer = caught.value.answer
    assert (answer.verdict, answer.phase, str(answer.reply)) == (Verdict.STOP, Phase.AUTH, "535 5.7.8")


@pytest.mark.parametrize("mechanism", ["XOAUTH2", "OAUTHBEARER"])
async def test_a_long_token_waits_for_its_challenge(mechanism: str) -> None:
    async with Smarthost(accounts={USER: LONG}, mechanisms=[mechanism]) as host:
        await (await open_connection(account(host.port, token=LONG), SystemClock())).close()

        assert host.sessions[0].user == USER
        assert host.commands[1] == f"AUTH {mechanism}"


@given(token=TOKENS.filter(lambda text: len(text) >= 8))
def test_no_repr_shows_a_token(token: str) -> None:
    assert token not in repr(BearerToken("u", token, "mail.example", 587))
    assert token not in repr(account(587, token=token))
