"""The server's side of SASL: PLAIN (RFC 4616), LOGIN and CRAM-MD5 (RFC 2195).  Pure.

A mechanism is a generator: it yields what the server says, is sent what the client
answers, and returns whether the client proved to be the user.  Comparisons take the same
time whatever is wrong.
"""

import hmac
from collections.abc import Callable, Generator
from dataclasses import dataclass

Exchange = Generator[bytes, bytes, bool]


@dataclass(frozen=True, slots=True, repr=False)
class PracticeCredentials:
    """The one account that there is.  Its password is in no output."""

    user: bytes
    password: bytes

    def match(self, user: bytes, password: bytes) -> bool:
        """Return whether both are right."""
        # Not `and`: it would tell by its speed which of the two is wrong.
        return hmac.compare_digest(user, self.user) & hmac.compare_digest(password, self.password)


def plain(credentials: PracticeCredentials, _nonce: str) -> Exchange:
    """Take one response of authorization identity, user and password (RFC 4616, 2)."""
    fields = (yield b"").split(b"\0")
    if len(fields) != 3:
        return False
    identity, user, password = fields
    return identity in (b"", user) and credentials.match(user, password)


def login(credentials: PracticeCredentials, _nonce: str) -> Exchange:
    """Ask for the user, then for the password."""
    user = yield b"Username:"
    password = yield b"Password:"
    return credentials.match(user, password)


def cram_md5(credentials: PracticeCredentials, nonce: str) -> Exchange:
    """Send a challenge and take its digest, keyed by the password (RFC 2195, 2)."""
    challenge = f"<{nonce}@practice.invalid>".encode("ascii")
    user, _, digest = (yield challenge).rpartition(b" ")
    expected = hmac.new(credentials.password, challenge, "md5").hexdigest().encode("ascii")
    return hmac.compare_digest(user, credentials.user) & hmac.compare_digest(digest, expected)


MECHANISMS: dict[bytes, Callable[[PracticeCredentials, str], Exchange]] = {
    b"PLAIN": plain,
    b"LOGIN": login,
    b"CRAM-MD5": cram_md5,
}

SERVER_FIRST = frozenset({b"CRAM-MD5"})
"""Mechanisms in which an initial response is an error (RFC 4954, 4)."""
