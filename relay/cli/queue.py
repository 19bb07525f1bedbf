"""`relay queue` with its verbs on messages, `relay export`, `relay pause` and `relay resume`.

Ids are checked before the relay is asked.  For each id, stdout says what was done, stderr what was not.  The
exit code is 75 if a message was busy or its result is not known, else 1 if an id was absent or unchangeable.
"""

import contextlib
import json
import os
import pwd
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from relay.cli.options import (
    Failed,
    Target,
    checked_ids,
    duration,
    filter_options,
    ids_argument,
    json_option,
    open_session,
    running_relay,
    say,
    target_options,
)
from relay.cli.output import EMPTY, detail_lines, queue_text, table, unread_words
from relay.clock import SystemClock
from relay.control.operations import (
    BUSY,
    OK,
    TABLE,
    UNANSWERED,
    UNCHANGED,
    UNREAD,
    VERBS,
    WORDS,
    MessageVerb,
    NotDone,
    Results,
    Session,
)
from relay.mail.envelope import QueueId
from relay.mail.formats import utc
from relay.status.filters import AGES, SORTS, By, Filters, group_to_json
from relay.status.snapshot import MessageView, QueueState, Snapshot, message_to_json
from relay.verdicts.account import PauseAsked

EVERYTHING = "ALL"
SOME_NOT_DONE = 1
NOTHING_MATCHES = "no message in the queue matches"


@click.group(invoke_without_command=True)
@target_options
@filter_options
@click.option(
    "--reason", default="", metavar="TEXT", help="By a part of the reason for the wait or the hold."
)
@click.option("--sort", type=click.Choice(SORTS), help="Sort order; default: arrival.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N.")
@click.option(
    "--by", type=click.Choice([by.value for by in By]), help="Count messages by this, and by age in minutes."
)
@json_option
@click.pass_context
def queue(
    context: click.Context,
    /,
    target: Target,
    filters: Filters,
    *,
    reason: str,
    sort: str | None,
    limit: int | None,
    by: str | None,
    as_json: bool,
) -> None:
    """List the queue, one line per message; or show or change messages.

    A message must match all filters, and any one value of each.  Works with the relay up or down.
    """
    filters = replace(filters, reason=reason)
    if context.invoked_subcommand is not None:
        if as_json or sort or limit or by or not filters.is_any:
            raise click.UsageError("--json and filters go behind the verb")
        # `relay queue --policy FILE hold ID`
        context.default_map = dict.fromkeys(queue.commands, target._asdict())
        return
    if by and sort:
        raise click.UsageError("--by sorts by the number of messages: leave out --sort")
    with open_session(target) as session:
        snapshot = session.snapshot()
        _tell_unread(snapshot)
        if by:
            lines = _summary(session, filters, By(by), limit, as_json=as_json)
        else:
            # A listing that is neither sorted nor cut is printed as it is found.
            is_arranged = sort or limit
            pages = [session.queue(filters, sort or "", limit)] if is_arranged else session.rows(filters)
            lines = _listing(pages, snapshot, filters, as_json=as_json)
        for line in lines:
            click.echo(line)


def _listing(
    pages: Iterable[Sequence[MessageView]], snapshot: Snapshot, filters: Filters, *, as_json: bool
) -> Iterator[str]:
    if as_json:
        return ("\n".join(json.dumps(message_to_json(each)) for each in some) for some in pages if some)
    nothing = EMPTY if filters.is_any else NOTHING_MATCHES
    return queue_text(pages, SystemClock().wall_ns(), has_routes=bool(snapshot.routes), nothing=nothing)


def _tell_unread(snapshot: Snapshot) -> None:
    if snapshot.recovering:
        click.echo(unread_words(snapshot), err=True)


