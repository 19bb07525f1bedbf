"""What a token server answers: whatever it is, a token or a reason, and never a token in a reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.upstream.oauth.token_server import (
    DEFAULT_LIFE_SECONDS,
    LONGEST_LIFE_SECONDS,
    Denied,
    Granted,
    read_answer,
    token_in,
)


def answer(status: int = 200, **fields: Any) -> Granted | Denied:
    return token_in(read_answer(status, json.dumps(fields).encode()))


@pytest.mark.parametrize(
    ("expires_in", "life"),
    [
        (3600, 3600), ("3599", 3599), (12.9, 12), (None, DEFAULT_LIFE_SECONDS),
        ("soon", DEFAULT_LIFE_SECONDS), ("", DEFAULT_LIFE_SECONDS), (0, 0), ("0", 0), (-1, 0),
        (10**30, LONGEST_LIFE_SECONDS), (True, 1),
    ],
)  # fmt: skip
def test_a_life_is_what_the_server_says_within_reason(expires_in: object, life: int) -> None:
    found = answer(access_token="a", token_type="Bearer", expires_in=expires_in)

    assert isinstance(found, Granted)
    assert found.life_seconds == life


@pytest.mark.parametrize("token", ["", "with space", "with\u00e9", "a\r\nb", "a\x01b", "x" * 8193, 7, None])
def test_a_token_that_cannot_be_sent_is_none(token: object) -> None:
    found = answer(access_token=token, token_type="Bearer")

    assert isinstance(found, Denied)
    assert not found.is_final


@pytest.mark.parametrize(
    ("status", "fields", "is_final"),
    [
        *((400, {"error": "invalid_grant"}, True), (401, {"error": "invalid_client"}, True)),
        *((403, {"error": "anything_else"}, True), (400, {"error": "slow_down"}, False)),
        *((503, {"error": "server_error"}, False), (429, {"error": "invalid_grant"}, False)),
        *((404, {}, False), (200, {}, False), (200, {"access_token": "a", "token_type": "mac"}, True)),
    ],
)
def test_only_what_the_server_refuses_in_oauths_words_a_person_has_to_mend(
    status: int, fields: dict[str, str], is_final: bool
) -> None:
    found = answer(status, **fields)

    assert isinstance(found, Denied)
    assert (found.is_final, found.error) == (is_final, fields.get("error", ""))


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40))
def test_no_token_is_in_a_repr(token: str) -> None:
    found = answer(access_token=token, refresh_token=token, expires_in=5)

    assert isinstance(found, Granted)
    assert repr(found) == "Granted(life_seconds=5)"
