"""What a reply means for us: rules as data, asked in layers; the first rule that matches decides.  Pure.

The layers, in order: the phase, the owner's rules, the provider's rules, enhanced codes, wording, defaults.
The phase limits the others: 2yz and 3yz are judged at once.  Before MAIL no message is named, so no verdict
may touch one: the policy refuses such a rule.  The rules are files, each row with its source
(`relay/policy/verdicts.yaml`, `relay/policy/providers.yaml`), and the owner's `upstreams.NAME.verdicts`.
Words of the client that the upstream repeats decide nothing (`relay.verdicts.wording`).

Guarantees: every reply gets a `Ruling`.  Only 250 to the final dot is RELAYED.  Only a refusal from MAIL on
is BOUNCE, and never a refusal that an earlier rule about us matches.
"""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from relay.smtp.reply import Phase, Reply
from relay.verdicts.wording import Phrases, facts_in, without_echo


class Verdict(enum.StrEnum):
    RELAYED = "relayed"
    """The upstream took responsibility."""
    DEFER = "defer"
    """Refused for now: it counts as an attempt, and the next one follows after the back-off."""
    LATER = "later"
    """The recipient was not attempted; it goes in the next transaction, at once."""
    BOUNCE = "bounce"
    """A permanent failure of the message or the recipient."""
    PAUSE = "pause"
    """About us or the upstream: the message stays as it was, the upstream or the sender rests."""
    STOP = "stop"
    """About the account: as PAUSE, but only an operator or a slow probe ends it."""


class Scope(enum.StrEnum):
    RECIPIENT = "recipient"
    """The recipient of an RCPT; in any other phase all recipients of the transaction."""
    MESSAGE = "message"
    """The message, with all recipients that have no answer yet."""
    SENDER = "sender"
    """All mail from this reverse-path."""
    UPSTREAM = "upstream"


class Layer(enum.IntEnum):
    """The layers of rules, in the order in which they are asked."""

    PHASE = 0
    OPERATOR = 1
    PROVIDER = 2
    CODE = 3
    WORDING = 4
    DEFAULT = 5


WORDS: dict[str, tuple[Verdict, Scope]] = {
    "defer recipient": (Verdict.DEFER, Scope.RECIPIENT),
    "defer message": (Verdict.DEFER, Scope.MESSAGE),
    "later": (Verdict.LATER, Scope.RECIPIENT),
    "bounce recipient": (Verdict.BOUNCE, Scope.RECIPIENT),
    "bounce message": (Verdict.BOUNCE, Scope.MESSAGE),
    "pause sender": (Verdict.PAUSE, Scope.SENDER),
    "pause": (Verdict.PAUSE, Scope.UPSTREAM),
    "stop": (Verdict.STOP, Scope.UPSTREAM),
}

BEFORE_MAIL = frozenset({Phase.CONNECT, Phase.EHLO, Phase.STARTTLS, Phase.AUTH, Phase.RSET, Phase.QUIT})
"""Phases in which no message is named, so that no message can be at fault."""
FROM_MAIL = frozenset(Phase) - BEFORE_MAIL
ABOUT_US = frozenset({Verdict.PAUSE, Verdict.STOP})
"""Verdicts that leave the message as it was: it gets no attempt and no age."""

_CODE_INSIDE = re.compile(r"#([245]\.[0-9]{1,3}\.[0-9]{1,3})\b")
"""qmail and its derivatives write the enhanced code at the end: `no mailbox here by that name. (#5.1.1)`."""
_CODE_IN_FRONT = re.compile(r"[245]\.[0-9]{1,3}\.[0-9]{1,3}\s+")


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the rules."""

    layer: Layer
    verdict: Verdict
    scope: Scope
    place: str
    """FILE:LINE, or the key of a policy."""
    source: str
    phases: frozenset[Phase] = FROM_MAIL
    code: re.Pattern[str] | None = None
    enhanced: re.Pattern[str] | None = None
    text: Phrases | None = None
    but_not: Phrases | None = None
    but_not_enhanced: re.Pattern[str] | None = None
    names_sender: bool = False
    """The reply must quote the reverse-path of the message under way."""
    wait_ns: int | None = None
    """The least rest, if the reply itself names none."""
    may_probe: bool = True
    """False if every further attempt makes it worse: then nothing is tried until it is surely over."""

    def matches(self, phase: Phase, code: str, enhanced: str, text: str, *, names_sender: bool) -> bool:
        """Return whether the rule is about a reply; `enhanced` is empty if the reply has none.

        `text` is in lower case, with one space between words, without a code that a line repeats, and without
        names and other words of the client.
        """
        return (
            phase in self.phases
            and (self.code is None or self.code.match(code) is not None)
            and (self.enhanced is None or self.enhanced.match(enhanced) is not None)
            and (self.but_not_enhanced is None or self.but_not_enhanced.match(enhanced) is None)
            and (self.text is None or self.text.are_in(text))
            and (self.but_not is None or not self.but_not.are_in(text))
            and (not self.names_sender or names_sender)
        )


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict, its scope, and what the reply says about when to go on."""

    verdict: Verdict
    scope: Scope
    rule: Rule | None = None
    """The rule that decided; None if the phase alone decided."""
    retry_after_ns: int | None = None
    """The wait that the reply names: `try again in 92 seconds`."""
    window_ns: int | None = None
    """The longest window that the reply names: `per hour`, `daily`, `50 recipients per 3600s`."""
    is_too_much: bool = False
    """The reply says that too much mail was sent in some window; our own history knows how much."""
    named: int | None = None
    """The limit that the reply names, in messages or recipients."""
    refusal_text: str = ""
    """The words of the refusal, to compare it with others; empty if the reply is no refusal."""

    @property
    def layer(self) -> Layer:
        return Layer.PHASE if self.rule is None else self.rule.layer

    @property
    def wait_ns(self) -> int | None:
        """Return the least rest: that of the reply, else that of the rule."""
        if self.retry_after_ns is not None:
            return self.retry_after_ns
        return None if self.rule is None else self.rule.wait_ns

    @property
    def may_probe(self) -> bool:
        return self.rule is None or self.rule.may_probe

    @property
    def words(self) -> str:
        pair = (self.verdict, self.scope)
        return next((words for words, known in WORDS.items() if known == pair), str(self.verdict))


