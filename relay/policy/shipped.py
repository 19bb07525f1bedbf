"""The rules about replies and the providers that are shipped with the relay.

Guarantees: what is read is valid as a whole, or PolicyError with file, line and column
of each fault, in the words of a policy's errors; read once.  The only I/O is reading
two files beside this one.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay.policy.document import Document, Step
from relay.policy.faults import validated
from relay.policy.rules import DefaultRule, SourcedRule, VerdictRule
from relay.policy.units import Section, Text
from relay.verdicts.verdict import Judge, Layer, Rule

if TYPE_CHECKING:
    from relay.policy.model import Upstream

RULES_FILE = Path(__file__).with_name("verdicts.yaml")
PROVIDERS_FILE = Path(__file__).with_name("providers.yaml")


class RulesFile(Section):
    """`verdicts.yaml`."""

    codes: tuple[SourcedRule, ...]
    wording: tuple[SourcedRule, ...]
    default: tuple[DefaultRule, ...]


class ProviderOAuth2(Section):
    """What a provider fills in of `auth.oauth2`; `{tenant}` stands for the owner's."""

    token_url: Text
    device_url: Text | None = None
    login_url: Text | None = None
    scopes: dict[str, Text]
    """By grant."""
    mechanism: Text


class Provider(Section):
    hosts: tuple[Text, ...]
    """Hosts that are the provider's whatever the policy calls them; `*` is any part of a name."""
    note: Text
    source: Text
    checked: Text
    """The day on which the source said so."""
    preset: dict[str, object]
    """Keys of an upstream, as they would be written."""
    refuses_reports: Text | None = None
    """Who says that it takes no mail from `<>`, or from another address than the account's."""
    oauth2: ProviderOAuth2 | None = None
    verdicts: tuple[SourcedRule, ...] = ()


class ProvidersFile(Section):
    """`providers.yaml`."""

    providers: dict[str, Provider]


@functools.cache
def _rules() -> tuple[RulesFile, Document]:
    return validated(RULES_FILE.read_bytes(), RULES_FILE, RulesFile)


@functools.cache
def _providers() -> tuple[ProvidersFile, Document]:
    return validated(PROVIDERS_FILE.read_bytes(), PROVIDERS_FILE, ProvidersFile)


def providers() -> Mapping[str, Provider]:
    """In the order of the file."""
    return _providers()[0].providers


@functools.cache
def standard_rules() -> tuple[Rule, ...]:
    file, document = _rules()
    return (
        *_placed(Layer.CODE, file.codes, RULES_FILE, document, "codes"),
        *_placed(Layer.WORDING, file.wording, RULES_FILE, document, "wording"),
        *_placed(Layer.DEFAULT, file.default, RULES_FILE, document, "default"),
    )


@functools.cache
def standard_judge() -> Judge:
    return Judge(standard_rules())


def provider_rules(name: str | None) -> tuple[Rule, ...]:
    """Return the rules of a provider; none where it is not known."""
    if name is None or name not in providers():
        return ()
    steps = "providers", name, "verdicts"
    return _placed(Layer.PROVIDER, providers()[name].verdicts, PROVIDERS_FILE, _providers()[1], *steps)


def _placed(
    layer: Layer, rules: Sequence[VerdictRule], path: Path, document: Document, *steps: Step
) -> tuple[Rule, ...]:
    """Return rules with the line where each stands."""
    lines = (document.mark_of((*steps, index)).line for index in range(len(rules)))
    return tuple(rule.rule(layer, f"{path.name}:{line}") for rule, line in zip(rules, lines, strict=True))


def rules_of(name: str, upstream: "Upstream") -> tuple[Rule, ...]:
    """Return the rules of an upstream of the policy: the owner's, its provider's, everybody's."""
    owners = (
        rule.rule(Layer.OPERATOR, f"upstreams.{name}.verdicts[{index}]")
        for index, rule in enumerate(upstream.verdicts)
    )
    return (*owners, *provider_rules(provider_of(upstream.provider, upstream.host)), *standard_rules())


def provider_of(name: str | None, host: str) -> str | None:
    """Return which provider an upstream is: by its key, else by its host, else None."""
    if name is not None:
        return name
    wanted = host.lower().removesuffix(".")
    return next(
        (
            known
            for known, provider in providers().items()
            for pattern in provider.hosts
            if re.fullmatch("[a-z0-9.-]*".join(map(re.escape, pattern.split("*"))), wanted)
        ),
        None,
    )


def with_presets(policy: object) -> object:
    """Keep what the owner wrote; whatever is not as it should be is left to the model."""
    match policy:
        case {"upstreams": dict() as upstreams, **others}:
            return {**others, "upstreams": {name: _filled(each) for name, each in upstreams.items()}}
        case _:
            return policy


def _filled(upstream: object) -> object:
    match upstream:
        case {"provider": str() as name, **written} if name in providers():
            provider = providers()[name]
        case _:
            return upstream
    filled: dict[Any, Any] = {**provider.preset, "provider": name, **written}
    match filled:
        case {"auth": {"oauth2": dict() as oauth2, **auth}} if provider.oauth2 is not None:
            filled["auth"] = {**auth, "oauth2": {**_oauth2_of(provider.oauth2, oauth2), **oauth2}}
    return filled


def _oauth2_of(known: ProviderOAuth2, written: Mapping[str, object]) -> dict[str, object]:
    """Return what a provider knows; a URL with the tenant only where the owner wrote a tenant."""
    grant, tenant = written.get("grant"), written.get("tenant")
    filled: dict[str, object] = {"mechanism": known.mechanism}
    if isinstance(grant, str) and grant in known.scopes:
        filled["scope"] = known.scopes[grant]
    for key in ("token_url", "device_url", "login_url"):
        url = getattr(known, key)
        if url is not None and (isinstance(tenant, str) or "{tenant}" not in url):
            filled[key] = url.replace("{tenant}", str(tenant))
    return filled
