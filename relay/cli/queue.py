"""`relay queue`: the queue, and the verbs on its messages.

Ids are checked before anything is asked.  Of each id stdout tells what was done, stderr what was not;
the exit code is 75 if some message was busy, else 1 if some was absent or could not be changed.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import click

from relay.cli.filter_options import filter_options
from relay.cli.locate import asked
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
    NotDone,
    Results,
    Session,
    Unreachable,
    Verb,
    VerbRow,
)
from relay.mail.envelope import QueueId
from relay.status.filters import AGES, SORTS, By, Filters, Wanted, group_to_json
from relay.status.snapshot import MessageView, QueueState, Snapshot, detail_to_json, message_to_json

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
    if options["by"] and options["sort"]:
        raise click.UsageError("--by has an order of its own: most messages first")
    with asked(where) as session:
        snapshot = session.snapshot()
        _tell_unread(snapshot)
        if options["by"]:
            lines = _summary(session, filters, By(options["by"]), options["limit"], as_json=as_json)
        else:
            wanted = Wanted(filters, options["sort"] or "", options["limit"])
            lines = _listing(session, snapshot, wanted, as_json=as_json)
        for line in lines:
            click.echo(line)


def _listing(session: Session, snapshot: Snapshot, wanted: Wanted, *, as_json: bool) -> Iterator[str]:
    """Yield messages as they are found, many lines at a time; say at the end whether there are more."""
    # With one more it is known whether the list was cut.
    further = wanted if wanted.limit is None else replace(wanted, limit=wanted.limit + 1)
    table, found = QueueTable(SystemClock().wall_ns(), snapshot), 0
    for some in session.rows(further):
        listed = some if wanted.limit is None else some[: wanted.limit - found]
        found += len(some)
        if listed:
            told = (json.dumps(message_to_json(each)) for each in listed)
            yield "\n".join(told if as_json else table.lines(listed))
    if not as_json:
        yield table.end() if found or wanted.filters.is_any else NOTHING_MATCHES
    if wanted.limit is not None and found > wanted.limit:
        click.echo(f"only the first {wanted.limit} are listed; there are more", err=True)


def _tell_unread(snapshot: Snapshot) -> None:
    """Say on standard error that a list is not whole."""
    if snapshot.recovering:
        click.echo(unread_words(snapshot), err=True)


def _summary(
    session: Session, filters: Filters, by: By, limit: int | None, *, as_json: bool
) -> Iterator[str]:
    groups = session.summary(filters, by, limit)
    if as_json:
        return (json.dumps(group_to_json(group)) for group in groups)
    # The columns of qshape(1): messages in all, and by age in minutes.
    columns = by.value, "T", *map(str, AGES), f"{AGES[-1]}+"
    return Table(*columns, numbers=columns).lines(
        ("TOTAL" if group.key is None else group.key or "-", group.messages, *group.messages_by_age)
        for group in groups
    )


@queue.command()
@ids_argument
@where_options
@json_option
def show(where: Where, ids: Sequence[QueueId], *, as_json: bool) -> int:
    """Show messages with all that is known of their recipients."""
    failures: dict[QueueId, str] = {}
    with asked(where) as session:
        # Of a relay that is down no message names a limit.
        limits = () if as_json or session.is_down else limits_of(session.snapshot())
        for queue_id in ids:
            try:
                shown = session.show(queue_id)
            except NotDone as why:
                failures[queue_id] = str(why)
                continue
            for line in (json.dumps(detail_to_json(shown)),) if as_json else detail_lines(shown, limits):
                click.echo(line)
    return told(failures)


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
    begun, result = b"", OK
    try:
        with asked(where) as session:
            for chunk in session.content(queue_id):
                if not sys.stdout.isatty():
                    click.echo(chunk, nl=False)
                    continue
                *lines, begun = (begun + chunk).split(b"\n")
                for line in lines:
                    click.echo(_shown(line))
    except NotDone as why:
        result = str(why)
    if begun:
        click.echo(_shown(begun))
    return told({queue_id: result})


def _shown(line: bytes) -> str:
    return printable(line.removesuffix(b"\r").decode("utf-8", "replace").expandtabs(1))


def _verb(verb: Verb) -> None:
    row = TABLE[verb]
    words = (
        f"{row.summary}  `-` reads ids from stdin; ALL with --yes means the whole queue.  "
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
        queue_ids = [] if EVERYTHING in words else checked_ids(words)
        with asked(where) as session:
            if queue_ids:
                return told(dict.fromkeys(queue_ids, UNANSWERED) | _act(session, verb, queue_ids))
            # Ahead of the verb: where the relay goes in it, what was done is told all the same.
            snapshot = session.snapshot()
            # The corrupt are only looked at.
            found = [each for each in session.queue(Wanted(filters)) if each.state is not QueueState.CORRUPT]
            if not is_confirmed:
                _preview(row, found, snapshot)
                return os.EX_OK
            results = _act(session, verb, [each.queue_id for each in found], filters.states)
        _tell_unread(snapshot)
        code = told(results)
        return os.EX_TEMPFAIL if snapshot.recovering else code


for _each in VERBS:
    _verb(_each)


def _act(
    session: Session, verb: Verb, queue_ids: Sequence[QueueId], states: Sequence[QueueState] = ()
) -> dict[QueueId, str]:
    """Have it done, and say on stdout of what it was done."""
    row, results = TABLE[verb], session.act(verb, queue_ids, states)
    asks = row.done_but_waits and OK in results.values()
    holds = what_holds_now(session) if asks else ""
    words = {OK: f"{row.done_but_waits}; {holds}" if holds else row.done, UNCHANGED: row.already}
    for queue_id, result in results.items():
        if result in words:
            click.echo(printable(f"{queue_id}: {words[result]}"))
    return results


def what_holds_now(session: Session, upstream: str = "") -> str:
    """Return nothing where the relay does not say: what was asked for is done."""
    if session.is_down:
        return "the relay is down"
    try:
        return what_holds(session.snapshot(), upstream)
    except Unreachable:
        return ""


def _preview(row: VerbRow, found: Sequence[MessageView], snapshot: Snapshot) -> None:
    """Say what a verb would do to the messages that filters find."""
    if not found:
        click.echo(NOTHING_MATCHES)
        return
    for line in queue_lines(found[:MOST_PREVIEWED], SystemClock().wall_ns(), snapshot):
        click.echo(line)
    if len(found) > MOST_PREVIEWED:
        click.echo(f"and {len(found) - MOST_PREVIEWED} more: `relay queue` with these filters lists them")
    would: dict[str, list[int]] = {}
    for message in found:
        would.setdefault(_would(row, message), []).append(message.recipients_left)
    click.echo("Nothing was done.  With --yes:")
    for what, recipients in would.items():
        click.echo(f"  {len(recipients)} messages, {sum(recipients)} recipients: {what}")


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