_RELAYED = Ruling(Verdict.RELAYED, Scope.MESSAGE)


@dataclass(slots=True)
class Judge:
    rules: tuple[Rule, ...]
    """The rules of one upstream, by layer.  An edit may replace them at any time."""

    def ruling(self, phase: Phase, reply: Reply, sender: str = "", recipients: Sequence[str] = ()) -> Ruling:
        """Return what a reply means; it may repeat the sender, and the recipients that it may be about.

        A reply that is no refusal and was not due (2yz instead of 3yz, 354 to the dot) is DEFER, before MAIL
        PAUSE. It proves neither that the upstream took the message nor that it never will.
        """
        if reply.code < 400:
            return _RELAYED if phase is Phase.EOD and reply.code == 250 else _unknown(phase)
        text, doubtful, names_sender = without_echo(_lines(reply), sender, recipients)
        ruling = self._ruling(phase, reply, text, names_sender=names_sender)
        if doubtful == text or phase in BEFORE_MAIL:
            return ruling
        other = self._ruling(phase, reply, doubtful, names_sender=names_sender)
        is_agreed = (ruling.verdict, ruling.scope) == (other.verdict, other.scope)
        if is_agreed or (ruling.verdict in ABOUT_US and other.verdict in ABOUT_US):
            return other
        # The deciding words may be the client's: nothing is decided that harms other mail.
        scope = Scope.RECIPIENT if phase is Phase.RCPT else Scope.MESSAGE
        return Ruling(Verdict.DEFER, scope, refusal_text=other.refusal_text)

    def _ruling(self, phase: Phase, reply: Reply, text: str, *, names_sender: bool) -> Ruling:
        code, (enhanced, text) = str(reply.code), _without_code(reply, text)
        for rule in self.rules:
            if rule.matches(phase, code, enhanced, text, names_sender=names_sender):
                if rule.verdict in ABOUT_US:
                    return Ruling(rule.verdict, rule.scope, rule, *facts_in(text), refusal_text=text)
                return Ruling(rule.verdict, rule.scope, rule, refusal_text=text)
        return replace(_unknown(phase), refusal_text=text)


def _unknown(phase: Phase) -> Ruling:
    if phase in BEFORE_MAIL:
        return Ruling(Verdict.PAUSE, Scope.UPSTREAM)
    return Ruling(Verdict.DEFER, Scope.MESSAGE)


def _lines(reply: Reply) -> list[str]:
    """Return the lines of a reply; the code that begins the first line is removed from the others."""
    first, *others = reply.lines or (reply.text,)
    if (found := _CODE_IN_FRONT.match(first)) is None:
        return [first, *others]
    code = found[0].rstrip()
    return [first, *(f"{line} ".removeprefix(f"{code} ") for line in others)]


def _without_code(reply: Reply, text: str) -> tuple[str, str]:
    """Return the enhanced code of a reply, empty if there is none, and its text without it."""
    enhanced = reply.enhanced or ""
    if reply.text.startswith(enhanced) and not text.startswith(enhanced):
        # An address began with the code: it is no code of the upstream.
        enhanced = ""
    if found := _CODE_IN_FRONT.match(text):
        text = text[found.end() :]
    if not enhanced and (found := _CODE_INSIDE.search(text)) and found[1][0] == str(reply.code)[0]:
        enhanced = found[1]
    return enhanced, text
