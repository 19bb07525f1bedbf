"""`relay top`, as the command line has it."""

import asyncio
import os
import signal
import sys
from functools import partial
from pathlib import Path

import click

from relay.cli.locate import Where, found_spool, where_options
from relay.cli.pause import who_asks
from relay.clock import SystemClock

ENDS = (signal.SIGTERM, signal.SIGHUP)


@click.command()
@where_options
def top(policy_path: Path, spool: Path | None) -> int:
    """Watch a running relay in a terminal: limits, lanes, upstreams, senders; and act by keys.

    The last line lists the keys.  While the relay is down it says so, and goes on looking.
    """
    # All three: the picture goes to standard error, which is the terminal where the others are redirected.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise click.UsageError("`relay top` needs a terminal; `relay status` prints to anything")
    if os.environ.get("TERM", "dumb") == "dumb":
        raise click.UsageError("this terminal cannot move its cursor (TERM); use `relay status`")
    return asyncio.run(_watch(found_spool(Where(policy_path, spool))))


async def _watch(spool: Path) -> int:
    # Imported only here: no other command waits for the library of terminals.
    from relay.cli.top.screen import Top  # noqa: PLC0415 - see above

    app = Top(spool, SystemClock(), who_asks())
    loop = asyncio.get_running_loop()
    for number in ENDS:
        loop.add_signal_handler(number, partial(app.exit, return_code=128 + number))
    await app.run_async(mouse=False)
    # The library says 1 of a fault, whose traceback it printed; signals are told apart by more.
    return os.EX_SOFTWARE if app.return_code == 1 else app.return_code or os.EX_OK
