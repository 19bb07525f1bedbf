"""What is asked of a token server: the form of each grant (RFC 6749, 7523, 8628).  No I/O.

Guarantees: a secret is in the form alone, never in a URL; no `repr` shows a form.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from oauthlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request

from relay.policy.oauth2 import GrantType, OAuth2
from relay.policy.secrets import AccountSecrets
from relay.policy.units import https_url

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
ASSERTION_SECONDS = 3600
"""How long a service account's signature is good: the most that Google takes."""


class Unaskable(ValueError):  # noqa: N818 - said of a request
    """The policy or a secret does not allow the request; the text may be shown, and says what to do."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    url: str
    form: str = field(repr=False)
    """`application/x-www-form-urlencoded`."""


def token_request(oauth2: OAuth2, secrets: AccountSecrets, user: str, wall_seconds: int) -> TokenRequest:
    """Return the request for a new access token.  Raises Unaskable."""
    if oauth2.grant is GrantType.SERVICE_ACCOUNT:
        return _signed_request(oauth2, secrets.service_account, user, wall_seconds)
    is_refreshed = oauth2.grant is GrantType.REFRESH_TOKEN
    parameters = {"refresh_token": secrets.refresh_token} if is_refreshed else {}
    form = _form(oauth2, secrets.client_secret, str(oauth2.grant), scope=oauth2.scope or "", **parameters)
    return TokenRequest(_token_url(oauth2), form)


def device_request(oauth2: OAuth2) -> TokenRequest:
    """Return the request for a code that a person types elsewhere (RFC 8628, 3.1).  Raises Unaskable."""
    if oauth2.device_url is None:
        raise Unaskable("oauth2 has no device_url, which the provider would have to offer for this scope")
    # oauthlib has no function for this form; it has the two parameters of any other.
    grant, _, form = _form(oauth2, "", "-", scope=oauth2.scope or "").partition("&")
    assert grant == "grant_type=-"  # noqa: S101 - what the line above wrote
    return TokenRequest(oauth2.device_url, form)


def device_token_request(oauth2: OAuth2, client_secret: str, device_code: str) -> TokenRequest:
    """Return the question whether the person has consented (RFC 8628, 3.4).  Raises Unaskable."""
    return TokenRequest(
        _token_url(oauth2), _form(oauth2, client_secret, DEVICE_CODE, device_code=device_code)
    )


def consent_url(oauth2: OAuth2, user: str, redirect: str, state: str, code_challenge: str) -> str:
    """Return where a person consents in a browser (RFC 6749, 4.1.1; RFC 7636).  Raises Unaskable."""
    if oauth2.login_url is None:
        raise Unaskable("oauth2 has neither a device_url nor a login_url")
    if not oauth2.login_url.startswith("https:"):
        raise Unaskable("login_url must be https")
    url: str = prepare_grant_uri(
        oauth2.login_url,
        oauth2.client_id or "",
        "code",
        redirect_uri=redirect,
        scope=oauth2.scope,
        state=state,
        code_challenge=code_challenge,
        code_challenge_method="S256",
        # Google gives a refresh token only so (developers.google.com/identity/protocols/oauth2/native-app).
        access_type="offline",
        prompt="consent",
        login_hint=user,
    )
    return url


def code_request(
    oauth2: OAuth2, client_secret: str, code: str, redirect: str, code_verifier: str
) -> TokenRequest:
    """Return the request that turns a consent into tokens (RFC 6749, 4.1.3).  Raises Unaskable."""
    form = _form(
        oauth2,
        client_secret,
        "authorization_code",
        code=code,
        redirect_uri=redirect,
        code_verifier=code_verifier,
    )
    return TokenRequest(_token_url(oauth2), form)


def _form(oauth2: OAuth2, client_secret: str, grant: str, **parameters: Any) -> str:
    """Write a form; an empty parameter is left out."""
    if client_secret:
        parameters["client_secret"] = client_secret
    form: str = prepare_token_request(grant, client_id=oauth2.client_id, **parameters)
    return form


def _token_url(oauth2: OAuth2) -> str:
    if oauth2.token_url is None:
        raise Unaskable("oauth2 has no token_url")
    return oauth2.token_url


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
    return TokenRequest(url, prepare_token_request(JWT_BEARER, assertion=assertion))
