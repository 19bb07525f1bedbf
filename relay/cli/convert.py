"""`relay spool convert`: converts the spool from one engine to another, while no relay runs."""

import os

import click

from relay.cli.options import Failed, Where, found_policy, own_spool, say, where_options
from relay.clock import SystemClock
from relay.control.client import ControlClient
from relay.policy.model import SpoolEngine
from relay.spool.convert import convert as convert_spool
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import engines_of


@click.group()
def spool() -> None:
    """Work on the spool as a whole."""


@spool.command()
@where_options
@click.option(
    "--to",
    "target",
    type=click.Choice([str(each) for each in SpoolEngine]),
    help="Default: the policy's engine.",
)
def convert(where: Where, *, target: str | None) -> None:
    """Convert the spool from one engine to another.

    Stop the relay first.  All queued or held messages are kept, with all that is known of them; files in
    corrupt/ stay there.  If this command is killed, the spool is the old one or the new one; call it again
    to go on.  From a database, all queued messages come here: stop the relays on all hosts.
    """
    policy = found_policy(where)
    wanted = target or str(policy.storage.engine)
    if ControlClient(policy.spool).is_up():
        raise Failed(f"a relay runs on {policy.spool}: stop it first", os.EX_TEMPFAIL)
    # A start would set aside files that others may write.
    os.umask(0o077)
    with own_spool(policy):
        engines = engines_of(policy)
        done = convert_spool(
            str(policy.spool), wanted, RealDisk(), SystemClock(), _tell_corrupt, engines=engines
        )
    words = f"is of the engine {done.now}"
    if done.was != done.now:
        what = f"{done.messages} messages, {done.held} of them held, {done.recipients} recipients to do"
        words = f"{done.was} to {done.now}: {what}"
    say(f"{policy.spool}: {words}")
    if wanted != policy.storage.engine:
        say(f"now let the policy say  spool: {{path: {policy.spool}, engine: {wanted}}}")


def _tell_corrupt(name: str, why: str) -> None:
    say(f"{name}: {why}; it is in corrupt/", err=True)
