"""`relay check`: all that is wrong with a policy, or what it comes to."""

import contextlib
import enum
import json
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

import click

from relay.cli.options import DEFAULT_POLICY, POLICY_VARIABLE, printable
from relay.policy.lane import lanes_of
from relay.policy.loosening import RESTART_KEYS
from relay.policy.model import Listen, Policy, Tls, Upstream
from relay.policy.shipped import provider_of, provider_rules, providers
from relay.policy.source import read_policy, value_in
from relay.policy.units import Section


@click.command()
@click.argument(
    "path",
    metavar="[FILE]",
    type=click.Path(path_type=Path),
    envvar=POLICY_VARIABLE,
    default=DEFAULT_POLICY,
)
@click.option("--show", "is_shown", is_flag=True, help="Print the policy with all presets and defaults.")
def check(path: Path, *, is_shown: bool) -> None:
    """Check a policy: print every fault, or a summary.

    FILE is by default $RELAY_POLICY, then ./policy.yaml.  Each fault is a line
    FILE:LINE:COLUMN: KEY: MESSAGE on stderr; the exit code is then 78.  The files that the
    policy names are checked too, so run this as the user that the relay runs as.
    """
    policy = read_policy(path)
    if is_shown:
        click.echo(policy_text(policy, value_in(path)), nl=False)
        return
    click.echo(f"{printable(path)} is good")
    for line in summary(policy):
        click.echo(printable(line))
    if because := _why_an_edit_waits(policy.spool):
        click.echo(printable(f"waits     the running relay has not applied the last edit yet: {because}"))


def summary(policy: Policy) -> Iterator[str]:
    yield f"spool     {policy.spool}"
    for listen in policy.listen:
        yield f"listen    {listen.address}: {_door(listen)}"
        if not listen.clients and listen.users_file is None:
            yield "          note: nobody may relay through it; name clients or a users_file"
    if policy.http is not None:
        yield f"http      {policy.http}"
    for name, upstream in policy.upstreams.items():
        yield f"upstream  {name}: {_way(upstream)}"
        if upstream.provider is not None:
            yield f"          provider {upstream.provider}: {providers()[upstream.provider].note}"
        for limit in upstream.limits:
            yield f"          at most {limit.label}"
        yield f"          history {policy.history_path(name)}"
        if not upstream.limits:
            yield "          note: no limits, so mail goes as fast as it is taken"
        if name != policy.default_upstream:
            yield f"          note: gets no mail; all of it goes to the first, {policy.default_upstream}"
    yield from _lanes(policy)
    if policy.practice is not None:
        yield f"practice  {policy.practice.address}: at most {policy.practice.limit.label}"
    given = [key for key in RESTART_KEYS if key in policy.model_fields_set]
    yield f"restart   needed after a change of {', '.join(given)}; all else is live"


def _why_an_edit_waits(spool: Path) -> str:
    """Why the running relay does not go by an edit yet; empty where none can be asked."""
    with contextlib.suppress(PermissionError):
        if (spool / "control.sock").is_socket():
            # Imported only here: without a running relay no client is loaded.
            from relay.cli.operate import why_an_edit_waits  # noqa: PLC0415 - see above

            return why_an_edit_waits(spool)
    return ""


def _lanes(policy: Policy) -> Iterator[str]:
    lanes = lanes_of(policy.lanes)
    for lane in lanes:
        share = 100 * lane.weight / sum(each.weight for each in lanes)
        ceiling = policy.lanes[lane.name].ceiling if lane.has_ceiling else None
        most = "" if ceiling is None else f", at most {ceiling} % of each limit"
        yield f"lane      {lane.name}: {share:.4g} % of what goes{most}"


def _door(listen: Listen) -> str:
    parts = []
    if listen.clients:
        parts.append(f"clients {', '.join(str(network) for network in listen.clients)}")
    if listen.users_file is not None:
        parts.append("users with AUTH")
    if listen.certificate is not None:
        parts.append("implicit TLS" if listen.tls is Tls.IMPLICIT else "STARTTLS")
    return "; ".join(parts) or "no clients"


def _way(upstream: Upstream) -> str:
    tls = "no TLS" if upstream.tls is Tls.NONE else f"TLS {upstream.tls}"
    user = "no auth" if upstream.auth is None else f"user {upstream.auth.user}"
    return f"{upstream.host} port {upstream.port}, {tls}, {user}, {upstream.connections} connections"


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
    """Write durations as text, and leave out what is not set."""
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
    """Use the largest unit that it is a whole number of."""
    for unit, unit_ns in _UNITS_NS:
        if span_ns % unit_ns == 0:
            return f"{span_ns // unit_ns}{unit}"
    return f"{span_ns / 1_000_000_000:.9f}s"
