"""`relay status`: what a relay does now; while it is down, what its spool, histories and pauses say."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from relay.cli.locate import Where, asked, found_policy, where_options
from relay.cli.options import json_option, printable
from relay.cli.output import (
    drain_words,
    in_plain_words,
    limits_of,
    relay_words,
    state_words,
    table,
    used_words,
    wrong_words,
)
from relay.mail.formats import rfc3339_or_none, span
from relay.status.filters import USAGE_KEYS
from relay.status.snapshot import Condition, QueueState, Snapshot, to_json

Columns = Mapping[str, Callable[[Any, int], object]]
"""Of a table: what each has of a value, at this instant."""
UPSTREAMS: Columns = {
    "upstream": lambda each, _: each.name,
    "host": lambda each, _: f"{each.host}:{each.port}",
    "state": state_words,
    "connections": lambda each, _: f"{each.connections_open} open, {each.connections_idle} idle",
    "in flight": lambda each, _: each.in_flight,
    "waiting": lambda each, _: f"{each.waiting_messages} messages, {each.waiting_recipients} recipients",
    "held by": lambda each, _: in_plain_words(each.held_by, each.limits) or "-",
    "drained": drain_words,
}
LIMITS: Columns = {
    "upstream": lambda each, _: each.upstream,
    "limit": lambda each, _: each.words,
    "used": lambda each, _: used_words(each),
    "next slot": lambda each, now: f"in {span(each.opens_at_ns - now)}" if each.opens_at_ns else "now",
}
ROUTES: Columns = {
    "route": lambda each, _: each.numbers_words,
    "by": lambda each, _: each.takes_words,
    "prefers": lambda each, _: ", ".join(each.upstreams),
    "goes through": lambda each, _: each.upstream or "-",
    "why": lambda each, now: each.why(now) or "-",
    "stands with": lambda each, _: ", ".join(map("{0[0]} {0[1]}".format, each.stands.items())) or "-",
}
LANES: Columns = {
    "lane": lambda each, _: each.name,
    "share": lambda each, _: f"{each.share_percent:.4g} %",
    "ceiling": lambda each, _: "-" if each.ceiling_percent is None else f"{each.ceiling_percent} %",
    "messages": lambda each, _: each.waiting_messages,
    "recipients": lambda each, _: each.waiting_recipients,
    "oldest": lambda each, _: span(each.oldest_age_ns) if each.waiting_messages else "-",
}
QUEUE: Columns = {
    "queue": lambda each, _: each[0].value,
    "messages": lambda each, _: each[1].messages,
    "recipients": lambda each, _: each[1].recipients,
    "bytes": lambda each, _: each[1].size_bytes,
    "oldest": lambda each, _: span(each[1].oldest_age_ns) if each[1].messages else "-",
}
USAGE: Columns = {
    "upstream": lambda each, _: each["upstream"],
    "limit": lambda each, _: each["limit"],
    "used by": lambda each, _: each["key"] or "<>",
    "messages": lambda each, _: each["messages"],
    "recipients": lambda each, _: each["recipients"],
    "bytes": lambda each, _: each["size_bytes"],
}
NUMBERS = {"messages", "recipients", "bytes", "oldest", "share", "ceiling", "used"}
"""Columns that stand to the right."""


@click.command()
@where_options
@json_option
@click.option("--by", type=click.Choice(list(USAGE_KEYS)), help="Who used each limit's window.")
def status(where: Where, *, as_json: bool, by: str | None) -> int:
    """Show upstreams, limits and when their next slot opens, and the queue.

    With --by, what was relayed within the length of each limit, as far as `recent` keeps it: a
    window itself counts slots.  Works with the relay up or down; down, it reads the spool, and the
    exit code is 69.
    """
    with asked(where) as session:
        snapshot = session.snapshot()
    is_down = snapshot.condition is Condition.DOWN
    if is_down:
        named = replace(snapshot.policy, path=str(where.policy_path.absolute()))
        snapshot = replace(snapshot, policy=named)
    usage = {} if by is None else _usage(where, snapshot, by)
    if as_json:
        click.echo(json.dumps(to_json(snapshot) | usage))
    else:
        for line in status_lines(snapshot) if by is None else _usage_lines(snapshot, usage):
            click.echo(line)
    return os.EX_UNAVAILABLE if is_down else os.EX_OK


def _usage(where: Where, snapshot: Snapshot, by: str) -> dict[str, Any]:
    """Return what was relayed within the length of each limit; keys may be added, never renamed."""
    # Imported only here: only who asks for it loads a database.
    from relay.telemetry.outcomes import oldest_ns, past_outcomes, usage  # noqa: PLC0415 - see above

    with past_outcomes(str(found_policy(where).spool)) as past:
        return {
            "usage_since": rfc3339_or_none(oldest_ns(past)),
            "usage": [
                {"upstream": upstream.name, "limit": limit.label, "by": by, **each._asdict()}
                for upstream in snapshot.upstreams
                for limit in upstream.limits
                for each in usage(past, USAGE_KEYS[by], upstream.name, snapshot.at_ns - limit.period_ns)
            ],
        }


def _usage_lines(snapshot: Snapshot, usage: dict[str, Any]) -> Iterator[str]:
    words = {limit.label: limit.words for limit in limits_of(snapshot)}
    yield from _section(LIMITS, limits_of(snapshot), snapshot.at_ns)
    rows = [each | {"limit": words[each["limit"]]} for each in usage["usage"]]
    yield from _section(USAGE, rows, snapshot.at_ns)
    since = f"since {usage['usage_since']}" if usage["usage_since"] else "nothing so far"
    yield f"what was relayed within the length of each limit, as `recent` keeps it, {since}; a window counts"
    yield "slots: also of what is in flight, was refused, or whose reply was lost"


def status_lines(snapshot: Snapshot) -> Iterator[str]:
    at_ns = snapshot.at_ns
    policy = f"; policy {snapshot.policy.path}" if snapshot.policy.path else ""
    yield from map(printable, (f"{relay_words(snapshot, at_ns)}{policy}", *wrong_words(snapshot)))
    yield ""
    yield from _section(UPSTREAMS, snapshot.upstreams, at_ns)
    yield from _section(LIMITS, limits_of(snapshot), at_ns)
    yield from _section(ROUTES, snapshot.routes, at_ns)
    yield from _section(LANES, snapshot.lanes, at_ns)
    yield from _section(QUEUE, [(state, snapshot.counts(state)) for state in QueueState], at_ns)
    if snapshot.started_at_ns is not None:
        totals = ", ".join(f"{count} {fate}" for fate, count in snapshot.totals.by_fate().items())
        yield f"recipients since the start: {totals}"
    inodes = "" if snapshot.disk.free_inodes is None else f", {snapshot.disk.free_inodes} inodes"
    yield f"disk: {snapshot.disk.free_bytes // 2**20} MiB free{inodes}"


def _section(columns: Columns, values: Sequence[object], at_ns: int) -> Iterator[str]:
    if values:
        rows = [[of_value(each, at_ns) for of_value in columns.values()] for each in values]
        yield from table([*columns], rows, NUMBERS)
        yield ""
