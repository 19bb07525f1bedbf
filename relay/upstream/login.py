"""Logging in to the upstream: one mechanism, one attempt (RFC 4954).

A refused login is never followed by another: three tries at a wrong password lock accounts.

Where the owner names no mechanism: under TLS PLAIN, then LOGIN, then CRAM-MD5, since TLS already
hides the password and CRAM-MD5 is often announced by servers that cannot verify it.  CRAM-MD5 also
makes the upstream store the password itself.  Without TLS (loopback only) CRAM-MD5 first, since it
alone does not show the password.

An access token is sent by OAUTHBEARER, else by XOAUTH2.  An upstream that refuses one explains that in a
challenge first, as JSON; `LoginReply` has both.

No secret leaves this module but over the wire: not in a reply that echoes the command,
not in an exception.
"""

from typing import NamedTuple

from relay.policy.model import Mechanism
from relay.policy.oauth2 import TokenMechanism
from relay.smtp.reply import Phase, Reply
from relay.smtp.sasl import BearerToken, Credentials, explained, responses, token_responses, without_secrets
from relay.upstream.protocol import Broken, StrictProtocol, Unexpected

UNDER_TLS = (Mechanism.PLAIN, Mechanism.LOGIN, Mechanism.CRAM_MD5)
IN_THE_CLEAR = (Mechanism.CRAM_MD5, Mechanism.PLAIN, Mechanism.LOGIN)
WITH_A_TOKEN = (TokenMechanism.OAUTHBEARER, TokenMechanism.XOAUTH2)

AnyMechanism = Mechanism | TokenMechanism


class LoginReply(NamedTuple):
    reply: Reply
    """That decided: 235, or a refusal."""
    explanation: str = ""
    """What the upstream said of a refused token, to show."""


def choose(offered: frozenset[str], wanted: AnyMechanism, *, is_encrypted: bool) -> AnyMechanism | None:
    """`offered` is in lower case."""
    candidates: tuple[AnyMechanism, ...] = (wanted,)
    if wanted is TokenMechanism.AUTO:
        candidates = WITH_A_TOKEN
    elif wanted is Mechanism.AUTO:
        candidates = UNDER_TLS if is_encrypted else IN_THE_CLEAR
    return next((mechanism for mechanism in candidates if mechanism.value in offered), None)


async def log_in(
    protocol: StrictProtocol,
    credentials: Credentials | BearerToken,
    mechanism: AnyMechanism,
    timeout_s: float,
) -> LoginReply:
    """Log in once.  Raises Broken, Unexpected where the exchange is not the mechanism's."""
    explanation = ""
    try:
        if isinstance(credentials, BearerToken):
            reply, explanation = await _exchange_token(protocol, credentials, mechanism, timeout_s)
        else:
            reply = await _exchange(protocol, credentials, mechanism, timeout_s)
    except Broken as broken:
        broken.args = tuple(without_secrets(str(text), credentials) for text in broken.args)
        if broken.reply is not None:
            broken.reply = _cleared(broken.reply, credentials)
        raise
    return LoginReply(_cleared(reply, credentials), without_secrets(explanation, credentials))


async def _exchange_token(
    protocol: StrictProtocol, token: BearerToken, mechanism: AnyMechanism, timeout_s: float
) -> LoginReply:
    try:
        said = token_responses(mechanism.value, token)
    except ValueError as error:
        raise Unexpected(str(error)) from None
    line = b"AUTH " + mechanism.value.upper().encode("ascii") + b" " + said.initial
    reply = await protocol.command(line, Phase.AUTH, timeout_s)
    if reply.code != 334:
        return LoginReply(reply)
    explanation = explained(reply.text)
    reply = await protocol.command(said.to_refusal, Phase.AUTH, timeout_s)
    if reply.is_positive:
        raise Unexpected(f"the upstream explains why it refuses the token, and then says yes: {reply}")
    return LoginReply(reply, explanation)


async def _exchange(
    protocol: StrictProtocol, credentials: Credentials, mechanism: AnyMechanism, timeout_s: float
) -> Reply:
    try:
        initial, later = responses(mechanism, credentials)
        line = b"AUTH " + mechanism.value.upper().encode("ascii")
        reply = await protocol.command(
            line if initial is None else line + b" " + initial, Phase.AUTH, timeout_s
        )
        for response in later:
            if reply.is_positive:
                raise Unexpected(f"the upstream says yes before it was told the password: {reply}")
            if reply.code != 334:
                return reply
            reply = await protocol.command(response(reply.text), Phase.AUTH, timeout_s)
    except ValueError as error:
        # Of `responses`: the password cannot be carried, or the challenge is none.
        raise Unexpected(str(error)) from None
    return reply


def _cleared(reply: Reply, credentials: Credentials | BearerToken) -> Reply:
    lines = tuple(without_secrets(line, credentials) for line in reply.lines)
    return reply._replace(text=without_secrets(reply.text, credentials), lines=lines)
