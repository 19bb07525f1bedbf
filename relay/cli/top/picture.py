"""The rows of `relay top`, of what was last seen.  Pure: reads no clock and asks nothing.

Guarantees: no row is wider than the terminal; what comes from outside (names, addresses, replies) reaches
it as `printable` has it, and in ASCII where the terminal's encoding is not UTF-8.  Every state is said in
words: colours, of which there are eight, only repeat it.  Bars are of `#` and `-`.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from relay.cli.options import printable
from relay.cli.render import (
    drain_words,
    in_plain_words,
    state_style,
    state_words,
    unread_words,
    used_words,
)
from relay.cli.top.rates import Rate
from relay.clock import SECOND_NS
from relay.mail.formats import span
from relay.status.breakdown import Breakdown, ReasonCount
from relay.status.snapshot import (
    LaneStatus,
    LimitStatus,
    QueueState,
    Snapshot,
    UpstreamStatus,
)

NARROWEST = 40
"""Columns; of a terminal with less only the first of a row are seen."""
LATE_NS = 5 * SECOND_NS
"""A picture older than this says how old it is."""
_WIDEST_NAME = 30
_WIDEST_LIMIT = 32
_CUT = ".."


class RowKind(enum.Enum):
    UPSTREAM = "upstream"
    LANE = "lane"
    SENDER = "sender"
    REASON = "reason"


class Target(NamedTuple):
    """What a row is about, for the cursor and for verbs."""

    kind: RowKind
    name: str
    """As the relay has it; of a reason with its state in front."""


class PictureRow(NamedTuple):
    text: Text
    target: Target | None = None
    whole: str = ""
    """What it says, uncut; only of a row that has a target."""


@dataclass(frozen=True, slots=True)
class TopView:
    """What is known at an instant."""

    spool: str
    now_ns: int
    """Wall clock of the relay."""
    snapshot: Snapshot | None = None
    age_ns: int = 0
    """Since the snapshot."""
    trouble: str = ""
    """Why the relay did not answer the last time; empty when it did."""
    rate: Rate | None = None
    breakdown: Breakdown | None = None
    uncounted: str = ""
    """Why there is no breakdown, or only an old one; empty where that is not known."""


@dataclass(frozen=True, slots=True)
class Columns:
    columns: int
    is_utf8: bool = True

    @property
    def width(self) -> int:
        return max(NARROWEST, self.columns)

    def plain(self, text: object) -> str:
        """Return text that the terminal takes."""
        shown = printable(text)
        # The library writes UTF-8 whatever the locale: elsewhere its octets may be control characters.
        return shown if self.is_utf8 else shown.encode("ascii", "backslashreplace").decode("ascii")

    def fitted(self, text: object, width: int) -> str:
        """Return text that takes exactly so many cells, cut where it has more."""
        shown = self.plain(text)
        if cell_len(shown) <= width:
            return set_cell_size(shown, width)
        return set_cell_size(shown, width - len(_CUT)) + _CUT

    def row(self, text: str, style: str = "", target: Target | None = None, whole: str = "") -> PictureRow:
        return PictureRow(
            Text(self.fitted(text, self.width), style), target, self.plain(whole or text.strip())
        )


def head(seen: TopView, layout: Columns) -> list[Text]:
    """Return the lines that always stand on top: the relay, its queue, its rates, and what is wrong."""
    lines = []
    if seen.trouble:
        lines.append((f"{seen.trouble}; looking again and again", "bold red"))
    snapshot = seen.snapshot
    if snapshot is None:
        lines = lines or [(f"asking the relay on {seen.spool}", "")]
        return [layout.row(*line).text for line in lines]
    since = "" if snapshot.started_at_ns is None else f" for {span(seen.now_ns - snapshot.started_at_ns)}"
    age = f"; as it was {span(seen.age_ns)} ago" if seen.trouble or seen.age_ns > LATE_NS else ""
    lines.append(
        (f"relay {snapshot.version} on {snapshot.hostname}: {snapshot.condition}{since}{age}", "bold")
    )
    counts = ((snapshot.counts(state).messages, state.value) for state in QueueState)
    lines.append(("queue: " + ", ".join(f"{count} {state}" for count, state in counts if count), ""))
    if lines[-1][0] == "queue: ":
        lines[-1] = ("queue: empty", "")
    lines.append((_rate_words(seen.rate), ""))
    lines += _wrong(snapshot)
    return [layout.row(*line).text for line in lines]


def _rate_words(rate: Rate | None) -> str:
    if rate is None:
        return "recipients a minute: not known yet"
    return f"recipients a minute: {rate.accepted:.0f} in, {rate.relayed:.0f} out (last {span(rate.over_ns)})"


def _wrong(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    if snapshot.refusing_because:
        yield f"refusing mail: {snapshot.refusing_because}", "bold red"
    if snapshot.recovering:
        yield unread_words(snapshot), "yellow"
    if not snapshot.policy.last_reload_ok:
        yield f"the last edit of the policy was refused: {snapshot.policy.last_error}", "bold red"
    if snapshot.policy.refused_file:
        yield f"the last good file stays in use: {snapshot.policy.refused_file}", "bold red"


def rows(seen: TopView, layout: Columns, find: str = "") -> list[PictureRow]:
    """Return what is below the head; with `find` only rows with this in their name or reason."""
    made: list[PictureRow] = []
    if (snapshot := seen.snapshot) is not None:
        made += _section("upstreams", _upstreams(snapshot, seen.now_ns, layout, find), layout)
        made += _section("routes", _routes(snapshot, seen.now_ns, layout, find), layout)
        made += _section("lanes", _lanes(snapshot, layout, find), layout)
    if (breakdown := seen.breakdown) is not None and snapshot is not None:
        more = f", {breakdown.more_reasons} more not shown" if breakdown.more_reasons else ""
        made += _section(f"what waits for what{more}", _reasons(breakdown, snapshot, layout, find), layout)
        more = f", {breakdown.more_senders} more not shown" if breakdown.more_senders else ""
        made += _section(f"senders with most messages{more}", _senders(breakdown, layout, find), layout)
    if seen.uncounted:
        made.append(layout.row(f"reasons and senders: {seen.uncounted}", "yellow"))
    if not made and find:
        made.append(layout.row(f"nothing here has {find!r} in its name"))
    return made


def _section(title: str, made: Iterable[PictureRow], layout: Columns) -> list[PictureRow]:
    listed = list(made)
    return [layout.row(title, "bold underline"), *listed] if listed else []


def _fits(find: str, *texts: str) -> bool:
    return any(find.lower() in text.lower() for text in texts)


def _widest(names: Iterable[str], most: int) -> int:
    return min(most, max(map(cell_len, names), default=0))


def _upstreams(snapshot: Snapshot, now_ns: int, layout: Columns, find: str) -> Iterator[PictureRow]:
    shown = [each for each in snapshot.upstreams if _fits(find, each.name, each.host, each.paused_because)]
    name_width = _widest((layout.plain(each.name) for each in shown), _WIDEST_NAME)
    limits = [limit for each in shown for limit in each.limits]
    limit_width = _widest((layout.plain(limit.words) for limit in limits), _WIDEST_LIMIT)
    for each in shown:
        yield _upstream(each, now_ns, layout, name_width)
        if each.paused_because:
            yield layout.row(f"    {each.paused_because}", state_style(each))
        for limit in each.limits:
            yield _limit(limit, now_ns, layout, limit_width)


def _upstream(upstream: UpstreamStatus, now_ns: int, layout: Columns, name_width: int) -> PictureRow:
    facts = []
    if upstream.in_flight:
        facts.append(f"{upstream.in_flight} in flight")
    if upstream.waiting_messages:
        drained = drain_words(upstream, now_ns)
        facts.append(f"{upstream.waiting_messages} waiting, drained {drained}")
    state, name = state_words(upstream, now_ns), layout.fitted(upstream.name, name_width)
    said = "; ".join([state, *facts])
    row = layout.row(
        f"  {name}  {said}",
        target=Target(RowKind.UPSTREAM, upstream.name),
        whole=f"{upstream.name} ({upstream.host}:{upstream.port}): "
        + "; ".join(filter(None, [state, upstream.paused_because, *facts])),
    )
    row.text.stylize(state_style(upstream), len(name) + 4, len(name) + 4 + len(state))
    return row


def _limit(limit: LimitStatus, now_ns: int, layout: Columns, width: int) -> PictureRow:
    cells = max(10, min(30, layout.width // 8))
    is_full = limit.opens_at_ns is not None
    opens = "" if limit.opens_at_ns is None else f"  {limit.opening_words(now_ns)}"
    used = f"{bar(limit.used, limit.count, cells)} {used_words(limit)}"
    line = layout.plain(f"    {layout.fitted(limit.words, width)} {used}")
    # The countdown is what is looked for: a long key gives way.
    room = layout.width - cell_len(opens)
    line = layout.fitted(line, room) if cell_len(line) > room else line
    return layout.row(line + opens, "yellow" if is_full else "")


def bar(used: int, count: int, cells: int) -> str:
    """Return how full a window is: full only where no room is left, empty only where nothing is used."""
    filled = cells if used >= count else max(min(1, used), min(cells - 1, used * cells // count))
    return f"[{'#' * filled}{'-' * (cells - filled)}]"


def _routes(snapshot: Snapshot, now_ns: int, layout: Columns, find: str) -> Iterator[PictureRow]:
    for route in snapshot.routes:
        if not _fits(find, *route.upstreams):
            continue
        why = route.why(now_ns)
        said = f"{route.numbers_words}  {', '.join(route.upstreams)}: through {route.upstream}"
        said += f"; {why}" if why else ""
        yield layout.row(f"  {said}", "yellow" if route.is_diverted else "")


def _lanes(snapshot: Snapshot, layout: Columns, find: str) -> Iterator[PictureRow]:
    shown = [lane for lane in snapshot.lanes if _fits(find, lane.name)]
    width = _widest((layout.plain(lane.name) for lane in shown), _WIDEST_NAME)
    for lane in shown:
        waiting = f"{lane.waiting_messages} waiting, oldest {span(lane.oldest_age_ns)}"
        ceiling = "" if lane.ceiling_percent is None else f", at most {lane.ceiling_percent} %"
        said = f"share {lane.share_percent:.4g} %{ceiling}; {waiting if lane.waiting_messages else 'empty'}"
        said += ", late" if _is_late(lane) else ""
        text = f"  {layout.fitted(lane.name, width)}  {said}"
        style = "yellow" if _is_late(lane) else ""
        yield layout.row(text, style, Target(RowKind.LANE, lane.name), f"lane {lane.name}: {said}")


def _is_late(lane: LaneStatus) -> bool:
    return lane.patience_ns is not None and lane.oldest_age_ns > lane.patience_ns


def _reasons(breakdown: Breakdown, snapshot: Snapshot, layout: Columns, find: str) -> Iterator[PictureRow]:
    limits = [limit for upstream in snapshot.upstreams for limit in upstream.limits]
    told = [(each, in_plain_words(_why(each, snapshot), limits)) for each in breakdown.reasons]
    shown = [(each, why) for each, why in told if _fits(find, why, each.state.value)]
    width = max((len(str(each.messages)) for each, _ in shown), default=0)
    for each, why in shown:
        text = f"  {each.messages:>{width}} {each.state.value:<9} {why}"
        whole = f"{each.messages} messages, {each.recipients} recipients {each.state.value}: {why}"
        yield layout.row(
            text, target=Target(RowKind.REASON, f"{each.state.value} {each.reason}"), whole=whole
        )


_BY_STATE = {
    QueueState.ACTIVE: "in a transaction",
    QueueState.HELD: "the operator, who releases them",
    QueueState.REPORTING: "only the report is left, which waits for reports.per_hour",
}


def _why(count: ReasonCount, snapshot: Snapshot) -> str:
    """Say of messages without a reason of their own what holds those before them."""
    if count.reason or count.state is not QueueState.WAITING:
        return count.reason or _BY_STATE.get(count.state, "-")
    held = next((each.held_by for each in snapshot.upstreams if each.held_by), "")
    return f"their turn, behind others; the next is held by {held}" if held else "their turn"


def _senders(breakdown: Breakdown, layout: Columns, find: str) -> Iterator[PictureRow]:
    shown = [each for each in breakdown.senders if _fits(find, each.reverse_path or "<>")]
    width = max((len(str(each.messages)) for each in shown), default=0)
    recipients_width = max((len(str(each.recipients)) for each in shown), default=0)
    for each in shown:
        name = each.reverse_path or "<>"
        counts = f"{each.messages:>{width}} messages, {each.recipients:>{recipients_width}} recipients"
        whole = f"{name}: {each.messages} messages, {each.recipients} recipients"
        yield layout.row(f"  {counts}  {name}", target=Target(RowKind.SENDER, each.reverse_path), whole=whole)
