"""`relay drain MAILDIR`: what a program left in a maildir for sending becomes the relay's, one by one.

Exit codes as sysexits(3): 0 where nothing that could go is left, 75 where some of it may go another time,
65 where all that is left waits for somebody to act.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from relay.cli.local_mail.sendmail import author_of, hostname_of
from relay.cli.locate import Where, found_policy, where_options
from relay.cli.options import printable
from relay.policy.model import Policy
from relay.spool.disk.durable import RealDisk
from relay.submission.composing import EnvelopeSource
from relay.submission.handover import Handover, Refusal, taker
from relay.submission.maildir_drain import MaildirDrain, NotRemoved


@click.command()
@click.argument("maildir", type=click.Path(path_type=Path))
@click.option(
    "--prefix",
    default="",
    metavar="TEXT",
    help="Take TEXT off the address in Delivered-To; all must begin so.",
)
@click.option("--sender", metavar="ADDRESS", help="The envelope's sender, `<>` for none; else Return-Path.")
@click.option(
    "--to", "recipients", multiple=True, metavar="ADDRESS", help="For whom, instead of Delivered-To."
)
@click.option(
    "-t", "takes_header", is_flag=True, help="For whom To, Cc and Bcc say, beside --to; no Delivered-To."
)
@where_options
def drain(
    policy_path: Path,
    spool: Path | None,
    maildir: Path,
    *,
    prefix: str,
    sender: str | None,
    recipients: tuple[str, ...],
    takes_header: bool,
) -> int:
    """Hand the messages of a maildir over to the relay, and remove each once it is durably the relay's.

    The sender is that of Return-Path, the recipient that of Delivered-To, as programs write them on top that
    deliver into a maildir; both lines go.  What is refused stays.
    """
    if prefix and (recipients or takes_header):
        raise click.UsageError("--prefix is about Delivered-To, which --to and -t leave alone")
    policy = found_policy(Where(policy_path, spool))
    hostname = hostname_of(policy)
    draining = MaildirDrain(
        str(maildir),
        RealDisk(),
        EnvelopeSource(prefix, recipients, takes_header),
        lambda: author_of(hostname, sender),
        _tell,
    )
    try:
        drained = draining.drain(lambda: _session(policy, hostname))
    except Refusal as refusal:
        _tell(str(refusal))
        return refusal.exit_code
    except NotRemoved as error:
        _tell(f"{error}; remove it before the next drain, or it goes twice")
        return os.EX_NOPERM
    except ValueError as error:
        _tell(str(error))
        return os.EX_CONFIG
    except OSError as error:
        _tell(f"{error.strerror or error}")
        return os.EX_TEMPFAIL
    left = drained.later + drained.refused
    click.echo(f"{drained.taken} taken, {left} left")
    return drained.exit_code


@contextmanager
def _session(policy: Policy, hostname: str) -> Iterator[Handover]:
    with taker(policy, hostname, _tell) as connected:
        yield Handover(connected, hostname)


def _tell(text: str) -> None:
    click.echo(f"drain: {printable(text)}", err=True)
