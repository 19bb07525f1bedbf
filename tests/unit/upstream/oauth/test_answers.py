"""What a token server answers: whatever it is, a token or a reason, and never a token in a reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.upstream.oauth.answers import (
    DEFAULT_LIFE_SECONDS,
    LONGEST_LIFE_SECONDS,
    Denied,
    Granted,
    read_token_answer,
)


def answer(status: int = 200, **fields: Any) -> Granted | Denied:
    return read_token_answer(status, json.dumps(fields).encode())


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
    "error",
    [
        "invalid_grant",
        "invalid_client",
        "unauthorized_client",
        "invalid_scope",
        "access_denied",
        "anything_else",
    ],
)
@pytest.mark.parametrize("status", [400, 401, 403])
def test_what_the_server_refuses_a_person_has_to_mend(status: int, error: str) -> None:
    found = answer(status, error=error)

    assert isinstance(found, Denied)
    assert (found.is_final, found.error) == (True, error)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40))
def test_no_token_is_in_a_repr(token: str) -> None:
    found = answer(access_token=token, refresh_token=token, expires_in=5)

    assert isinstance(found, Granted)
    assert repr(found) == "Granted(life_seconds=5)"
