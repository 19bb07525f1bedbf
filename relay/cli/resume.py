"""`relay resume`: an upstream that rests because of a refusal is used again, by an operator's word."""

import os
from pathlib import Path

import click

from relay.cli.options import policy_option, printable
from relay.cli.reach import ask
from relay.control.operations import ABSENT, OK

NOT_DONE = 1


@click.command()
@click.argument("upstream")
@click.option("--bounce", "believes", is_flag=True, help="Bounce the refusals that the shield doubts, first.")
@policy_option
def resume(policy_path: Path, upstream: str, *, believes: bool) -> int:
    """Use UPSTREAM again though it is paused or stopped; senders that it refused too.

    It begins with a single transaction; the others follow when that one went well.  Limits still hold.
    What was refused and is doubted (`relay queue` shows it) is tried again, or with --bounce reported
    to its senders.
    """
    result = ask(policy_path, lambda session: session.resume(upstream, believes=believes))
    if result == OK:
        click.echo(f"{printable(upstream)}: used again, one message first")
        return os.EX_OK
    why = "there is no such upstream" if result == ABSENT else result
    click.echo(f"{printable(upstream)}: {printable(why)}", err=True)
    return NOT_DONE
