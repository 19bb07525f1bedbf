"""SASL in SMTP, on both sides (RFC 4954).  Pure.

Our servers take PLAIN (RFC 4616) and LOGIN (draft-murchison-sasl-login).  To an upstream we also speak
CRAM-MD5 (RFC 2195), EXTERNAL (RFC 4422, A), and with an access token OAUTHBEARER (RFC 7628) and XOAUTH2
(developers.google.com, "The SASL XOAUTH2 Mechanism").
Guarantees: nothing here keeps, logs or quotes what a client sent; no secret is in a `repr` or an exception.
"""

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
        """Return whether a client knew both; the time taken does not tell which one was wrong."""
        ours, theirs = (f"{each.name}\0{each.password}".encode() for each in (self, given))
        return hmac.compare_digest(ours, theirs)


@dataclass(frozen=True, slots=True, repr=False)
class BearerToken:
    """A name and an access token (RFC 6750), and the server that the token is for; never shown."""

    name: str
    token: str
    host: str = ""
    port: int = 0


class PasswordCheck(enum.Enum):
    RIGHT = enum.auto()
    WRONG = enum.auto()
    LATER = enum.auto()
    """The password was not checked: the client has to wait."""


# The server's side.

SaslExchange = Generator[str, str, Credentials]
"""Yields challenges, receives responses, returns the client's credentials.  Raises Refused."""


def _plain() -> SaslExchange:
    """Parse `[authzid] NUL authcid NUL passwd` (RFC 4616, 2)."""
    parts = (yield "").split("\0")
    if len(parts) != 3:
        raise Refused(replies.AUTH_MALFORMED)
    acting_as, name, password = parts
    if acting_as not in {"", name}:
        # No client may act as another user.
        raise Refused(replies.AUTH_FAILED)
    return Credentials(name, password)


def _login() -> SaslExchange:
    name = yield "Username:"
    return Credentials(name, (yield "Password:"))


EXCHANGES: dict[str, Callable[[], SaslExchange]] = {"PLAIN": _plain, "LOGIN": _login}


def challenge_reply(challenge: str) -> str:
    """Return the reply that asks for the next response (RFC 4954, 4)."""
    return f"334 {b64encode(challenge.encode()).decode('ascii')}"


def said_in(line: bytes) -> str:
    """Return the text of a client's response.  Raises Refused."""
    if line == b"*":
        raise Refused(replies.AUTH_CANCELLED)
    if line == b"=":  # RFC 4954, 4: an initial response that is empty
        return ""
    try:
        return b64decode(line, validate=True).decode()
    except ValueError:
        raise Refused(replies.AUTH_MALFORMED) from None


# The client's side.

Respond = Callable[[str], bytes]
"""Returns the response to a challenge, both in base64.  Raises ValueError if the challenge is not."""


class ClientResponses(NamedTuple):
    """The responses of a client, without the AUTH line."""

    due: tuple[Respond, ...]
    """In order; the login needs all of them."""
    is_server_first: bool = False
    """The first response needs its challenge; otherwise it may go in the AUTH line."""
    to_refusal: bytes | None = None
    """The response to one more challenge, which explains why the server refuses a token (RFC 7628, 3.2.3)."""


def responses(mechanism: str, secret: Credentials | BearerToken) -> ClientResponses:
    """Return a client's responses.  Raises ValueError if SASL cannot carry the credentials."""
    name, forbidden = secret.name, "\0"
    if isinstance(secret, BearerToken):
        given, forbidden = secret.token, "\0\1"
    else:
        given = secret.password
    if any(each in name + given for each in forbidden):
        raise ValueError("the user name or its secret contains NUL or SOH, which SASL cannot carry")
    match mechanism.upper(), secret:
        case "PLAIN", Credentials():
            return ClientResponses((lambda _: _encode(f"\0{name}\0{given}"),))
        case "LOGIN", Credentials():
            # Two challenges, whatever their text.
            return ClientResponses((lambda _: _encode(name), lambda _: _encode(given)), is_server_first=True)
        case "CRAM-MD5", Credentials():
            return ClientResponses(
                (lambda challenge: _encode(f"{name} {_keyed(given, challenge)}"),), is_server_first=True
            )
        case "EXTERNAL", Credentials():
            # The identity to act as; the certificate has told who the client is.
            return ClientResponses((lambda _: _encode(name),))
        case "XOAUTH2", BearerToken():
            xoauth2 = f"user={name}\1auth=Bearer {given}\1\1"
            return ClientResponses((lambda _: _encode(xoauth2),), to_refusal=b"")
        case "OAUTHBEARER", BearerToken(host=host, port=port):
            who = name.replace("=", "=3D").replace(",", "=2C")
            bearer = f"n,a={who},\1host={host}\1port={port}\1auth=Bearer {given}\1\1"
            return ClientResponses((lambda _: _encode(bearer),), to_refusal=_encode("\1"))
        case _:
            raise ValueError(f"SASL mechanism {mechanism} is not supported")


def _keyed(password: str, challenge: str) -> str:
    try:
        decoded = b64decode(challenge)
    except ValueError:
        raise ValueError("the CRAM-MD5 challenge is not base64") from None
    return hmac.new(password.encode("utf-8"), decoded, "md5").hexdigest()


def _encode(text: str) -> bytes:
    return b64encode(text.encode("utf-8", "surrogateescape"))
