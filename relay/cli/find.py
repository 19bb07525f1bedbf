"""`relay find`: where a message is, or what became of it; in the queue and in the recent past.

The queue is asked as `relay queue` asks it.  The recent past is read from its database, the newest first,
and shown as it is found: a relay that runs takes no part in that.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from itertools import islice

import click

from relay.cli.locate import Where, asked, found_policy, where_options
from relay.cli.options import duration, json_option, printable
from relay.cli.output import queue_text
from relay.clock import SystemClock
from relay.control.client import ControlClient
from relay.mail.formats import rfc3339, utc
from relay.mail.sought import Sought, sought
from relay.status.filters import Filters, Wanted
from relay.status.snapshot import message_to_json
from relay.telemetry.outcomes import GATHER_SECONDS, PastOutcome, found, oldest_ns, past_outcomes

NOTHING_FOUND = 1
_ROW = "{:<20}  {:<8}  {:<17}  {}"


def _sought(_context: click.Context, _argument: click.Parameter, words: Sequence[str]) -> Sought:
    text = " ".join(words)
    try:
        text.encode()  # it is asked of the relay as JSON
        return sought(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("wanted", nargs=-1, required=True, callback=_sought, metavar="TEXT...")
@where_options
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N.")
@click.option("--since", metavar="AGE", callback=duration, help="Leave out what ended earlier: 2h.")
@json_option
def find(where: Where, wanted: Sought, *, limit: int | None, since: int | None, as_json: bool) -> int:
    """Find messages by parts of an address, a Message-ID, a Subject or a queue id.

    The queue id is ours or the client's.  Of several words all must be there.  First those
    in the queue, then what became of others, the newest first: when, by which upstream, and its
    reply.  Works with the relay up or down.  Exit code 1: nothing found.
    """
    policy = found_policy(where)
    with asked(Where(where.policy_path, policy.spool)) as session:
        messages = session.queue(Wanted(Filters(text=wanted.text), limit=limit))
        snapshot = session.snapshot() if messages else None
    now_ns = SystemClock().wall_ns()
    if as_json:
        for message in messages:
            click.echo(json.dumps({"found": "queue", **message_to_json(message)}))
    elif messages:
        click.echo("\n".join(queue_text([messages], now_ns, snapshot)))
    if policy.recent is None:
        click.echo("what ended is not kept: `recent: null` in the policy", err=True)
        return os.EX_OK if messages else NOTHING_FOUND
    if ControlClient(policy.spool).is_up():
        # What left the queue just now is written by then.
        asyncio.run(asyncio.sleep(2 * GATHER_SECONDS))
    left, count = None if limit is None else limit - len(messages), 0
    with past_outcomes(str(policy.spool)) as past:
        since_ns = oldest_ns(past)
        outcomes = found(past, wanted, 0 if since is None else now_ns - since)
        for count, outcome in enumerate(islice(outcomes, left), 1):
            if count == 1 and not as_json:
                click.echo(_ROW.format("ended", "became", "queue id", "message: reply"))
            click.echo(_json_line(outcome) if as_json else _line(outcome))
    if messages or count:
        return os.EX_OK
    reaches = "" if since_ns is None else f" since {utc(since_ns)}"
    click.echo(f"not in the queue, and not among what ended{reaches}", err=True)
    return NOTHING_FOUND


def _json_line(outcome: PastOutcome) -> str:
    """Keys may be added, never renamed."""
    told = outcome._asdict()
    return json.dumps({"found": "recent", "at": rfc3339(told.pop("at_ns")), **told})


def _line(outcome: PastOutcome) -> str:
    who = f"{outcome.reverse_path or 'MAILER-DAEMON'} -> {outcome.recipient}"
    via = ", ".join(filter(None, (outcome.upstream, outcome.relay if outcome.upstream else "")))
    said = ": ".join(filter(None, (via, outcome.reply)))
    about = " ".join(filter(None, (who, outcome.message_id, outcome.subject, said)))
    return printable(_ROW.format(utc(outcome.at_ns), outcome.became, outcome.queue_id, about))
