"""Gets a refresh token by a person's consent, for a machine without a browser.

There are two ways.  The person types a code on another device (RFC 8628).  If the provider does not give the
scope to such a code, the person opens a page in any browser and copies back the last address (RFC 6749, 4.1,
with the proof of RFC 7636).
Guarantees: the token server is asked no more often than it allows; a login ends when its code expires.
Does not: write anything, or know who consented: the upstream shows that at the first login.
"""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import parse_qs, urlencode, urlsplit

from relay.clock import SECOND_NS, Clock
from relay.mail.text import clean
from relay.policy.model import OAuth2
from relay.policy.units import WEB_URL
from relay.upstream.oauth.token_server import (
    Ask,
    Denied,
    Granted,
    TokenAnswer,
    error_word,
    form_request,
    is_token,
    request_json,
    token_in,
    whole_seconds,
)

DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
DEFAULT_INTERVAL_SECONDS = 5
SLOWER_SECONDS = 5
"""RFC 8628, 3.5: what `slow_down` adds to the interval."""
LONGEST_INTERVAL_SECONDS = 60
LONGEST_LOGIN_SECONDS = 3600
REDIRECT = "http://127.0.0.1:1/"
"""No program listens there: the browser shows an error, and the address that the person copies back."""


class LoginFailed(Exception):  # noqa: N818 - what became of a login
    """No refresh token was granted; the text may be shown."""

    def __init__(self, words: str, *, may_pass: bool = False) -> None:
        """`may_pass`: another attempt later may succeed."""
        super().__init__(words)
        self.may_pass = may_pass


@dataclass(frozen=True, slots=True)
class LoginClient:
    """The program that asks for consent, as registered at the provider."""

    oauth2: OAuth2
    secret: str = field(repr=False)
    ask: Ask


@dataclass(frozen=True, slots=True)
class DeviceCode:
    url: str
    user_code: str = field(repr=False)
    device_code: str = field(repr=False)
    ends_at_ns: int
    interval_seconds: int


@dataclass(frozen=True, slots=True)
class BrowserLogin:
    url: str = field(repr=False)
    state: str = field(repr=False)
    verifier: str = field(repr=False)


async def begin(client: LoginClient, clock: Clock) -> DeviceCode:
    """Ask for a code (RFC 8628, 3.1).  Raises LoginFailed."""
    oauth2, began_ns = client.oauth2, clock.boottime_ns()
    if oauth2.device_url is None:
        raise LoginFailed("oauth2.device_url is missing; the provider must offer one for this scope")
    said = await request_json(client.ask, form_request(oauth2.device_url, oauth2, scope=oauth2.scope))
    if isinstance(said, Denied):
        raise _failed(said)
    # Google calls it verification_url, as a draft of RFC 8628 did.
    url = said.get("verification_uri") or said.get("verification_url")
    user_code, device_code = said.get("user_code"), said.get("device_code")
    is_whole = isinstance(url, str) and WEB_URL.match(url) and isinstance(user_code, str)
    if not is_whole or not is_token(device_code):
        raise LoginFailed("the token server gave no code")
    life_seconds = whole_seconds(said.get("expires_in"), 900, LONGEST_LOGIN_SECONDS)
    interval = whole_seconds(said.get("interval"), DEFAULT_INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS)
    ends_at_ns = began_ns + life_seconds * SECOND_NS
    return DeviceCode(str(url), clean(str(user_code))[:64], device_code, ends_at_ns, max(interval, 1))


async def wait_for_consent(
    client: LoginClient, code: DeviceCode, clock: Clock, sleep: Callable[[float], Awaitable[object]]
) -> Granted:
    """Ask until the person has consented (RFC 8628, 3.4).  Raises LoginFailed."""
    interval_seconds, asked_seconds = code.interval_seconds, 0
    while clock.boottime_ns() + max(interval_seconds, asked_seconds) * SECOND_NS < code.ends_at_ns:
        await sleep(max(interval_seconds, asked_seconds))
        answer = await _token(client, DEVICE_CODE, device_code=code.device_code)
        if isinstance(answer, Granted) or answer.is_final:
            return _with_refresh_token(answer)
        if answer.error == "slow_down":
            interval_seconds += SLOWER_SECONDS
        elif not answer.error:
            # RFC 8628, 3.5: ask less often after a connection that failed.
            interval_seconds *= 2
        interval_seconds = min(interval_seconds, LONGEST_INTERVAL_SECONDS)
        asked_seconds = answer.retry_after_seconds
    raise LoginFailed("the code expired before anybody consented: begin again", may_pass=True)


def begin_in_browser(oauth2: OAuth2, user: str) -> BrowserLogin:
    """Make the link that a person opens (RFC 6749, 4.1.1; RFC 7636).  Raises LoginFailed."""
    if oauth2.login_url is None:
        raise LoginFailed("oauth2 needs device_url or login_url")
    state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
    asked = {
        "response_type": "code",
        "client_id": oauth2.client_id or "",
        "redirect_uri": REDIRECT,
        "scope": oauth2.scope or "",
        "state": state,
        "code_challenge": urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("="),
        "code_challenge_method": "S256",
        # Google needs these for a refresh token (developers.google.com/identity/protocols/oauth2/native-app).
        "access_type": "offline",
        "prompt": "consent",
        "login_hint": user,
    }
    url = f"{oauth2.login_url}{'&' if '?' in oauth2.login_url else '?'}{urlencode(asked)}"
    return BrowserLogin(url, state, verifier)


async def finish_in_browser(client: LoginClient, login: BrowserLogin, address: str) -> Granted:
    """Exchange the code for tokens; the browser showed `address` at the end.  Raises LoginFailed."""
    try:
        said = parse_qs(urlsplit(address.strip()).query)
    except ValueError:
        said = {}
    if "error" in said:
        raise LoginFailed(f"the consent was not given: {error_word(said['error'][0])}")
    code = said.get("code", [""])[0]
    if not is_token(code):
        raise LoginFailed("this address has no code: copy the whole address from the browser's address line")
    if said.get("state") != [login.state]:
        raise LoginFailed("this address belongs to another login: begin again with the new link")
    answer = await _token(
        client, "authorization_code", code=code, redirect_uri=REDIRECT, code_verifier=login.verifier
    )
    return _with_refresh_token(answer)


async def _token(client: LoginClient, grant: str, **parameters: str) -> TokenAnswer:
    asked = {"grant_type": grant, "client_secret": client.secret, **parameters}
    request = form_request(client.oauth2.token_url, client.oauth2, **asked)
    return token_in(await request_json(client.ask, request))


def _with_refresh_token(answer: TokenAnswer) -> Granted:
    if isinstance(answer, Denied):
        raise _failed(answer)
    if not answer.refresh_token:
        raise LoginFailed("no refresh token was granted: the scope must ask for it (offline_access)")
    return answer


def _failed(denied: Denied) -> LoginFailed:
    return LoginFailed(denied.advised("UPSTREAM"), may_pass=not denied.is_final)
