"""`relay sendmail`: sendmail(1) for a host without a mail server; by a link named sendmail or mailq too.

Exit codes are those that programs know from sendmail(1), sysexits(3): 0 only once the message is durably
the relay's; 75 where the program should try again.  About the queue (`-bp`, `-q`) the relay or its spool
is asked, as by `relay queue`.
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

from relay.cli.locate import asked, found_policy
from relay.cli.options import POLICY_VARIABLE, SYSTEM_POLICY, Where, default_policy, printable
from relay.cli.render import MARKS
from relay.clock import SECOND_NS, SystemClock
from relay.control.operations import NotDone, Session
from relay.policy.model import Policy
from relay.status.filters import Filters, Wanted
from relay.status.snapshot import MessageView, QueueState
from relay.submission.command_line import Mode, SendmailCall, WrongUsage, parse_call
from relay.submission.composing import Author, NotAnAddress, submitted
from relay.submission.handover import Handover, Refusal, bridged, most_bytes, taker

_STANDS_FOR = {"sendmail": (), "mailq": ("-bp",), "newaliases": ("-bi",)}
"""What each name of a link means."""
_REASON_ENDS_AT = 76


class _AsItIs(click.Command):
    """Takes the words as they are: sendmail(1)'s options are not those of other commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args == ["--help"]:
            return super().parse_args(ctx, args)
        ctx.params["words"] = tuple(args)
        return []


@click.command(cls=_AsItIs, options_metavar="[OPTION]... [RECIPIENT]...")
def sendmail(words: Sequence[str]) -> int:
    """Take a message from stdin, by the options of Postfix and its kin.

    -t  the recipients of To, Cc and Bcc too;  -i  a line of a single dot ends nothing;
    -f ADDRESS  the envelope's sender;  -F NAME  for a From: that is missing;
    -N never|success,failure,delay  -R hdrs|full  -V ID  what the sender is told (RFC 3461);
    -bs  SMTP on stdin and stdout;  -bp  the queue (mailq);  -q  try deferred messages now.
    --policy FILE and --spool DIR as elsewhere.
    """
    return run_sendmail(words, default_policy())


def as_link(name: str, words: Sequence[str]) -> int:
    """Act as a link of that name does: in whatever folder it is called, the policy is the system's."""
    return run_sendmail((*_STANDS_FOR[name], *words), SYSTEM_POLICY)


def run_sendmail(words: Sequence[str], policy_path: Path) -> int:
    try:
        call = parse_call(words)
        where = Where(call.policy or Path(os.environ.get(POLICY_VARIABLE, policy_path)), call.spool)
        _act(call, where)
    except (Refusal, WrongUsage, ValueError, OSError) as error:
        why, code = failure_of(error)
        _tell(f"{why}, nothing was queued" if isinstance(error, OSError) else why)
        return code
    return os.EX_OK


def failure_of(error: Exception) -> tuple[str, int]:
    """Return what to tell of a message that was not taken, and the exit code."""
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


def _act(call: SendmailCall, where: Where) -> None:
    match call.mode:
        case Mode.SUBMIT:
            _submit(call, found_policy(where))
        case Mode.SMTP:
            _speak(found_policy(where))
        case Mode.LIST:
            with asked(where) as session:
                for line in mailq(session):
                    click.echo(line)
        case Mode.FLUSH:
            deferred = Wanted(Filters(states=(QueueState.DEFERRED,)))
            with asked(where) as session:
                session.act("retry", [each.queue_id for each in session.queue(deferred)])
        case Mode.NEW_ALIASES:
            pass  # there are none


def _submit(call: SendmailCall, policy: Policy) -> None:
    if not (call.recipients or call.takes_header):
        raise WrongUsage("no recipients: name them, or take those of the header with -t")
    hostname = hostname_of(policy)
    text = read_message(sys.stdin.buffer, most_bytes(policy), dot_ends=call.dot_ends)
    author = author_of(hostname, call.sender, call.full_name)
    submission = submitted(text, author, call.recipients, takes_header=call.takes_header)
    if not submission.recipients:
        raise NotAnAddress("the header names no recipient")
    with taker(policy, hostname, _tell) as connected:
        asked = replace(submission, notify=call.notify, ret=call.ret, envid=call.envid)
        Handover(connected, hostname).give(asked)


def author_of(hostname: str, sender: str | None, full_name: str | None = None) -> Author:
    """Return who calls, now."""
    return Author(
        hostname,
        _user(),
        sender,
        full_name,
        datetime.fromtimestamp(SystemClock().wall_ns() // SECOND_NS, UTC).astimezone(),
        make_msgid(domain=hostname),
    )


def read_message(stream: BinaryIO, most: int, *, dot_ends: bool) -> bytes:
    """Return all lines, or those before a line of a single dot, behind which nothing is read.

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
        with taker(policy, hostname_of(policy), _tell) as connected:
            bridged(connected, sys.stdin.fileno(), sys.stdout.fileno())
    except Refusal:
        # The program at the other end reads replies, and perhaps no exit code.
        click.echo("421 4.3.0 The relay does not answer, try again later\r")
        raise


def hostname_of(policy: Policy) -> str:
    return policy.hostname or socket.getfqdn()


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _tell(text: str) -> None:
    click.echo(f"sendmail: {printable(text)}", err=True)


def mailq(session: Session) -> Iterator[str]:
    """Yield the queue in the form of Postfix' showq_compat.c with long queue ids, for scripts."""
    messages = [_whole(session, each) for each in session.queue() if each.state is not QueueState.CORRUPT]
    if not messages:
        yield "Mail queue is empty"
        return
    yield "----Queue ID----- --Size-- ---Arrival Time---- --Sender/Recipient------"
    for message in messages:
        arrival = datetime.fromtimestamp(message.arrival_at_ns // SECOND_NS, UTC).astimezone()
        name = message.queue_id + MARKS.get(message.state, "")
        sender = printable(message.reverse_path) or "MAILER-DAEMON"
        yield f"{name:<17} {message.size_bytes:8} {arrival:%a %b} {arrival.day:2} {arrival:%H:%M:%S} {sender}"
        if message.reason:
            yield f"({printable(message.reason)})".rjust(_REASON_ENDS_AT)
        for recipient in message.recipients:
            yield f"{'':<17} {'':>8} {'':19} {printable(recipient)}"
        yield ""
    kilobytes = (sum(message.size_bytes for message in messages) + 1023) // 1024
    yield f"-- {kilobytes} Kbytes in {len(messages)} Request{'s' * (len(messages) != 1)}."


def _whole(session: Session, message: MessageView) -> MessageView:
    """Return a message with all its recipients: a listing has only the first."""
    if len(message.recipients) < message.recipients_left:
        with contextlib.suppress(NotDone):
            return session.show(message.queue_id)
    return message
