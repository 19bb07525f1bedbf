"""`relay sendmail` and its links (LINKS in `main`), and `relay drain`: mail of programs on this host.

Exit codes are those of sysexits(3), which programs know from sendmail(1): 0 only once the message is durably
the relay's, 75 if the program should try again.  For `drain`: 0 if no message is left, 75 if another drain
may hand over some, 65 if all that are left wait for somebody to act.
"""

import contextlib
import os
import pwd
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import make_msgid
from pathlib import Path
from typing import BinaryIO

import click

from relay.cli.options import (
    POLICY_VARIABLE,
    SYSTEM_POLICY,
    Target,
    default_policy,
    found_policy,
    open_session,
    printable,
    say,
    target_options,
)
from relay.cli.output import EMPTY, MARKS, sum_words
from relay.clock import SECOND_NS, SystemClock
from relay.control.operations import Session
from relay.policy.model import Policy
from relay.spool.disk.durable import RealDisk
from relay.status.filters import Filters
from relay.status.snapshot import QueueState
from relay.submission.command_line import Mode, SendmailCall, WrongUsage, parse_call
from relay.submission.composing import Author, EnvelopeSource, NotAnAddress, from_program
from relay.submission.handover import Handover, Refusal, bridged, most_bytes, open_smtp
from relay.submission.maildir_drain import MaildirDrain, NotRemoved

_STANDS_FOR = {"sendmail": (), "mailq": ("-bp",), "newaliases": ("-bi",)}
_REASON_ENDS_AT = 76


class _UnparsedCommand(click.Command):
    """Takes the words unparsed: sendmail(1)'s options are not those of other commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args == ["--help"]:
            return super().parse_args(ctx, args)
        ctx.params["words"] = tuple(args)
        return []


@click.command(cls=_UnparsedCommand, options_metavar="[OPTION]... [RECIPIENT]...")
def sendmail(words: Sequence[str]) -> int:
    """Take a message from stdin, with the options of Postfix and others.

    -t  the recipients of To, Cc and Bcc too;  -i  a line with only a dot is content;
    -f ADDRESS  the envelope's sender;  -F NAME  the name for a missing From:;
    -N never|success,failure,delay  -R hdrs|full  -V ID  reports to the sender (RFC 3461);
    -bs  SMTP on stdin and stdout;  -bp  the queue (mailq);  -q  try deferred messages now.
    --policy FILE and --spool DIR as elsewhere.
    """
    return _run(words, default_policy())


def as_link(name: str, words: Sequence[str]) -> int:
    """Act as a link of that name; the default policy is the system's, whatever the current folder."""
    return _run((*_STANDS_FOR[name], *words), SYSTEM_POLICY)


def _run(words: Sequence[str], policy_path: Path) -> int:
    try:
        call = parse_call(words)
        _act(call, Target(call.policy or Path(os.environ.get(POLICY_VARIABLE, policy_path)), call.spool))
    except (Refusal, WrongUsage, ValueError, OSError) as error:
        why, code = _failure(error)
        _tell(f"{why}, nothing was queued" if isinstance(error, OSError) else why)
        return code
    return os.EX_OK


def _failure(error: Exception) -> tuple[str, int]:
    match error:
        case Refusal():
            return str(error), error.exit_code
        case WrongUsage():
            return str(error), os.EX_USAGE
        case NotAnAddress():
            return str(error), os.EX_DATAERR
        case OSError():
            return error.strerror or str(error), os.EX_TEMPFAIL
    return str(error), os.EX_CONFIG


def _tell(text: str, verb: str = "sendmail") -> None:
    say(f"{verb}: {text}", err=True)


def _act(call: SendmailCall, target: Target) -> None:
    match call.mode:
        case Mode.SUBMIT:
            _submit(call, found_policy(target))
        case Mode.SMTP:
            _speak(found_policy(target))
        case Mode.LIST:
            with open_session(target) as session:
                for line in _mailq(session):
                    click.echo(line)
        case Mode.FLUSH:
            deferred = Filters(states=(QueueState.DEFERRED,))
            with open_session(target) as session:
                session.act("retry", [each.queue_id for each in session.queue(deferred)])
        case Mode.NEW_ALIASES:
            pass  # the relay has no aliases


def _submit(call: SendmailCall, policy: Policy) -> None:
    if not (call.recipients or call.takes_header):
        raise WrongUsage("no recipients: name them, or take those of the header with -t")
    hostname = _hostname(policy)
    text = _read_message(sys.stdin.buffer, most_bytes(policy), dot_ends=call.dot_ends)
    author = _author(hostname, call.sender, call.full_name)
    submission = from_program(text, author, call.recipients, takes_header=call.takes_header)
    if not submission.recipients:
        raise NotAnAddress("the header names no recipient")
    with open_smtp(policy, hostname, _tell) as connected:
        message = replace(submission, notify=call.notify, ret=call.ret, envid=call.envid)
        Handover(connected, hostname).give(message)


