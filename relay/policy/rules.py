"""Rules about replies as YAML states them: ours, each with a source, and the owner's.  Pure.

Text is phrases, not regular expressions: any case, any run of spaces, and `*` for at most 80
characters; so no rule can hang on a long reply, however many it has.
In the shipped files a phrase by which a refusal is not about us begins a word: else `mail quota` of
a full mailbox is found in `your outmail quota`, and bounces.  A phrase by which it is about us may
begin inside one: a pause keeps the message.  An owner's phrases are found wherever they stand.
"""

import re
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from relay.policy.units import AnyOrder, Duration, Section, Text, choice, each, unfit
from relay.smtp.reply import Phase
from relay.verdicts.phrases import Phrases
from relay.verdicts.verdict import ABOUT_US, FROM_MAIL, WORDS, Layer, Rule

_CODE = re.compile(r"[45](?:[0-9x][0-9]|[0-9]x|xx)\Z")
_ENHANCED = re.compile(r"[45x]\.(?:[0-9]{1,3}|x)\.(?:[0-9]{1,3}|x)\Z")
LONGEST_PHRASE = 200


def _phase(value: object) -> Phase:
    by_word = {str(phase): phase for phase in Phase}
    if isinstance(value, str) and value in by_word:
        return by_word[value]
    raise unfit(f"expected a phase, one of {', '.join(by_word)}", value)


def _code(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and _CODE.match(text):
        return text
    raise unfit("expected a reply code that refuses, such as 550 or 5xx", value)


def _enhanced(value: object) -> str:
    if isinstance(value, str) and _ENHANCED.match(value):
        return value
    raise unfit("expected an enhanced code such as 5.7.1, 5.7.x or x.4.5", value)


def _phrase(value: object) -> str:
    if isinstance(value, str) and value.strip(" *") and len(value) <= LONGEST_PHRASE:
        return value
    words = f"expected a phrase of at most {LONGEST_PHRASE} characters"
    raise ValueError(f"{words}, got none") if value == "" else unfit(words, value)


Texts = Annotated[tuple[str, ...], each(_phrase)]


class VerdictRule(Section):
    """One rule.  What it does not name matches anything; it must name something."""

    phase: Annotated[tuple[Phase, ...], each(_phase)] = tuple(sorted(FROM_MAIL))
    """connect, ehlo, starttls, auth, mail, rcpt, data, eod; default: from mail on."""
    code: Annotated[tuple[str, ...], each(_code)] | None = None
    """Such as 550 or 5xx."""
    enhanced: Annotated[tuple[str, ...], each(_enhanced)] | None = None
    """Such as 5.7.1, 5.7.x or x.4.5 (RFC 3463)."""
    text: Texts | None = None
    """Any of these is in the text, in any case; `*` is at most 80 characters."""
    but_not: Texts | None = None
    but_not_enhanced: Annotated[tuple[str, ...], each(_enhanced)] | None = None
    names_sender: bool = False
    """The text quotes the message's reverse-path."""
    verdict: Annotated[str, choice(WORDS)]
    wait_ns: Duration | None = Field(default=None, alias="wait")
    """For pause and stop: at least so long, where the reply does not say."""
    probe: bool = True
    """false: nothing may be tried before it is over, since each attempt makes it worse."""
    source: Text | None = None
    """Who says so; ours all have one."""

    @field_validator("verdict")
    @classmethod
    def _is_allowed(cls, verdict: str, info: ValidationInfo) -> str:
        if "phase" in info.data:
            # Rule itself knows what its phases allow.
            Rule(Layer.OPERATOR, *WORDS[verdict], "", "", phases=frozenset(info.data["phase"]))
        keys = ("code", "enhanced", "text", "names_sender")
        if all(key in info.data for key in keys) and not any(info.data[key] for key in keys):
            raise ValueError(
                "a rule without a condition matches every refusal: write a code, an enhanced code or a text"
            )
        return verdict

    @field_validator("wait_ns", "probe")
    @classmethod
    def _is_of_a_rest(cls, value: object, info: ValidationInfo) -> object:
        words = info.data.get("verdict")
        if value is None or value is True or words is None or WORDS[words][0] in ABOUT_US:
            return value
        raise ValueError(f"{words} has no rest: wait and probe belong to pause, pause sender and stop")

    def rule(self, layer: Layer, place: str) -> Rule:
        verdict, scope = WORDS[self.verdict]
        is_ours, is_about_us = layer is not Layer.OPERATOR, verdict in ABOUT_US
        return Rule(
            layer,
            verdict,
            scope,
            place,
            self.source or "the owner of this relay",
            phases=frozenset(self.phase),
            code=_any_code(self.code),
            enhanced=_any_code(self.enhanced),
            text=_any_phrase(self.text, begin_words=is_ours and not is_about_us),
            but_not=_any_phrase(self.but_not, begin_words=is_ours and is_about_us),
            but_not_enhanced=_any_code(self.but_not_enhanced),
            names_sender=self.names_sender,
            wait_ns=self.wait_ns,
            may_probe=self.probe,
        )


class DefaultRule(VerdictRule):
    """A rule of the last layer, which may match every refusal of its phases."""

    source: Text

    @field_validator("verdict")
    @classmethod
    def _is_allowed(cls, verdict: str, info: ValidationInfo) -> str:
        if "phase" in info.data:
            Rule(Layer.DEFAULT, *WORDS[verdict], "", "", phases=frozenset(info.data["phase"]))
        return verdict


class SourcedRule(VerdictRule):
    source: Text


Rules = Annotated[tuple[VerdictRule, ...], AnyOrder]
SourcedRules = Annotated[tuple[SourcedRule, ...], AnyOrder]
DefaultRules = Annotated[tuple[DefaultRule, ...], AnyOrder]


def _any_code(codes: tuple[str, ...] | None) -> re.Pattern[str] | None:
    if codes is None:
        return None
    each = (r"\.".join(part.replace("x", "[0-9]+") for part in code.split(".")) for code in codes)
    return re.compile(f"(?:{'|'.join(each)})\\Z")


def _any_phrase(phrases: tuple[str, ...] | None, *, begin_words: bool) -> Phrases | None:
    if phrases is None:
        return None
    return Phrases((" ".join(phrase.lower().split()) for phrase in phrases), begin_words=begin_words)
