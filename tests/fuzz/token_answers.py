"""Any bytes of a token server give a token, a device code, or a reason on one line."""

import asyncio

from relay.clock import SystemClock
from relay.policy.model import OAuth2
from relay.upstream.oauth.login import LoginClient, LoginFailed, begin
from relay.upstream.oauth.token_server import LONGEST_LIFE_SECONDS, Granted, is_token, read_answer, token_in

STATUSES = (200, 302, 400, 401, 404, 429, 500)
SETTINGS = OAuth2.model_validate(
    {
        "grant": "refresh_token",
        "client_id": "c",
        "refresh_token_file": "/r",
        "token_url": "https://t.example/token",
        "device_url": "https://t.example/device",
    }
)
SEEDS = (
    b'\0{"access_token": "a", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "r"}',
    b'\2{"error": "invalid_grant", "error_description": "AADSTS50173: gone", "error_codes": [50173]}',
    b'\0{"device_code": "d", "user_code": "ABCD", "verification_uri": "https://t/", "interval": 5}',
)
TOKENS = (
    b'{"', b'": "', b'", "', b'"}', b"null", b"[[[", b"1e999", b"-1", b"NaN", b'"\\ud800"', b"access_token",
    b"expires_in", b"token_type", b"error", b"error_description", b"scope", b"verification_uri", b"interval",
)  # fmt: skip


def target(raw: bytes) -> None:
    status, content = STATUSES[raw[0] % len(STATUSES)] if raw else 200, raw[1:]
    answer = token_in(read_answer(status, content, content[:8].decode("latin-1")))
    if isinstance(answer, Granted):
        assert status == 200
        assert is_token(answer.access_token)
        assert answer.refresh_token == "" or is_token(answer.refresh_token)
        assert 0 <= answer.life_seconds <= LONGEST_LIFE_SECONDS
    else:
        _check_line(answer.advised("isp"))
    asyncio.run(_begin(status, content))


async def _begin(status: int, content: bytes) -> None:
    async def ask(_request: object) -> tuple[int, bytes, str]:
        return status, content, ""

    try:
        code = await begin(LoginClient(SETTINGS, "", ask), SystemClock())
    except LoginFailed as failed:
        _check_line(str(failed))
    else:
        assert status == 200
        assert is_token(code.device_code)
        _check_line(code.user_code)
        assert code.interval_seconds >= 1


def _check_line(text: str) -> None:
    assert text.isascii()
    assert not text or text.isprintable()
