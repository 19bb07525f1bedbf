"""`relay probe` tries an account, `relay login` gets and keeps a consent; with or without a running relay.

Guarantees: a probe sends no mail.  If a limit in force counts connections, the probe reserves a connection in
the account's own history, under its lock.  A login checks the token file's folder and owner before it asks
anybody.  It writes a granted token durably, or its error says that it did not.  Output shows no secret.
Does not: take the spool's lock, or talk to the running relay.
"""

import asyncio
import errno
import io
import os
import socket
import ssl
import sys
from pathlib import Path

import click

from relay.cli.options import Failed, named_upstream, policy_option, printable, say
from relay.clock import SECOND_NS, SystemClock
from relay.control.offline import refuse_strangers
from relay.policy.model import SECRETS, Auth, OAuth2, Policy
from relay.policy.secrets import NotLoggedIn, SecretError, read_secrets, secret_of
from relay.policy.shipped import rules_of
from relay.policy.source import read_policy
from relay.sender.connections import Logins, NoRoomToConnect, write_refresh_token
from relay.sender.threads import ThrottleThread
from relay.smtp.reply import Phase
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics, Telemetry
from relay.throttle.limit import with_ceilings
from relay.throttle.throttle import Throttle, open_history
from relay.upstream.connection import UpstreamUnavailable
from relay.upstream.oauth.login import (
    LoginClient,
    LoginFailed,
    begin,
    begin_in_browser,
    finish_in_browser,
    wait_for_consent,
)
from relay.upstream.oauth.token_server import ask
from relay.verdicts.verdict import Judge, Verdict

_STEP_OF = {Phase.CONNECT: "connect", Phase.EHLO: "ehlo", Phase.STARTTLS: "tls", Phase.AUTH: "login"}


@click.command()
@click.argument("upstream")
@policy_option
def probe(policy_path: Path, upstream: str) -> int:
    """Log in at UPSTREAM and print each step with its time; send no mail.

    Limits that count connections count this one.  Exit codes: 0 if all went well, 75 to try later, 77 if
    the account was refused, 78 for a fault in the policy, a secret or the certificate.  Works with the
    relay up or down.
    """
    policy = read_policy(policy_path)
    named_upstream(policy, upstream)
    return asyncio.run(_probed(policy, upstream))


async def _probed(policy: Policy, name: str) -> int:
    """Resolve, connect, TLS, EHLO, AUTH, QUIT; return the exit code.

    Raises SecretError, HistoryError, and PermissionError if the relay runs as another user.
    """
    refuse_strangers(policy.spool)
    upstream, clock, disk = policy.upstreams[name], SystemClock(), RealDisk()
    try:
        if upstream.auth is not None:
            read_secrets(upstream.auth)
    except NotLoggedIn as error:
        raise SecretError(f"{error}: run `relay login {name}`") from None
    since_ns, told = clock.boottime_ns(), list[str]()

    def step(step: str, text: str, *, is_good: bool = True) -> None:
        nonlocal since_ns
        took_ns, since_ns = clock.boottime_ns() - since_ns, clock.boottime_ns()
        told.append(step)
        mark = "" if is_good else "failed: "
        click.echo(f"{step:<9}{took_ns / SECOND_NS:8.3f} s  {mark}{printable(text)}")

    # The steps say what the log would say.
    telemetry = Telemetry(Events(io.StringIO(), "text", clock), Metrics(), clock)
    logins = Logins(name, upstream, policy.hostname or socket.getfqdn(), disk=disk, telemetry=telemetry)
    history = policy.history_of(name)
    throttle = ThrottleThread(
        Throttle(
            open_history(history, disk, clock),
            with_ceilings(upstream, policy.lanes),
            clock,
            transaction_ns=upstream.max_transaction_ns,
        ),
        clock,
        lambda error: step("history", str(error), is_good=False),
    )
    try:
        await throttle.call(Throttle.flush)
        if throttle.view.is_empty:
            # The relay's next start will not say it, because the history is there by then.
            step("history", f"new history {history}: earlier mail is not counted")
        judge = Judge(rules_of(name, upstream))
        await (await logins.open(throttle, judge, on_step=step)).close()
    except UpstreamUnavailable as unavailable:
        answer = unavailable.answer
        # If no step at the upstream came before, the token failed, not the connection.
        what = "token" if told in ([], ["history"]) else _STEP_OF.get(answer.phase, str(answer.phase))
        step(what, answer.text, is_good=False)
        if isinstance(unavailable.__cause__, ssl.SSLCertVerificationError):
            return os.EX_CONFIG
        # The upstream, or the token server, refused the account: a person has to act.
        return os.EX_NOPERM if answer.verdict in {Verdict.STOP, Verdict.BOUNCE} else os.EX_TEMPFAIL
    except NoRoomToConnect as full:
        step("slot", f"no room in {full}: no connection was opened", is_good=False)
        return os.EX_TEMPFAIL
    finally:
        await throttle.close()
        await logins.close()
    step("quit", "closed")
    return os.EX_OK


