"""`relay run`: runs the daemon in the foreground."""

import errno
import os
from pathlib import Path

import click

from relay.cli.options import Failed, policy_option
from relay.daemon.daemon import serve
from relay.daemon.loops import run as run_loop
from relay.policy.model import Policy
from relay.spool.interface import SpoolBusy
from relay.telemetry.events import Level, LogStyle
from relay.telemetry.stderr import divert
from relay.throttle.limit import limit_of

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
        return run_loop(serve(policy_path, style, Level.DEBUG if verbose else Level.INFO, _greet))
    except SpoolBusy as busy:
        raise Failed(f"another relay is running: {busy}", os.EX_TEMPFAIL) from busy
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        code = os.EX_UNAVAILABLE if error.errno in _ADDRESS_ERRORS else os.EX_IOERR
        raise Failed(f"cannot start: {what}", code) from error
    except ValueError as error:
        raise Failed(f"cannot start: {error}", os.EX_CONFIG) from error


def _greet(policy: Policy) -> None:
    """Tell a newcomer what to type next, if the policy has a practice smarthost."""
    if (practice := policy.practice) is None:
        return
    address = policy.listen[0].address
    click.echo(f"""
relay takes mail on {address} and passes it to the practice smarthost on {practice.address},
which cuts off whoever sends more than {limit_of(practice.limit).words}.  In another terminal:

  python3 -c "import smtplib; smtplib.SMTP('{address.host}', {address.port}).sendmail(
      'me@example.org', ['you@example.com'], 'Subject: hello\\n\\nhello\\n')"
  .venv/bin/relay status
  .venv/bin/relay queue

Edit policy.yaml while it runs; stop with Ctrl-C.
""")
