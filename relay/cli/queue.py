"""`relay queue`: the queue, and the verbs on its messages.

Ids are checked before anything is asked.  Of each id stdout tells what was done, stderr what was not;
the exit code is 75 if some message was busy, else 1 if some was absent or could not be changed.
"""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from relay.cli.filter_options import filter_options
from relay.cli.locate import ask
from relay.cli.options import Where, checked_ids, ids_argument, json_option, printable, where_options
from relay.cli.render import QueueTable, detail_lines, limits_of, queue_lines, unread_words, what_holds
from relay.cli.table import Table
from relay.clock import SystemClock
from relay.control.operations import (
    ABSENT,
    BUSY,
    OK,
    TABLE,
    UNANSWERED,
    UNCHANGED,
    UNREAD,
    VERBS,
    Deed,
    Results,
    Session,
    Unreachable,
    Verb,
    VerbRow,
)
from relay.mail.envelope import QueueId
from relay.status.filters import AGES, SORTS, By, Filters, GroupRow, Wanted, group_to_json
from relay.status.snapshot import (
    MessageView,
    QueueState,
    Snapshot,
    detail_to_json,
    message_to_json,
)

EVERYTHING = "ALL"
MOST_PREVIEWED = 20
"""Messages that a verb lists before it is confirmed."""
SOME_NOT_DONE = 1
NOTHING_MATCHES = "no message in the queue matches"
_NOT_DONE = {ABSENT: "there is no such message in the queue", BUSY: "it is in a transaction, try again later"}


@click.group(invoke_without_command=True)
@where_options
@filter_options
@click.option("--reason", default="", metavar="TEXT", help="By a part of why it waits, or what holds it.")
@click.option("--sort", type=click.Choice(SORTS), help="In which order; default: arrival.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N.")
@click.option(
    "--by", type=click.Choice([by.value for by in By]), help="Count messages by this, and by age in minutes."
)
@json_option
@click.pass_context
def queue(
    context: click.Context, /, where: Where, filters: Filters, *, reason: str, as_json: bool, **options: Any
) -> None:
    """List the queue, one line per message; or show or change messages.

    Different filters must all match, of one filter's values any one.  Works with the relay up or down.
    """
    filters = replace(filters, reason=reason)
    if context.invoked_subcommand is not None:
        if as_json or any(options.values()) or not filters.is_any:
            raise click.UsageError("--json and filters go behind the verb")
        return
    wanted = Wanted(filters, options["sort"] or "", options["limit"])
    if options["by"] is not None:
        _summarize(where, wanted, By(options["by"]), as_json=as_json)
    elif ask(where, lambda session: _list(session, wanted, as_json=as_json)):
        click.echo(f"only the first {wanted.limit} are listed; there are more", err=True)


async def _list(session: Session, wanted: Wanted, *, as_json: bool) -> bool:
    """Print messages as they are found; return whether there are more than were wanted."""
    # With one more it is known whether the list was cut.
    asked = wanted if wanted.limit is None else replace(wanted, limit=wanted.limit + 1)
    snapshot = await session.snapshot()
    _tell_unread(snapshot)
    table = QueueTable(SystemClock().wall_ns(), snapshot)
    found = 0
    async with contextlib.aclosing(session.rows(asked)) as rows:
        async for some in rows:
            listed = some if wanted.limit is None else some[: wanted.limit - found]
            found += len(some)
            if listed:
                lines = map(_json_line, listed) if as_json else table.lines(listed)
                click.echo("\n".join(lines))
    if not as_json:
        click.echo(table.end() if found or wanted.filters.is_any else NOTHING_MATCHES)
    return wanted.limit is not None and found > wanted.limit


def _json_line(message: MessageView) -> str:
    return json.dumps(message_to_json(message))


def _tell_unread(snapshot: Snapshot) -> None:
    """Say on standard error that a list is not whole."""
    if snapshot.recovering:
        click.echo(unread_words(snapshot), err=True)


def _summarize(where: Where, wanted: Wanted, by: By, *, as_json: bool) -> None:
    if wanted.sort:
        raise click.UsageError("--by has an order of its own: most messages first")

    async def question(session: Session) -> tuple[Sequence[GroupRow], Snapshot]:
        return await session.summary(wanted.filters, by, wanted.limit), await session.snapshot()

    groups, snapshot = ask(where, question)
    _tell_unread(snapshot)
    # The columns of qshape(1): messages in all, and by age in minutes.
    columns = "T", *map(str, AGES), f"{AGES[-1]}+"
    rows = [
        ("TOTAL" if group.key is None else group.key or "-", group.messages, *group.messages_by_age)
        for group in groups
    ]
    table = Table(by.value, *columns, numbers=(by.value, *columns))
    for line in (json.dumps(group_to_json(group)) for group in groups) if as_json else table.lines(rows):
        click.echo(line)


