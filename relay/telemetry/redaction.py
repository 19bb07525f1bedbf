"""The texts that no output may contain: passwords, and the forms in which they travel.

An upstream may echo a command that it did not understand ("500 unknown: AUTH PLAIN
AGpvZQBz..."), and its reply goes to the log, the status page and the listing.  So every
credential is registered here before it is used.
"""

import base64

SHORTEST = 4
"""Characters; hiding a shorter text would garble every line and keep no secret."""
HIDDEN = "***"


class Redaction:
    def __init__(self) -> None:
        self._secrets: list[str] = []

    def add(self, user: str, password: str) -> None:
        """Hide a password, and it as AUTH LOGIN and AUTH PLAIN would send it (RFC 4616, 2)."""
        plain = f"\0{user}\0{password}"
        forms = {password, _base64(password), _base64(plain), _base64(user + plain)}
        # Longest first: a form that contains another must go before it.
        kept = {form for form in forms if len(form) >= SHORTEST} | set(self._secrets)
        self._secrets = sorted(kept, key=len, reverse=True)

    def hide(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text


def _base64(text: str) -> str:
    # Without the padding, which a line that was cut or folded may lack.
    return base64.b64encode(text.encode("utf-8", "surrogateescape")).decode("ascii").rstrip("=")
