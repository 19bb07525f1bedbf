"""`relay status`: what the relay is doing, and what it waits for."""

import json
from pathlib import Path

import click

from relay.cli.options import policy_option
from relay.cli.reach import ask
from relay.cli.render import console, show_status
from relay.status.snapshot import to_json


@click.command()
@policy_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def status(policy_path: Path, *, as_json: bool) -> None:
    """Show upstreams, limits and when their next slot opens, and the queue.

    Works with the relay up or down; down, it reads the spool.
    """
    snapshot = ask(policy_path, lambda session: session.snapshot())
    if as_json:
        click.echo(json.dumps(to_json(snapshot)))
    else:
        show_status(snapshot, console())