def _summary(
    session: Session, filters: Filters, by: By, limit: int | None, *, as_json: bool
) -> Iterator[str]:
    groups = session.summary(filters, by, limit)
    if as_json:
        return (json.dumps(group_to_json(group)) for group in groups)
    # The columns of qshape(1): all messages, then messages by age in minutes.
    columns = by.value, "T", *map(str, AGES), f"{AGES[-1]}+"
    rows = (
        ("TOTAL" if group.key is None else group.key or "-", group.messages, *group.messages_by_age)
        for group in groups
    )
    return table(columns, rows, columns)


def _each(ids: Sequence[QueueId], do: Callable[[QueueId], str | None]) -> int:
    """Call `do`, which returns an error, OK or None, for each message; return the exit code."""
    results: dict[str, str] = {}
    for queue_id in ids:
        try:
            results[queue_id] = do(queue_id) or OK
        except NotDone as why:
            results[queue_id] = str(why)
    return report_results(results)


@queue.command()
@ids_argument
@target_options
@json_option
def show(target: Target, ids: Sequence[QueueId], *, as_json: bool) -> int:
    """Show messages with all that is known of their recipients."""
    with open_session(target) as session:

        def show_one(queue_id: QueueId) -> None:
            shown = session.show(queue_id)
            for line in [json.dumps(message_to_json(shown))] if as_json else detail_lines(shown):
                click.echo(line)

        return _each(ids, show_one)


@queue.command()
@ids_argument
@target_options
def content(target: Target, ids: Sequence[QueueId]) -> int:
    """Print a message as stored; on a terminal, control characters are escaped."""
    if len(ids) != 1:
        raise click.UsageError("name one message; several need `relay export --output DIR`")
    with open_session(target) as session:
        return _each(ids, lambda queue_id: _echo_content(session.content(queue_id)))


def _echo_content(chunks: Iterator[bytes]) -> None:
    if sys.stdout.isatty():
        text = b"".join(chunks).decode("utf-8", "replace").removesuffix("\n")
        for line in text.split("\n"):
            say(line.removesuffix("\r").expandtabs(1))
    else:
        for chunk in chunks:
            click.echo(chunk, nl=False)


@click.command()
@ids_argument
@target_options
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Write ID.eml and ID.json to this folder; existing files are not replaced.",
)
def export(target: Target, ids: Sequence[QueueId], *, output: Path) -> int:
    """Write messages of the queue as .eml, each with its envelope.

    Each message becomes two files: the content as it is stored, and the envelope with sender, state of each
    recipient, arrival and client.  `-` reads ids from stdin.  Works with the relay up or down, and changes
    nothing.
    """
    try:
        output.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"{output}: {error.strerror}", os.EX_CANTCREAT) from error
    os.umask(0o077)  # the files hold other people's mail
    with open_session(target) as session:
        return _each(ids, lambda queue_id: _to_files(session, queue_id, output))


def _to_files(session: Session, queue_id: QueueId, folder: Path) -> str:
    path = folder / f"{queue_id}.eml"
    envelope = json.dumps(message_to_json(session.show(queue_id)), indent=2).encode() + b"\n"
    try:
        with contextlib.ExitStack() as undo:
            for name, chunks in ((path, session.content(queue_id)), (path.with_suffix(".json"), [envelope])):
                with name.open("xb") as file:
                    # Nobody must take half a message for the whole.
                    undo.callback(name.unlink, missing_ok=True)
                    file.writelines(chunks)
            undo.pop_all()
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}"
    say(path)
    return OK


