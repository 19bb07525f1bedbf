"""What a reply means for us: rules of data, read in layers, the first that matches decides.  Pure.

The layers, in order: the phase, the owner's rules, the provider's, enhanced codes, wording, defaults.  The
phase decides what the others may say: 2yz and 3yz are judged at once, and before MAIL no verdict may touch a
message, since none was named yet; `Rule` refuses such a verdict.  The rules are files, each row with its
source (`relay/policy/verdicts.yaml`, `relay/policy/providers.yaml`), and the owner's
`upstreams.NAME.verdicts`.  What the client said itself, and an upstream prints, decides nothing
(`relay.verdicts.echo`).

Guarantees: every reply gets a `Ruling`; RELAYED only 250 to the final dot; BOUNCE only a refusal from MAIL
on, and never one that a rule about us recognises before.
"""

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from relay.smtp.reply import Phase, Reply
from relay.verdicts.echo import NOTHING_SAID, ClientWords, without_echo
from relay.verdicts.wording import Phrases, is_too_much, named_in, retry_after_ns, window_in


class Verdict(enum.StrEnum):
    RELAYED = "relayed"
    """The upstream took responsibility."""
    DEFER = "defer"
    """Attempted, refused for now: an attempt, tried again after its back-off."""
    LATER = "later"
    """This recipient goes in the next transaction, at once: it was not attempted."""
    BOUNCE = "bounce"
    """A permanent failure of the message or the recipient."""
    PAUSE = "pause"
    """About us or the upstream: the message stays as it was, the upstream rests."""
    STOP = "stop"
    """About the account: as PAUSE, but only an operator or a slow probe ends it."""


class Scope(enum.StrEnum):
    RECIPIENT = "recipient"
    """What was just asked: one recipient at RCPT, else all of the transaction."""
    MESSAGE = "message"
    """The message with all recipients that have no answer yet."""
    SENDER = "sender"
    """All mail from this reverse-path."""
    UPSTREAM = "upstream"


class Layer(enum.IntEnum):
    """What decided, in the order of asking."""

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
"""Phases in which no message is named, so that none can be at fault."""
FROM_MAIL = frozenset(Phase) - BEFORE_MAIL
ABOUT_US = frozenset({Verdict.PAUSE, Verdict.STOP})
"""Verdicts that leave the message as it was: no attempt, no age."""

_CODE_INSIDE = re.compile(r"#([245]\.[0-9]{1,3}\.[0-9]{1,3})\b")
"""qmail and its kin write the enhanced code at the end: `no mailbox here by that name. (#5.1.1)`."""
_CODE_IN_FRONT = re.compile(r"[245]\.[0-9]{1,3}\.[0-9]{1,3}\s+")


@dataclass(frozen=True, slots=True)
class Said:
    phase: Phase
    code: str
    enhanced: str
    """Empty where there is none."""
    text: str
    """Lower case, one space between words, without the code that a line may repeat, without names and what
    else the client said (`relay.verdicts.echo`)."""
    names_sender: bool = False
    """It quotes the reverse-path of the message under way."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: where it applies, what it matches, what follows, and who says so.

    Raises ValueError for a verdict that its phases do not allow.
    """

    layer: Layer
    verdict: Verdict
    scope: Scope
    place: str
    """Where it is written: FILE:LINE, or the key of a policy."""
    source: str
    phases: frozenset[Phase] = FROM_MAIL
    code: re.Pattern[str] | None = None
    enhanced: re.Pattern[str] | None = None
    text: Phrases | None = None
    but_not: Phrases | None = None
    but_not_enhanced: re.Pattern[str] | None = None
    names_sender: bool = False
    wait_ns: int | None = None
    """The least rest, where the reply itself does not say."""
    may_probe: bool = True
    """False where every further attempt makes it worse: nothing is tried until it is surely over."""

    def __post_init__(self) -> None:
        if self.phases & BEFORE_MAIL and (self.verdict not in ABOUT_US or self.scope is not Scope.UPSTREAM):
            raise ValueError("before MAIL no message is at fault: only pause or stop")
        if self.verdict is Verdict.LATER and self.phases != {Phase.RCPT}:
            raise ValueError("later is about one recipient: only in phase rcpt")

    def matches(self, said: Said) -> bool:
        return (
            said.phase in self.phases
            and (self.code is None or self.code.match(said.code) is not None)
            and (self.enhanced is None or self.enhanced.match(said.enhanced) is not None)
            and (self.but_not_enhanced is None or self.but_not_enhanced.match(said.enhanced) is None)
            and (self.text is None or self.text.are_in(said.text))
            and (self.but_not is None or not self.but_not.are_in(said.text))
            and (not self.names_sender or said.names_sender)
        )


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict, how far it reaches, and all that the reply says of when to go on."""

    verdict: Verdict
    scope: Scope
    rule: Rule | None = None
    """What decided; None where the phase alone did."""
    retry_after_ns: int | None = None
    """Said by the reply: `try again in 92 seconds`."""
    window_ns: int | None = None
    """The longest window that the reply speaks of: `per hour`, `daily`, `50 recipients per 3600s`."""
    is_too_much: bool = False
    """It says that too much mail was sent in some window: our own history knows how much it was."""
    named: int | None = None
    """How many messages or recipients it says the limit is."""
    said: str = ""
    """The refusal's own words, by which it is compared with others; empty where it is no refusal."""
    is_in_doubt: bool = False
    """The deciding words may be the client's or the upstream's: so no other mail is harmed."""

    @property
    def layer(self) -> Layer:
        return Layer.PHASE if self.rule is None else self.rule.layer

    @property
    def wait_ns(self) -> int | None:
        """Return the least rest: what the reply says, else what the rule says."""
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
_UNCLEAR = Ruling(Verdict.DEFER, Scope.MESSAGE)
_REST = Ruling(Verdict.PAUSE, Scope.UPSTREAM)


