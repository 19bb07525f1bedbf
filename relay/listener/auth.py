"""AUTH PLAIN and AUTH LOGIN, as far as the name and the password (RFC 4954, 4616).

Knows no socket: `ask` sends a challenge and returns the line that came back.  Nothing
here keeps, logs or quotes what a client said.
"""

import binascii
from base64 import b64decode
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from relay.listener import replies
from relay.listener.command import Refused

MECHANISMS = ("PLAIN", "LOGIN")

Ask = Callable[[str], Awaitable[bytes]]
"""Sends `334` with a challenge in base64; returns the client's line."""

_USER_CHALLENGE = "VXNlcm5hbWU6"  # Username:
_PASSWORD_CHALLENGE = "UGFzc3dvcmQ6"  # noqa: S105 - the word `Password:` in base64


class Credentials(NamedTuple):
    """A name and a password; never shown."""

    name: str
    password: str

    def __repr__(self) -> str:
        return "Credentials(…)"


async def read_credentials(argument: str, ask: Ask) -> Credentials:
    """Hold the exchange that `AUTH argument` begins.  Raises Refused."""
    mechanism, _, initial = argument.partition(" ")
    match mechanism.upper():
        case "PLAIN":
            response = initial.encode("utf-8", "surrogateescape") if initial else await ask("")
            return _plain(_decode(response))
        case "LOGIN":
            response = initial.encode("utf-8", "surrogateescape") if initial else await ask(_USER_CHALLENGE)
            name = _decode(response)
            return Credentials(_text(name), _text(_decode(await ask(_PASSWORD_CHALLENGE))))
        case _:
            raise Refused(replies.AUTH_UNKNOWN)


def _plain(message: bytes) -> Credentials:
    """Take `[authzid] NUL authcid NUL passwd` apart (RFC 4616, 2)."""
    parts = message.split(b"\0")
    if len(parts) != 3:
        raise Refused(replies.AUTH_MALFORMED)
    acting_as, name, password = (_text(part) for part in parts)
    if acting_as not in {"", name}:
        # Nobody here may act as somebody else.
        raise Refused(replies.AUTH_FAILED)
    return Credentials(name, password)


def _decode(response: bytes) -> bytes:
    if response == b"*":
        raise Refused(replies.AUTH_CANCELLED)
    if response == b"=":  # RFC 4954, 4: an initial response that is empty
        return b""
    try:
        return b64decode(response, validate=True)
    except binascii.Error:
        raise Refused(replies.AUTH_MALFORMED) from None


def _text(part: bytes) -> str:
    try:
        return part.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(replies.AUTH_MALFORMED) from None
