"""SASL in SMTP, from both sides: PLAIN, LOGIN and CRAM-MD5 (RFC 4954).  Pure.

A mechanism is PLAIN (RFC 4616), LOGIN (draft-murchison-sasl-login) or CRAM-MD5 (RFC 2195).
Guarantees: nothing here keeps, logs or quotes what a client said, and no secret is in a
`repr` or an exception.
"""

import binascii
import enum
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple

from relay.smtp import replies
from relay.smtp.commands import Refused

HIDDEN = "***"
SHORTEST_ECHO = 8
"""Characters of an encoded secret that count as its beginning, where an echo is cut."""


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """A name and a password; never shown."""

    name: str
    password: str

    def are_proven_by(self, proof: "Proof") -> bool:
        """Return whether a client knew both, in a time that does not tell which one was wrong."""
        if isinstance(proof, Digest):
            given, expected = proof.digest, _digest(self.password, proof.challenge)
        else:
            given, expected = proof.password, self.password
        # Not `and`: it would stop at the first difference.
        return _same(proof.name, self.name) & _same(given, expected)


@dataclass(frozen=True, slots=True, repr=False)
class Digest:
    """A name, and the digest of a challenge keyed by the password (RFC 2195, 2)."""

    name: str
    challenge: bytes
    digest: str


Proof = Credentials | Digest


class PasswordCheck(enum.Enum):
    RIGHT = enum.auto()
    WRONG = enum.auto()
    LATER = enum.auto()
    """It was not looked at: the client has to wait."""


class MalformedProof(Refused):
    def __init__(self) -> None:
        super().__init__(replies.AUTH_MALFORMED)


# The server's side.

SaslExchange = Generator[bytes, bytes, Proof]
"""Yields challenges, is sent responses, returns the proof.  Raises Refused."""


def _plain(_nonce: str) -> SaslExchange:
    """Take `[authzid] NUL authcid NUL passwd` apart (RFC 4616, 2)."""
    parts = (yield b"").split(b"\0")
    if len(parts) != 3:
        raise MalformedProof
    acting_as, name, password = (_text(part) for part in parts)
    if acting_as not in {"", name}:
        # Nobody here may act as somebody else.
        raise Refused(replies.AUTH_FAILED)
    return Credentials(name, password)


def _login(_nonce: str) -> SaslExchange:
    name = _text((yield b"Username:"))
    return Credentials(name, _text((yield b"Password:")))


def _cram_md5(nonce: str) -> SaslExchange:
    challenge = f"<{nonce}>".encode("ascii")
    name, _, digest = _text((yield challenge)).rpartition(" ")
    return Digest(name, challenge, digest)


EXCHANGES: dict[str, Callable[[str], SaslExchange]] = {
    "PLAIN": _plain,
    "LOGIN": _login,
    "CRAM-MD5": _cram_md5,
}
"""By name.  Each takes a nonce, which only CRAM-MD5 uses."""
SERVER_FIRST = frozenset({"CRAM-MD5"})
"""Mechanisms in which an initial response is an error (RFC 4954, 4)."""


def encode_challenge(challenge: bytes) -> str:
    """Return the reply that asks for the next response (RFC 4954, 4)."""
    return f"334 {b64encode(challenge).decode('ascii')}"


def decode_response(line: bytes) -> bytes:
    """Return what a line of the client says.  Raises Refused."""
    if line == b"*":
        raise Refused(replies.AUTH_CANCELLED)
    if line == b"=":  # RFC 4954, 4: an initial response that is empty
        return b""
    try:
        return b64decode(line, validate=True)
    except binascii.Error:
        raise Refused(replies.AUTH_MALFORMED) from None


# The client's side.


class ClientResponses(NamedTuple):
    initial: bytes | None
    """In base64, in the line of AUTH; None where the server speaks first."""
    later: tuple[Callable[[str], bytes], ...] = ()
    """The response to each challenge, both in base64.  Raises ValueError for a challenge that is not."""


def responses(mechanism: str, credentials: Credentials) -> ClientResponses:
    """Return what a client says.  Raises ValueError where SASL cannot carry the credentials."""
    name, password = credentials.name, credentials.password
    if "\0" in name or "\0" in password:
        raise ValueError("the user name or the password contains NUL, which SASL cannot carry (RFC 4616, 2)")
    match mechanism.upper():
        case "PLAIN":
            return ClientResponses(_encode(f"\0{name}\0{password}"))
        case "LOGIN":
            # Two questions, whatever they say.
            return ClientResponses(None, (lambda _: _encode(name), lambda _: _encode(password)))
        case "CRAM-MD5":
            return ClientResponses(
                None, (lambda challenge: _encode(f"{name} {_keyed(password, challenge)}"),)
            )
        case _:
            raise ValueError(f"{mechanism} is not known")


def without_secrets(text: str, credentials: Credentials) -> str:
    """Return the text with an echo of the password, in any form it was sent in, hidden."""
    encoded = (_encode(f"\0{credentials.name}\0{credentials.password}"), _encode(credentials.password))
    for secret in (*(octets.decode("ascii").rstrip("=") for octets in encoded), credentials.password):
        # Longest first: servers cut what they echo.
        for length in range(len(secret), min(SHORTEST_ECHO, len(secret)) - 1, -1):
            if secret[:length] and secret[:length] in text:
                text = text.replace(secret[:length], HIDDEN)
                break
    return text


def _keyed(password: str, challenge: str) -> str:
    try:
        return _digest(password, b64decode(challenge))
    except ValueError:
        raise ValueError("the CRAM-MD5 challenge is not base64") from None


def _digest(password: str, challenge: bytes) -> str:
    return hmac.new(password.encode("utf-8"), challenge, "md5").hexdigest()


def _encode(text: str) -> bytes:
    return b64encode(text.encode("utf-8"))


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8"), other.encode("utf-8"))


def _text(part: bytes) -> str:
    try:
        return part.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedProof from None
