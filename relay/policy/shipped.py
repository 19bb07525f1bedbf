"""Verdict rules and providers in YAML: the owner's rules, and the files beside this module.

The shipped files are read once and trusted; the tests check them.  Each shipped rule names its source.
Rules match phrases, not regular expressions: any case, any run of spaces, and `*` for at most 80 characters.
A phrase has at most MOST_STARS `*`, so no rule takes long on a long reply.
In shipped rules a phrase by which a refusal is not ours (`text` of a bounce, `but_not` of a pause) matches
only at the start of a word: else `mail quota` of a full mailbox would match `your outmail quota`, and bounce.
Other phrases also match inside a word: a pause keeps the message.  An owner's phrases match anywhere.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from relay.policy.document import Document, Fault, Steps
from relay.policy.units import Duration, Section, Several, Text, checked, matching
from relay.queue.sorting import is_like
from relay.smtp.reply import Phase
from relay.verdicts.verdict import ABOUT_US, BEFORE_MAIL, FROM_MAIL, WORDS, Layer, Rule, Scope, Verdict
from relay.verdicts.wording import Phrases

if TYPE_CHECKING:
    from relay.policy.model import Upstream

RULES_FILE = Path(__file__).with_name("verdicts.yaml")
PROVIDERS_FILE = Path(__file__).with_name("providers.yaml")
LONGEST_PHRASE = 200
MOST_STARS = 2
"""In a phrase.  Each multiplies the time that a reply may take to read."""

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
        lambda value: value.strip(" *") and len(value) <= LONGEST_PHRASE and value.count("*") <= MOST_STARS,
        f"a phrase of at most {LONGEST_PHRASE} characters, with at most {MOST_STARS} *",
    ),
]


class VerdictRule(Section):
    """One rule.  A key that is absent matches anything; at least one condition is required."""

    phase: Several[Phase] = tuple(sorted(FROM_MAIL))
    code: Several[Code] | None = None
    enhanced: Several[Enhanced] | None = None
    text: Several[Phrase] | None = None
    but_not: Several[Phrase] | None = None
    but_not_enhanced: Several[Enhanced] | None = None
    names_sender: bool = False
    verdict: Annotated[str, checked(WORDS.__contains__, f"one of {', '.join(WORDS)}")]
    wait_ns: Duration | None = None
    probe: bool = True
    source: Text | None = None

    def faults(self) -> Iterator[Fault]:
        verdict, scope = WORDS[self.verdict]
        if BEFORE_MAIL.intersection(self.phase) and (verdict not in ABOUT_US or scope is not Scope.UPSTREAM):
            yield Fault("only pause and stop are allowed before MAIL: no message is named yet", ("verdict",))
        if verdict is Verdict.LATER and {*self.phase} != {Phase.RCPT}:
            yield Fault("later is allowed only in phase rcpt: it is about one recipient", ("verdict",))
        if not (self.code or self.enhanced or self.text or self.names_sender):
            yield Fault("a rule needs a condition: code, enhanced, text or names_sender", ("verdict",))
        if verdict not in ABOUT_US:
            words = f"wait and probe belong to pause, pause sender and stop, not to {self.verdict}"
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
    each = (code.replace(".", r"\.").replace("x", "[0-9]+") for code in codes or ())
    return re.compile(f"(?:{'|'.join(each)})\\Z") if codes else None


def _any_phrase(phrases: tuple[str, ...] | None, *, begin_words: bool) -> Phrases | None:
    if phrases is None:
        return None
    return Phrases(tuple(" ".join(phrase.lower().split()) for phrase in phrases), begin_words)


@dataclass(frozen=True, slots=True)
class Provider:
    hosts: list[str]
    """Hosts of the provider, also for upstreams without the key `provider`; `*` is any part of a name."""
    note: str
    source: str
    checked: str
    """The day on which the source was read."""
    preset: dict[str, object]
    """Keys of an upstream, as a policy writes them."""
    refuses_reports: str = ""
    """The source that says that it refuses mail from `<>`, or from any address but the account's."""
    oauth2: dict[str, Any] = field(default_factory=dict)
    """Keys of `auth.oauth2`: `{tenant}` is the owner's tenant, `scopes` has the scope of each grant."""
    verdicts: list[dict[str, Any]] = field(default_factory=list)


