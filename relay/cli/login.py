"""`relay login`: a person's consent becomes a refresh token on disk, durable.

Works beside a relay that runs, and needs none.  Guarantees: the file's folder and owner are looked at before
anybody is asked for anything; a token that was given is written, or the error says that it was not; nothing
shown holds a secret.
"""

import asyncio
import errno
import os
import sys
from pathlib import Path

import click

from relay.cli.options import named_upstream, policy_option, printable
from relay.clock import SystemClock
from relay.policy.model import Auth, GrantType, OAuth2
from relay.policy.secrets import read_client_secret
from relay.policy.source import read_policy
from relay.sender.refresh_token_file import RefreshTokenFile
from relay.spool.disk.durable import RealDisk
from relay.upstream.oauth.login import (
    LoginClient,
    LoginFailed,
    begin,
    begin_in_browser,
    finish_in_browser,
    wait_for_consent,
)
from relay.upstream.oauth.token_server import ask


@click.command()
@click.argument("upstream")
@policy_option
def login(policy_path: Path, upstream: str) -> int:
    """Consent to mail through UPSTREAM by OAuth2, and keep the refresh token.

    Prints an address and a code for any device with a browser, and waits.  Where the provider has no such
    codes for mail (Gmail), it prints a link, and asks for the address that the browser shows at the end.
    Needs `grant: refresh_token`; run it as the user that the relay runs as.  A running relay takes the new
    token by itself.  Exit codes: 0, 75 to try later, 77 if it was refused, 78 for a fault in the policy.
    """
    auth = named_upstream(read_policy(policy_path), upstream).auth
    oauth2 = None if auth is None else auth.oauth2
    if auth is None or oauth2 is None:
        return _failed(upstream, "it has no auth.oauth2: there is nothing to consent to", os.EX_CONFIG)
    path = oauth2.refresh_token_file
    if oauth2.grant is not GrantType.REFRESH_TOKEN or path is None:
        why = f"its grant is {oauth2.grant}, which needs nobody's consent here"
        return _failed(upstream, why, os.EX_CONFIG)
    try:
        _refuse_unwritable(path)
        token = asyncio.run(_consent(auth, oauth2))
        # Crash here: the consent is lost, and is asked for again.
        RefreshTokenFile(path, RealDisk()).write(token)
    except LoginFailed as failed:
        why = str(failed).replace("UPSTREAM", upstream)
        return _failed(upstream, why, os.EX_TEMPFAIL if failed.may_pass else os.EX_NOPERM)
    except PermissionError:
        raise
    except OSError as error:
        return _failed(upstream, f"the refresh token could not be kept: {error}", os.EX_TEMPFAIL)
    click.echo(printable(f"{upstream}: consent is kept in {path}; try it: relay probe {upstream}"))
    return os.EX_OK


def _failed(upstream: str, why: str, code: int) -> int:
    click.echo(printable(f"{upstream}: {why}"), err=True)
    return code


async def _consent(auth: Auth, oauth2: OAuth2) -> str:
    """Ask the person at the terminal; return the refresh token.  Raises LoginFailed, SecretError."""
    client, clock = LoginClient(oauth2, read_client_secret(oauth2), ask), SystemClock()
    if oauth2.device_url is not None:
        code = await begin(client, clock)
        click.echo(f"Open {printable(code.url)} on any device, and type this code:\n")
        click.echo(f"    {printable(code.user_code)}\n")
        click.echo("Log in there as the account that sends, and consent.  Waiting ...")
        return (await wait_for_consent(client, code, clock, asyncio.sleep)).refresh_token
    begun = begin_in_browser(oauth2, auth.user)
    click.echo("Open this link in any browser, log in as the account that sends, and consent:\n")
    click.echo(f"{begun.url}\n")
    click.echo("At the end the browser shows that it cannot open a page of 127.0.0.1: that is right.")
    if sys.stdin.isatty():
        address = click.prompt("Copy the whole address from its address line to here", hide_input=True)
    else:
        address = sys.stdin.readline()
    return (await finish_in_browser(client, begun, address)).refresh_token


def _refuse_unwritable(path: Path) -> None:
    """Raise OSError: a file that root makes, the relay could not read."""
    folder = path.parent
    owner = (path if path.exists() else folder).stat().st_uid
    if owner != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {owner}; run this as that user", str(path))
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, "its folder may not be written", str(path))
