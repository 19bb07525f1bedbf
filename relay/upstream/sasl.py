"""Authentication towards the upstream: one mechanism, one attempt (RFC 4954).

A refused login is never followed by another: three tries at a wrong password are how
accounts get locked, and the mechanism is hardly ever the reason.

Which mechanism, where the owner names none.  Under TLS PLAIN, then LOGIN, then CRAM-MD5:
TLS already hides the password, CRAM-MD5 adds nothing to it, makes the upstream store the
password itself, and is often announced by servers that cannot verify it; with a single
attempt that matters.  Without TLS (loopback only) CRAM-MD5 first, since it alone does
not show the password.

No secret leaves this module but over the wire: not in a reply that echoes the command,
not in an exception.
"""

from dataclasses import replace

from aiosmtplib.auth import auth_crammd5_verify, auth_login_encode, auth_plain_encode
from aiosmtplib.errors import SMTPAuthenticationError

from relay.policy.model import Mechanism
from relay.smtp.reply import Phase, Reply
from relay.upstream.protocol import Broken, StrictProtocol, Unexpected

UNDER_TLS = (Mechanism.PLAIN, Mechanism.LOGIN, Mechanism.CRAM_MD5)
IN_THE_CLEAR = (Mechanism.CRAM_MD5, Mechanism.PLAIN, Mechanism.LOGIN)

HIDDEN = "***"
SHORTEST_ECHO = 8
"""Characters of an encoded secret that count as its beginning, where an echo is cut."""


def choose(offered: frozenset[str], wanted: Mechanism, *, is_encrypted: bool) -> Mechanism | None:
    """Return the mechanism to use of those offered (in lower case), or None."""
    preference = UNDER_TLS if is_encrypted else IN_THE_CLEAR
    candidates = preference if wanted is Mechanism.AUTO else (wanted,)
    return next((mechanism for mechanism in candidates if mechanism.value in offered), None)


async def authenticate(
    protocol: StrictProtocol, user: str, password: str, mechanism: Mechanism, timeout_s: float
) -> Reply:
    """Log in; return the reply that decided: 235, or a refusal.

    Raises Broken, Unexpected where the exchange is not the mechanism's.
    """
    if "\0" in user or "\0" in password:
        raise Unexpected("the user name or the password contains NUL, which SASL cannot carry (RFC 4616, 2)")
    try:
        reply = await _log_in(protocol, user, password, mechanism, timeout_s)
    except Broken as broken:
        broken.args = tuple(_hide(str(text), user, password) for text in broken.args)
        if broken.reply is not None:
            broken.reply = _without_secrets(broken.reply, user, password)
        raise
    return _without_secrets(reply, user, password)


async def _log_in(
    protocol: StrictProtocol, user: str, password: str, mechanism: Mechanism, timeout_s: float
) -> Reply:
    match mechanism:
        case Mechanism.CRAM_MD5:
            return await _cram_md5(protocol, user, password, timeout_s)
        case Mechanism.LOGIN:
            return await _login(protocol, user, password, timeout_s)
        case _:
            line = b"AUTH PLAIN " + auth_plain_encode(user, password)
            return await protocol.command(line, Phase.AUTH, timeout_s)


async def _login(protocol: StrictProtocol, user: str, password: str, timeout_s: float) -> Reply:
    """Do AUTH LOGIN (draft-murchison-sasl-login): two questions, whatever they say."""
    reply = await protocol.command(b"AUTH LOGIN", Phase.AUTH, timeout_s)
    for line in auth_login_encode(user, password):
        if reply.code != 334:
            return _refusal(reply)
        reply = await protocol.command(line, Phase.AUTH, timeout_s)
    return reply


async def _cram_md5(protocol: StrictProtocol, user: str, password: str, timeout_s: float) -> Reply:
    """Do AUTH CRAM-MD5 (RFC 2195)."""
    reply = await protocol.command(b"AUTH CRAM-MD5", Phase.AUTH, timeout_s)
    if reply.code != 334:
        return _refusal(reply)
    try:
        line = auth_crammd5_verify(user, password, reply.text)
    except SMTPAuthenticationError:
        raise Unexpected("the CRAM-MD5 challenge is not base64") from None
    return await protocol.command(line, Phase.AUTH, timeout_s)


def _refusal(reply: Reply) -> Reply:
    if reply.is_positive:
        raise Unexpected(f"the upstream says yes before it was told the password: {reply}")
    return reply


def _without_secrets(reply: Reply, user: str, password: str) -> Reply:
    lines = tuple(_hide(line, user, password) for line in reply.lines)
    return replace(reply, text=_hide(reply.text, user, password), lines=lines)


def _hide(text: str, user: str, password: str) -> str:
    """Return the text with an echo of the password, in any form it was sent in, hidden."""
    encoded = (auth_plain_encode(user, password), auth_login_encode(user, password)[1])
    for secret in (*(octets.decode("ascii").rstrip("=") for octets in encoded), password):
        # Longest first: servers cut what they echo.
        for length in range(len(secret), min(SHORTEST_ECHO, len(secret)) - 1, -1):
            if secret[:length] and secret[:length] in text:
                text = text.replace(secret[:length], HIDDEN)
                break
    return text
