"""A policy as a policy file would say all of it: presets and defaults written out, paths absolute.  Pure.

What it returns is a policy file itself, which means the same; but of a hook's URL it shows no path, since
that may be secret, and such a file is refused where the URL stands.  Nor does it show the name of a
credential, where a password may stand by mistake.
"""

import enum
import json
from collections.abc import Container, Iterator, Mapping

from relay.policy.hook import HookSettings
from relay.policy.model import Policy, Upstream
from relay.policy.shipped import provider_of, provider_rules, providers
from relay.policy.units import Section

_UNITS_NS = (
    ("d", 86_400 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
)


def policy_text(policy: Policy, written: object) -> str:
    """`written` is the value of the owner's file, as read."""
    return "\n".join(_lines(policy, written)) + "\n"


def _lines(policy: Policy, written: object) -> Iterator[str]:
    given = written if isinstance(written, Mapping) else {}
    for key, value in written_fields(policy):
        if key != "upstreams":
            yield f"{key}: {value_text(value)}{_origin(key, given, {}, None)}"
            continue
        yield "upstreams:"
        theirs = given.get("upstreams", {})
        for name, upstream in policy.upstreams.items():
            yield f"  {name}:"
            provider = None if upstream.provider is None else providers()[upstream.provider]
            preset = {} if provider is None else provider.preset
            said = None if provider is None else f"{upstream.provider}, {provider.checked}: {provider.source}"
            for its_key, its_value in written_fields(upstream):
                origin = _origin(its_key, theirs.get(name, {}), preset, said)
                yield f"    {its_key}: {value_text(its_value)}{origin}"
                if its_key == "verdicts":
                    yield from _rules_asked_after(upstream)


def _rules_asked_after(upstream: Upstream) -> Iterator[str]:
    name = provider_of(upstream.provider, upstream.host)
    if name is not None:
        by_host = "" if upstream.provider is not None else ", known by its host"
        yield f"    # asked next, those of {name}{by_host}, {providers()[name].checked}:"
        for written, rule in zip(providers()[name].verdicts, provider_rules(name), strict=True):
            keys = (
                f"{key}: {value_text(value)}"
                for key, value in written_fields(written, written.model_fields_set)
            )
            yield f"    # - {{{', '.join(keys)}}}  # {rule.place}"
    yield "    # asked last, those for any upstream: relay explain-reply --table"


def _origin(key: str, written: Mapping[str, object], preset: Mapping[str, object], said: str | None) -> str:
    if key in written:
        return ""
    return f"  # {said}" if key in preset else "  # default"


def written_fields(section: Section, only: Container[str] | None = None) -> Iterator[tuple[str, object]]:
    """Write durations as text, and leave out what is not set."""
    for name, field in type(section).model_fields.items():
        if only is not None and name not in only:
            continue
        value = getattr(section, name)
        if name == "url" and isinstance(section, HookSettings):
            value = section.shown_url
        if value is None and field.default is None:
            continue
        yield written_key(type(section), name), written_value(name, value)


def written_key(section: type[Section], name: str) -> str:
    """Return a key as a policy writes it: without its unit."""
    return section.model_fields[name].alias or name


class _Unshown(str):
    """Compares as what it is, and is printed as an ellipsis."""

    __slots__ = ()

    def __str__(self) -> str:
        return "…"


def written_value(name: str, value: object) -> object:
    """Return a duration as text, a credential's name as what is not shown, and any other value as it is."""
    if isinstance(value, str) and name.endswith("_credential"):
        return _Unshown(value)
    # A limit's `per` is a duration, or a period's name.
    if isinstance(value, int) and (name.endswith("_ns") or name == "per"):
        return duration_text(value)
    return value


def value_text(value: object) -> str:
    match value:
        case Section():
            return "{" + ", ".join(f"{key}: {value_text(each)}" for key, each in written_fields(value)) + "}"
        case Mapping():
            return "{" + ", ".join(f"{key}: {value_text(each)}" for key, each in value.items()) + "}"
        case tuple():
            return "[" + ", ".join(value_text(each) for each in value) + "]"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case enum.Enum() | int():
            return str(value)
        case _:
            return json.dumps(str(value), ensure_ascii=False)


def duration_text(span_ns: int) -> str:
    """Use the largest unit that it is a whole number of."""
    for unit, unit_ns in _UNITS_NS:
        if span_ns % unit_ns == 0:
            return f"{span_ns // unit_ns}{unit}"
    return f"{span_ns / 1_000_000_000:.9f}s"
