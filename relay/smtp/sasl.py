"""SASL in SMTP, from both sides (RFC 4954).  Pure.

Our servers take PLAIN (RFC 4616) and LOGIN (draft-murchison-sasl-login).  To an upstream we also speak
CRAM-MD5 (RFC 2195), EXTERNAL, and with an access token OAUTHBEARER (RFC 7628) and XOAUTH2
(developers.google.com, "The SASL XOAUTH2 Mechanism").
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


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """A name and a password; never shown."""

    name: str
    password: str

    def are_proven_by(self, given: "Credentials") -> bool:
        """Return whether a client knew both, in a time that does not tell which one was wrong."""
        # Not `and`: it would stop at the first difference.
        return _same(given.name, self.name) & _same(given.password, self.password)


@dataclass(frozen=True, slots=True, repr=False)
class BearerToken:
    """A name and an access token (RFC 6750), and the server that it is for; never shown."""

    name: str
    token: str
    host: str = ""
    port: int = 0


class PasswordCheck(enum.Enum):
    RIGHT = enum.auto()
    WRONG = enum.auto()
    LATER = enum.auto()
    """It was not looked at: the client has to wait."""


# The server's side.

SaslExchange = Generator[bytes, bytes, Credentials]
"""Yields challenges, is sent responses, returns what the client knows.  Raises Refused."""


def _plain() -> SaslExchange:
    """Take `[authzid] NUL authcid NUL passwd` apart (RFC 4616, 2)."""
    parts = (yield b"").split(b"\0")
    if len(parts) != 3:
        raise Refused(replies.AUTH_MALFORMED)
    acting_as, name, password = map(_text, parts)
    if acting_as not in {"", name}:
        # Nobody here may act as somebody else.
        raise Refused(replies.AUTH_FAILED)
    return Credentials(name, password)


def _login() -> SaslExchange:
    name = _text((yield b"Username:"))
    return Credentials(name, _text((yield b"Password:")))


EXCHANGES: dict[str, Callable[[], SaslExchange]] = {"PLAIN": _plain, "LOGIN": _login}


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


Respond = Callable[[str], bytes]
"""From a challenge to its response, both in base64.  Raises ValueError for a challenge that is not."""


class ClientResponses(NamedTuple):
    """What a client says, without the line of AUTH."""

    due: tuple[Respond, ...]
    """One after the other; all of them, or the login is none."""
    is_server_first: bool = False
    """The first needs its challenge; else it may go in the line of AUTH."""
    to_refusal: bytes | None = None
    """The answer to one more challenge, which explains why the server refuses a token (RFC 7628, 3.2.3)."""


def responses(mechanism: str, secret: Credentials | BearerToken) -> ClientResponses:
    """Return what a client says.  Raises ValueError where SASL cannot carry the credentials."""
    if isinstance(secret, BearerToken):
        return _token_responses(mechanism, secret)
    name, password = secret.name, secret.password
    if "\0" in name or "\0" in password:
        raise ValueError("the user name or the password contains NUL, which SASL cannot carry (RFC 4616, 2)")
    match mechanism.upper():
        case "PLAIN":
            return ClientResponses((lambda _: _encode(f"\0{name}\0{password}"),))
        case "LOGIN":
            # Two questions, whatever they say.
            return ClientResponses(
                (lambda _: _encode(name), lambda _: _encode(password)), is_server_first=True
            )
        case "CRAM-MD5":
            return ClientResponses(
                (lambda challenge: _encode(f"{name} {_keyed(password, challenge)}"),), is_server_first=True
            )
        case "EXTERNAL":
            # RFC 4422, A: who to act as; who it is the certificate has said.
            return ClientResponses((lambda _: _encode(name),))
        case _:
            raise ValueError(f"{mechanism} is not known")


def _token_responses(mechanism: str, token: BearerToken) -> ClientResponses:
    if "\1" in token.name or "\0" in token.name:
        raise ValueError("the user name contains NUL or SOH, which no token's mechanism can carry")
    if not token.token.isascii() or not token.token.isprintable() or " " in token.token:
        raise ValueError("the access token is not printable ASCII (RFC 6750, 2.1)")
    match mechanism.upper():
        case "XOAUTH2":
            said = f"user={token.name}\1auth=Bearer {token.token}\1\1"
            return ClientResponses((lambda _: _encode(said),), to_refusal=b"")
        case "OAUTHBEARER":
            name = token.name.replace("=", "=3D").replace(",", "=2C")
            server = f"host={token.host}\1port={token.port}"
            said = f"n,a={name},\1{server}\1auth=Bearer {token.token}\1\1"
            return ClientResponses((lambda _: _encode(said),), to_refusal=_encode("\1"))
        case _:
            raise ValueError(f"{mechanism} is not known")


def _keyed(password: str, challenge: str) -> str:
    try:
        decoded = b64decode(challenge)
    except ValueError:
        raise ValueError("the CRAM-MD5 challenge is not base64") from None
    return hmac.new(password.encode("utf-8"), decoded, "md5").hexdigest()


def _encode(text: str) -> bytes:
    return b64encode(text.encode("utf-8", "surrogateescape"))


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8"), other.encode("utf-8"))


def _text(part: bytes) -> str:
    try:
        return part.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(replies.AUTH_MALFORMED) from None
