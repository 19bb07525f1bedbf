"""`relay plan FILE`: what an edited policy would do to the queue of now, before it is in force.

Asks the relay that runs, which changes nothing; or reads the spool of one that is down, as `relay queue`
does, and tells what a start would do.  All figures are those of `relay.status.estimate.plan`.
"""

import json
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from relay.cli.locate import Where, where_options
from relay.cli.operate import ask
from relay.cli.options import duration, printable
from relay.clock import SECOND_NS
from relay.mail.formats import span, utc
from relay.policy.source import policy_bytes, read_policy
from relay.status.estimate.past import SHORTEST_WAIT_NS
from relay.status.estimate.plan import (
    MINUTES,
    Course,
    LaneCourse,
    NoteKind,
    Over,
    PastCourse,
    Plan,
    PlanRemark,
    UpstreamCourse,
    plan_to_json,
)

LONGER = 1
"""The exit code where mail would wait longer than `--within`."""
UNTOLD = 1
"""Where nobody can tell anything of it, so neither that it would not."""
WIDTH = 80
NAME_WIDTH = 16
HOUR_NS = 3600 * SECOND_NS
IN_A_ROW = 10
"""Minutes."""
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
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def plan(path: Path, policy_path: Path, spool: Path | None, *, within_ns: int | None, as_json: bool) -> int:
    """Tell what the policy in FILE would do, before it is in force.

    Says what differs from the policy in force, which limits would be over at once, when the queue and each
    lane will have gone, how many messages leave in each minute of the first hour, and what the mail of the
    last days would have met.  By estimate, as in `relay queue`.  Changes nothing.
    """
    # Every fault is told here, as `relay check` does it; the relay that is asked reads the text once more.
    read_policy(path)
    content = policy_bytes(path)
    planned = ask(Where(policy_path, spool), lambda session: session.plan(content, path.absolute()))
    if isinstance(planned, str):
        click.echo(f"{_UNKNOWN} what this edit would do: {planned}", err=True)
        return UNTOLD
    if as_json:
        click.echo(json.dumps(plan_to_json(planned)))
    else:
        for line in lines_of(planned, path):
            click.echo(line)
    if within_ns is None or not planned.waits_longer_than(within_ns):
        return os.EX_OK
    if not as_json:
        click.echo(f"mail would wait longer than {span(within_ns)}")
    return LONGER


def lines_of(planned: Plan, path: Path) -> Iterator[str]:
    """Return what people read; no line is wider than WIDTH unless a single word is."""
    how = "the relay that runs" if planned.is_running else "the relay is down: as if it started now with each"
    yield from _wrapped(f"{path}, at {utc(planned.at_ns)}; {how}; no policy was changed", "", "  ")
    yield ""
    yield "what differs from the policy in force"
    for each in planned.differences:
        restart = " (needs a restart; not in the figures below)" if each.needs_restart else ""
        yield from _wrapped(f"{each.words}{restart}", f"  {each.sign} ", "      ")
    if not planned.differences:
        yield "  nothing"
    is_one = len(_upstreams(planned.new)) == 1
    yield from _section(
        "over at once", (_over_words(each, planned.at_ns, is_one=is_one) for each in planned.over)
    )
    yield from _section("messages", map(_note_words, planned.notes))
    yield ""
    yield from _courses(planned)
    yield ""
    yield from _hour(planned.old.minutes, planned.new.minutes)
    yield from _section(
        "the mail of the last days", (words for each in planned.past for words in _past(each))
    )


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    told = list(lines)
    if told:
        yield ""
        yield title
    for line in told:
        yield from _wrapped(line, "  ", "    ")


def _over_words(over: Over, at_ns: int, *, is_one: bool) -> str:
    whose = "" if is_one else f"{over.upstream}: "
    until = f"until {utc(over.opens_at_ns)}, in {span(over.opens_at_ns - at_ns)}"
    if over.key is None:
        return f"{whose}{over.words}: {over.used} of {over.count} used, and nothing goes {until}"
    keys = "1 key holds" if over.keys == 1 else f"{over.keys} keys hold"
    fullest = f"{over.key or '<>'} ({over.used} of {over.count})"
    return f"{whose}{over.words}: {keys} more; of {fullest} nothing goes {until}"


def _note_words(note: PlanRemark) -> str:
    who = "1 message" if note.messages == 1 else f"{note.messages} messages"
    match note.kind:
        case NoteKind.IN_PARTS:
            return f"{who} with more than {note.most} recipients: in parts, because of {note.about}"
        case NoteKind.OTHER_LANE:
            return f"{who} in another lane: {note.about}"
        case NoteKind.OTHER_UPSTREAM:
            return f"{who} through another upstream: {note.about}"
        case NoteKind.TOO_OLD:
            return f"{who} as old as the new {note.about}: bounced when next refused for now"
        case NoteKind.LATE:
            return f"{who} late by the new {note.about}: their senders are warned, if it will take long"
        case NoteKind.TOO_LARGE:
            return f"{who} larger than the new {note.about} ({note.most} bytes): they go, others are refused"


