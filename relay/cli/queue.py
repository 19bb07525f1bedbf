"""`relay queue`: the queue, and what an operator does with single messages.

Ids are checked before anything is asked.  A verb tells of each id: on stdout what was
done, on stderr what was not; the exit code is 75 if some message was busy, else 1 if
some was not there or could not be changed.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from relay.cli.options import policy_option, printable
from relay.cli.reach import ask
from relay.cli.render import detail_lines, queue_lines
from relay.clock import SystemClock
from relay.control.operations import ABSENT, BUSY, OK, Results, Session, Verb, act
from relay.mail.envelope import QUEUE_ID_PATTERN, QueueId
from relay.status.snapshot import MessageDetail, QueueState, detail_to_json, message_to_json

EVERYTHING = "ALL"
FROM_STDIN = "-"
SOME_NOT_DONE = 1

_DONE: dict[Verb, str] = {
    "hold": "held",
    "release": "released",
    "retry": "to be tried at once",
    "bounce": "bounced",
    "delete": "deleted",
}
_NOT_DONE = {ABSENT: "there is no such message in the queue", BUSY: "it is in a transaction, try again later"}


@click.group(invoke_without_command=True)
@policy_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
@click.pass_context
def queue(context: click.Context, policy_path: Path, *, as_json: bool) -> None:
    """List the queue, a line a message; or show or change single messages.

    Works with the relay up or down.
    """
    context.obj = policy_path
    if context.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError("--json goes behind the verb")
        return
    messages = ask(policy_path, lambda session: session.queue())
    if as_json:
        for message in messages:
            click.echo(json.dumps(message_to_json(message)))
        return
    for line in queue_lines(messages, SystemClock().wall_ns()):
        click.echo(line)


def _options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a verb its ids, and `--policy` once more, since people write it at the end too."""
    kind = click.Path(path_type=Path)
    with_policy = click.option("--policy", "policy_path", type=kind, metavar="FILE", help="The policy.")
    with_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True)
    with_both: Callable[..., int] = with_ids(with_policy(click.pass_obj(command)))
    return with_both


@queue.command()
@_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a message, for programs.")
def show(group_path: Path, policy_path: Path | None, ids: Sequence[str], *, as_json: bool) -> int:
    """Show messages with all their recipients; `-` reads ids from stdin."""
    queue_ids = _checked(ids)

    async def question(session: Session) -> dict[QueueId, MessageDetail | str]:
        return {queue_id: await session.show(queue_id) for queue_id in queue_ids}

    not_shown: dict[QueueId, str] = {}
    for queue_id, shown in ask(policy_path or group_path, question).items():
        if isinstance(shown, str):
            not_shown[queue_id] = shown
        elif as_json:
            click.echo(json.dumps(detail_to_json(shown)))
        else:
            for line in detail_lines(shown):
                click.echo(line)
    return _told(not_shown)


def _verb(verb: Verb, summary: str) -> None:
    """Make the command of a verb."""

    @queue.command(verb, help=f"{summary}  `-` reads ids from stdin; ALL, with --yes, is everything queued.")
    @_options
    @click.option("--yes", "is_confirmed", is_flag=True, help="Mean it, with ALL.")
    def command(group_path: Path, policy_path: Path | None, ids: Sequence[str], *, is_confirmed: bool) -> int:
        is_everything = EVERYTHING in ids
        if is_everything and (len(ids) > 1 or not is_confirmed):
            raise click.UsageError(f"{EVERYTHING} stands alone, and needs --yes")
        named = [] if is_everything else _checked(ids)

        async def question(session: Session) -> Results:
            queue_ids = await _queued(session) if is_everything else named
            return await act(session, verb)(queue_ids) if queue_ids else {}

        results = ask(policy_path or group_path, question)
        for queue_id, result in results.items():
            if result == OK:
                click.echo(f"{queue_id}: {_DONE[verb]}")
        unanswered = dict.fromkeys(named, "the relay said nothing of it")
        return _told(unanswered | dict(results))


async def _queued(session: Session) -> list[QueueId]:
    """Return the ids of all that can be acted on; what is corrupt is only looked at."""
    messages = await session.queue()
    return [message.queue_id for message in messages if message.state is not QueueState.CORRUPT]


def _checked(words: Sequence[str]) -> list[QueueId]:
    """Return ids, each once, those on stdin in the place of `-`.  Raises UsageError."""
    queue_ids: dict[QueueId, None] = {}
    for word in words:
        names = sys.stdin.read().split() if word == FROM_STDIN else [word]
        for name in names:
            if not QUEUE_ID_PATTERN.match(name):
                raise click.UsageError(f"{printable(name)} is not a queue id")
            queue_ids[QueueId(name)] = None
    return list(queue_ids)


def _told(results: Results) -> int:
    """Tell what was not done, and return the exit code."""
    failures = {queue_id: result for queue_id, result in results.items() if result != OK}
    for queue_id, result in failures.items():
        click.echo(f"{queue_id}: {printable(_NOT_DONE.get(result, result))}", err=True)
    if BUSY in failures.values():
        return os.EX_TEMPFAIL
    return SOME_NOT_DONE if failures else os.EX_OK


_verb("hold", "Set messages aside until they are released.")
_verb("release", "Let held messages go on.")
_verb("retry", "Let deferred messages go now; limits still hold.")
_verb("bounce", "End messages and report their remaining recipients to the sender.")
_verb("delete", "End messages and tell nobody.")
