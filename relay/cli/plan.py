"""`relay plan FILE`: what an edited policy would do to the queue of now, before it is in force.

Asks the relay that runs, which changes nothing; or reads the spool of one that is down, as `relay queue`
does, and tells what a start would do.  All figures are those of `relay.status.eta`.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click

from relay.cli.locate import asked
from relay.cli.options import Where, duration, json_option, printable, where_options
from relay.control.operations import NotDone
from relay.mail.formats import span, utc
from relay.policy.source import policy_bytes, read_policy
from relay.status.plan import Plan, plan_to_json

LONGER = UNTOLD = 1
"""The exit code where mail would wait longer than `--within`, and where nobody can tell."""
_UNKNOWN = "nobody can tell"


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@where_options
@click.option(
    "--within",
    "within_ns",
    callback=duration,
    metavar="TIME",
    help="Exit with 1 where mail would wait longer, such as 2h.",
)
@json_option
def plan(where: Where, path: Path, *, within_ns: int | None, as_json: bool) -> int:
    """Tell what the policy in FILE would do, before it is in force.

    Says what differs from the policy in force, which limits would be over at once, and when the mail that
    waits will have gone under either.  By estimate, as in `relay queue`.  Changes nothing.
    """
    # Every fault is told here, as `relay check` does it; the relay that is asked reads the text once more.
    read_policy(path)
    text = policy_bytes(path).decode()
    try:
        with asked(where) as session:
            planned = session.plan(text, path.absolute())
    except NotDone as why:
        click.echo(f"{_UNKNOWN} what this edit would do: {why}", err=True)
        return UNTOLD
    if as_json:
        click.echo(json.dumps(plan_to_json(planned)))
    else:
        for line in _lines(planned, path):
            click.echo(printable(line))
    if within_ns is None or not planned.waits_longer_than(within_ns):
        return os.EX_OK
    if not as_json:
        click.echo(f"mail would wait longer than {span(within_ns)}")
    return LONGER


def _lines(planned: Plan, path: Path) -> Iterator[str]:
    how = "the relay that runs" if planned.is_running else "the relay is down: as if it started now with each"
    yield f"{path}, at {utc(planned.at_ns)}; {how}; no policy was changed"
    yield "what differs from the policy in force:"
    for each in planned.differences:
        yield f"  {each.sign} {each.words}{' (needs a restart)' if each.needs_restart else ''}"
    if not planned.differences:
        yield "  nothing"
    for over in planned.over:
        until = f"nothing goes until {utc(over.opens_at_ns)}, in {span(over.opens_at_ns - planned.at_ns)}"
        yield f"over at once: {over.upstream}: {over.limit}: {over.used} of {over.count} used, and {until}"
    if not planned.upstreams:
        yield "no mail waits"
    for line in planned.upstreams:
        yield f"{line.name}: {line.messages} messages, {line.recipients} recipients wait"
        yield f"  in force: {_end(line.drained_at_ns, planned.at_ns, line.held_by)}"
        yield f"  edited:   {_end(line.edited_drained_at_ns, planned.at_ns, line.edited_held_by)}"


def _end(at_ns: int | None, now_ns: int, held_by: str) -> str:
    if at_ns is None:
        return f"{_UNKNOWN}: {held_by}" if held_by else _UNKNOWN
    for_what = f"; most of it for {held_by}" if held_by else ""
    return f"all have gone in {span(max(0, at_ns - now_ns))}, at {utc(at_ns)}{for_what}"
