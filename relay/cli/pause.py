"""`relay pause` and `relay resume`: an operator keeps an upstream at rest, or has it used again.

Both work with the relay up or down, and return once what they did is durable.
"""

import contextlib
import getpass
import os

import click

from relay.cli.locate import asked
from relay.cli.options import Where, duration, printable, where_options
from relay.cli.queue import SOME_NOT_DONE, what_holds_now
from relay.cli.render import until_words
from relay.control.operations import ABSENT, OK, TABLE, UNCHANGED, Unreachable
from relay.verdicts.account import PauseAsked


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
def pause(where: Where, upstream: str, *, length_ns: int | None) -> int:
    """Send nothing more through UPSTREAM: what is in flight finishes, and nothing new begins.

    Mail is accepted as before and waits, and does not grow old meanwhile.  The pause survives restarts and
    reboots.  Of a paused upstream it changes the end.  Then one message goes first, as after
    `relay resume`.
    """
    with asked(where) as session:
        result, done = session.pause(upstream, PauseAsked(who_asks(), length_ns)), TABLE["pause"].done
        with contextlib.suppress(Unreachable):  # what was asked for is done
            for each in session.snapshot().upstreams if result == OK else ():
                if each.name == upstream:
                    finishing = f"; {each.in_flight} in flight finish" if each.in_flight else ""
                    done += f"{until_words(each)}{finishing}"
    return _told(upstream, result, done)


@click.command()
@click.argument("upstream")
@click.option("--bounce", "believes", is_flag=True, help="First bounce the refusals that the shield doubts.")
@where_options
def resume(where: Where, upstream: str, *, believes: bool) -> int:
    """Use UPSTREAM again although it is paused or stopped.

    Senders that it refused are tried again too.  One transaction goes first; the others follow once it
    has succeeded.  Limits still hold.  Refusals that the shield doubts (`relay queue` shows them) are
    tried again, or with --bounce reported to their senders.
    """
    row = TABLE["believe" if believes else "resume"]
    with asked(where) as session:
        result, done = session.resume(upstream, believes=believes), row.already
        if result == OK:
            done = "; ".join(filter(None, (row.done, what_holds_now(session, upstream))))
    return _told(upstream, result, done)


def _told(upstream: str, result: str, done: str) -> int:
    if result in (OK, UNCHANGED):
        click.echo(printable(f"{upstream}: {done}"))
        return os.EX_OK
    why = "there is no such upstream" if result == ABSENT else result
    click.echo(printable(f"{upstream}: {why}"), err=True)
    return SOME_NOT_DONE


def who_asks() -> str:
    """Return who asks: the user behind sudo, if there is one."""
    if name := os.environ.get("SUDO_USER"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
