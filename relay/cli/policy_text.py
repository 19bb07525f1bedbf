"""A policy as YAML with every key that is in force, and where each came from.  Pure.

What it returns is itself a policy and means the same: presets and defaults written out.
The rules of the provider are comments in it, since they hold without being written: each
as it would stand under `verdicts`.
"""

import enum
import json
from collections.abc import Container, Iterator, Mapping

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
    """Return a policy written out; `written` is the value of the owner's file, as read."""
    return "\n".join(_lines(policy, written)) + "\n"


def _lines(policy: Policy, written: object) -> Iterator[str]:
    given = written if isinstance(written, Mapping) else {}
    for key, value in _fields(policy):
        if key != "upstreams":
            yield f"{key}: {_flow(value)}{_origin(key, given, {}, None)}"
            continue
        yield "upstreams:"
        theirs = given.get("upstreams", {})
        for name, upstream in policy.upstreams.items():
            yield f"  {name}:"
            provider = None if upstream.provider is None else providers()[upstream.provider]
            preset = {} if provider is None else provider.preset
            said = None if provider is None else f"{upstream.provider}, {provider.checked}: {provider.source}"
            for its_key, its_value in _fields(upstream):
                origin = _origin(its_key, theirs.get(name, {}), preset, said)
                yield f"    {its_key}: {_flow(its_value)}{origin}"
                if its_key == "verdicts":
                    yield from _rules_asked_after(upstream)


def _rules_asked_after(upstream: Upstream) -> Iterator[str]:
    """Return the rules that the owner did not write, as comments, each with its source and place."""
    name = provider_of(upstream.provider, upstream.host)
    if name is not None:
        by_host = "" if upstream.provider is not None else ", known by its host"
        yield f"    # asked next, those of {name}{by_host}, {providers()[name].checked}:"
        for written, rule in zip(providers()[name].verdicts, provider_rules(name), strict=True):
            keys = (f"{key}: {_flow(value)}" for key, value in _fields(written, written.model_fields_set))
            yield f"    # - {{{', '.join(keys)}}}  # {rule.place}"
    yield "    # asked last, those for any upstream: relay explain-reply --table"


def _origin(key: str, written: Mapping[str, object], preset: Mapping[str, object], said: str | None) -> str:
    if key in written:
        return ""
    return f"  # {said}" if key in preset else "  # default"


def _fields(section: Section, only: Container[str] | None = None) -> Iterator[tuple[str, object]]:
    """Return the keys of a section and their values; durations as text, what is not set left out."""
    for name, field in type(section).model_fields.items():
        if only is not None and name not in only:
            continue
        value = getattr(section, name)
        if value is None and field.default is None:
            continue
        if name.endswith("_ns") and isinstance(value, int):
            value = _duration(value)
        yield field.alias or name, value


def _flow(value: object) -> str:
    match value:
        case Section():
            return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in _fields(value)) + "}"
        case Mapping():
            return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
        case tuple():
            return "[" + ", ".join(_flow(each) for each in value) + "]"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case enum.Enum() | int():
            return str(value)
        case _:
            return json.dumps(str(value), ensure_ascii=False)


def _duration(span_ns: int) -> str:
    """Return a duration in the largest unit that it is a whole number of."""
    for unit, unit_ns in _UNITS_NS:
        if span_ns % unit_ns == 0:
            return f"{span_ns // unit_ns}{unit}"
    return f"{span_ns / 1_000_000_000:.9f}s"
