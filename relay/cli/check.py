"""`relay check`: all that is wrong with a policy, or what it comes to."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from relay.cli.options import DEFAULT_POLICY, POLICY_VARIABLE, printable
from relay.cli.policy_text import policy_text
from relay.policy.lane import lanes_of
from relay.policy.loosening import RESTART_KEYS
from relay.policy.model import Listen, Policy, Tls, Upstream
from relay.policy.shipped import providers
from relay.policy.source import read_policy, value_in


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
    """Tell all that is wrong with a policy, or sum it up.

    FILE is by default $RELAY_POLICY, then ./policy.yaml.  Every fault is a line
    FILE:LINE:COLUMN: KEY: MESSAGE on stderr, and the exit code is 78.  The files that a
    policy names are looked at too, so run this as the user that the relay runs as.
    """
    policy = read_policy(path)
    if is_shown:
        click.echo(policy_text(policy, value_in(path)), nl=False)
        return
    click.echo(f"{printable(path)} is good")
    for line in summary(policy):
        click.echo(printable(line))
    if because := _why_an_edit_waits(policy.spool):
        click.echo(printable(f"waits     the relay that runs does not go by its last edit yet: {because}"))


def summary(policy: Policy) -> Iterator[str]:
    """Return what a policy comes to, line by line."""
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
    """Return why the relay that runs on a spool does not go by an edit yet, if one can be asked."""
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
    """Return who may relay through a listener, and how."""
    parts = []
    if listen.clients:
        parts.append(f"clients {', '.join(str(network) for network in listen.clients)}")
    if listen.users_file is not None:
        parts.append("users with AUTH")
    if listen.certificate is not None:
        parts.append("implicit TLS" if listen.tls is Tls.IMPLICIT else "STARTTLS")
    return "; ".join(parts) or "no clients"


def _way(upstream: Upstream) -> str:
    """Return how mail goes to an upstream."""
    tls = "no TLS" if upstream.tls is Tls.NONE else f"TLS {upstream.tls}"
    user = "no auth" if upstream.auth is None else f"user {upstream.auth.user}"
    return f"{upstream.host} port {upstream.port}, {tls}, {user}, {upstream.connections} connections"