@functools.cache
def _read(path: Path) -> Document:
    return Document(path.read_bytes())


@functools.cache
def providers() -> Mapping[str, Provider]:
    """Return the providers by name, in the order of the file."""
    return {name: Provider(**its) for name, its in _read(PROVIDERS_FILE).value["providers"].items()}


def _known_provider(name: str) -> str:
    if name not in providers():
        raise ValueError(f"expected one of {', '.join(providers())}")
    return name


KnownProvider = Annotated[str, AfterValidator(_known_provider)]


@functools.cache
def standard_rules() -> tuple[Rule, ...]:
    layers = {"codes": Layer.CODE, "wording": Layer.WORDING, "default": Layer.DEFAULT}
    return tuple(rule for key, layer in layers.items() for rule in _rules(layer, RULES_FILE, (key,)))


@functools.cache
def provider_rules(name: str | None) -> tuple[Rule, ...]:
    """Return the rules of a provider; none if the provider is None or unknown."""
    return _rules(Layer.PROVIDER, PROVIDERS_FILE, ("providers", name, "verdicts")) if name else ()


def _rules(layer: Layer, path: Path, steps: Steps) -> tuple[Rule, ...]:
    """Return the rules of the list at `steps` in a file, each with its line."""
    document = _read(path)
    rows = document.value
    for step in steps:
        rows = rows.get(step, [])
    return tuple(
        VerdictRule.model_validate(row).rule(layer, f"{path.name}:{document.mark_of((*steps, index)).line}")
        for index, row in enumerate(rows)
    )


def rules_of(name: str, upstream: "Upstream") -> tuple[Rule, ...]:
    """Return the rules of an upstream: the owner's, then its provider's, then the standard rules."""
    owners = (
        rule.rule(Layer.OPERATOR, f"upstreams.{name}.verdicts[{index}]")
        for index, rule in enumerate(upstream.verdicts)
    )
    return (*owners, *provider_rules(provider_of(upstream.provider, upstream.host)), *standard_rules())


def provider_of(name: str | None, host: str) -> str | None:
    """Return the name of an upstream's provider: by the key `provider`, else by the host, else None."""
    if name is not None:
        return name
    wanted = host.lower().removesuffix(".")
    every = providers().items()
    return next((known for known, its in every if any(is_like(each, wanted) for each in its.hosts)), None)


def with_preset(upstream: object) -> object:
    """Add the preset of a provider; the owner's keys win.  Malformed parts stay for the model to report."""
    match upstream:
        case {"provider": str() as name, **written} if name in providers():
            provider = providers()[name]
        case _:
            return upstream
    filled: dict[Any, Any] = {**provider.preset, "provider": name, **written}
    match filled:
        case {"auth": {"oauth2": dict() as oauth2, **auth}}:
            filled["auth"] = {**auth, "oauth2": {**_oauth2_of(provider.oauth2, oauth2), **oauth2}}
    return filled


def _oauth2_of(known: Mapping[str, Any], written: Mapping[str, object]) -> dict[str, object]:
    """Return the provider's keys of `oauth2`; a URL with a tenant only if the owner wrote a tenant."""
    tenant, scope = written.get("tenant"), known.get("scopes", {}).get(str(written.get("grant")))
    every = {**known, "scope": scope}.items()
    texts = {key: its for key, its in every if isinstance(its, str)}
    return {
        key: its.replace("{tenant}", str(tenant))
        for key, its in texts.items()
        if isinstance(tenant, str) or "{tenant}" not in its
    }
