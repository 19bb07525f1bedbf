"""The client of a token server (RFC 6749, 7523, 8628): it posts forms over HTTPS and reads the answers.

Guarantees: a request ends within TIMEOUT_SECONDS.  The certificate is verified.  No redirect is followed, so
no secret goes anywhere else.  A secret is only in the form, never in a URL.  At most LARGEST_ANSWER_BYTES
and one chunk are read.  Any octets of a server become a value, `Granted` or `Denied`, never an exception.
No `repr` and no text that is shown holds a token or a secret: a server's description may repeat what was
sent, so it is only searched for the number of an error.  A refusal is final only if the server says so in
OAuth's words, or gives no bearer token.  Any other answer (a proxy, a broken server) is tried again.
"""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard
from urllib.parse import urlencode

from relay import __version__
from relay.policy.model import OAuth2
from relay.policy.secrets import AccountSecrets
from relay.policy.units import https_url

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_SECONDS = 3600
"""How long a service account's signature is valid: the maximum of Google."""
TIMEOUT_SECONDS = 30.0
HEADERS = {
    "Content-Type": "application/x-www-form-urlencoded",
    "Accept": "application/json",
    "User-Agent": f"relay/{__version__}",
}
LARGEST_ANSWER_BYTES = 64 * 1024
LONGEST_TOKEN = 8192  # characters: in base64 it must fit into an AUTH line of 12,288 octets (RFC 4954, 4)
DEFAULT_LIFE_SECONDS = 1800  # if the server does not say; an hour is usual
LONGEST_LIFE_SECONDS = 86_400
LONGEST_RETRY_AFTER_SECONDS = 3600
# Errors after which the same request may succeed (RFC 6749, 4.1.2.1; RFC 8628, 3.5).
TRANSIENT = frozenset({"temporarily_unavailable", "server_error", "slow_down", "authorization_pending"})
_TOKEN = re.compile(r"[!-~]+\Z")
_NUMBER = re.compile(r"\bAADSTS[0-9]{1,8}\b")  # the number of an Entra error, in its description
_WORD = re.compile(r"[a-z_]{1,40}\Z")  # the form of errors in RFC 6749, 5.2; no token or secret has it
_LOG_IN = "run `relay login {upstream}`"
ADVICE = {
    # RFC 6749, 5.2, and developers.google.com/identity/protocols/oauth2/service-account, "Error codes".
    "unauthorized_client": "the provider does not let this client use the grant or scope: allow it there",
    "invalid_grant": f"the consent, or the service account's key or user, is no longer valid: {_LOG_IN}",
    "invalid_client": "client_id or client secret is wrong or expired",
    "deleted_client": "the client was deleted at the provider: make another one",
    "invalid_scope": "the scope is not one that was granted: correct or leave out auth.oauth2.scope",
    "access_denied": "an administrator or the user refused consent",
    "consent_required": f"consent is needed: {_LOG_IN}",
    "interaction_required": f"a person has to log in again: {_LOG_IN}",
    "unsupported_grant_type": "the token server does not know this grant",
    "expired_token": "the code has expired: begin again",
}
"""What to do, by OAuth's error.  docs/providers.md has what to do by the number of an Entra error."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    url: str
    form: str = field(repr=False)


Ask = Callable[[TokenRequest], Awaitable[tuple[int, bytes, str]]]
"""Returns the HTTP status, the answer, and `Retry-After`.  Raises ConnectionError with a text to show."""


@dataclass(frozen=True, slots=True)
class Granted:
    access_token: str = field(repr=False)
    life_seconds: int
    refresh_token: str = field(default="", repr=False)
    """As the server sent it, new or unchanged; empty if it sent none."""


@dataclass(frozen=True, slots=True)
class Denied:
    """No token was granted.  `words` may be shown: only an error's name or number in them is the server's."""

    words: str
    is_final: bool
    """A person has to act; another request does not help."""
    error: str = ""
    """In OAuth's words, such as `invalid_grant`."""
    retry_after_seconds: int = 0

    def advised(self, upstream: str) -> str:
        advice = ADVICE.get(self.error, "").format(upstream=upstream)
        return f"{self.words}; {advice}" if advice else self.words


TokenAnswer = Granted | Denied


def form_request(url: str | None, oauth2: OAuth2, **parameters: str | None) -> TokenRequest:
    """Return a request of this client; an empty parameter is left out."""
    form = {"client_id": oauth2.client_id, **parameters}
    return TokenRequest(url or "", urlencode({name: value for name, value in form.items() if value}))


def token_request(
    oauth2: OAuth2, secrets: AccountSecrets, user: str, wall_seconds: int
) -> TokenRequest | Denied:
    """Return the request for a new access token; Denied if the secret does not allow one."""
    if oauth2.grant == "service_account":
        return _signed_request(oauth2, secrets.service_account, user, wall_seconds)
    return form_request(
        oauth2.token_url,
        oauth2,
        grant_type=str(oauth2.grant),
        client_secret=secrets.client_secret,
        scope=oauth2.scope,
        refresh_token=secrets.refresh_token,
    )


