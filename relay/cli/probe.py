"""`relay probe` and `relay login`: an account tried out, and a person's consent for one.

Both work beside a relay that runs, and need none.
"""

import asyncio
import os
import sys
from pathlib import Path

import click

from relay.cli.options import policy_option, printable
from relay.clock import SECOND_NS
from relay.control.login import ConsentFailed, Shown, log_in
from relay.control.probe import probe as probe_upstream
from relay.policy.model import Policy
from relay.policy.source import read_policy


@click.command()
@click.argument("upstream")
@policy_option
def probe(policy_path: Path, upstream: str) -> int:
    """Log in at UPSTREAM, and tell each step with its time; no mail is sent.

    A connection is charged where limits count connections.  Exit codes: 0 where all went well, 75 to try
    later, 77 if the account was refused, 78 for a fault in the policy, a secret or the certificate.  Works
    beside a relay that runs, and without one.
    """
    end = asyncio.run(probe_upstream(_policy_with(policy_path, upstream), upstream, _tell))
    if end.is_good:
        return os.EX_OK
    if end.is_untrusted:
        return os.EX_CONFIG
    return os.EX_NOPERM if end.is_refused else os.EX_TEMPFAIL


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
    policy = _policy_with(policy_path, upstream)
    try:
        path = asyncio.run(log_in(policy, upstream, Shown(_show_code, _ask_for_address)))
    except ConsentFailed as failed:
        click.echo(printable(f"{upstream}: {str(failed).replace('UPSTREAM', upstream)}"), err=True)
        return failed.code
    except PermissionError:
        raise
    except OSError as error:
        click.echo(printable(f"{upstream}: the refresh token could not be kept: {error}"), err=True)
        return os.EX_TEMPFAIL
    click.echo(printable(f"{upstream}: consent is kept in {path}; try it: relay probe {upstream}"))
    return os.EX_OK


def _policy_with(path: Path, name: str) -> Policy:
    policy = read_policy(path)
    if name not in policy.upstreams:
        known = ", ".join(policy.upstreams)
        raise click.UsageError(f"there is no upstream {printable(name)}; the policy has {known}")
    return policy


def _tell(name: str, duration_ns: int, text: str, is_good: bool) -> None:  # noqa: FBT001 - as the step has it
    mark = "" if is_good else "failed: "
    click.echo(f"{name:<9}{duration_ns / SECOND_NS:8.3f} s  {mark}{printable(text)}")


def _show_code(url: str, code: str) -> None:
    click.echo(f"Open {printable(url)} on any device, and type this code:\n\n    {printable(code)}\n")
    click.echo("Log in there as the account that sends, and consent.  Waiting ...")


async def _ask_for_address(link: str) -> str:
    click.echo(f"Open this link in any browser, log in as the account that sends, and consent:\n\n{link}\n")
    click.echo("At the end the browser shows that it cannot open a page of 127.0.0.1: that is right.")
    if sys.stdin.isatty():
        address: str = await asyncio.to_thread(
            click.prompt, "Copy the whole address from its address line to here", hide_input=True
        )
        return address
    return sys.stdin.readline()
