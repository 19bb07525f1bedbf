"""Logging in to the upstream: one mechanism, one attempt (RFC 4954).

A refused login is never followed by another: three tries at a wrong password lock accounts.

Where the owner names no mechanism: under TLS PLAIN, then LOGIN, then CRAM-MD5, since TLS already
hides the password and CRAM-MD5 is often announced by servers that cannot verify it.  CRAM-MD5 also
makes the upstream store the password itself.  Without TLS (loopback only) CRAM-MD5 first, since it
alone does not show the password.

No secret leaves this module but over the wire: not in a reply that echoes the command,
not in an exception.
"""

from dataclasses import replace

from relay.policy.model import Mechanism
from relay.smtp.reply import Phase, Reply
from relay.smtp.sasl import Credentials, responses, without_secrets
from relay.upstream.protocol import Broken, StrictProtocol, Unexpected

UNDER_TLS = (Mechanism.PLAIN, Mechanism.LOGIN, Mechanism.CRAM_MD5)
IN_THE_CLEAR = (Mechanism.CRAM_MD5, Mechanism.PLAIN, Mechanism.LOGIN)


def choose(offered: frozenset[str], wanted: Mechanism, *, is_encrypted: bool) -> Mechanism | None:
    """`offered` is in lower case."""
    preference = UNDER_TLS if is_encrypted else IN_THE_CLEAR
    candidates = preference if wanted is Mechanism.AUTO else (wanted,)
    return next((mechanism for mechanism in candidates if mechanism.value in offered), None)


async def log_in(
    protocol: StrictProtocol, credentials: Credentials, mechanism: Mechanism, timeout_s: float
) -> Reply:
    """Return the reply that decided: 235, or a refusal.

    Raises Broken, Unexpected where the exchange is not the mechanism's.
    """
    try:
        reply = await _exchange(protocol, credentials, mechanism, timeout_s)
    except Broken as broken:
        broken.args = tuple(without_secrets(str(text), credentials) for text in broken.args)
        if broken.reply is not None:
            broken.reply = _cleared(broken.reply, credentials)
        raise
    return _cleared(reply, credentials)


async def _exchange(
    protocol: StrictProtocol, credentials: Credentials, mechanism: Mechanism, timeout_s: float
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


def _cleared(reply: Reply, credentials: Credentials) -> Reply:
    lines = tuple(without_secrets(line, credentials) for line in reply.lines)
    return replace(reply, text=without_secrets(reply.text, credentials), lines=lines)
