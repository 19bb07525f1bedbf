"""What is asked of a token server (RFC 6749, 7523, 8628): a form over HTTPS, its answer read and bounded.

Guarantees: a request ends within TIMEOUT_SECONDS; the certificate is verified; no redirect is followed, so
that no secret goes anywhere else; a secret is in the form alone, never in a URL; at most LARGEST_ANSWER_BYTES
and a chunk are read; no `repr` and no error shows what was sent.
"""

import json
from dataclasses import dataclass, field
from urllib.parse import urlencode

from relay import __version__
from relay.policy.model import GrantType, OAuth2
from relay.policy.secrets import AccountSecrets
from relay.policy.units import https_url
from relay.upstream.oauth.answers import LARGEST_ANSWER_BYTES

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_SECONDS = 3600
"""How long a service account's signature is good: the most that Google takes."""
TIMEOUT_SECONDS = 30.0
HEADERS = {
    "Content-Type": "application/x-www-form-urlencoded",
    "Accept": "application/json",
    "User-Agent": f"relay/{__version__}",
}


class TokenServerUnreachable(Exception):  # noqa: N818 - what the token server is
    """No answer came; the text may be shown."""


class Unaskable(ValueError):  # noqa: N818 - said of a request
    """A secret does not allow the request; the text may be shown, and says what to do."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    url: str
    form: str = field(repr=False)
    """`application/x-www-form-urlencoded`."""


def form_request(url: str | None, oauth2: OAuth2, **parameters: str | None) -> TokenRequest:
    """Return a request of this client; an empty parameter is left out."""
    form = {"client_id": oauth2.client_id, **parameters}
    return TokenRequest(url or "", urlencode({name: value for name, value in form.items() if value}))


def token_request(oauth2: OAuth2, secrets: AccountSecrets, user: str, wall_seconds: int) -> TokenRequest:
    """Return the request for a new access token.  Raises Unaskable."""
    if oauth2.grant is GrantType.SERVICE_ACCOUNT:
        return _signed_request(oauth2, secrets.service_account, user, wall_seconds)
    return form_request(
        oauth2.token_url,
        oauth2,
        grant_type=str(oauth2.grant),
        client_secret=secrets.client_secret,
        scope=oauth2.scope,
        refresh_token=secrets.refresh_token,
    )


def _signed_request(oauth2: OAuth2, account: str, user: str, wall_seconds: int) -> TokenRequest:
    """Act as a user by a service account's signature (RFC 7523, 2.1)."""
    # OpenSSL once more, in memory: only where something is signed.
    import jwt  # noqa: PLC0415 - see above

    key = json.loads(account)
    try:
        url = oauth2.token_url or https_url(
            key.get("token_uri"), "https://oauth2.googleapis.com/token", "secrets"
        )
    except ValueError as error:
        raise Unaskable(f"token_uri of the service account's key: {error}") from None
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
        # Without the cause: its text may quote the key.
        raise Unaskable("the private key of the service account cannot sign: get a new key file") from None
    return TokenRequest(url, urlencode({"grant_type": JWT_BEARER, "assertion": assertion}))


async def ask(request: TokenRequest) -> tuple[int, bytes, str]:
    """Return the HTTP status, the answer, and `Retry-After`.  Raises TokenServerUnreachable."""
    # Verbs on the spool of a relay that is down ask nothing; loading it takes half as long as what they do.
    import aiohttp  # noqa: PLC0415 - see above

    try:
        # A session each: a token is good for an hour, a connection would not be kept so long.
        async with (
            aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(TIMEOUT_SECONDS),
                # Some networks need HTTPS_PROXY; what goes in the clear, over loopback, no proxy may see.
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
        raise TokenServerUnreachable(f"no answer within {TIMEOUT_SECONDS:g} s") from None
    except aiohttp.ClientConnectorCertificateError:
        raise TokenServerUnreachable("its certificate is not trusted") from None
    except aiohttp.ClientConnectorError as error:
        raise TokenServerUnreachable(f"cannot connect: {error.os_error.strerror or 'unknown host'}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # By its type: its text may have what was sent.
        raise TokenServerUnreachable(f"the request failed: {type(error).__name__}") from None