def _verb(verb: MessageVerb) -> None:
    row = TABLE[verb]
    words = (
        f"{row.summary}  `-` reads ids from stdin; ALL with --yes means the whole queue.  "
        "With filters instead of ids, shows what would be done; --yes does it."
    )

    @queue.command(verb, help=words)
    @click.argument("words", metavar="ID...", nargs=-1)
    @target_options
    @filter_options
    @click.option("--yes", "is_confirmed", is_flag=True, help="Confirm ALL, or all that match.")
    def command(target: Target, words: Sequence[str], filters: Filters, *, is_confirmed: bool) -> int:
        if filters.is_any is not bool(words):
            raise click.UsageError("name messages by their ids, or by filters")
        if EVERYTHING in words and (len(words) > 1 or not is_confirmed):
            raise click.UsageError(f"{EVERYTHING} must be the only argument, with --yes")
        queue_ids = [] if EVERYTHING in words else checked_ids(words)
        with open_session(target) as session:
            if queue_ids:
                return _act(session, verb, queue_ids)
            # Taken before the verb: if the relay stops during the verb, its results are still told.
            snapshot = session.snapshot()
            # No verb acts on a corrupt message.
            found = [each for each in session.queue(filters) if each.state is not QueueState.CORRUPT]
            code = os.EX_OK
            if found and is_confirmed:
                code = _act(session, verb, [each.queue_id for each in found], filters.states)
            else:
                for text in _listing([found], snapshot, filters, as_json=False):
                    click.echo(text)
        if found and not is_confirmed:
            sums = f"{len(found)} messages, {sum(each.recipients_left for each in found)} recipients"
            click.echo(f"Nothing was done.  With --yes: {sums}: {row.done}")
        _tell_unread(snapshot)
        return os.EX_TEMPFAIL if snapshot.recovering and is_confirmed else code


for _verb_of_messages in VERBS:
    _verb(_verb_of_messages)


def _act(
    session: Session, verb: MessageVerb, queue_ids: Sequence[QueueId], states: Sequence[QueueState] = ()
) -> int:
    results = session.act(verb, queue_ids, states)
    return report_results(results, {OK: TABLE[verb].done, UNCHANGED: TABLE[verb].already})


def report_results(results: Results | Mapping[str, str], done: Mapping[str, str] | None = None) -> int:
    """Say for each name on stdout what was done, on stderr what was not; return the exit code."""
    failures: set[str] = set()
    for name, result in results.items():
        if result not in (OK, UNCHANGED):
            failures.add(result)
            say(f"{name}: {WORDS.get(result, result)}", err=True)
        elif done is not None:
            say(f"{name}: {done[result]}")
    if failures & {BUSY, UNREAD, UNANSWERED}:
        return os.EX_TEMPFAIL
    return SOME_NOT_DONE if failures else os.EX_OK


@click.command()
@click.argument("upstream")
@click.option(
    "--for",
    "length_ns",
    callback=duration,
    metavar="TIME",
    help="Length, such as 30m or 2h; default: until `relay resume UPSTREAM`.",
)
@target_options
def pause(target: Target, upstream: str, *, length_ns: int | None) -> int:
    """Send nothing more through UPSTREAM; transactions in flight finish.

    Mail is accepted as before and waits, without growing old.  The pause survives restarts and reboots.
    Calling this again sets another end.  When the pause ends, one message goes first, as after
    `relay resume`.
    """
    until = f"until `relay resume {upstream}`"
    if length_ns is not None:
        until = f"until {utc(SystemClock().wall_ns() + length_ns)}"
    result = running_relay(target).pause(upstream, PauseAsked(who_asks(), length_ns))
    return report_results({upstream: result}, {OK: f"{TABLE['pause'].done} {until}"})


@click.command()
@click.argument("upstream")
@target_options
def resume(target: Target, upstream: str) -> int:
    """Use UPSTREAM again although it is paused or stopped.

    Senders that it refused are tried again too.  One transaction goes first; the others follow once it
    has succeeded.  Limits still hold.  Refusals that the shield doubts (`relay queue` shows them) are
    tried again.
    """
    row = TABLE["resume"]
    result = running_relay(target).resume(upstream)
    return report_results({upstream: result}, {OK: row.done, UNCHANGED: row.already})


def who_asks() -> str:
    """Return who asks: the user behind sudo, if there is one."""
    with contextlib.suppress(KeyError):  # a user without a name
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    return f"user {os.getuid()}"
