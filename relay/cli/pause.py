"""`relay pause`: an operator sends nothing more through an upstream, for a time or until `relay resume`.

Works with the relay up or down; returns once the pause is durable.
"""

import contextlib
import getpass
import os
from pathlib import Path

import click

from relay.cli.locate import Where, where_options
from relay.cli.operate import SOME_NOT_DONE, ask
from relay.cli.options import duration, printable
from relay.cli.render import until_words
from relay.control.operations import ABSENT, OK, TABLE, Session, Unreachable
from relay.status.snapshot import Snapshot
from relay.verdicts.operator_pause import PauseAsked


@click.command()
@click.argument("upstream")
@click.option(
    "--for",
    "length_ns",
    callback=duration,
    metavar="TIME",
    help="How long, such as 30m or 2h; without it until `relay resume UPSTREAM`.",
)
@where_options
def pause(policy_path: Path, spool: Path | None, upstream: str, *, length_ns: int | None) -> int:
    """Send nothing more through UPSTREAM: what is in flight finishes, and nothing new begins.

    Mail is accepted as before and waits, and does not grow old meanwhile.  The pause survives restarts and
    reboots.  Of a paused upstream it changes the end.  Then one message goes first, as after
    `relay resume`.
    """

    async def question(session: Session) -> tuple[str, str]:
        result = await session.pause(upstream, PauseAsked(who_asks(), length_ns))
        if result != OK:
            return result, ""
        with contextlib.suppress(Unreachable):  # what was asked for is done
            snapshot = await session.snapshot()
            return result, _until(snapshot, upstream)
        return result, ""

    result, until = ask(Where(policy_path, spool), question)
    if result == OK:
        click.echo(f"{printable(upstream)}: {TABLE['pause'].done}{until}")
        return os.EX_OK
    why = "there is no such upstream" if result == ABSENT else result
    click.echo(f"{printable(upstream)}: {printable(why)}", err=True)
    return SOME_NOT_DONE


def _until(snapshot: Snapshot, name: str) -> str:
    paused = [each for each in snapshot.upstreams if each.name == name]
    finishing = "".join(f"; {each.in_flight} in flight finish" for each in paused if each.in_flight)
    return "".join(map(until_words, paused)) + finishing


def who_asks() -> str:
    """Return who asks: the user behind sudo, if there is one."""
    if name := os.environ.get("SUDO_USER"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
