"""Logging in to the upstream: one mechanism, one attempt (RFC 4954).

A refused login is never followed by another: three tries of a wrong password lock accounts.

If the policy names no mechanism, the order under TLS is PLAIN, LOGIN, CRAM-MD5: TLS already hides the
password, and servers often announce CRAM-MD5 that they cannot verify.  Without TLS (loopback only) CRAM-MD5
comes first, since it alone does not show the password.  A token goes by OAUTHBEARER, else by XOAUTH2.

A reply to AUTH may repeat the password or the token, whole, cut or split over lines.  So only its reply code,
its enhanced status code and the ruling of the rules leave this module.
"""

from collections.abc import Callable
from dataclasses import replace

from relay.policy.model import Mechanism, TokenMechanism
from relay.smtp.reply import Phase, Reply
from relay.smtp.sasl import BearerToken, Credentials, responses
from relay.upstream.protocol import Farewell, Garbled, StrictProtocol
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Ruling

LONGEST_LINE_BYTES = 512
"""RFC 4954, 4: if the AUTH line would be longer, the first response waits for its challenge."""

UNDER_TLS = ("plain", "login", "cram-md5")
IN_THE_CLEAR = ("cram-md5", "plain", "login")
WITH_A_TOKEN = ("oauthbearer", "xoauth2")

AnyMechanism = Mechanism | TokenMechanism


def choose(
    offered: frozenset[str], wanted: AnyMechanism, *, is_encrypted: bool, has_token: bool = False
) -> str | None:
    """Return the mechanism to use, None if there is none; `offered` is in lower case."""
    candidates: tuple[str, ...] = (wanted,)
    if wanted == "auto":
        candidates = WITH_A_TOKEN if has_token else UNDER_TLS if is_encrypted else IN_THE_CLEAR
    return next((mechanism for mechanism in candidates if mechanism in offered), None)


async def log_in(
    protocol: StrictProtocol,
    credentials: Credentials | BearerToken,
    mechanism: str,
    timeout_s: float,
    ruling_of: Callable[[Reply], Ruling],
) -> Answer | None:
    """Log in once; return the refusal, or None on success.

    `ruling_of` gets the whole reply.  Raises Broken; Garbled if the upstream breaks the mechanism's protocol,
    or if SASL cannot carry the password.
    """
    try:
        reply = await _exchange(protocol, credentials, mechanism, timeout_s)
    except Farewell as farewell:
        reply = farewell.reply
    except ValueError as error:
        # From SASL: it cannot carry the password, or the challenge is malformed.
        raise Garbled(str(error)) from None
    if reply.code == 235:
        return None
    ruling, codes = replace(ruling_of(reply), refusal_text=""), _codes(reply)
    text = f"{codes} (reply to AUTH; its text is not shown)"
    return Answer(ruling.verdict, Phase.AUTH, codes, text, ruling=ruling)


async def _exchange(
    protocol: StrictProtocol, credentials: Credentials | BearerToken, mechanism: str, timeout_s: float
) -> Reply:
    line = b"AUTH " + mechanism.upper().encode("ascii")
    due, is_server_first, to_refusal = responses(mechanism, credentials)
    if not is_server_first:
        with_first = line + b" " + due[0]("")
        if len(with_first) + len(b"\r\n") <= LONGEST_LINE_BYTES:
            line, due = with_first, due[1:]
    reply = await protocol.command(line, Phase.AUTH, timeout_s)
    for respond in due:
        if reply.is_positive:
            raise Garbled(f"the upstream answered {_codes(reply)} before it got the password")
        if reply.code != 334:
            return reply
        reply = await protocol.command(respond(reply.text), Phase.AUTH, timeout_s)
    if reply.code == 334 and to_refusal is not None:
        reply = await protocol.command(to_refusal, Phase.AUTH, timeout_s)
        if reply.is_positive:
            raise Garbled(f"the upstream refused the token, and then answered {_codes(reply)}")
    return reply


def _codes(reply: Reply) -> Reply:
    shown = reply.enhanced or ""
    return reply._replace(text=shown, lines=(shown,))
