"""`relay status`, `relay queue` and `relay resume`: what asks the relay, or its spool while it is down.

A running relay is asked over its control socket, where the last `spool` key says, even if an edit
broke the policy since; only without a running relay is a good policy needed.  Secrets that a policy
names are not looked at: an operator need not be the user of the relay.

Ids are checked before anything is asked.  Of each id stdout tells what was done, stderr what was not;
the exit code is 75 if some message was busy, else 1 if some was absent or could not be changed.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from relay.cli.options import NotPermitted, error_text, policy_option, printable
from relay.cli.render import console, detail_lines, queue_lines, show_status
from relay.clock import SystemClock
from relay.control.operations import (
    ABSENT,
    BUSY,
    OK,
    TABLE,
    VERBS,
    Results,
    Session,
    Unreachable,
    Verb,
)
from relay.control.socket import ControlClient
from relay.mail.envelope import QUEUE_ID_PATTERN, QueueId
from relay.policy.document import read_document
from relay.policy.faults import PolicyError
from relay.policy.source import parse_policy, policy_bytes
from relay.spool.interface import SpoolBusy
from relay.status.snapshot import MessageView, QueueState, detail_to_json, message_to_json, to_json

Answer = TypeVar("Answer")
EVERYTHING = "ALL"
FROM_STDIN = "-"
SOME_NOT_DONE = 1
QUICK_ANSWER_SECONDS = 5
"""Of a relay that is only asked by the way."""
_NOT_DONE = {ABSENT: "there is no such message in the queue", BUSY: "it is in a transaction, try again later"}


class TryLater(click.ClickException):
    exit_code = os.EX_TEMPFAIL


@click.command()
@policy_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def status(policy_path: Path, *, as_json: bool) -> None:
    """Show upstreams, limits and when their next slot opens, and the queue.

    Works with the relay up or down; down, it reads the spool.
    """
    snapshot = ask(policy_path, lambda session: session.snapshot())
    if as_json:
        click.echo(json.dumps(to_json(snapshot)))
    else:
        show_status(snapshot, console())


@click.command()
@click.argument("upstream")
@click.option("--bounce", "believes", is_flag=True, help="First bounce the refusals that the shield doubts.")
@policy_option
def resume(policy_path: Path, upstream: str, *, believes: bool) -> int:
    """Use UPSTREAM again although it is paused or stopped.

    Senders that it refused are tried again too.  One transaction goes first; the others follow once it
    has succeeded.  Limits still hold.  Refusals that the shield doubts (`relay queue` shows them) are
    tried again, or with --bounce reported to their senders.
    """
    result = ask(policy_path, lambda session: session.resume(upstream, believes=believes))
    if result == OK:
        click.echo(f"{printable(upstream)}: {TABLE['believe' if believes else 'resume'].done}")
        return os.EX_OK
    why = "there is no such upstream" if result == ABSENT else result
    click.echo(f"{printable(upstream)}: {printable(why)}", err=True)
    return SOME_NOT_DONE


@click.group(invoke_without_command=True)
@policy_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
@click.pass_context
def queue(context: click.Context, policy_path: Path, *, as_json: bool) -> None:
    """List the queue, one line per message; or show or change single messages.

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

    async def question(session: Session) -> dict[QueueId, MessageView | str]:
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


def _verb(verb: Verb) -> None:
    row = TABLE[verb]
    words = f"{row.summary}  `-` reads ids from stdin; ALL with --yes means the whole queue."

    @queue.command(verb, help=words)
    @_options
    @click.option("--yes", "is_confirmed", is_flag=True, help="Confirm ALL.")
    def command(group_path: Path, policy_path: Path | None, ids: Sequence[str], *, is_confirmed: bool) -> int:
        is_everything = EVERYTHING in ids
        if is_everything and (len(ids) > 1 or not is_confirmed):
            raise click.UsageError(f"{EVERYTHING} stands alone, and needs --yes")
        named = [] if is_everything else _checked(ids)

        async def question(session: Session) -> Results:
            queue_ids = await _queued(session) if is_everything else named
            return await session.act(verb, queue_ids) if queue_ids else {}

        results = ask(policy_path or group_path, question)
        for queue_id, result in results.items():
            if result == OK:
                click.echo(f"{queue_id}: {row.done}")
        unanswered = dict.fromkeys(named, "the relay gave no answer about it")
        return _told(unanswered | dict(results))


for _each in VERBS:
    _verb(_each)


async def _queued(session: Session) -> list[QueueId]:
    """Leave out the corrupt: they are only looked at."""
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
    failures = {queue_id: result for queue_id, result in results.items() if result != OK}
    for queue_id, result in failures.items():
        click.echo(f"{queue_id}: {printable(_NOT_DONE.get(result, result))}", err=True)
    if BUSY in failures.values():
        return os.EX_TEMPFAIL
    return SOME_NOT_DONE if failures else os.EX_OK


def ask(policy_path: Path, question: Callable[[Session], Awaitable[Answer]]) -> Answer:
    try:
        return asyncio.run(_ask(policy_path, question))
    except SpoolBusy as busy:
        raise TryLater(f"the spool is in use and no relay answers; try again later: {busy}") from busy
    except Unreachable as unreachable:
        raise TryLater(str(unreachable)) from unreachable
    except PermissionError as error:
        raise NotPermitted(f"{error}; run this as the user that the relay runs as") from error


async def _ask(policy_path: Path, question: Callable[[Session], Awaitable[Answer]]) -> Answer:
    session = _open(policy_path)
    try:
        return await question(session)
    finally:
        await session.close()


def _open(policy_path: Path) -> Session:
    content = policy_bytes(policy_path)
    try:
        policy = parse_policy(content, policy_path)
    except PolicyError as error:
        client = _client_of_broken(content, policy_path)
        if client is None:
            raise
        click.echo(
            f"{policy_path} is not valid, the relay runs on its last good one: {error_text(error)}", err=True
        )
        return client
    client = ControlClient(policy.spool)
    if client.is_up():
        return client
    # Imported only here: with a running relay no sender is loaded.
    from relay.control.offline import OfflineOperations  # noqa: PLC0415 - see above

    return OfflineOperations(policy)


def _client_of_broken(content: bytes, policy_path: Path) -> ControlClient | None:
    """Of a broken policy only the key `spool` is used."""
    values = read_document(content).value()
    spool = values.get("spool") if isinstance(values, dict) else None
    if not isinstance(spool, str):
        return None
    client = ControlClient(policy_path.absolute().parent / spool)
    return client if client.is_up() else None


def why_an_edit_waits(spool: Path) -> str:
    """Empty where no relay answers."""

    async def ask_it() -> str:
        client = ControlClient(spool)
        try:
            async with asyncio.timeout(QUICK_ANSWER_SECONDS):
                return (await client.snapshot()).policy.waiting_because if client.is_up() else ""
        finally:
            await client.close()

    try:
        return asyncio.run(ask_it())
    except (OSError, Unreachable):
        return ""