class Judge:
    """The rules of one upstream.  They may be replaced while it is used: the next reply is judged by them."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.use(rules)

    def use(self, rules: Iterable[Rule]) -> None:
        """Ask these by layer, and inside a layer in the order given."""
        self.rules = tuple(sorted(rules, key=lambda rule: rule.layer))

    def ruling(self, phase: Phase, reply: Reply, words: ClientWords = NOTHING_SAID) -> Ruling:
        """Return what a reply means; `words` is what the client has said, which the reply may say again.

        A reply that is no refusal and yet not what was due (a 2yz where 3yz was, 354 to the dot) is
        DEFER: it proves neither that the upstream took the message nor that it never will.
        """
        unknown = _REST if phase in BEFORE_MAIL else _UNCLEAR
        if reply.code < 400:
            return _RELAYED if phase is Phase.EOD and reply.code == 250 else unknown
        text, doubtful, names_sender = without_echo(_lines(reply), words)
        ruling = self._ruling(_said(phase, reply, text, names_sender=names_sender), unknown)
        if doubtful == text or phase in BEFORE_MAIL:
            return ruling
        other = self._ruling(_said(phase, reply, doubtful, names_sender=names_sender), unknown)
        is_agreed = (ruling.verdict, ruling.scope) == (other.verdict, other.scope)
        if is_agreed or (ruling.verdict in ABOUT_US and other.verdict in ABOUT_US):
            return other
        scope = Scope.RECIPIENT if phase is Phase.RCPT else Scope.MESSAGE
        return Ruling(Verdict.DEFER, scope, said=other.said, is_in_doubt=True)

    def _ruling(self, said: Said, unknown: Ruling) -> Ruling:
        text = said.text
        rule = next((rule for rule in self.rules if rule.matches(said)), None)
        if rule is None:
            return replace(unknown, said=text)
        if rule.verdict not in ABOUT_US:
            return Ruling(rule.verdict, rule.scope, rule, said=text)
        named, per_ns = named_in(text)
        window_ns = window_in(text) or per_ns
        wait_ns = retry_after_ns(text)
        return Ruling(rule.verdict, rule.scope, rule, wait_ns, window_ns, is_too_much(text), named, text)


def _lines(reply: Reply) -> list[str]:
    """Return the lines of a reply; the code that the first begins with is no part of the others."""
    first, *others = reply.lines or (reply.text,)
    if (found := _CODE_IN_FRONT.match(first)) is None:
        return [first, *others]
    code = found[0].rstrip()
    return [first, *(f"{line} ".removeprefix(f"{code} ") for line in others)]


def _said(phase: Phase, reply: Reply, text: str, *, names_sender: bool) -> Said:
    enhanced = reply.enhanced or ""
    if reply.text.startswith(enhanced) and not text.startswith(enhanced):
        # No code of the upstream's: an address began with it.
        enhanced = ""
    if found := _CODE_IN_FRONT.match(text):
        text = text[found.end() :]
    if not enhanced and (found := _CODE_INSIDE.search(text)) and found[1][0] == str(reply.code)[0]:
        enhanced = found[1]
    return Said(phase, str(reply.code), enhanced, text, names_sender)