def _courses(planned: Plan) -> Iterator[str]:
    old, new, at_ns = planned.old, planned.new, planned.at_ns
    yield from _row("last one leaves", "messages", "in force", "edited")
    sides = _upstreams(old), _upstreams(new)
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        messages = max(its[name].messages for its in sides if name in its)
        yield from _row(name, str(messages), *(_drained(its.get(name), at_ns) for its in sides))
    before, after = ({lane.name: lane for lane in each.lanes if lane.name} for each in (old, new))
    for name in dict.fromkeys([*before, *after]):
        lanes = before.get(name), after.get(name)
        counts = [str(lane.messages) for lane in lanes if lane is not None]
        ends = (_last_of(lane, at_ns) for lane in lanes)
        yield from _row(f"  lane {name}", " → ".join(dict.fromkeys(counts)), *ends)
    for words, its in zip(("in force", "edited"), sides, strict=True):
        for each in its.values():
            if each.held_by:
                whose = f", {each.name}" if len(its) > 1 else ""
                yield from _wrapped(f"{words}{whose}: held by {each.held_by}", "  ", "    ")


def _upstreams(of: Course) -> dict[str, UpstreamCourse]:
    only = UpstreamCourse(of.upstream, of.messages, of.drained_at_ns, of.held_by)
    # A relay of before says it of its one upstream alone.
    return {each.name: each for each in of.upstreams or (only,)}


def _drained(of: UpstreamCourse | None, at_ns: int) -> str:
    if of is None:
        return "no mail"
    return _instant(of.drained_at_ns, at_ns) if of.messages else "-"


def _last_of(lane: LaneCourse | None, at_ns: int) -> str:
    if lane is None:
        return "no such lane"
    return _instant(lane.last_at_ns, at_ns) if lane.messages else "-"


def _instant(instant_ns: int | None, at_ns: int) -> str:
    if instant_ns is None:
        return _UNKNOWN
    is_soon = instant_ns - at_ns < 12 * HOUR_NS
    at = utc(instant_ns)
    return f"{at.partition('T')[2] if is_soon else at}, {span(instant_ns - at_ns)}"


def _row(name: str, messages: str, old: str, new: str) -> Iterator[str]:
    first = printable(name)
    if len(first) > NAME_WIDTH:
        yield from _wrapped(first, "", "  ")
        first = ""
    yield f"{first:<{NAME_WIDTH}} {messages:>8}  {old:<26} {new}".rstrip()


def _hour(old: Sequence[int], new: Sequence[int]) -> Iterator[str]:
    last = max((minute for minute in range(MINUTES) if old[minute] or new[minute]), default=None)
    if last is None:
        yield "nothing leaves in the first hour"
        return
    yield "messages that leave in each minute of the first hour"
    yield f"{'from minute':<17}" + "".join(f"{column:>6}" for column in range(IN_A_ROW))
    for start in range(0, last + 1, IN_A_ROW):
        for words, counts in (f"{start:>3} in force", old), ("    edited", new):
            row = counts[start : start + IN_A_ROW]
            yield f"{words:<17}" + "".join(f"{count or '.':>6}" for count in row)
    yield f"  in all: {sum(old)} in force, {sum(new)} edited"


def _past(past: PastCourse) -> Iterator[str]:
    if past.fault:
        yield f"{past.upstream}: its history cannot be read: {past.fault}"
        return
    if past.since_at_ns is None or past.until_at_ns is None:
        yield f"{past.upstream}: its history knows of none"
        return
    yield (
        f"{past.upstream}: {past.transactions} transactions are known one by one, from "
        f"{utc(past.since_at_ns)} on ({span(past.until_at_ns - past.since_at_ns)})"
    )
    if past.merged:
        yield f"{past.merged} older messages are known only roughly, and left out"
    least = span(SHORTEST_WAIT_NS)
    for words, met in ("in force", past.old), ("edited", past.new):
        waited = (
            f"{met.waited} wait more than {least}, the longest {span(met.longest_ns)}"
            if met.waited
            else "none waits"
        )
        yield f"{words}: {waited}"
    yield "counted from when each went in truth: what it had waited by then is not known"
    for label in past.new.unjudged:
        yield f"not judged: {label}, since the history does not say of each whose it was"


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
