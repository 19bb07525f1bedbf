"""`relay status` and `relay find`: what a relay does now, and where a message is or what became of it.

While the relay is down, its spool is read.  The recent past is read from its database,
without the relay, and shown as it is found, newest first.  The modules that read a database are imported only
where needed.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from relay.cli.options import (
    Target,
    checked,
    duration,
    found_policy,
    json_option,
    open_session,
    printable,
    target_options,
)
from relay.cli.output import queue_text, relay_words, state_words, table, used_words, wrong_words
from relay.clock import SECOND_NS, SystemClock
from relay.control.client import ControlClient
from relay.mail.formats import rfc3339, span, utc
from relay.status.filters import Filters
from relay.status.snapshot import Condition, QueueState, Snapshot, UpstreamState, message_to_json, to_json

if TYPE_CHECKING:
    from relay.telemetry.outcomes import PastOutcome

Columns = Mapping[str, Callable[[Any, int], object]]
"""For each column of a table, the function that returns its cell for a value and the present time in ns."""
UPSTREAMS: Columns = {
    "upstream": lambda each, _: each.name,
    "host": lambda each, _: f"{each.host}:{each.port}",
    "state": state_words,
    "connections": lambda each, _: f"{each.connections_open} open, {each.connections_idle} idle",
    "in flight": lambda each, _: each.in_flight,
    "waiting": lambda each, _: f"{each.waiting_messages} messages, {each.waiting_recipients} recipients",
    "waits for": lambda each, _: each.held_by or "-",
    "drained": lambda each, now: each.drain_words(now),
}
LIMITS: Columns = {
    "upstream": lambda each, _: each.upstream,
    "limit": lambda each, _: each.label,
    "used": lambda each, _: used_words(each),
    "next slot": lambda each, now: f"in {span(each.opens_at_ns - now)}" if each.opens_at_ns else "now",
}
ROUTES: Columns = {
    "route": lambda each, _: ", ".join(map(str, each.numbers)),
    "takes": lambda each, _: " or ".join(each.takes),
    "prefers": lambda each, _: ", ".join(each.upstreams),
    "goes through": lambda each, _: each.upstream or "-",
    "why": lambda each, now: each.why(now) or "-",
    "queued at": lambda each, _: ", ".join(map("{0[0]} {0[1]}".format, each.stands.items())) or "-",
}
LANES: Columns = {
    "lane": lambda each, _: each.name,
    "share": lambda each, _: f"{each.share_percent:.4g} %",
    "ceiling": lambda each, _: "-" if each.ceiling_percent is None else f"{each.ceiling_percent} %",
    "messages": lambda each, _: each.waiting_messages,
    "recipients": lambda each, _: each.waiting_recipients,
    "oldest": lambda each, _: span(each.oldest_age_ns) if each.waiting_messages else "-",
}
HOSTS: Columns = {
    "host": lambda each, _: each.host,
    "has": lambda each, _: f"{each.claimed_messages} messages",
    "lease": lambda each, _: "-" if each.lease_seconds is None else span(int(each.lease_seconds * SECOND_NS)),
    "used the account of": lambda each, _: (
        ", ".join(
            f"{name} {span(int(age * SECOND_NS))} ago" for name, age in each.history_age_seconds.items()
        )
        or "-"
    ),
}
QUEUE: Columns = {
    "queue": lambda each, _: each[0].value,
    "messages": lambda each, _: each[1].messages,
    "recipients": lambda each, _: each[1].recipients,
    "bytes": lambda each, _: each[1].size_bytes,
    "oldest": lambda each, _: span(each[1].oldest_age_ns) if each[1].messages else "-",
}
NOTHING_FOUND = 1
_ENDED = "{:<20}  {:<8}  {:<17}  {}"
NUMBERS = {"messages", "recipients", "bytes", "oldest", "share", "ceiling", "used"}
"""Columns that are right-aligned."""


@click.command()
@target_options
@json_option
def status(target: Target, *, as_json: bool) -> int:
    """Show upstreams, limits and when their next slot opens, and the queue.

    Works with the relay up or down; down, it reads the spool, and the exit code is 69.
    """
    with open_session(target) as session:
        snapshot = session.snapshot()
    is_down = snapshot.condition is Condition.DOWN
    if is_down:
        path = str(target.policy_path.absolute())
        snapshot = replace(snapshot, policy=replace(snapshot.policy, path=path))
    if as_json:
        told = to_json(snapshot)
        for upstream in told["upstreams"] if is_down else ():
            if upstream["state"] == UpstreamState.OPEN:
                # No mail goes while the relay is down, whatever the upstream would allow.
                upstream["state"] = Condition.DOWN.value
        click.echo(json.dumps(told))
    else:
        for line in status_lines(snapshot):
            click.echo(line)
    return os.EX_UNAVAILABLE if is_down else os.EX_OK


def status_lines(snapshot: Snapshot) -> Iterator[str]:
    at_ns = snapshot.at_ns
    policy = f"; policy {snapshot.policy.path}" if snapshot.policy.path else ""
    yield from map(printable, (f"{relay_words(snapshot, at_ns)}{policy}", *wrong_words(snapshot)))
    yield ""
    yield from _section(UPSTREAMS, snapshot.upstreams, at_ns)
    yield from _section(LIMITS, [limit for each in snapshot.upstreams for limit in each.limits], at_ns)
    yield from _section(ROUTES, snapshot.routes, at_ns)
    yield from _section(LANES, snapshot.lanes, at_ns)
    yield from _section(HOSTS, snapshot.hosts, at_ns)
    yield from _section(QUEUE, [(state, snapshot.counts(state)) for state in QueueState], at_ns)
    if snapshot.started_at_ns is not None:
        totals = ", ".join(f"{count} {fate}" for fate, count in snapshot.totals.items())
        yield f"recipients since the start: {totals}"
    inodes = "" if snapshot.disk.free_inodes is None else f", {snapshot.disk.free_inodes} inodes"
    yield f"disk: {snapshot.disk.free_bytes // 2**20} MiB free{inodes}"


def _section(columns: Columns, values: Sequence[object], at_ns: int) -> Iterator[str]:
    if values:
        rows = [[of_value(each, at_ns) for of_value in columns.values()] for each in values]
        yield from table([*columns], rows, NUMBERS)
        yield ""


@click.command()
@click.argument(
    "words",
    nargs=-1,
    required=True,
    callback=checked("relay.mail.address", "parse_search"),
    metavar="TEXT...",
)
@target_options
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N.")
@click.option("--since", metavar="AGE", callback=duration, help="Leave out older outcomes: 2h.")
@json_option
def find(target: Target, words: Sequence[str], *, limit: int | None, since: int | None, as_json: bool) -> int:
    """Find messages by parts of an address, a Message-ID, a Subject or a queue id.

    The queue id may be the relay's or the client's.  All words must match.  Prints messages in the
    queue first, then those that have ended, newest first: when, through which upstream, and its
    reply.  Works with the relay up or down.  Exit code 1: nothing found.
    """
    import asyncio  # noqa: PLC0415 - see the beginning

    from relay.telemetry.outcomes import GATHER_SECONDS, found, oldest_ns, past_outcomes  # noqa: PLC0415 - see above

    policy, wanted = found_policy(target), " ".join(words)
    with open_session(target) as session:
        messages = session.queue(Filters(text=wanted), limit=limit)
        has_routes = bool(messages and session.snapshot().routes)
    now_ns = SystemClock().wall_ns()
    if as_json:
        for message in messages:
            click.echo(json.dumps({"found": "queue", **message_to_json(message)}))
    elif messages:
        click.echo("\n".join(queue_text([messages], now_ns, has_routes=has_routes)))
    if policy.recent is None:
        click.echo("ended messages are not kept: the policy has `recent: null`", err=True)
        return os.EX_OK if messages else NOTHING_FOUND
    if ControlClient(policy.spool).is_up():
        # The relay writes what left the queue just now within this time.
        asyncio.run(asyncio.sleep(2 * GATHER_SECONDS))
    left, count = None if limit is None else limit - len(messages), 0
    with past_outcomes(str(policy.spool)) as past:
        since_ns = oldest_ns(past)
        outcomes = found(past, wanted, 0 if since is None else now_ns - since)
        for count, outcome in enumerate(islice(outcomes, left), 1):
            if count == 1 and not as_json:
                click.echo(_ENDED.format("ended", "became", "queue id", "message; reply"))
            click.echo(_json_line(outcome) if as_json else _line(outcome))
    if messages or count:
        return os.EX_OK
    reaches = "" if since_ns is None else f" since {utc(since_ns)}"
    click.echo(f"no such message in the queue or among those that ended{reaches}", err=True)
    return NOTHING_FOUND


def _json_line(outcome: "PastOutcome") -> str:
    """Keys may be added, never renamed."""
    told = outcome._asdict()
    return json.dumps({"found": "recent", "at": rfc3339(told.pop("at_ns")), **told})


def _line(outcome: "PastOutcome") -> str:
    who = f"{outcome.reverse_path or 'MAILER-DAEMON'} -> {outcome.recipient}"
    via = ", ".join(filter(None, (outcome.upstream, outcome.relay if outcome.upstream else "")))
    message = " ".join(filter(None, (who, outcome.message_id, outcome.subject)))
    about = "; ".join(filter(None, (message, ": ".join(filter(None, (via, outcome.reply))))))
    return printable(_ENDED.format(utc(outcome.at_ns), outcome.became, outcome.queue_id, about))
