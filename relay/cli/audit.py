"""`relay audit`: the most that any window of any limit can have held, counted anew from the history."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

import click

from relay.cli.locate import found_policy
from relay.cli.options import Where, json_option, printable, where_options
from relay.clock import SystemClock
from relay.mail.formats import rfc3339_or_none, utc
from relay.policy.lane import with_ceilings
from relay.spool.disk.durable import RealDisk
from relay.status.snapshot import as_json
from relay.throttle.audit import Audit
from relay.throttle.audit import audit as count
from relay.throttle.history import HistoryError
from relay.throttle.limit import plain_words
from relay.throttle.opening import recorded_book

EXCEEDED = 1
"""The exit code where a window held more than its limit, as the policy states it today."""


@click.command()
@where_options
@json_option
def audit(where: Where, *, as_json: bool) -> int:
    """Prove from the history that no limit was exceeded.

    For each limit: the most that any window of its length can have held, wherever within a
    transaction the upstream counts.  Reads only; works with the relay up or down.  Exit code 1:
    some window held more than the limit allows today, because an edit lowered the limit, or
    because something else was sent through the account's history.
    """
    policy, clock = found_policy(where), SystemClock()
    code = os.EX_OK
    for name, upstream in policy.upstreams.items():
        place, limits = policy.history_of(name), with_ceilings(upstream.limits, policy.lanes)
        if place.database is None and not place.path.exists():
            if not as_json:
                click.echo(printable(f"{name}: {place} is not there: nothing was sent under a limit"))
            continue
        try:
            slots = recorded_book(place, (), None, RealDisk(), clock).slots()
            found = _by_wall_clock(count(slots, limits), clock)
        except HistoryError as error:
            click.echo(printable(f"{name}: {error}"), err=True)
            code = os.EX_DATAERR
            continue
        if code == os.EX_OK and any(peak.is_exceeded for peak in found.findings):
            code = EXCEEDED
        words = {limit.label: plain_words(limit) for limit in limits}
        for line in (
            _json_lines(name, str(place), found) if as_json else _lines(name, str(place), found, words)
        ):
            click.echo(line)
    return code


def _by_wall_clock(found: Audit, clock: SystemClock) -> Audit:
    ahead_ns = clock.wall_ns() - clock.boottime_ns()

    def wall(at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns + ahead_ns

    return replace(
        found,
        since_ns=wall(found.since_ns),
        exact_since_ns=wall(found.exact_since_ns),
        findings=tuple(replace(peak, most_at_ns=wall(peak.most_at_ns)) for peak in found.findings),
    )


def _lines(name: str, path: str, found: Audit, words: Mapping[str, str]) -> Iterator[str]:
    """`words` are those for people, by the label of each limit."""
    known = f"{found.transactions} transactions"
    if found.in_flight:
        known += f" ({found.in_flight} without an end so far)"
    if found.connections:
        known += f" and {found.connections} connections"
    if found.since_ns is not None:
        known += f", since {utc(found.since_ns)}"
    yield printable(f"{name}: {path}: {known}")
    held = "never exceeded"
    if found.exact_since_ns is not None:
        since = utc(found.exact_since_ns)
        held = f"not exceeded since {since}"
        yield f"  {found.merged} older ones are not known one by one and left out; exact since {since}"
    for peak in found.findings:
        key = f" (by {peak.key or '<>'})" if peak.key is not None else ""
        at = f" at {utc(peak.most_at_ns)}" if peak.most_at_ns is not None else ""
        over = f"EXCEEDED, {peak.most - peak.count} more than it allows today"
        verdict = over if peak.is_exceeded else held
        yield printable(f"  {words[peak.label]}: at most {peak.most} at once{key}{at}: {verdict}")


def _json_lines(name: str, path: str, found: Audit) -> Iterator[str]:
    """Keys may be added, never renamed."""
    known = {
        "since": rfc3339_or_none(found.since_ns),
        "exact_since": rfc3339_or_none(found.exact_since_ns),
        **{key: getattr(found, key) for key in ("transactions", "connections", "in_flight", "merged")},
    }
    for peak in found.findings:
        its = {"limit": peak.label, **as_json(peak), "exceeded": peak.is_exceeded}
        yield json.dumps({"upstream": name, "history": path, **its, **known})
