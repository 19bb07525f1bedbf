"""`relay status`: what a relay does now; while it is down, what its spool, histories and pauses say."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import click

from relay.cli.locate import asked, found_policy
from relay.cli.options import Where, json_option, where_options
from relay.cli.render import (
    drain_words,
    in_plain_words,
    limits_of,
    relay_words,
    state_words,
    used_words,
    wrong_words,
)
from relay.cli.table import Table, line_width, wrapped
from relay.clock import SECOND_NS
from relay.mail.formats import rfc3339_or_none, span
from relay.status.filters import USAGE_KEYS
from relay.status.snapshot import Condition, QueueState, Snapshot, to_json

USAGE_COUNTS = "messages", "recipients", "size_bytes"


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
        for line in _lines(snapshot) if by is None else _usage_lines(snapshot, usage, by):
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


def _usage_lines(snapshot: Snapshot, usage: dict[str, Any], by: str) -> Iterator[str]:
    yield from _limits(snapshot)
    counts = "messages", "recipients", "octets"
    words = {limit.label: limit.words for limit in limits_of(snapshot)}
    rows = [
        (row["upstream"], words[row["limit"]], row["key"] or "<>", *map(row.get, USAGE_COUNTS))
        for row in usage["usage"]
    ]
    yield from _section(("upstream", "limit", by, *counts), rows, counts)
    since = f"since {usage['usage_since']}" if usage["usage_since"] else "nothing so far"
    yield from wrapped(
        f"what was relayed within the length of each limit, as `recent` keeps it, {since}; a window counts "
        "slots: also of what is in flight, was refused, or whose reply was lost",
        line_width(),
    )


def _lines(snapshot: Snapshot) -> Iterator[str]:
    at_ns = snapshot.at_ns
    policy = f"; policy {snapshot.policy.path}" if snapshot.policy.path else ""
    for words in (f"{relay_words(snapshot, at_ns)}{policy}", *wrong_words(snapshot)):
        yield from wrapped(words, line_width())
    yield ""
    yield from _section(
        ("upstream", "host", "state", "connections", "in flight", "waiting", "held by", "drained"),
        [
            (
                upstream.name,
                f"{upstream.host}:{upstream.port}",
                state_words(upstream, at_ns),
                f"{upstream.connections_open} open, {upstream.connections_idle} idle",
                upstream.in_flight,
                f"{upstream.waiting_messages} messages, {upstream.waiting_recipients} recipients",
                in_plain_words(upstream.held_by, upstream.limits) or "-",
                drain_words(upstream, at_ns),
            )
            for upstream in snapshot.upstreams
        ],
    )
    yield from _limits(snapshot)
    yield from _section(
        ("route", "by", "prefers", "goes through", "why", "stands with"),
        [
            (
                route.numbers_words,
                route.takes_words,
                ", ".join(route.upstreams),
                route.upstream or "-",
                route.why(at_ns) or "-",
                ", ".join(f"{name} {count}" for name, count in route.stands.items()) or "-",
            )
            for route in snapshot.routes
        ],
    )
    numbers = "share", "ceiling", "messages", "recipients", "bytes", "oldest"
    yield from _section(
        ("lane", "share", "ceiling", "messages", "recipients", "oldest"),
        [
            (
                lane.name,
                f"{lane.share_percent:.4g} %",
                "-" if lane.ceiling_percent is None else f"{lane.ceiling_percent} %",
                lane.waiting_messages,
                lane.waiting_recipients,
                span(lane.oldest_age_ns) if lane.waiting_messages else "-",
            )
            for lane in snapshot.lanes
        ],
        numbers,
    )
    yield from _section(
        ("host", "has", "lease", "used the account of"),
        [
            (
                its.host,
                f"{its.claimed_messages} messages",
                "-" if its.lease_seconds is None else span(int(its.lease_seconds * SECOND_NS)),
                ", ".join(
                    f"{name} {span(int(age * SECOND_NS))} ago"
                    for name, age in its.history_age_seconds.items()
                )
                or "-",
            )
            for its in snapshot.hosts
        ],
    )
    counts = [(state.value, snapshot.counts(state)) for state in QueueState]
    yield from _section(
        ("queue", "messages", "recipients", "bytes", "oldest"),
        [
            (
                name,
                its.messages,
                its.recipients,
                its.size_bytes,
                span(its.oldest_age_ns) if its.messages else "-",
            )
            for name, its in counts
        ],
        numbers,
    )
    if snapshot.started_at_ns is not None:
        totals = ", ".join(f"{count} {fate}" for fate, count in snapshot.totals.by_fate().items())
        yield from wrapped(f"recipients since the start: {totals}", line_width())
    inodes = "" if snapshot.disk.free_inodes is None else f", {snapshot.disk.free_inodes} inodes"
    yield f"disk: {snapshot.disk.free_bytes // 2**20} MiB free{inodes}"


def _limits(snapshot: Snapshot) -> Iterator[str]:
    rows = [
        (
            limit.upstream,
            limit.words,
            used_words(limit),
            "now" if limit.opens_at_ns is None else f"in {span(limit.opens_at_ns - snapshot.at_ns)}",
        )
        for limit in limits_of(snapshot)
    ]
    yield from _section(("upstream", "limit", "used", "next slot"), rows, ["used"])


def _section(
    columns: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[str] = ()
) -> Iterator[str]:
    if rows:
        yield from Table(*columns, numbers=numbers).lines(rows)
        yield ""
