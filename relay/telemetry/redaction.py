"""The texts that no output may contain: passwords and tokens, and the forms in which they travel.

An upstream may echo a command that it did not understand ("500 unknown: AUTH PLAIN
AGpvZQBz..."), and its reply goes to the log, the status page and the listing.  So every
credential is registered here before it is used.
"""

from collections import deque
from collections.abc import Iterable

from relay.smtp.sasl import BearerToken, Credentials, forms_of

SHORTEST = 4
"""Characters; hiding a shorter text would garble every line and keep no secret."""
HIDDEN = "***"
MOST_PASSING = 64
"""Tokens and secrets of token servers that are remembered, the newest: each is good for an hour or so."""


class Redaction:
    def __init__(self) -> None:
        self._lasting: set[str] = set()
        self._passing: deque[tuple[str, ...]] = deque(maxlen=MOST_PASSING)
        self._secrets: list[str] = []

    def add(self, user: str, password: str) -> None:
        """Hide a password, and it as AUTH LOGIN and AUTH PLAIN would send it (RFC 4616, 2)."""
        self._lasting.update(forms_of(Credentials(user, password)))
        self._arrange()

    def add_token(self, token: BearerToken) -> None:
        """Hide an access token, and it as AUTH would send it."""
        self._pass(forms_of(token))

    def add_secrets(self, texts: Iterable[str]) -> None:
        """Hide what only a token server is told, such as a refresh token."""
        self._pass(tuple(texts))

    def _pass(self, forms: tuple[str, ...]) -> None:
        if forms in self._passing:
            self._passing.remove(forms)
        self._passing.append(forms)
        self._arrange()

    def _arrange(self) -> None:
        # Longest first: a form that contains another must go before it.
        known = self._lasting.union(*self._passing)
        self._secrets = sorted((form for form in known if len(form) >= SHORTEST), key=len, reverse=True)

    def hide(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text
