"""The rules about replies and the providers that are shipped with the relay: two files beside this one.

They are read once, and are sound as the tests find them.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay.policy.document import Document, Steps
from relay.policy.rules import VerdictRule
from relay.verdicts.verdict import Judge, Layer, Rule

if TYPE_CHECKING:
    from relay.policy.model import Upstream

RULES_FILE = Path(__file__).with_name("verdicts.yaml")
PROVIDERS_FILE = Path(__file__).with_name("providers.yaml")


@dataclass(frozen=True, slots=True)
class Provider:
    hosts: list[str]
    """Hosts that are the provider's whatever the policy calls them; `*` is any part of a name."""
    note: str
    source: str
    checked: str
    """The day on which the source said so."""
    preset: dict[str, object]
    """Keys of an upstream, as they would be written."""
    refuses_reports: str = ""
    """Who says that it takes no mail from `<>`, or from another address than the account's."""
    oauth2: dict[str, Any] = field(default_factory=dict)
    """Keys of `auth.oauth2`, where `{tenant}` stands for the owner's; of `scopes` the one of the grant."""
    verdicts: list[dict[str, Any]] = field(default_factory=list)


@functools.cache
def _read(path: Path) -> tuple[Any, Document]:
    document = Document(path.read_bytes())
    return document.value, document


@functools.cache
def providers() -> Mapping[str, Provider]:
    """In the order of the file."""
    return {name: Provider(**its) for name, its in _read(PROVIDERS_FILE)[0]["providers"].items()}


@functools.cache
def standard_rules() -> tuple[Rule, ...]:
    layers = {"codes": Layer.CODE, "wording": Layer.WORDING, "default": Layer.DEFAULT}
    return tuple(rule for key, layer in layers.items() for rule in _rules(layer, RULES_FILE, (key,)))


@functools.cache
def standard_judge() -> Judge:
    return Judge(standard_rules())


@functools.cache
def provider_rules(name: str | None) -> tuple[Rule, ...]:
    """Return the rules of a provider; none where it is not known."""
    if name is None or name not in providers():
        return ()
    return _rules(Layer.PROVIDER, PROVIDERS_FILE, ("providers", name, "verdicts"))


def _rules(layer: Layer, path: Path, steps: Steps) -> tuple[Rule, ...]:
    """Return the rules in a list of a file, each with the line where it stands."""
    rows, document = _read(path)
    for step in steps:
        rows = rows.get(step, [])
    return tuple(
        VerdictRule.model_validate(row, by_alias=True).rule(
            layer, f"{path.name}:{document.mark_of((*steps, index)).line}"
        )
        for index, row in enumerate(rows)
    )


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
    for known, provider in providers().items():
        for pattern in provider.hosts:
            if re.fullmatch("[a-z0-9.-]*".join(map(re.escape, pattern.split("*"))), wanted):
                return known
    return None


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
        case {"auth": {"oauth2": dict() as oauth2, **auth}}:
            filled["auth"] = {**auth, "oauth2": {**_oauth2_of(provider.oauth2, oauth2), **oauth2}}
    return filled


def _oauth2_of(known: Mapping[str, Any], written: Mapping[str, object]) -> dict[str, object]:
    """Return what a provider knows; a URL with the tenant only where the owner wrote a tenant."""
    grant, tenant = written.get("grant"), written.get("tenant")
    filled: dict[str, object] = {}
    for key, its in known.items():
        if key == "scopes":
            filled |= {"scope": its[grant]} if isinstance(grant, str) and grant in its else {}
        elif isinstance(tenant, str) or "{tenant}" not in its:
            filled[key] = its.replace("{tenant}", str(tenant))
    return filled
