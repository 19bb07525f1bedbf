"""`relay check`: all that is wrong with a policy, or what it comes to."""

import socket
from collections.abc import Iterator
from pathlib import Path

import click

from relay.cli.options import policy_option, printable
from relay.mail.formats import span
from relay.policy.differences import policy_text
from relay.policy.lane import lanes_of
from relay.policy.model import RESTART_KEYS, Listen, Policy, SpoolEngine, Tls, Upstream
from relay.policy.secrets import has_credentials
from relay.policy.shipped import provider_of, providers
from relay.policy.source import read_policy
from relay.policy.units import written_key
from relay.throttle.limit import plain_words


@click.command()
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@policy_option
@click.option("--show", "is_shown", is_flag=True, help="Print the policy with all presets and defaults.")
def check(policy_path: Path, file: Path | None, *, is_shown: bool) -> None:
    """Check a policy: print every fault, or a summary.

    FILE is the policy, as with --policy.  Each fault is a line FILE:LINE:COLUMN: KEY: MESSAGE on stderr;
    the exit code is then 78.  The files that the policy names are checked too, so run this as the user
    that the relay runs as.
    """
    path = file or policy_path
    policy = read_policy(path)
    if is_shown:
        click.echo(policy_text(policy), nl=False)
        return
    click.echo(f"{printable(path)} is good")
    for line in summary(policy):
        click.echo(printable(line))


def summary(policy: Policy) -> Iterator[str]:
    engine = policy.storage.engine
    yield f"spool     {policy.spool}{f' ({engine})' if engine is not SpoolEngine.MAILDIR else ''}"
    for listen in policy.listen:
        yield f"listen    {listen.address}: {_door(listen)}"
        if not listen.clients and listen.users_file is None:
            yield "          note: nobody may relay through it; name clients or a users_file"
    if policy.http is not None:
        yield f"http      {policy.http}"
    for name, upstream in policy.upstreams.items():
        yield from _upstream_lines(policy, name, upstream)
    yield from _lanes(policy)
    yield from _routes(policy)
    yield from _reports(policy)
    if policy.practice is not None:
        yield f"practice  {policy.practice.address}: at most {plain_words(policy.practice.limit)}"
    given = [written_key(Policy, key) for key in RESTART_KEYS if key in policy.model_fields_set]
    yield f"restart   needed after a change of {', '.join(given)}; all else is live"


def _upstream_lines(policy: Policy, name: str, upstream: Upstream) -> Iterator[str]:
    yield f"upstream  {name}: {_way(upstream)}"
    if upstream.provider is not None:
        yield f"          provider {upstream.provider}: {providers()[upstream.provider].note}"
    for limit in upstream.limits:
        yield f"          at most {plain_words(limit)}"
    history = policy.history_path(name)
    yield f"          history {history}"
    if others := [each for each in policy.upstreams if each != name and policy.history_path(each) == history]:
        shared = "both count in one history, each by its own limits"
        yield f"          note: the same account as {', '.join(others)}: {shared}"
    credential = None if upstream.auth is None else upstream.auth.password_credential
    if credential is not None and not has_credentials():
        yield (
            "          note: the credential of its password was not checked: $CREDENTIALS_DIRECTORY is set "
            "where systemd runs the service"
        )
    oauth2 = None if upstream.auth is None else upstream.auth.oauth2
    refresh_token = None if oauth2 is None else oauth2.refresh_token_file
    if refresh_token is not None and not refresh_token.exists():
        yield f"          note: there is no refresh token yet: run `relay login {name}`"
    if upstream.source_address is not None and not _is_here(upstream.source_address):
        yield f"          note: this host has no address {upstream.source_address}, so nothing would be sent"
    if not upstream.limits:
        yield "          note: no limits, so mail goes as fast as it is taken"
    if name not in policy.listed_upstreams:
        first = f"all of it goes to the first, {policy.default_upstream}"
        yield f"          note: gets no mail; {'no route names it' if policy.routes else first}"


def _is_here(address: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as bound:
        try:
            bound.bind((address, 0))
        except OSError:
            return False
    return True


def _lanes(policy: Policy) -> Iterator[str]:
    lanes = lanes_of(policy.lanes)
    for lane in lanes:
        share = 100 * lane.weight / sum(each.weight for each in lanes)
        ceiling = policy.lanes[lane.name].ceiling if lane.has_ceiling else None
        most = "" if ceiling is None else f", at most {ceiling} % of each limit"
        yield f"lane      {lane.name}: {share:.4g} % of what goes{most}"


def _routes(policy: Policy) -> Iterator[str]:
    for number, route in enumerate(policy.routes, 1):
        what = ", ".join(route.asked()) or "all other mail"
        if len(route.upstreams) == 1:
            after = ""
        elif route.failover_after_ns is None:
            after = ", never fails over"
        else:
            after = f", fails over after {span(route.failover_after_ns)}"
        spill = "" if route.spill_after_ns is None else f", spills after {span(route.spill_after_ns)}"
        rewrite = "" if route.rewrite is None else f", sent by {route.rewrite}"
        yield f"route     {number}: by {what}, through {', '.join(route.upstreams)}{after}{spill}{rewrite}"


def _reports(policy: Policy) -> Iterator[str]:
    hostname = policy.hostname or socket.getfqdn()
    through = policy.upstreams_of_reports
    sender = policy.reports.sender or f"MAILER-DAEMON@{hostname}"
    yield f"reports   through {', '.join(through)}, from {sender}"
    for name in through:
        upstream = policy.upstreams[name]
        provider = provider_of(upstream.provider, upstream.host)
        if provider is not None and providers()[provider].refuses_reports is not None:
            yield f"          note: {provider} refuses reports: name another upstream in reports.upstreams"
    if "." not in hostname:
        yield f"          note: this host is called {hostname}, without a domain: write hostname"


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
    shown = "" if upstream.tls_certificate is None else ", a certificate of its own"
    source = "" if upstream.source_address is None else f", from {upstream.source_address}"
    where = f"{upstream.host} port {upstream.port}{source}"
    return f"{where}, {tls}{shown}, {user}, {upstream.connections} connections"