@click.command()
@click.argument("upstream")
@policy_option
def login(policy_path: Path, upstream: str) -> None:
    """Consent to mail through UPSTREAM by OAuth2, and keep the refresh token.

    Prints an address and a code for any device with a browser, and waits.  If the provider has no such
    codes for mail (Gmail), prints a link, and asks for the address that the browser shows at the end.
    Needs `grant: refresh_token`; run it as the user that the relay runs as.  A running relay uses the new
    token by itself.  Exit codes: 0, 75 to try later, 77 if refused, 78 for a fault in the policy.
    """

    def failed(why: str, code: int) -> Failed:
        return Failed(printable(f"{upstream}: {why}"), code)

    auth = named_upstream(read_policy(policy_path), upstream).auth
    oauth2 = None if auth is None else auth.oauth2
    path = None if oauth2 is None else oauth2.refresh_token_file
    if auth is None or oauth2 is None or path is None or oauth2.grant != "refresh_token":
        raise failed("the upstream needs auth.oauth2 with `grant: refresh_token`", os.EX_CONFIG)
    try:
        _refuse_unwritable(path)
        token = asyncio.run(_consent(auth, oauth2))
        # Crash here: the consent is lost; the next login asks for it again.
        write_refresh_token(path, RealDisk(), token)
    except LoginFailed as error:
        why = str(error).replace("UPSTREAM", upstream)
        raise failed(why, os.EX_TEMPFAIL if error.may_pass else os.EX_NOPERM) from error
    except PermissionError:
        raise
    except OSError as error:
        raise failed(f"the refresh token could not be saved: {error}", os.EX_TEMPFAIL) from error
    say(f"{upstream}: the refresh token is saved in {path}; try it: relay probe {upstream}")


async def _consent(auth: Auth, oauth2: OAuth2) -> str:
    """Ask the person at the terminal; return the refresh token.  Raises LoginFailed, SecretError."""
    client, clock = LoginClient(oauth2, secret_of(oauth2, *SECRETS), ask), SystemClock()
    if oauth2.device_url is not None:
        code = await begin(client, clock)
        click.echo(f"Open {printable(code.url)} on any device, and type this code:\n")
        click.echo(f"    {printable(code.user_code)}\n")
        click.echo("Log in there as the account that sends, and consent.  Waiting ...")
        return (await wait_for_consent(client, code, clock, asyncio.sleep)).refresh_token
    begun = begin_in_browser(oauth2, auth.user)
    click.echo("Open this link in any browser, log in as the account that sends, and consent:\n")
    click.echo(f"{begun.url}\n")
    click.echo("At the end the browser cannot open a page on 127.0.0.1; this is expected.")
    if sys.stdin.isatty():
        address = click.prompt("Paste the whole address of that page here", hide_input=True)
    else:
        address = sys.stdin.readline()
    return (await finish_in_browser(client, begun, address)).refresh_token


def _refuse_unwritable(path: Path) -> None:
    """Raise OSError for a file or folder of another user: the relay could not read a file that root makes."""
    refuse_strangers(path if path.exists() else path.parent)
    if not os.access(path.parent, os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, "its folder is not writable", str(path))
