"""`relay check` and `relay plan`: a policy before it is in force; `relay hash-password`: its users.

`plan` asks the running relay, which changes nothing.  Its figures are those of `relay.status.eta`.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relay.cli.options import Target, json_option, policy_option, running_relay, say, target_options
from relay.mail.envelope import Envelope
from relay.mail.formats import span, utc
from relay.policy.lane import sorter_of
from relay.policy.model import Policy, Upstream
from relay.policy.secrets import MAX_PASSWORD_BYTES, USER_NAME, credentials_folder
from relay.policy.shipped import provider_of, providers
from relay.policy.source import policy_bytes, policy_text, read_policy

if TYPE_CHECKING:
    from relay.status.plan import Plan

UNTOLD = 1
"""The exit code of `plan` if it cannot tell."""


@click.command()
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@policy_option
@click.option("--show", "is_shown", is_flag=True, help="Print the policy with all presets and defaults.")
def check(policy_path: Path, file: Path | None, *, is_shown: bool) -> None:
    """Check a policy: print every fault, or what may surprise in it.

    FILE is the policy, as with --policy.  Each fault is a line FILE:LINE:COLUMN: KEY: MESSAGE on stderr;
    the exit code is then 78.  The files that the policy names are checked too, so run this as the user
    that the relay runs as.
    """
    path = file or policy_path
    policy = read_policy(path)
    if is_shown:
        click.echo(policy_text(policy), nl=False)
        return
    say(f"{path} is good")
    for note in _notes(policy):
        say(f"note: {note}")


def _notes(policy: Policy) -> Iterator[str]:
    """Yield what may surprise in a good policy."""
    for listen in policy.listen:
        if not listen.clients and listen.users_file is None:
            yield f"{listen.address}: nobody may relay through it; name clients or a users_file"
    for name, upstream in policy.upstreams.items():
        for note in _of_upstream(policy, name, upstream):
            yield f"{name}: {note}"
    hostname = policy.hostname or socket.getfqdn()
    if "." not in hostname:
        yield f"the host name {hostname} has no domain: write hostname"
    report = Envelope("", ("postmaster@example.net",), 0, "", "", "")
    ((route, _),) = sorter_of(policy.lanes, policy.routes).sort(report, bytes).parts
    for name in route.upstreams if route else [policy.default_upstream]:
        upstream = policy.upstreams[name]
        provider = provider_of(upstream.provider, upstream.host)
        if provider is not None and providers()[provider].refuses_reports:
            yield f"{provider} refuses reports: name another upstream in reports.upstreams"


def _of_upstream(policy: Policy, name: str, upstream: Upstream) -> Iterator[str]:
    history, auth = policy.history_of(name), upstream.auth
    if upstream.provider is not None:
        yield f"provider {upstream.provider}: {providers()[upstream.provider].note}"
    if others := [each for each in policy.upstreams if each != name and policy.history_of(each) == history]:
        shared = "both count in one history, each by its own limits"
        yield f"the same account as {', '.join(others)}: {shared}"
    if auth is not None and auth.password_credential is not None and credentials_folder() is None:
        yield "the credential of its password was not checked: only the service has $CREDENTIALS_DIRECTORY"
    refresh_token = None if auth is None or auth.oauth2 is None else auth.oauth2.refresh_token_file
    if refresh_token is not None and not refresh_token.exists():
        yield f"there is no refresh token yet: run `relay login {name}`"
    if not upstream.limits:
        yield "no limits: mail goes as fast as the upstream takes it"
    if name not in policy.listed_upstreams:
        first = f"without routes all mail goes to the first, {policy.default_upstream}"
        yield f"gets no mail; {'no route names it' if policy.routes else first}"


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@target_options
@json_option
def plan(target: Target, path: Path, *, as_json: bool) -> int:
    """Tell what the policy in FILE would do, before it is in force.

    Prints the differences from the policy in force, the limits that would be exceeded at once, and for both
    policies an estimate of when waiting mail will have gone.  Changes nothing.
    """
    from relay.control.operations import WORDS, NotDone  # noqa: PLC0415 - only this verb asks a relay
    from relay.status.snapshot import to_json  # noqa: PLC0415 - as above

    # This reports every fault, as `relay check` does; the relay then reads the text itself.
    read_policy(path)
    text = policy_bytes(path).decode()
    try:
        planned = running_relay(target).plan(text, path.absolute())
    except NotDone as why:
        click.echo(f"cannot tell what this edit would do: {WORDS.get(str(why), why)}", err=True)
        return UNTOLD
    for line in [json.dumps(to_json(planned))] if as_json else _plan_lines(planned, path):
        say(line)
    return os.EX_OK


def _plan_lines(planned: "Plan", path: Path) -> Iterator[str]:
    yield f"{path}, at {utc(planned.at_ns)}; no policy was changed"
    yield "differences from the policy in force:"
    for each in planned.differences:
        yield f"  {each}{' (needs a restart)' if each.needs_restart else ''}"
    if not planned.differences:
        yield "  none"
    for over in planned.over:
        until = f"nothing goes until {utc(over.opens_at_ns)}, in {span(over.opens_at_ns - planned.at_ns)}"
        yield f"exceeded at once: {over.upstream}: {over.limit}: {over.used} of {over.count} used, {until}"
    if not planned.upstreams:
        yield "no mail waits"
    for line in planned.upstreams:
        yield f"{line.name}: {line.messages} messages, {line.recipients} recipients wait"
        yield f"  in force: {_end(line.drained_at_ns, planned.at_ns, line.held_by)}"
        yield f"  edited:   {_end(line.edited_drained_at_ns, planned.at_ns, line.edited_held_by)}"


def _end(at_ns: int | None, now_ns: int, held_by: str) -> str:
    if at_ns is None:
        return f"unknown: {held_by}" if held_by else "unknown"
    for_what = f"; most of it for {held_by}" if held_by else ""
    return f"all have gone in {span(max(0, at_ns - now_ns))}, at {utc(at_ns)}{for_what}"


@click.command("hash-password")
@click.argument("name", required=False)
def hash_password(name: str | None) -> None:
    """Make a line for a users_file from a password.

    Asks for the password twice on a terminal, else reads it as one line from stdin.
    Prints NAME:$argon2id$..., or the hash alone without a NAME.
    """
    from argon2 import PasswordHasher  # noqa: PLC0415 - the other verbs need none

    if name is not None and not USER_NAME.match(name):
        raise click.UsageError("NAME must not be empty, hold a colon or control characters, or start with #")
    hashed = PasswordHasher().hash(_password())
    click.echo(hashed if name is None else f"{name}:{hashed}")


def _password() -> bytes:
    if sys.stdin.isatty():
        typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        password = typed.encode("utf-8")
    else:
        password = sys.stdin.buffer.read(MAX_PASSWORD_BYTES + 2).removesuffix(b"\n").removesuffix(b"\r")
    if not 0 < len(password) <= MAX_PASSWORD_BYTES or any(octet in password for octet in b"\0\r\n"):
        most = f"1 to {MAX_PASSWORD_BYTES} bytes"
        raise click.UsageError(f"the password must be one line of {most}, without NUL")
    return password
