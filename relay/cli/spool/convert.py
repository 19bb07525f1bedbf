"""`relay spool convert`: the spool, from one engine to another, while no relay runs."""

import os
from pathlib import Path

import click

from relay.cli.locate import Where, found_policy, where_options
from relay.cli.options import Misconfigured, NotPermitted, TryLater, printable
from relay.clock import SystemClock
from relay.control.client import ControlClient
from relay.control.offline import refuse_strangers
from relay.policy.model import Policy, SpoolEngine
from relay.spool.convert import Converted, convert
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import engine_of
from relay.spool.interface import Full, SpoolBusy, SpoolError


class DiskFailed(click.ClickException):
    exit_code = os.EX_IOERR


@click.group()
def spool() -> None:
    """Work on the spool as a whole."""


@spool.command("convert")
@where_options
@click.option(
    "--to",
    "target",
    type=click.Choice([str(each) for each in SpoolEngine]),
    help="Default: as the policy says.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Only say what it would do.")
def convert_spool(policy_path: Path, spool: Path | None, *, target: str | None, is_dry: bool) -> None:
    """Convert the spool from one engine to another.

    No relay may run meanwhile.  All that is queued or held is kept, with all that is known of it; what is in
    corrupt/ stays there.  Killed at any moment, the spool is the old one or the new one, and the same command
    goes on.
    """
    policy = found_policy(Where(policy_path, spool))
    wanted = target or str(policy.storage.engine)
    root, disk = str(policy.spool), RealDisk()
    # Files of another mode would be set aside.
    os.umask(0o077)
    try:
        if ControlClient(policy.spool).is_up():
            raise TryLater(f"a relay runs on {root}: stop it first")
        refuse_strangers(policy.spool)
        if is_dry:
            _foretell(root, engine_of(root, disk), wanted)
            return
        done = convert(root, wanted, disk, SystemClock(), _tell_corrupt)
    except SpoolBusy as busy:
        raise TryLater(str(busy)) from busy
    except Full as error:
        raise TryLater(f"{error}; the spool is as it was: make room, and run this again") from error
    except SpoolError as error:
        raise DiskFailed(f"{error}; run this again once the disk is well") from error
    except PermissionError as error:
        raise NotPermitted(f"{error}; run this as the user that the relay runs as") from error
    except OSError as error:
        raise DiskFailed(f"{error.filename or root}: {error.strerror or error}") from error
    except ValueError as error:
        raise Misconfigured(str(error)) from error
    _tell(root, done)
    _advise(policy, wanted)


def _foretell(root: str, found: str | None, wanted: str) -> None:
    if found is None:
        raise DiskFailed(f"{root}: no spool is here")
    what = (
        f"is of the engine {wanted} already"
        if found == wanted
        else f"would be converted, {found} to {wanted}"
    )
    click.echo(printable(f"{root}: {what}"))


def _tell(root: str, done: Converted) -> None:
    if done.was == done.now:
        click.echo(printable(f"{root}: is of the engine {done.now}"))
        return
    click.echo(
        printable(
            f"{root}: {done.was} to {done.now}: {done.messages} messages, {done.held} of them held, "
            f"{done.recipients} recipients to do"
        )
    )


def _advise(policy: Policy, wanted: str) -> None:
    if wanted != policy.storage.engine:
        click.echo(printable(f"now let the policy say  spool: {{path: {policy.spool}, engine: {wanted}}}"))


def _tell_corrupt(name: str, why: str) -> None:
    click.echo(printable(f"{name}: {why}; it is in corrupt/"), err=True)
