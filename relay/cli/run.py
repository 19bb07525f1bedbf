"""`relay run`: runs the daemon in the foreground."""

import errno
import os
from pathlib import Path

import click

from relay.cli.options import Failed, policy_option
from relay.daemon.daemon import serve
from relay.daemon.loops import run as run_loop
from relay.spool.interface import SpoolBusy
from relay.telemetry.events import Level, LogStyle
from relay.telemetry.stderr import divert

_ADDRESS_ERRORS = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM})


@click.command()
@policy_option
@click.option(
    "--log",
    "style",
    type=click.Choice(["text", "json"]),
    envvar="RELAY_LOG",
    default="text",
    help="How events are written to stderr.",
)
@click.option("--verbose", is_flag=True, help="Log connections too.")
def run(policy_path: Path, style: LogStyle, *, verbose: bool) -> int:
    """Accept mail and relay it, in the foreground.

    SIGTERM and SIGINT finish the transactions in flight, for a minute at most, and exit 0; a second signal
    exits at once.  SIGHUP reloads the policy.
    """
    # Files that the relay creates are private, whatever umask it was started with.
    os.umask(0o077)
    divert()
    try:
        return run_loop(serve(policy_path, style, Level.DEBUG if verbose else Level.INFO))
    except SpoolBusy as busy:
        raise Failed(f"another relay is running: {busy}", os.EX_TEMPFAIL) from busy
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        code = os.EX_UNAVAILABLE if error.errno in _ADDRESS_ERRORS else os.EX_IOERR
        raise Failed(f"cannot start: {what}", code) from error
