"""`relay status`, `relay queue` and `relay resume`: what asks the relay, or its spool while it is down.

A running relay is asked over its control socket, even if an edit broke the policy since (`locate`);
only without a running relay is a good policy needed.  Secrets that a policy names are not looked at: an
operator need not be the user of the relay.

Ids are checked before anything is asked.  Of each id stdout tells what was done, stderr what was not;
the exit code is 75 if some message was busy, else 1 if some was absent or could not be changed.
"""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from relay.cli.filter_options import filter_options, taken
from relay.cli.locate import Where, answered, locate, spool_option, where_options
from relay.cli.options import Misconfigured, TryLater, printable
from relay.cli.render import (
    LinesOfContent,
    QueueTable,
    detail_lines,
    limits_of,
    line_width,
    page,
    queue_lines,
    status_lines,
    summary_lines,
    unread_words,
    usage_lines,
    what_holds,
)
from relay.clock import SystemClock
from relay.control.operations import (
    ABSENT,
    BUSY,
    OK,
    TABLE,
    UNCHANGED,
    UNREAD,
    VERBS,
    Deed,
    Found,
    Results,
    Session,
    Unreachable,
    Verb,
    VerbRow,
)
from relay.mail.envelope import QUEUE_ID_PATTERN, QueueId
from relay.spool.interface import SpoolBusy, SpoolError
from relay.status.filters import SORTS, USAGE_KEYS, By, Filters, Group, Wanted, group_to_json
from relay.status.snapshot import (
    Condition,
    MessageView,
    QueueState,
    Snapshot,
    detail_to_json,
    message_to_json,
    to_json,
)

Answer = TypeVar("Answer")
EVERYTHING = "ALL"
LAID_OUT_BY = 500
"""Messages that say how wide the columns of a listing are."""
MOST_PREVIEWED = 20
"""Messages that a verb lists before it is confirmed."""
FROM_STDIN = "-"
SOME_NOT_DONE = 1
_NOT_DONE = {ABSENT: "there is no such message in the queue", BUSY: "it is in a transaction, try again later"}


@click.command()
@where_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.option("--by", type=click.Choice(list(USAGE_KEYS)), help="Who used each limit's window.")
def status(policy_path: Path, spool: Path | None, *, as_json: bool, by: str | None) -> int:
    """Show upstreams, limits and when their next slot opens, and the queue.

    With --by, what was relayed within the length of each limit, as far as `recent` keeps it: a
    window itself counts slots.  Works with the relay up or down; down, it reads the spool, and the
    exit code is 69.
    """
    where, usage = Where(policy_path, spool), dict[str, Any]()
    snapshot = ask(where, lambda session: session.snapshot())
    is_down = snapshot.condition is Condition.DOWN
    if is_down:
        named = replace(snapshot.policy, path=str(policy_path.absolute()))
        snapshot = replace(snapshot, policy=named)
    if by is not None:
        # Imported only here: only who asks for it loads a database.
        from relay.cli.past import usage_json  # noqa: PLC0415 - see above

        usage = usage_json(where, snapshot, by)
    if as_json:
        click.echo(json.dumps(to_json(snapshot) | usage))
    else:
        shown = status_lines(snapshot, page()) if by is None else usage_lines(snapshot, usage, by, page())
        for line in shown:
            click.echo(line)
    return os.EX_UNAVAILABLE if is_down else os.EX_OK


@click.command()
@click.argument("upstream")
@click.option("--bounce", "believes", is_flag=True, help="First bounce the refusals that the shield doubts.")
@where_options
def resume(policy_path: Path, spool: Path | None, upstream: str, *, believes: bool) -> int:
    """Use UPSTREAM again although it is paused or stopped.

    Senders that it refused are tried again too.  One transaction goes first; the others follow once it
    has succeeded.  Limits still hold.  Refusals that the shield doubts (`relay queue` shows them) are
    tried again, or with --bounce reported to their senders.
    """

    async def question(session: Session) -> tuple[str, str]:
        result = await session.resume(upstream, believes=believes)
        return result, await _what_holds(session, upstream) if result == OK else ""

    result, holds = ask(Where(policy_path, spool), question)
    row = TABLE["believe" if believes else "resume"]
    if result in (OK, UNCHANGED):
        click.echo(f"{printable(upstream)}: {_done(row, result, holds)}")
        return os.EX_OK
    why = "there is no such upstream" if result == ABSENT else result
    click.echo(f"{printable(upstream)}: {printable(why)}", err=True)
    return SOME_NOT_DONE