def _author(hostname: str, sender: str | None, full_name: str | None = None) -> Author:
    user = str(os.getuid())
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(os.getuid()).pw_name
    return Author(
        hostname, user, sender, full_name, _local(SystemClock().wall_ns()), make_msgid(domain=hostname)
    )


def _local(at_ns: int) -> datetime:
    return datetime.fromtimestamp(at_ns // SECOND_NS, UTC).astimezone()


def _read_message(stream: BinaryIO, most: int, *, dot_ends: bool) -> bytes:
    """Return all lines; with `dot_ends`, those before a line of a single dot, and read nothing behind it.

    Raises Refusal for more than `most` octets.
    """
    text = bytearray()
    for line in iter(lambda: stream.readline(most + 1), b""):
        if dot_ends and line in {b".\n", b".\r\n", b"."}:
            break
        text += line
        if len(text) > most:
            raise Refusal("the message is too long", os.EX_DATAERR)
    return bytes(text)


def _speak(policy: Policy) -> None:
    try:
        with open_smtp(policy, _hostname(policy), _tell) as connected:
            bridged(connected, sys.stdin.fileno(), sys.stdout.fileno())
    except Refusal:
        # The calling program reads replies, and may ignore the exit code.
        click.echo("421 4.3.0 The relay does not answer, try again later\r")
        raise


def _hostname(policy: Policy) -> str:
    return policy.hostname or socket.getfqdn()


def _mailq(session: Session) -> Iterator[str]:
    """Yield the queue in the format of Postfix's showq_compat.c with long queue ids, for scripts."""
    count = size_bytes = 0
    for message in (each for some in session.rows(is_whole=True) for each in some):
        if message.state is QueueState.CORRUPT:
            continue
        if not count:
            yield "----Queue ID----- --Size-- ---Arrival Time---- --Sender/Recipient------"
        count, size_bytes = count + 1, size_bytes + message.size_bytes
        arrival, name = _local(message.arrival_at_ns), message.queue_id + MARKS.get(message.state, "")
        sender = printable(message.reverse_path) or "MAILER-DAEMON"
        yield f"{name:<17} {message.size_bytes:8} {arrival:%a %b} {arrival.day:2} {arrival:%H:%M:%S} {sender}"
        if message.reason:
            yield f"({printable(message.reason)})".rjust(_REASON_ENDS_AT)
        for recipient in message.recipients:
            yield f"{'':<17} {'':>8} {'':19} {printable(recipient)}"
        yield ""
    yield sum_words(count, size_bytes) if count else EMPTY


@click.command()
@click.argument("maildir", type=click.Path(path_type=Path))
@click.option(
    "--prefix",
    default="",
    metavar="TEXT",
    help="Remove TEXT from the start of each Delivered-To, which must begin with it.",
)
@click.option("--sender", metavar="ADDRESS", help="Envelope sender, `<>` for none; default: Return-Path.")
@click.option(
    "--to", "recipients", multiple=True, metavar="ADDRESS", help="Recipient, instead of Delivered-To."
)
@click.option(
    "-t", "takes_header", is_flag=True, help="Recipients of To, Cc, Bcc, and --to; not Delivered-To."
)
@target_options
def drain(
    target: Target,
    maildir: Path,
    *,
    prefix: str,
    sender: str | None,
    recipients: tuple[str, ...],
    takes_header: bool,
) -> int:
    """Hand the messages of a maildir over to the relay, and remove each once it is durably the relay's.

    Sender and recipient are those of Return-Path and Delivered-To, which programs that deliver into a
    maildir write on top.  Both lines are removed.  Refused messages stay, and so does `relay-drain.lock`, by
    which only one drain at a time works on a maildir.
    """
    if prefix and (recipients or takes_header):
        raise click.UsageError("--prefix changes Delivered-To, which is not read with --to or -t")
    policy = found_policy(target)
    hostname = _hostname(policy)

    def tell(text: str) -> None:
        _tell(text, "drain")

    @contextlib.contextmanager
    def session() -> Iterator[Handover]:
        with open_smtp(policy, hostname, tell) as connected:
            yield Handover(connected, hostname)

    draining = MaildirDrain(
        str(maildir),
        RealDisk(),
        EnvelopeSource(prefix, recipients, takes_header),
        lambda: _author(hostname, sender),
        tell,
        most_bytes=most_bytes(policy),
    )
    try:
        drained = draining.drain(session)
    except NotRemoved as error:
        tell(f"{error}; remove it before the next drain, or it goes twice")
        return os.EX_NOPERM
    except (Refusal, ValueError, OSError) as error:
        why, code = _failure(error)
        tell(why)
        return code
    click.echo(f"{drained.taken} taken, {drained.later + drained.refused} left")
    return drained.exit_code
