"""`relay find`: where a message is, or what became of it; in the queue and in the recent past.

The queue is asked as `relay queue` asks it.  The recent past is read from its database, the newest first,
and shown as it is found: a relay that runs takes no part in that.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import click

from relay.cli.filter_options import checked
from relay.cli.locate import Where, found_policy, where_options
from relay.cli.operate import ask
from relay.cli.past import opened_past
from relay.cli.render import line_width, outcome_lines, queue_lines
from relay.clock import SystemClock
from relay.control.client import ControlClient
from relay.control.operations import Session
from relay.mail.formats import rfc3339, utc
from relay.mail.sought import Sought, sought
from relay.policy.units import duration_ns
from relay.status.filters import Filters, Wanted
from relay.status.snapshot import MessageView, Snapshot, message_to_json
from relay.telemetry.outcomes import GATHER_SECONDS, Outcome, found, oldest_ns

NOTHING_FOUND = 1


def _sought(_context: click.Context, _parameter: click.Parameter, words: Sequence[str]) -> Sought:
    try:
        return sought(" ".join(words))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("wanted", nargs=-1, required=True, callback=_sought, metavar="TEXT...")
@where_options
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N.")
@click.option(
    "--since", metavar="AGE", callback=checked(duration_ns), help="Leave out what ended earlier: 2h."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def find(
    wanted: Sought,
    policy_path: Path,
    spool: Path | None,
    *,
    limit: int | None,
    since: int | None,
    as_json: bool,
) -> int:
    """Find messages by parts of an address, a Message-ID, a Subject or a queue id.

    The queue id is ours or the client's.  Of several words all must be there.  First those
    in the queue, then what became of others, the newest first: when, by which upstream, and its
    reply.  Works with the relay up or down.  Exit code 1: nothing found.
    """
    policy = found_policy(Where(policy_path, spool))

    async def question(session: Session) -> tuple[Sequence[MessageView], Snapshot | None]:
        messages = await session.queue(Wanted(Filters(text=wanted.text), limit=limit))
        return messages, None if as_json or not messages else await session.snapshot()

    messages, snapshot = ask(Where(policy_path, policy.spool), question)
    now_ns, width = SystemClock().wall_ns(), line_width()
    if as_json:
        for message in messages:
            click.echo(json.dumps({"found": "queue", **message_to_json(message)}))
    elif messages:
        for line in queue_lines(messages, now_ns, snapshot, width):
            click.echo(line)
    if policy.recent is None:
        click.echo("what ended is not kept: `recent: null` in the policy", err=True)
        return os.EX_OK if messages else NOTHING_FOUND
    if ControlClient(policy.spool).is_up():
        # What left the queue just now is written by then.
        asyncio.run(asyncio.sleep(2 * GATHER_SECONDS))
    left = None if limit is None else limit - len(messages)
    count = 0
    with opened_past(policy.spool) as past:
        since_ns = oldest_ns(past)
        outcomes = found(past, wanted, 0 if since is None else now_ns - since)
        for count, outcome in enumerate(islice(outcomes, left), 1):  # noqa: B007 - counted as they come
            click.echo("\n".join([_json_line(outcome)] if as_json else outcome_lines(outcome, width)))
    if messages or count:
        return os.EX_OK
    reaches = "" if since_ns is None else f" since {utc(since_ns)}"
    click.echo(f"not in the queue, and not among what ended{reaches}", err=True)
    return NOTHING_FOUND


def _json_line(outcome: Outcome) -> str:
    """Keys may be added, never renamed."""
    told = outcome._asdict()
    return json.dumps({"found": "recent", "at": rfc3339(told.pop("at_ns")), **told})
