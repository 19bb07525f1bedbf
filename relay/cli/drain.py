"""`relay drain MAILDIR`: what a program left in a maildir for sending becomes the relay's, one by one.

Exit codes as sysexits(3): 0 where nothing that could go is left, 75 where some of it may go another time,
65 where all that is left waits for somebody to act.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from relay.cli.locate import found_policy
from relay.cli.options import Where, printable, where_options
from relay.cli.sendmail import author_of, failure_of, hostname_of
from relay.spool.disk.durable import RealDisk
from relay.submission.composing import EnvelopeSource
from relay.submission.handover import Handover, Refusal, most_bytes, taker
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
    where: Where,
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
    policy = found_policy(where)
    hostname = hostname_of(policy)
    source = EnvelopeSource(prefix, recipients, takes_header)

    @contextmanager
    def session() -> Iterator[Handover]:
        with taker(policy, hostname, _tell) as connected:
            yield Handover(connected, hostname)

    draining = MaildirDrain(
        str(maildir),
        RealDisk(),
        source,
        lambda: author_of(hostname, sender),
        _tell,
        most_bytes=most_bytes(policy),
    )
    try:
        drained = draining.drain(session)
    except NotRemoved as error:
        _tell(f"{error}; remove it before the next drain, or it goes twice")
        return os.EX_NOPERM
    except (Refusal, ValueError, OSError) as error:
        why, code = failure_of(error)
        _tell(why)
        return code
    click.echo(f"{drained.taken} taken, {drained.later + drained.refused} left")
    return drained.exit_code


def _tell(text: str) -> None:
    click.echo(f"drain: {printable(text)}", err=True)
