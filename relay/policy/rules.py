"""Rules about replies as YAML states them: ours, each with a source, and the owner's.  Pure.

Text is phrases, not regular expressions: any case, any run of spaces, and `*` for at most 80
characters; so no rule can hang on a long reply, however many it has.
In the shipped files a phrase by which a refusal is not about us begins a word: else `mail quota` of
a full mailbox is found in `your outmail quota`, and bounces.  A phrase by which it is about us may
begin inside one: a pause keeps the message.  An owner's phrases are found wherever they stand.
"""

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field

from relay.policy.document import Fault
from relay.policy.units import Duration, NotEmpty, OneOrMore, Section, Text, checked, matching, one_of
from relay.smtp.reply import Phase
from relay.verdicts.verdict import ABOUT_US, FROM_MAIL, WORDS, Layer, Rule
from relay.verdicts.wording import Phrases

LONGEST_PHRASE = 200


Code = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int) else value),
    matching("[45](?:[0-9x][0-9]|[0-9]x|xx)", "a reply code that refuses, such as 550 or 5xx"),
]
Enhanced = Annotated[
    str,
    matching(r"[45x]\.(?:[0-9]{1,3}|x)\.(?:[0-9]{1,3}|x)", "an enhanced code such as 5.7.1, 5.7.x or x.4.5"),
]
Phrase = Annotated[
    str,
    checked(
        lambda value: value.strip(" *") and len(value) <= LONGEST_PHRASE,
        f"a phrase of at most {LONGEST_PHRASE} characters",
    ),
]
Texts = Annotated[tuple[Phrase, ...], OneOrMore, NotEmpty]
Codes = Annotated[tuple[Code, ...], OneOrMore, NotEmpty]
EnhancedCodes = Annotated[tuple[Enhanced, ...], OneOrMore, NotEmpty]


class VerdictRule(Section):
    """One rule.  What it does not name matches anything; it must name something."""

    phase: Annotated[tuple[Phase, ...], OneOrMore, NotEmpty] = tuple(sorted(FROM_MAIL))
    code: Codes | None = None
    enhanced: EnhancedCodes | None = None
    text: Texts | None = None
    but_not: Texts | None = None
    but_not_enhanced: EnhancedCodes | None = None
    names_sender: bool = False
    verdict: Annotated[str, one_of(lambda: WORDS)]
    wait_ns: Duration | None = Field(default=None, alias="wait")
    probe: bool = True
    source: Text | None = None

    def faults(self) -> Iterator[Fault]:
        try:
            # A rule itself knows what its phases allow.
            Rule(Layer.OPERATOR, *WORDS[self.verdict], "", "", phases=frozenset(self.phase))
        except ValueError as error:
            yield Fault(str(error), ("verdict",))
        if not (self.code or self.enhanced or self.text or self.names_sender):
            words = "a rule without a condition matches every refusal"
            yield Fault(f"{words}: write a code, an enhanced code or a text", ("verdict",))
        if WORDS[self.verdict][0] not in ABOUT_US:
            words = f"{self.verdict} has no rest: wait and probe belong to pause, pause sender and stop"
            given = {"wait": self.wait_ns is not None, "probe": not self.probe}
            yield from (Fault(words, (key,)) for key, is_given in given.items() if is_given)

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


def _any_code(codes: tuple[str, ...] | None) -> re.Pattern[str] | None:
    if codes is None:
        return None
    each = (r"\.".join(part.replace("x", "[0-9]+") for part in code.split(".")) for code in codes)
    return re.compile(f"(?:{'|'.join(each)})\\Z")


def _any_phrase(phrases: tuple[str, ...] | None, *, begin_words: bool) -> Phrases | None:
    if phrases is None:
        return None
    return Phrases(tuple(" ".join(phrase.lower().split()) for phrase in phrases), begin_words)
