"""`relay audit`: the most that any window of any limit can have held, counted anew from the history."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from relay.cli.locate import Where, found_policy, where_options
from relay.cli.options import NotPermitted, printable
from relay.clock import SystemClock
from relay.mail.formats import rfc3339, utc
from relay.policy.lane import with_ceilings
from relay.spool.disk.durable import RealDisk
from relay.throttle.audit import Audit
from relay.throttle.audit import audit as count
from relay.throttle.history import HistoryError
from relay.throttle.history_check import slots_in_file
from relay.throttle.limit import plain_words

Wall = Callable[[int], int]
"""Brings an instant into wall clock."""

EXCEEDED = 1
"""The exit code where a window held more than its limit, as the policy states it today."""


@click.command()
@where_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, one for each limit.")
def audit(policy_path: Path, spool: Path | None, *, as_json: bool) -> int:
    """Prove from the history that no limit was exceeded.

    For each limit: the most that any window of its length can have held, wherever within a
    transaction the upstream counts.  Reads only; works with the relay up or down.  Exit code 1:
    some window held more than the limit allows today, because an edit lowered the limit, or
    because something else was sent through the account's history.
    """
    policy, clock = found_policy(Where(policy_path, spool)), SystemClock()
    to_wall_ns = clock.wall_ns() - clock.boottime_ns()

    def wall(at_ns: int) -> int:
        return at_ns + to_wall_ns

    is_exceeded = is_unreadable = False
    for name, upstream in policy.upstreams.items():
        path = policy.history_path(name)
        limits = with_ceilings(upstream.limits, policy.lanes)
        if not path.exists():
            if not as_json:
                click.echo(printable(f"{name}: {path} is not there: nothing was sent under a limit"))
            continue
        try:
            found = count(slots_in_file(path, RealDisk(), clock), limits)
        except PermissionError as error:
            raise NotPermitted(f"{error}; run this as the user that the relay runs as") from error
        except HistoryError as error:
            click.echo(printable(f"{name}: {error}"), err=True)
            is_unreadable = True
            continue
        is_exceeded = is_exceeded or any(finding.is_exceeded for finding in found.findings)
        words = {limit.label: plain_words(limit) for limit in limits}
        lines = _json_lines(name, path, found, wall) if as_json else _lines(name, path, found, words, wall)
        for line in lines:
            click.echo(line)
    return os.EX_DATAERR if is_unreadable else EXCEEDED if is_exceeded else os.EX_OK


def _lines(name: str, path: Path, found: Audit, words: Mapping[str, str], wall: Wall) -> Iterator[str]:
    """`words` are those for people, by the label of each limit."""
    known = f"{found.transactions} transactions"
    if found.in_flight:
        known += f" ({found.in_flight} without an end so far)"
    if found.connections:
        known += f" and {found.connections} connections"
    if found.since_ns is not None:
        known += f", since {utc(wall(found.since_ns))}"
    yield printable(f"{name}: {path}: {known}")
    since = ""
    if found.exact_since_ns is not None:
        since = utc(wall(found.exact_since_ns))
        yield f"  {found.merged} older ones are not known one by one and left out; exact since {since}"
    for finding in found.findings:
        key = f" (by {finding.key or '<>'})" if finding.key is not None else ""
        at = f" at {utc(wall(finding.most_at_ns))}" if finding.most_at_ns is not None else ""
        limit = words[finding.label]
        verdict = "never exceeded" if found.exact_since_ns is None else f"not exceeded since {since}"
        if finding.is_exceeded:
            verdict = f"EXCEEDED, {finding.most - finding.count} more than it allows today"
        yield printable(f"  {limit}: at most {finding.most} at once{key}{at}: {verdict}")


def _json_lines(name: str, path: Path, found: Audit, wall: Wall) -> Iterator[str]:
    def instant(at_ns: int | None) -> str | None:
        return None if at_ns is None else rfc3339(wall(at_ns))

    for finding in found.findings:
        line: dict[str, Any] = {
            "upstream": name,
            "history": str(path),
            "limit": finding.label,
            "unit": finding.unit,
            "count": finding.count,
            "period_seconds": finding.period_ns / 1_000_000_000,
            "most": finding.most,
            "most_at": instant(finding.most_at_ns),
            "key": finding.key,
            "exceeded": finding.is_exceeded,
            "since": instant(found.since_ns),
            "exact_since": instant(found.exact_since_ns),
            "transactions": found.transactions,
            "connections": found.connections,
            "in_flight": found.in_flight,
            "merged": found.merged,
        }
        yield json.dumps(line)