@queue.command()
@ids_argument
@where_options
@json_option
def show(where: Where, ids: Sequence[QueueId], *, as_json: bool) -> int:
    """Show messages with all that is known of their recipients."""

    async def question(session: Session) -> tuple[dict[QueueId, MessageView | str], Snapshot | None]:
        shown = {queue_id: await session.show(queue_id) for queue_id in ids}
        return shown, None if as_json else await session.snapshot()

    messages, snapshot = ask(where, question)
    for shown in messages.values():
        if isinstance(shown, str):
            continue
        if as_json:
            click.echo(json.dumps(detail_to_json(shown)))
        else:
            for line in detail_lines(shown, limits_of(snapshot) if snapshot is not None else ()):
                click.echo(line)
    return told({queue_id: shown for queue_id, shown in messages.items() if isinstance(shown, str)})


@queue.command()
@ids_argument
@where_options
def content(where: Where, ids: Sequence[QueueId]) -> int:
    """Print a message as it is stored; on a terminal without what would steer it."""
    if len(ids) != 1:
        raise click.UsageError("name one message")
    return echo_content(where, ids[0])


def echo_content(where: Where, queue_id: QueueId) -> int:
    """Print a message as it is stored, on a terminal without what would steer it; return the exit code."""
    begun = b""

    async def write(chunk: bytes) -> None:
        nonlocal begun
        if not sys.stdout.isatty():
            click.echo(chunk, nl=False)
            return
        *lines, begun = (begun + chunk).split(b"\n")
        for line in lines:
            click.echo(_shown(line))

    result = ask(where, lambda session: session.content(queue_id, write))
    if begun:
        click.echo(_shown(begun))
    return told({queue_id: result})


def _shown(line: bytes) -> str:
    return printable(line.removesuffix(b"\r").decode("utf-8", "replace").expandtabs(1))


def _verb(verb: Verb) -> None:
    words = (
        f"{TABLE[verb].summary}  `-` reads ids from stdin; ALL with --yes means the whole queue.  "
        "In place of ids, filters: what would be done is shown, and with --yes it is done."
    )

    @queue.command(verb, help=words)
    @click.argument("words", metavar="ID...", nargs=-1)
    @where_options
    @filter_options
    @click.option("--yes", "is_confirmed", is_flag=True, help="Confirm ALL, or what filters find.")
    def command(where: Where, words: Sequence[str], filters: Filters, *, is_confirmed: bool) -> int:
        if filters.is_any is not bool(words):
            raise click.UsageError("name messages by their ids, or by filters")
        if EVERYTHING in words and (len(words) > 1 or not is_confirmed):
            raise click.UsageError(f"{EVERYTHING} stands alone, and needs --yes")
        if words and EVERYTHING not in words:
            queue_ids = checked_ids(words)
            results = ask(where, lambda session: _act(session, verb, queue_ids))
            return told(dict.fromkeys(queue_ids, UNANSWERED) | dict(results))
        if not is_confirmed:
            return _preview(where, TABLE[verb], filters)

        async def question(session: Session) -> tuple[Results, Snapshot]:
            queue_ids = [each.queue_id for each in await _queued(session, filters)]
            # Ahead of the verb: where the relay goes in it, what was done is told all the same.
            snapshot = await session.snapshot()
            return await _act(session, verb, queue_ids, filters.states), snapshot

        results, snapshot = ask(where, question)
        _tell_unread(snapshot)
        code = told(results)
        return os.EX_TEMPFAIL if snapshot.recovering else code


for _each in VERBS:
    _verb(_each)


async def _act(
    session: Session, verb: Verb, queue_ids: Sequence[QueueId], states: Sequence[QueueState] = ()
) -> Results:
    """Have it done, and say on stdout of what it was done."""
    row = TABLE[verb]
    results = await session.act(verb, queue_ids, states) if queue_ids else {}
    asks = row.done_but_waits and OK in results.values()
    holds = await what_holds_now(session) if asks else ""
    words = {OK: f"{row.done_but_waits}; {holds}" if holds else row.done, UNCHANGED: row.already}
    for queue_id, result in results.items():
        if result in words:
            click.echo(printable(f"{queue_id}: {words[result]}"))
    return results


async def what_holds_now(session: Session, upstream: str = "") -> str:
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
        click.echo(NOTHING_MATCHES)
        return os.EX_OK
    for line in queue_lines(messages[:MOST_PREVIEWED], SystemClock().wall_ns(), snapshot):
        click.echo(line)
    if len(messages) > MOST_PREVIEWED:
        click.echo(f"and {len(messages) - MOST_PREVIEWED} more: `relay queue` with these filters lists them")
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


def told(results: Results) -> int:
    """Say on stderr of which messages something was not done; return the exit code."""
    failures = {queue_id: result for queue_id, result in results.items() if result not in (OK, UNCHANGED)}
    for queue_id, result in failures.items():
        click.echo(f"{queue_id}: {printable(_NOT_DONE.get(result, result))}", err=True)
    if {BUSY, UNREAD, UNANSWERED}.intersection(failures.values()):
        return os.EX_TEMPFAIL
    return SOME_NOT_DONE if failures else os.EX_OK
