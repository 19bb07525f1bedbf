"""What a token server's answer means (RFC 6749, 5): a token, a refusal for a person, or trouble.  Pure.

Guarantees: any octets give one of these, never an exception; no text that is shown holds a token or a
secret, since a server's description, which may repeat what was sent, is only searched for the number of an
error; it says what to do where that is known.  A refusal is final only where the server says so in OAuth's
words: what a proxy or a broken server says is trouble, and is asked again.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, TypeGuard

LARGEST_ANSWER_BYTES = 64 * 1024
LONGEST_TOKEN = 8192
"""Characters.  In base64 it has to fit into a line of AUTH of 12,288 octets (RFC 4954, 4)."""
DEFAULT_LIFE_SECONDS = 1800
"""Where the server does not say; an hour is usual."""
LONGEST_LIFE_SECONDS = 86_400
LONGEST_RETRY_AFTER_SECONDS = 3600

_TOKEN = re.compile(r"[!-~]+\Z")
_NUMBER = re.compile(r"\bAADSTS[0-9]{1,8}\b")
"""Of an error of Entra's, in the description."""
_WORD = re.compile(r"[a-z_]{1,40}\Z")
"""As the errors of RFC 6749, 5.2 are written; no token or secret is."""

TRANSIENT = frozenset({"temporarily_unavailable", "server_error", "slow_down", "authorization_pending"})
"""Errors after which the same request may succeed (RFC 6749, 4.1.2.1; RFC 8628, 3.5)."""

_LOG_IN = "run `relay login {upstream}`"
ADVICE: tuple[tuple[str, str], ...] = (
    # learn.microsoft.com/entra/identity-platform/reference-error-codes.
    ("AADSTS7000215", "the client secret is wrong: copy its Value, not the Secret ID"),
    ("AADSTS7000222", "the client secret has expired: make a new one in Entra"),
    ("AADSTS7000218", "give a client_secret_file, or allow public client flows for the app in Entra"),
    ("AADSTS700016", "client_id is not an app of this tenant: compare both with the app's overview in Entra"),
    ("AADSTS90002", "there is no such tenant: compare it with the app's overview in Entra"),
    ("AADSTS65001", "nobody has consented for this app: grant admin consent in Entra, or " + _LOG_IN),
    ("AADSTS50173", "the password was changed or the sessions revoked: " + _LOG_IN),
    ("AADSTS700082", "the refresh token was not used for 90 days: " + _LOG_IN),
    ("AADSTS700084", "the refresh token has ended: " + _LOG_IN),
    ("AADSTS50076", "the tenant asks for a second factor: " + _LOG_IN),
    ("AADSTS50079", "the tenant asks for a second factor: " + _LOG_IN),
    ("AADSTS53003", "a conditional access policy of the tenant forbids it: ask its administrator"),
    ("AADSTS70011", "the scope is not one of the provider's: leave the key out"),
    ("AADSTS50059", "the tenant is missing: write auth.oauth2.tenant"),
    # RFC 6749, 5.2, and developers.google.com/identity/protocols/oauth2/service-account, "Error codes".
    ("unauthorized_client", "the provider does not let this client use the grant or scope: allow it there"),
    ("invalid_grant", "the consent was revoked or has expired: " + _LOG_IN),
    ("invalid_client", "client_id or client secret is wrong or has ended"),
    ("deleted_client", "the client was deleted at the provider: make another one"),
    ("invalid_scope", "the scope is not one that was granted: correct or leave out auth.oauth2.scope"),
    ("access_denied", "an administrator or the user said no"),
    ("consent_required", "consent is needed: " + _LOG_IN),
    ("interaction_required", "a person has to log in again: " + _LOG_IN),
    ("unsupported_grant_type", "the token server does not know this grant"),
    ("expired_token", "the code has expired: begin again"),
)  # fmt: skip
"""What to do, by a word of the error; the first that is in it."""
SERVICE_ACCOUNT_ADVICE = (
    "allow the service account's client id this scope (domain-wide delegation), and look at its key, "
    "at auth.user and at this host's clock"
)


@dataclass(frozen=True, slots=True)
class Granted:
    access_token: str = field(repr=False)
    life_seconds: int
    refresh_token: str = field(default="", repr=False)
    """A new one, or the one there was; empty where none was sent."""


@dataclass(frozen=True, slots=True)
class Denied:
    """No token; `words` may be shown: nothing of them is the server's but the name or number of an error."""

    words: str
    is_final: bool
    """A person has to act: asking again does not help."""
    error: str = ""
    """In OAuth's words, such as `invalid_grant`."""
    retry_after_seconds: int = 0

    def advised(self, upstream: str, *, is_service_account: bool = False) -> str:
        """Return the words, and what to do."""
        found = next((advice for word, advice in ADVICE if word in self.words), "")
        if is_service_account and self.error in {"invalid_grant", "unauthorized_client"}:
            found = SERVICE_ACCOUNT_ADVICE
        return f"{self.words}; {found.format(upstream=upstream)}" if found else self.words


TokenAnswer = Granted | Denied


def read_token_answer(status: int, content: bytes, retry_after: str = "") -> TokenAnswer:
    """Return what an answer with an HTTP status means."""
    said = read_object(content)
    error = error_word(said.get("error"))
    if status == 200 and said and not error:
        return _granted(said)
    # Of Retry-After the delay in seconds (RFC 9110, 10.2.3); of a date nothing.
    asked_seconds = whole_seconds(retry_after, 0, LONGEST_RETRY_AFTER_SECONDS)
    if not error:
        is_of_another = 300 <= status < 400 or status in {200, 400, 401, 403, 404, 405}
        hint = "; is token_url right?" if is_of_another else ""
        words = f"the token server answered HTTP {status}, and not in OAuth's words{hint}"
        return Denied(words, is_final=False, retry_after_seconds=asked_seconds)
    number = _NUMBER.search(str(said.get("error_description") or ""))
    words = f"the token server says {error}" + (f" ({number[0]})" if number else "")
    is_final = status < 500 and status not in {408, 429} and error not in TRANSIENT
    return Denied(words, is_final, error, 0 if is_final else asked_seconds)


def _granted(said: dict[str, Any]) -> TokenAnswer:
    token, refresh = said.get("access_token"), said.get("refresh_token")
    if str(said.get("token_type", "Bearer")).lower() != "bearer":
        return Denied("the token server gave a token that is no bearer token", is_final=True)
    if not is_token(token):
        return Denied("the token server gave no token that can be sent", is_final=False)
    life = whole_seconds(said.get("expires_in"), DEFAULT_LIFE_SECONDS, LONGEST_LIFE_SECONDS)
    return Granted(token, life, refresh if is_token(refresh) else "")


def read_object(content: bytes) -> dict[str, Any]:
    """Return a JSON object; empty where the content is no such."""
    if len(content) > LARGEST_ANSWER_BYTES:
        return {}
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def is_token(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and len(text) <= LONGEST_TOKEN and _TOKEN.match(text) is not None


def whole_seconds(value: object, default: int, most: int) -> int:
    """Return a number of seconds that a server sent, perhaps as text."""
    try:
        seconds = int(float(value)) if isinstance(value, int | float | str) else default
    except (ValueError, OverflowError):
        return default
    return min(max(seconds, 0), most)


def error_word(value: object) -> str:
    """Return an error code as it may be shown: never a token that stands in its place."""
    if isinstance(value, str) and _WORD.match(value):
        return value
    return "an error without a name" if value else ""
