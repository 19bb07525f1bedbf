"""`relay check`: all that is wrong with a policy, or what it comes to."""

import socket
from collections.abc import Iterator
from pathlib import Path

import click

from relay.cli.options import policy_option, printable
from relay.policy.model import Listen, Policy, Tls, Upstream
from relay.policy.secrets import credentials_folder
from relay.policy.shipped import provider_of, providers
from relay.policy.source import policy_text, read_policy
from relay.throttle.limit import plain_words

Row = tuple[str, str]
"""What it is about, or nothing where that is as in the row before; and the words."""


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
    for about, words in _summary(policy):
        click.echo(printable(f"{about:<9} {words}"))


def _summary(policy: Policy) -> Iterator[Row]:
    yield "spool", f"{policy.spool} ({policy.storage.postgresql or policy.storage.engine})"
    for listen in policy.listen:
        yield "listen", f"{listen.address}: {_door(listen)}"
        if not listen.clients and listen.users_file is None:
            yield "", "note: nobody may relay through it; name clients or a users_file"
    if policy.http is not None:
        yield "http", str(policy.http)
    for name, upstream in policy.upstreams.items():
        yield from _upstream(policy, name, upstream)
    yield from _reports(policy)


def _door(listen: Listen) -> str:
    parts = []
    if listen.clients:
        parts.append(f"clients {', '.join(str(network) for network in listen.clients)}")
    if listen.users_file is not None:
        parts.append("users with AUTH")
    if listen.certificate is not None:
        parts.append("implicit TLS" if listen.tls is Tls.IMPLICIT else "STARTTLS")
    return "; ".join(parts) or "no clients"


def _upstream(policy: Policy, name: str, upstream: Upstream) -> Iterator[Row]:
    tls = "no TLS" if upstream.tls is Tls.NONE else f"TLS {upstream.tls}"
    user = "no auth" if upstream.auth is None else f"user {upstream.auth.user}"
    shown = "" if upstream.tls_certificate is None else ", a certificate of its own"
    source = "" if upstream.source_address is None else f", from {upstream.source_address}"
    where = f"{upstream.host} port {upstream.port}{source}"
    yield "upstream", f"{name}: {where}, {tls}{shown}, {user}, {upstream.connections} connections"
    if upstream.provider is not None:
        yield "", f"provider {upstream.provider}: {providers()[upstream.provider].note}"
    for limit in upstream.limits:
        yield "", f"at most {plain_words(limit)}"
    yield "", f"history {policy.history_of(name)}"
    for note in _notes(policy, name, upstream):
        yield "", f"note: {note}"


def _notes(policy: Policy, name: str, upstream: Upstream) -> Iterator[str]:
    history = policy.history_of(name)
    if others := [each for each in policy.upstreams if each != name and policy.history_of(each) == history]:
        shared = "both count in one history, each by its own limits"
        yield f"the same account as {', '.join(others)}: {shared}"
    credential = None if upstream.auth is None else upstream.auth.password_credential
    if credential is not None and credentials_folder() is None:
        yield "the credential of its password was not checked: only the service has $CREDENTIALS_DIRECTORY"
    oauth2 = None if upstream.auth is None else upstream.auth.oauth2
    refresh_token = None if oauth2 is None else oauth2.refresh_token_file
    if refresh_token is not None and not refresh_token.exists():
        yield f"there is no refresh token yet: run `relay login {name}`"
    if upstream.source_address is not None and not _is_here(upstream.source_address):
        yield f"this host has no address {upstream.source_address}, so nothing would be sent"
    if not upstream.limits:
        yield "no limits, so mail goes as fast as it is taken"
    if name not in policy.listed_upstreams:
        first = f"all of it goes to the first, {policy.default_upstream}"
        yield f"gets no mail; {'no route names it' if policy.routes else first}"


def _is_here(address: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as bound:
        try:
            bound.bind((address, 0))
        except OSError:
            return False
    return True


def _reports(policy: Policy) -> Iterator[Row]:
    hostname = policy.hostname or socket.getfqdn()
    through = policy.upstreams_of_reports
    yield (
        "reports",
        f"through {', '.join(through)}, from {policy.reports.sender or f'MAILER-DAEMON@{hostname}'}",
    )
    for name in through:
        upstream = policy.upstreams[name]
        provider = provider_of(upstream.provider, upstream.host)
        if provider is not None and providers()[provider].refuses_reports:
            yield "", f"note: {provider} refuses reports: name another upstream in reports.upstreams"
    if "." not in hostname:
        yield "", f"note: this host is called {hostname}, without a domain: write hostname"
