"""Logging in with an access token at a strict smarthost: both mechanisms, a refusal and its explanation."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SystemClock
from relay.policy.limits import LimitSettings
from relay.policy.model import Mechanism, Tls
from relay.policy.oauth2 import TokenMechanism
from relay.policy.units import HostPort
from relay.practice.account import PracticeBehaviour
from relay.practice.smarthost import PracticeSmarthost
from relay.smtp.reply import Phase
from relay.smtp.sasl import (
    TOKEN_EXCHANGES,
    BearerToken,
    decode_response,
    explained,
    forms_of,
    token_responses,
    without_secrets,
)
from relay.telemetry.redaction import Redaction
from relay.upstream.connection import Account, UpstreamUnavailable, open_connection
from relay.upstream.login import choose
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import Script, Smarthost

USER, TOKEN = "news,list=1@example.com", "eyJ0eXAiOiJKV1QiLCJhbGciOi.s3cret-token_~+/=="
NAMES = st.text(st.characters(exclude_characters="\0\1", exclude_categories=["Cs"]), max_size=30)
TOKENS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)


@asynccontextmanager
async def smarthost(good: str = TOKEN) -> AsyncIterator[PracticeSmarthost]:
    behaviour = PracticeBehaviour(LimitSettings.model_validate({"messages": 9, "per": "1m"}), 1)
    host = PracticeSmarthost(
        HostPort("127.0.0.1", 0),
        "u",
        "p",
        behaviour,
        is_token=lambda token: (token.name, token.token) == (USER, good),
    )
    await host.start()
    try:
        yield host
    finally:
        await host.close()


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


@pytest.mark.parametrize("mechanism", TokenMechanism)
async def test_each_mechanism_logs_in(mechanism: TokenMechanism) -> None:
    async with smarthost() as host:
        connection = await open_connection(account(host.port, mechanism), SystemClock())
        assert connection.is_usable
        await connection.close()


@pytest.mark.parametrize("mechanism", TokenMechanism)
async def test_a_refused_token_stops_and_is_explained(mechanism: TokenMechanism) -> None:
    async with smarthost("another") as host:
        with pytest.raises(UpstreamUnavailable) as caught:
            await open_connection(account(host.port, mechanism), SystemClock())

    answer = caught.value.answer
    assert (answer.verdict, answer.phase) == (Verdict.STOP, Phase.AUTH)
    assert answer.text.startswith("535 5.7.8 ")
    assert answer.text.endswith("(status invalid_token, schemes bearer, scope smtp)")


@pytest.mark.parametrize("echo", [TOKEN, base64.b64encode(TOKEN.encode()).decode(), "{line}"])
async def test_an_upstream_that_echoes_shows_no_token(echo: str) -> None:
    sent = token_responses("XOAUTH2", BearerToken(USER, TOKEN)).initial.decode()
    shown = echo.format(line=sent) if "{" in echo else echo
    script = Script(auth=[f"535 5.7.8 no: {shown}"])
    async with Smarthost(script, accounts={USER: "-"}, mechanisms=("XOAUTH2",)) as host:
        with pytest.raises(UpstreamUnavailable) as caught:
            await open_connection(account(host.port), SystemClock())

    assert sent.rstrip("=") not in caught.value.answer.text
    if echo != base64.b64encode(TOKEN.encode()).decode():  # which nobody sends
        assert "***" in caught.value.answer.text


@pytest.mark.parametrize("mechanism", sorted(TOKEN_EXCHANGES))
@given(name=NAMES, token=TOKENS, port=st.integers(0, 65535))
def test_a_server_hears_what_a_client_says(mechanism: str, name: str, token: str, port: int) -> None:
    said = token_responses(mechanism, BearerToken(name, token, "mail.example", port))
    exchange = TOKEN_EXCHANGES[mechanism]("")
    next(exchange)
    with pytest.raises(StopIteration) as end:
        exchange.send(decode_response(said.initial))

    heard = end.value.value
    assert (heard.name, heard.token) == (name, token)
    if mechanism == "OAUTHBEARER":
        assert (heard.host, heard.port) == ("mail.example", port)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda octets: base64.b64encode(octets).decode()))
def test_any_challenge_is_read(challenge: str) -> None:
    assert explained(challenge).isprintable()


@given(
    st.dictionaries(
        st.sampled_from(["status", "schemes", "scope", "other"]),
        st.none() | st.integers() | st.text() | st.lists(st.text()),
    )
)
def test_any_explanation_is_one_line(said: dict[str, object]) -> None:
    shown = explained(base64.b64encode(json.dumps(said).encode()).decode())

    assert shown.isascii()
    assert shown.isprintable()


@given(name=NAMES, token=TOKENS.filter(lambda text: len(text) >= 8))
def test_no_form_of_a_token_passes(name: str, token: str) -> None:
    bearer, redaction = BearerToken(name, token, "mail.example", 587), Redaction()
    redaction.add_token(bearer)

    for form in forms_of(bearer):
        assert form not in redaction.hide(f"500 unknown: AUTH {form} ...")
        assert form not in without_secrets(f"500 unknown: AUTH {form} ...", bearer)
    assert token not in repr(bearer)
    assert token not in repr(account(587, token=token))


def test_old_tokens_are_forgotten_in_time() -> None:
    redaction = Redaction()
    redaction.add("u", "the password")
    for number in range(1000):
        redaction.add_token(BearerToken("u", f"token-{number:04}"))

    assert redaction.hide("token-0001 token-0999 the password") == "token-0001 *** ***"