@click.group(invoke_without_command=True)
@where_options
@filter_options
@click.option("--reason", default="", metavar="TEXT", help="By a part of why it waits, or what holds it.")
@click.option("--sort", type=click.Choice(SORTS), help="In which order; default: arrival.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N.")
@click.option(
    "--by", type=click.Choice([by.value for by in By]), help="Count messages by this, and by age in minutes."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
@click.pass_context
def queue(
    context: click.Context, /, policy_path: Path, spool: Path | None, *, as_json: bool, **options: Any
) -> None:
    """List the queue, one line per message; or show or change messages.

    Different filters must all match, of one filter's values any one.  Works with the relay up or down.
    """
    context.obj = where = Where(policy_path, spool)
    if context.invoked_subcommand is not None:
        if as_json or any(options.values()):
            raise click.UsageError("--json and filters go behind the verb")
        return
    filters = replace(taken(options), reason=options["reason"])
    wanted = Wanted(filters, options["sort"] or "", options["limit"])
    if options["by"] is not None:
        _summary(where, wanted, By(options["by"]), as_json=as_json)
        return
    if ask(where, lambda session: _list(session, wanted, as_json=as_json)):
        click.echo(f"only the first {wanted.limit} are listed; there are more", err=True)


async def _list(session: Session, wanted: Wanted, *, as_json: bool) -> bool:
    """Print messages as they are found; return whether there are more than were wanted."""
    # With one more it is known whether the list was cut.
    asked = wanted if wanted.limit is None else replace(wanted, limit=wanted.limit + 1)
    snapshot = await session.snapshot()
    table = QueueTable(SystemClock().wall_ns(), snapshot, line_width())
    _tell_unread(snapshot)
    found = 0
    async with contextlib.aclosing(_some_at_once(session.rows(asked))) as rows:
        async for some in rows:
            listed = some if wanted.limit is None else some[: wanted.limit - found]
            lines = (json.dumps(message_to_json(each)) for each in listed) if as_json else table.lines(listed)
            if listed:
                click.echo("\n".join(lines))
            found += len(some)
    if not as_json:
        click.echo(table.end() if found or wanted.filters.is_any else "no message in the queue matches")
    return wanted.limit is not None and found > wanted.limit


async def _some_at_once(rows: Found) -> Found:
    """Yield enough at first for the width of columns, and of a short queue everything."""
    async with contextlib.aclosing(rows):
        first: list[MessageView] = []
        async for some in rows:
            first += some
            if len(first) >= LAID_OUT_BY:
                yield first
                break
        else:
            if first:
                yield first
            return
        async for some in rows:
            yield some


def _tell_unread(snapshot: Snapshot | None) -> None:
    """Say on standard error that a list is not whole."""
    if snapshot is not None and snapshot.recovering:
        click.echo(unread_words(snapshot), err=True)


def _summary(where: Where, wanted: Wanted, by: By, *, as_json: bool) -> None:
    if wanted.sort:
        raise click.UsageError("--by has an order of its own: most messages first")

    async def question(session: Session) -> tuple[Sequence[Group], Snapshot | None]:
        return await session.summary(wanted.filters, by, wanted.limit), await session.snapshot()

    rows, snapshot = ask(where, question)
    _tell_unread(snapshot)
    for line in map(json.dumps, map(group_to_json, rows)) if as_json else summary_lines(rows, by):
        click.echo(line)


def _options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a verb its ids, `--policy` and `--spool` once more, since people write them at the end too."""
    kind = click.Path(path_type=Path)
    with_policy = click.option("--policy", "policy_path", type=kind, metavar="FILE", help="The policy.")
    with_ids = click.argument("ids", metavar="ID...", nargs=-1)

    def located(
        group: Where, /, *arguments: Any, policy_path: Path | None, spool: Path | None, **others: Any
    ) -> int:
        return command(Where(policy_path or group.policy_path, spool or group.spool), *arguments, **others)

    functools.update_wrapper(located, command)
    with_all: Callable[..., int] = with_ids(with_policy(spool_option(click.pass_obj(located))))
    return with_all


@queue.command()
@_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a message, for programs.")
def show(where: Where, ids: Sequence[str], *, as_json: bool) -> int:
    """Show messages with all their recipients; `-` reads ids from stdin."""
    if not ids:
        raise click.UsageError("name at least one message")
    queue_ids = checked_ids(ids)

    async def question(session: Session) -> tuple[dict[QueueId, MessageView | str], Snapshot | None]:
        shown = {queue_id: await session.show(queue_id) for queue_id in queue_ids}
        return shown, None if as_json else await session.snapshot()

    not_shown: dict[QueueId, str] = {}
    messages, snapshot = ask(where, question)
    for queue_id, shown in messages.items():
        if isinstance(shown, str):
            not_shown[queue_id] = shown
        elif as_json:
            click.echo(json.dumps(detail_to_json(shown)))
        else:
            for line in detail_lines(shown, limits_of(snapshot)):
                click.echo(line)
    return told(not_shown)


@queue.command()
@_options
def content(where: Where, ids: Sequence[str]) -> int:
    """Print a message as it is stored; on a terminal without what would steer it."""
    queue_ids = checked_ids(ids)
    if len(queue_ids) != 1:
        raise click.UsageError("name one message")
    return told({queue_ids[0]: echo_content(where, queue_ids[0])})


def echo_content(where: Where, queue_id: QueueId) -> str:
    """Print a message as it is stored, on a terminal without what would steer it; return how that went."""
    lines = LinesOfContent() if sys.stdout.isatty() else None

    async def write(chunk: bytes) -> None:
        click.echo(chunk if lines is None else lines.take(chunk), nl=False)

    result = ask(where, lambda session: session.content(queue_id, write))
    if lines is not None:
        click.echo(lines.rest(), nl=False)
    return result


def _verb(verb: Verb) -> None:
    row = TABLE[verb]
    words = (
        f"{row.summary}  `-` reads ids from stdin; ALL with --yes means the whole queue.  "
        "In place of ids, filters: what would be done is shown, and with --yes it is done."
    )

    @queue.command(verb, help=words)
    @_options
    @filter_options
    @click.option("--yes", "is_confirmed", is_flag=True, help="Confirm ALL, or what filters find.")
    def command(where: Where, ids: Sequence[str], *, is_confirmed: bool, **options: Any) -> int:
        filters = taken(options)
        if filters.is_any is not bool(ids):
            raise click.UsageError("name messages by their ids, or by filters")
        if not is_confirmed and not filters.is_any:
            return _preview(where, row, filters)
        is_everything = EVERYTHING in ids
        if is_everything and (len(ids) > 1 or not is_confirmed):
            raise click.UsageError(f"{EVERYTHING} stands alone, and needs --yes")
        named = [] if is_everything else checked_ids(ids)

        async def question(session: Session) -> tuple[Results, str, Snapshot | None]:
            finds = is_everything or not filters.is_any
            queue_ids = [each.queue_id for each in await _queued(session, filters)] if finds else named
            results = await session.act(verb, queue_ids, filters.states) if queue_ids else {}
            asks = row.done_but_waits and OK in results.values()
            snapshot = await session.snapshot() if finds else None
            return results, await _what_holds(session) if asks else "", snapshot

        results, holds, snapshot = ask(where, question)
        for queue_id, result in results.items():
            if result in (OK, UNCHANGED):
                click.echo(f"{queue_id}: {_done(row, result, holds)}")
        unanswered = dict.fromkeys(named, "the relay gave no answer about it")
        _tell_unread(snapshot)
        code = told(unanswered | dict(results))
        return os.EX_TEMPFAIL if snapshot is not None and snapshot.recovering else code


for _each in VERBS:
    _verb(_each)


def _done(row: VerbRow, result: str, holds: str) -> str:
    if result == UNCHANGED:
        return row.already
    return f"{row.done_but_waits}; {holds}" if holds else row.done


async def _what_holds(session: Session, upstream: str = "") -> str:
    """Return nothing where the relay does not say: what was asked for is done."""
    try:
        return what_holds(await session.snapshot(), upstream)
    except Unreachable:
        return ""


async def _queued(session: Session, filters: Filters) -> list[MessageView]:
    """Leave out the corrupt: they are only looked at."""
    messages = await session.queue(Wanted(filters))
    return [message for message in messages if message.state is not QueueState.CORRUPT]


def _preview(where: Where, row: VerbRow, filters: Filters) -> int:
    """Say what a verb would do to the messages that filters find."""

    async def question(session: Session) -> tuple[list[MessageView], Snapshot]:
        return await _queued(session, filters), await session.snapshot()

    messages, snapshot = ask(where, question)
    if not messages:
        click.echo("no message in the queue matches")
        return os.EX_OK
    for line in queue_lines(messages[:MOST_PREVIEWED], SystemClock().wall_ns(), snapshot, line_width()):
        click.echo(line)
    if more := len(messages) - MOST_PREVIEWED if len(messages) > MOST_PREVIEWED else 0:
        click.echo(f"and {more} more: `relay queue` with these filters lists them")
    would: dict[str, list[int]] = {}
    for message in messages:
        would.setdefault(_would(row, message), []).append(message.recipients_left)
    click.echo("Nothing was done.  With --yes:")
    for what, recipients in would.items():
        click.echo(f"  {len(recipients)} messages, {sum(recipients)} recipients: {what}")
    return os.EX_OK


def _would(row: VerbRow, message: MessageView) -> str:
    deed = row.deed_of(message)
    if isinstance(deed, str):
        return _NOT_DONE.get(deed, deed)
    return row.already if deed is Deed.NOTHING else row.done


def checked_ids(words: Sequence[str]) -> list[QueueId]:
    """Return ids, each once, those on stdin in the place of `-`.  Raises UsageError."""
    queue_ids: dict[QueueId, None] = {}
    for word in words:
        names = sys.stdin.read().split() if word == FROM_STDIN else [word]
        for name in names:
            if not QUEUE_ID_PATTERN.match(name):
                raise click.UsageError(f"{printable(name)} is not a queue id")
            queue_ids[QueueId(name)] = None
    return list(queue_ids)


def told(results: Results) -> int:
    """Say on stderr of which messages something was not done; return the exit code."""
    failures = {queue_id: result for queue_id, result in results.items() if result not in (OK, UNCHANGED)}
    for queue_id, result in failures.items():
        click.echo(f"{queue_id}: {printable(_NOT_DONE.get(result, result))}", err=True)
    if {BUSY, UNREAD}.intersection(failures.values()):
        return os.EX_TEMPFAIL
    return SOME_NOT_DONE if failures else os.EX_OK


def ask(where: Where, question: Callable[[Session], Awaitable[Answer]]) -> Answer:
    try:
        return answered(_ask(where, question))
    except SpoolBusy as busy:
        raise TryLater(f"the spool is in use and no relay answers; try again later: {busy}") from busy
    except SpoolError as trouble:
        raise TryLater(f"the spool cannot be read now: {trouble}") from trouble


async def _ask(where: Where, question: Callable[[Session], Awaitable[Answer]]) -> Answer:
    session = await _open(where)
    try:
        return await question(session)
    finally:
        await session.close()


async def _open(where: Where) -> Session:
    client, policy = await locate(where)
    if policy is None or client.is_up():
        return client
    # Imported only here: with a running relay no sender is loaded.
    from relay.control.offline import OfflineOperations  # noqa: PLC0415 - see above

    try:
        return OfflineOperations(policy)
    except ValueError as error:
        raise Misconfigured(str(error)) from error
