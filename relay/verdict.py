"""What a reply means for us: a table of data, read from the top.  Pure.

The first row whose phases, code and enhanced code match decides.  The order of the
rows carries the design's third promise: what happens before MAIL, at AUTH, any 421,
and anything unclear is never the message's fault.

Each row names its source.  A wider table (wording, providers, the owner's rules) is
added here as rows, not as code elsewhere.
"""

import enum
import re
from dataclasses import dataclass

from relay.reply import Phase, Reply


class Verdict(enum.StrEnum):
    """What becomes of what the reply was about: a recipient at RCPT, else the transaction."""

    RELAYED = "relayed"
    """The upstream took responsibility."""
    DEFER = "defer"
    """Attempted, refused for now: an attempt, tried again after its back-off."""
    LATER = "later"
    """This recipient in the next transaction, at once: no attempt was made of it."""
    BOUNCE = "bounce"
    """A permanent failure of the message or the recipient."""
    PAUSE = "pause"
    """About us or the upstream: the message stays as it was, the upstream rests."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: where it applies, what it matches, what follows, and who says so."""

    phases: frozenset[Phase]
    code: re.Pattern[str]
    enhanced: re.Pattern[str] | None
    verdict: Verdict
    source: str
    wording: re.Pattern[str] | None = None
    """Found anywhere in the text, in any case."""

    def matches(self, phase: Phase, reply: Reply) -> bool:
        """Return whether the row speaks of this reply."""
        if phase not in self.phases or not self.code.match(str(reply.code)):
            return False
        if self.enhanced is not None and not (reply.enhanced and self.enhanced.match(reply.enhanced)):
            return False
        return self.wording is None or self.wording.search(reply.text) is not None


_BEFORE_MAIL = frozenset({Phase.CONNECT, Phase.EHLO, Phase.STARTTLS, Phase.AUTH, Phase.RSET, Phase.QUIT})
_ANY = frozenset(Phase)


_FROM_MAIL = _ANY - _BEFORE_MAIL

_ABOUT_OUR_RATE = re.compile(
    # Not a message, a mailbox or a disk that is too big or too full.
    r"\A(?!.*\b(?:size|large|mailbox|storage|disk)\b).*?(?:"
    r"throttl|rate limit|sending limit|too many (?:messages|e?mails)|too fast|per (?:minute|hour|day)\b"
    r"|this hour|hourly|daily (?:user|relay|sending|message|smtp)|exceeded .{0,60}\b(?:max|limit|quota)"
    r"|(?:send|sent|relay|submission|daily|message).{0,40}quota|quota.{0,40}(?:send|sent|relay|submission)"
    r"|credits exceeded|frequency limited|concurrent connections)",
    re.IGNORECASE,
)


def _rule(
    phases: frozenset[Phase],
    code: str,
    enhanced: str | None,
    verdict: Verdict,
    source: str,
    *,
    wording: re.Pattern[str] | None = None,
) -> Rule:
    return Rule(
        phases,
        re.compile(code + r"\Z"),
        re.compile(enhanced + r"\Z") if enhanced else None,
        verdict,
        source,
        wording,
    )


RULES: tuple[Rule, ...] = (
    _rule(
        frozenset({Phase.EOD}), "250", None, Verdict.RELAYED, "RFC 5321, 4.3.2: DATA, intermediate, S: 250"
    ),
    _rule(_ANY, "421", None, Verdict.PAUSE, "RFC 5321, 3.8: the service is closing the channel"),
    _rule(_BEFORE_MAIL, "[45]..", None, Verdict.PAUSE, "no message was named yet, so none can be at fault"),
    _rule(_ANY, "530|534|535|538", None, Verdict.PAUSE, "RFC 4954, 6: authentication, whatever the phase"),
    _rule(_ANY, "[45]..", r"[45]\.4\.5", Verdict.PAUSE, "RFC 3463, 3.5: X.4.5 is mail system congestion"),
    _rule(
        frozenset({Phase.MAIL}),
        "550",
        r"5\.7\..*",
        Verdict.PAUSE,
        "RFC 3463, 3.8: X.7.X is security or policy; before any recipient it is about the account",
    ),
    _rule(
        frozenset({Phase.RCPT}),
        "5..",
        r"5\.2\..*",
        Verdict.BOUNCE,
        "RFC 3463, 3.3: X.2.X is the recipient's mailbox",
    ),
    _rule(
        _FROM_MAIL,
        "[45]..",
        None,
        Verdict.PAUSE,
        "refusals of SES, Gmail, Exchange Online, DreamHost, cPanel, GoDaddy, Zoho, RCN and others: "
        "4yz and 5yz, told apart by wording alone",
        wording=_ABOUT_OUR_RATE,
    ),
    _rule(
        frozenset({Phase.RCPT}),
        "452",
        r"4\.(?!5\.3\Z).*",
        Verdict.DEFER,
        "RFC 3463: 452 4.2.2 and the like are this recipient's mailbox, not the number of recipients",
    ),
    _rule(frozenset({Phase.RCPT}), "452", None, Verdict.LATER, "RFC 5321, 4.5.3.1.10: too many recipients"),
    _rule(frozenset({Phase.RCPT}), "552", r"5\.5\.3", Verdict.LATER, "RFC 5321, 4.5.3.1.10: 552 read as 452"),
    _rule(_ANY, "4..", None, Verdict.DEFER, "RFC 5321, 4.2.1: transient negative completion"),
    _rule(
        frozenset({Phase.MAIL, Phase.RCPT, Phase.DATA, Phase.EOD}),
        "5..",
        None,
        Verdict.BOUNCE,
        "RFC 5321, 4.2.1: permanent negative completion",
    ),
)


def verdict_of(phase: Phase, reply: Reply) -> Verdict:
    """Return what a refusal, or the reply to the final dot, means.

    A reply that no row knows (a 2yz where 3yz was due, 354 to the dot) is DEFER: it
    proves neither that the upstream took the message nor that it never will.
    """
    return next((rule.verdict for rule in RULES if rule.matches(phase, reply)), Verdict.DEFER)


def verdict_of_silence(phase: Phase) -> Verdict:
    """Return what it means that no proper reply came: lost, late, malformed, unasked.

    Never BOUNCE.  From MAIL on it is DEFER, not PAUSE: a message whose content makes
    the upstream hang up each time must step aside, not stop all others for ever.
    """
    return Verdict.PAUSE if phase in _BEFORE_MAIL else Verdict.DEFER
