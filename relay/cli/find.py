"""`relay find`: where a message is, or what became of it; in the queue and in the recent past.

The queue is asked as `relay queue` asks it.  The recent past is read from its files, the newest first,
and shown as it is found: a relay that runs takes no part in that.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from relay.cli.filter_options import checked
from relay.cli.locate import Where, found_policy, where_options
from relay.cli.operate import ask
from relay.cli.options import NotPermitted, TryLater, printable
from relay.cli.render import ending_lines, line_width, queue_lines
from relay.clock import SystemClock
from relay.control.client import ControlClient
from relay.control.operations import Session
from relay.mail.formats import rfc3339, utc
from relay.mail.sought import Sought, sought
from relay.policy.units import duration_ns
from relay.spool.disk.durable import RealDisk
from relay.status.filters import Filters, Wanted
from relay.status.snapshot import MessageView, Snapshot, message_to_json
from relay.telemetry.endings import PastEnding
from relay.telemetry.past_files import PastReader
from relay.telemetry.recent_past import GATHER_SECONDS, past_folder

NOTHING_FOUND = 1


@click.command()
@click.argument("text", callback=checked(sought), metavar="TEXT")
@where_options
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N.")
@click.option(
    "--since", metavar="AGE", callback=checked(duration_ns), help="Leave out what ended earlier: 2h."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def find(
    text: Sought,
    policy_path: Path,
    spool: Path | None,
    *,
    limit: int | None,
    since: int | None,
    as_json: bool,
) -> int:
    """Find messages by TEXT, a part of an address, a Message-ID or a queue id.

    First those in the queue, then what became of others, the newest first: when, by which
    upstream, and its reply.  Works with the relay up or down.  Exit code 1: nothing found.
    """
    policy = found_policy(Where(policy_path, spool))
    wanted = Wanted(Filters(text=text.text), limit=limit)

    async def question(session: Session) -> tuple[Sequence[MessageView], Snapshot | None]:
        messages = await session.queue(wanted)
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
    reader = PastReader(past_folder(str(policy.spool)), RealDisk())
    endings = _matching(reader, text, 0 if since is None else now_ns - since)
    left = None if limit is None else limit - len(messages)
    count = _show(islice(endings, left), _json_line if as_json else lambda each: ending_lines(each, width))
    _tell_of_damage(reader)
    if messages or count:
        return os.EX_OK
    reaches = "" if reader.since_ns is None else f" since {utc(reader.since_ns)}"
    click.echo(f"not in the queue, and not among what ended{reaches}", err=True)
    return NOTHING_FOUND


def _matching(reader: PastReader, wanted: Sought, since_ns: int) -> Iterator[PastEnding]:
    for ending in reader.endings(wanted.may_be_in):
        if ending.at_ns >= since_ns and (
            wanted.is_in(ending.queue_id)
            or wanted.is_in(ending.message_id)
            or wanted.is_in_address((ending.reverse_path, ending.recipient))
        ):
            yield ending


def _show(endings: Iterator[PastEnding], lines_of: Callable[[PastEnding], Iterator[str]]) -> int:
    """Return how many there were.  Raises NotPermitted, TryLater."""
    count = 0
    try:
        for count, ending in enumerate(endings, 1):  # noqa: B007 - counted as they come
            for line in lines_of(ending):
                click.echo(line)
    except PermissionError as error:
        raise NotPermitted(f"{error}; run this as the user that the relay runs as") from error
    except OSError as error:
        raise TryLater(f"what ended cannot be read: {error}") from error
    return count


def _json_line(ending: PastEnding) -> Iterator[str]:
    """Keys may be added, never renamed."""
    told: dict[str, Any] = ending._asdict()
    yield json.dumps({"found": "recent", "at": rfc3339(told.pop("at_ns")), **told})


def _tell_of_damage(reader: PastReader) -> None:
    for unread in reader.unread:
        click.echo(printable(f"what ended cannot all be read: {unread}"), err=True)
    if reader.damaged_lines:
        click.echo(f"lines of what ended that are damaged: {reader.damaged_lines}", err=True)
