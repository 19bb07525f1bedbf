"""What is asked of a token server: the form of each grant (RFC 6749, 7523, 8628).  No I/O.

Guarantees: a secret is in the form alone, never in a URL; no `repr` shows a form.
"""

import json
from dataclasses import dataclass, field
from urllib.parse import urlencode

from relay.policy.oauth2 import GrantType, OAuth2
from relay.policy.secrets import AccountSecrets
from relay.policy.units import https_url

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_SECONDS = 3600
"""How long a service account's signature is good: the most that Google takes."""


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
    is_refreshed = oauth2.grant is GrantType.REFRESH_TOKEN
    return form_request(
        oauth2.token_url,
        oauth2,
        grant_type=str(oauth2.grant),
        client_secret=secrets.client_secret,
        scope=oauth2.scope,
        refresh_token=secrets.refresh_token if is_refreshed else None,
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