def _signed_request(oauth2: OAuth2, account: str, user: str, wall_seconds: int) -> TokenRequest | Denied:
    """Return a request that acts as a user by a service account's signature (RFC 7523, 2.1)."""
    # PyJWT loads OpenSSL a second time into memory: import it only to sign.
    import jwt  # noqa: PLC0415 - see above

    key = json.loads(account)
    try:
        url = oauth2.token_url or https_url(
            key.get("token_uri"), "https://oauth2.googleapis.com/token", "secrets"
        )
    except ValueError as error:
        return Denied(f"token_uri of the service account's key: {error}", is_final=True)
    claims = {
        "iss": key["client_email"],
        "sub": user,
        "scope": oauth2.scope,
        "aud": url,
        "iat": wall_seconds,
        "exp": wall_seconds + ASSERTION_SECONDS,
    }
    key_id = key.get("private_key_id")
    headers = {"kid": key_id} if isinstance(key_id, str) else None
    try:
        assertion = jwt.encode(claims, key["private_key"], algorithm="RS256", headers=headers)
    except (ValueError, TypeError, jwt.PyJWTError):
        # Not the text of the error: it may quote the key.
        words = "the private key of the service account cannot sign: get a new key file"
        return Denied(words, is_final=True)
    return TokenRequest(url, urlencode({"grant_type": JWT_BEARER, "assertion": assertion}))


async def ask(request: TokenRequest) -> tuple[int, bytes, str]:
    # Verbs on the spool of a relay that is down request no token; loading aiohttp takes half their time.
    import aiohttp  # noqa: PLC0415 - see above

    try:
        # A session for each request: a token lasts an hour, and a connection would not be kept so long.
        async with (
            aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(TIMEOUT_SECONDS),
                # Some networks need HTTPS_PROXY.  Plain HTTP, over loopback only, must not go to a proxy.
                trust_env=request.url.startswith("https:"),
            ) as session,
            session.post(request.url, data=request.form, headers=HEADERS, allow_redirects=False) as response,
        ):
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > LARGEST_ANSWER_BYTES:
                    break
            return response.status, bytes(content), response.headers.get("Retry-After", "")
    except TimeoutError:
        raise ConnectionError(f"no answer within {TIMEOUT_SECONDS:g} s") from None
    except aiohttp.ClientConnectorCertificateError:
        raise ConnectionError("its certificate is not trusted") from None
    except aiohttp.ClientConnectorError as error:
        raise ConnectionError(f"cannot connect: {error.os_error.strerror or 'unknown host'}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # Only the type: the text may contain what was sent.
        raise ConnectionError(f"the request failed: {type(error).__name__}") from None


async def request_json(ask: Ask, request: TokenRequest | Denied) -> dict[str, Any] | Denied:
    """Send the request, if there is one; return the object that the server answers, or Denied."""
    if isinstance(request, Denied):
        return request
    try:
        return read_answer(*await ask(request))
    except ConnectionError as error:
        return Denied(f"the token server cannot be reached: {error}", is_final=False)


def read_answer(status: int, content: bytes, retry_after: str = "") -> dict[str, Any] | Denied:
    """Return the object in an answer without an error, else Denied."""
    try:
        said = json.loads(content) if len(content) <= LARGEST_ANSWER_BYTES else {}
    except (ValueError, RecursionError):
        said = {}
    said = said if isinstance(said, dict) else {}
    error = error_word(said.get("error"))
    if status == 200 and said and not error:
        return said
    # Retry-After counts as a delay in seconds (RFC 9110, 10.2.3); a date is ignored.
    asked_seconds = whole_seconds(retry_after, 0, LONGEST_RETRY_AFTER_SECONDS)
    if not error:
        is_of_another = 300 <= status < 400 or status in {200, 400, 401, 403, 404, 405}
        hint = "; check token_url" if is_of_another else ""
        words = f"the token server answered HTTP {status} without an OAuth error{hint}"
        return Denied(words, is_final=False, retry_after_seconds=asked_seconds)
    number = _NUMBER.search(str(said.get("error_description") or ""))
    words = f"the token server says {error}" + (f" ({number[0]})" if number else "")
    is_final = status < 500 and status not in {408, 429} and error not in TRANSIENT
    return Denied(words, is_final, error, 0 if is_final else asked_seconds)


def token_in(said: dict[str, Any] | Denied) -> TokenAnswer:
    if isinstance(said, Denied):
        return said
    token, refresh = said.get("access_token"), said.get("refresh_token")
    if str(said.get("token_type", "Bearer")).lower() != "bearer":
        return Denied("the token server returned a token that is not a bearer token", is_final=True)
    if not is_token(token):
        return Denied("the token server returned no usable token", is_final=False)
    life = whole_seconds(said.get("expires_in"), DEFAULT_LIFE_SECONDS, LONGEST_LIFE_SECONDS)
    return Granted(token, life, refresh if is_token(refresh) else "")


def is_token(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and len(text) <= LONGEST_TOKEN and _TOKEN.match(text) is not None


def whole_seconds(value: object, default: int, most: int) -> int:
    """Return the number of seconds that a server sent, perhaps as text, between 0 and `most`."""
    try:
        seconds = int(float(value)) if isinstance(value, int | float | str) else default
    except (ValueError, OverflowError):
        return default
    return min(max(seconds, 0), most)


def error_word(value: object) -> str:
    """Return the error code, or other words if it has not the form of a code: it might be a token."""
    if isinstance(value, str) and _WORD.match(value):
        return value
    return "an error without a name" if value else ""
