"""Snapshots and messages for people to read: columns on a terminal, the same without colours in a pipe.

Not for programs, which have `--json`: what is here may change.  Texts from outside are
shown as `printable` has them.
"""

import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from relay.cli.options import printable
from relay.mail.formats import span, utc
from relay.status.filters import AGES, Group
from relay.status.snapshot import (
    Condition,
    LimitStatus,
    MessageView,
    QueueState,
    RecipientView,
    Snapshot,
    UpstreamState,
    UpstreamStatus,
)

if TYPE_CHECKING:
    from relay.telemetry.outcomes import Outcome

WIDEST_SENDER = 40
TAB = "\t"

_MARKS = {QueueState.ACTIVE: "*", QueueState.HELD: "!"}
"""After a queue id, as mailq has them."""


class Styled(NamedTuple):
    text: str
    style: str = ""
    """Words of `_CODES`."""


_CODES = {"bold": "1", "red": "31", "green": "32", "yellow": "33"}
_GAP = "  "


class Page(NamedTuple):
    """What the reader has."""

    width: int | None
    """In columns of a terminal; None where no person reads."""
    has_colours: bool

    def shown(self, text: str, style: str) -> str:
        codes = ";".join(_CODES[word] for word in style.split()) if self.has_colours else ""
        return f"\x1b[{codes}m{text}\x1b[0m" if codes else text

    def lines(self, text: str, style: str = "") -> Iterator[str]:
        """Yield a text; words are broken only where they do not fit alone."""
        text = printable(text)
        parts = [text] if self.width is None else _folded(text, self.width)
        yield from (self.shown(part, style) for part in parts)


def page() -> Page:
    """Take stdout for a terminal only if it is one."""
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in (None, "", "dumb")
    return Page(line_width(), has_colours=sys.stdout.isatty() and not is_plain)


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 1), break_on_hyphens=False)


def _cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def line_width() -> int | None:
    """Return how many columns the reader's terminal has; None where no person reads."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def status_lines(snapshot: Snapshot, on: Page) -> Iterator[str]:
    up = "" if snapshot.started_at_ns is None else f" for {span(snapshot.at_ns - snapshot.started_at_ns)}"
    said = f"relay {snapshot.version} on {snapshot.hostname}: {snapshot.condition}{up}"
    if snapshot.refusing_because and snapshot.condition is not Condition.DOWN:
        said += f"; refusing mail: {snapshot.refusing_because}"
    said += f"; policy {snapshot.policy.path}" if snapshot.policy.path else ""
    yield from on.lines(said)
    yield from _wrong_lines(snapshot, on)
    yield ""
    yield from _upstreams(snapshot).lines(on)
    if any(upstream.limits for upstream in snapshot.upstreams):
        yield from _limits(snapshot).lines(on)
    if snapshot.routes:
        yield from _routes(snapshot).lines(on)
    if snapshot.lanes:
        yield from _lanes(snapshot).lines(on)
    yield from _queue(snapshot).lines(on)
    if snapshot.started_at_ns is not None:
        totals = snapshot.totals.by_fate().items()
        yield from on.lines(
            f"recipients since the start: {', '.join(f'{its} {name}' for name, its in totals)}"
        )
    inodes = "" if snapshot.disk.free_inodes is None else f", {snapshot.disk.free_inodes} inodes"
    yield from on.lines(f"disk: {snapshot.disk.free_bytes // 2**20} MiB free{inodes}")


def _wrong_lines(snapshot: Snapshot, on: Page) -> Iterator[str]:
    policy = snapshot.policy
    if snapshot.recovering:
        yield from on.lines(unread_words(snapshot), "yellow")
    if not policy.last_reload_ok:
        yield from on.lines(f"the last edit of the policy was refused: {policy.last_error}", "bold red")
    if policy.refused_file:
        yield from on.lines(f"the last good file stays in use: {policy.refused_file}", "bold red")


def what_holds(snapshot: Snapshot, name: str = "") -> str:
    """Return what keeps back all mail for an upstream, by default the first, and until when; or nothing."""
    if snapshot.condition is Condition.DOWN:
        return "the relay is down"
    upstream = next((each for each in snapshot.upstreams if each.name == name), snapshot.upstreams[0])
    if upstream.state is not UpstreamState.OPEN:
        until = until_words(upstream)
        return f"{upstream.name} is {upstream.state}{until}: {printable(upstream.paused_because)}"
    full = [
        (limit.opens_at_ns, limit.words)
        for limit in upstream.limits
        if limit.opens_at_ns is not None and limit.for_each is None
    ]
    if not full:
        return ""
    opens_at_ns, words = max(full)
    return f"no room in {words} until {utc(opens_at_ns)}"


def unread_words(snapshot: Snapshot) -> str:
    """Say what the start has yet to read."""
    return f"about {snapshot.recovering} messages are not read yet after the start, and not shown"


def until_words(upstream: UpstreamStatus) -> str:
    """Return until when it rests, behind a blank; nothing where nobody can tell."""
    if upstream.paused_until_ns is not None:
        return f" until {utc(upstream.paused_until_ns)}"
    is_endless = upstream.paused_by and upstream.state is UpstreamState.PAUSED
    return f" until `relay resume {upstream.name}`" if is_endless else ""


class QueueTable:
    """The queue a line a message, with the beginning and the end that mailq has, as it is found.

    The first messages say how wide the columns are.  Where a line is longer than `width`, sender and reason
    stand below the message, as mailq has them.  The limits of the snapshot are written as people write them,
    and where it has routes, each message says with which upstream it stands.
    """

    def __init__(self, at_ns: int, snapshot: Snapshot | None = None, width: int | None = None) -> None:
        self._at_ns, self._width = at_ns, width
        self._limits, self._has_routes = limits_of(snapshot), snapshot is not None and bool(snapshot.routes)
        self._wide: int | None = None
        self._is_folded = False
        self._messages = self._size_bytes = 0

    def lines(self, messages: Sequence[MessageView]) -> Iterator[str]:
        """Lay out the next messages, at least one."""
        whos = [f"{_sender(message)}{_to(message)}" for message in messages]
        whys = [
            in_plain_words(_why(message, self._at_ns, has_routes=self._has_routes), self._limits)
            for message in messages
        ]
        is_first, self._wide = self._wide is None, self._wide or _widest(whos)
        lines = [
            f"{_head(message)} {who:<{self._wide}} {_tail(message)} {why}".rstrip()
            for message, who, why in zip(messages, whos, whys, strict=True)
        ]
        if is_first:
            self._is_folded = not self._fits(max(lines, key=len))
            yield f"{_HEAD} {_TAIL}" if self._is_folded else _heading(self._wide)
        for message, line, who, why in zip(messages, lines, whos, whys, strict=True):
            self._messages += 1
            self._size_bytes += message.size_bytes
            if self._width is None or (self._fits(line) and not self._is_folded):
                yield line
            else:
                yield f"{_head(message)} {_tail(message)}"
                yield from _wrapped(f"{who} {why}".rstrip(), self._width)

    def end(self) -> str:
        if not self._messages:
            return "Mail queue is empty"
        plural = "" if self._messages == 1 else "s"
        return f"-- {-(-self._size_bytes // 1024)} Kbytes in {self._messages} Request{plural}."

    def _fits(self, line: str) -> bool:
        return self._width is None or len(line) <= self._width


def queue_lines(
    messages: Sequence[MessageView],
    at_ns: int,
    snapshot: Snapshot | None = None,
    width: int | None = None,
) -> Iterator[str]:
    """List messages that are all there, as `QueueTable` does."""
    table = QueueTable(at_ns, snapshot, width)
    if messages:
        yield from table.lines(messages)
    yield table.end()


def _widest(whos: Iterable[str]) -> int:
    return max(len(_WHO), *(min(WIDEST_SENDER, len(who)) for who in whos))


def _heading(wide: int) -> str:
    return f"{_HEAD} {_WHO.ljust(wide, '-')} {_TAIL} --Why, ETA--"


_WHO = "--Sender -> Recipient--"
_HEAD, _TAIL = "----Queue ID------ --Size-- ----Arrival Time----", "--State-- -Left-"


def _head(message: MessageView) -> str:
    name = message.queue_id + _MARKS.get(message.state, "")
    return f"{name:<18} {message.size_bytes:>8} {utc(message.arrival_at_ns)}"


def _tail(message: MessageView) -> str:
    return f"{message.state:<9} {message.recipients_left:>6}"


def _wrapped(text: str, width: int) -> list[str]:
    """Break between words only: a long address or reply code is to be copied whole."""
    indent = " " * 4
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def limits_of(snapshot: Snapshot | None) -> list[LimitStatus]:
    """Return those that reasons may name."""
    return [] if snapshot is None else [limit for each in snapshot.upstreams for limit in each.limits]


def in_plain_words(text: str, limits: Iterable[LimitStatus]) -> str:
    """Return a text with the labels of these limits as people write them."""
    for limit in limits:
        text = text.replace(limit.label, limit.words)
    return text


def summary_lines(rows: Sequence[Group], by: str) -> Iterator[str]:
    """Lay out a summary as qshape(1) does: messages in all and by age, in minutes."""
    columns = ["T", *map(str, AGES), f"{AGES[-1]}+"]
    cells = [[str(count) for count in (row.messages, *row.messages_by_age)] for row in rows]
    wide = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    keys = ["TOTAL" if row.key is None else printable(row.key) or "-" for row in rows]
    first = max(map(len, (by, *keys)))
    for key, counts in zip((by, *keys), (columns, *cells), strict=True):
        numbers = "  ".join(f"{count:>{width}}" for count, width in zip(counts, wide, strict=True))
        yield f"{key:>{first}}  {numbers}"


def detail_lines(message: MessageView, limits: Sequence[LimitStatus] = ()) -> Iterator[str]:
    """`limits` are written as people write them."""
    user = f", user {message.user}" if message.user else ""
    yield f"{message.queue_id}: {message.state}"
    rewritten = f", rewritten as <{printable(message.rewritten_as)}>" if message.rewritten_as else ""
    yield f"  from        <{printable(message.reverse_path)}>{rewritten}"
    yield f"  arrived     {utc(message.arrival_at_ns)}, {message.size_bytes} bytes"
    yield (
        f"  handed over by {printable(message.client)}, helo {printable(message.helo) or '-'}, "
        f"{printable(message.protocol)}{printable(user)}"
    )
    yield from _asked_lines(message)
    if message.upstream:
        because = f" ({message.upstream_because})" if message.upstream_because else ""
        upstreams = ", ".join((message.upstream, *message.further_upstreams))
        yield f"  upstream    {printable(upstreams)}{printable(because)}"
    if message.lane:
        yield f"  lane        {printable(message.lane)}"
    if message.reason:
        yield f"  why         {in_plain_words(printable(message.reason), limits)}"
    if message.next_attempt_at_ns is not None:
        yield f"  next try    {utc(message.next_attempt_at_ns)}"
    if message.held_by:
        yield f"  held by     {in_plain_words(printable(message.held_by), limits)}"
    if message.eta_at_ns is not None:
        yield f"  ETA         {utc(message.eta_at_ns)}, by estimate"
    yield f"  recipients  {message.recipients_left} left of {len(message.recipient_statuses)}"
    for recipient in message.recipient_statuses:
        yield from _recipient_lines(recipient)
    if message.header:
        yield "  header"
        for line in message.header.splitlines():
            yield f"    {printable(line.replace(TAB, ' '))}".rstrip()


def _asked_lines(message: MessageView) -> Iterator[str]:
    envid = f"envelope id {printable(message.envid)}" if message.envid else ""
    returns = f"reports return {printable(_RETURNS.get(message.ret, message.ret))}" if message.ret else ""
    if asked := ", ".join(filter(None, (envid, returns))):
        yield f"  asked       {asked}"


_RETURNS = {"FULL": "the whole message", "HDRS": "the header"}


def _recipient_lines(recipient: RecipientView) -> Iterator[str]:
    text = f"  ({printable(recipient.text)})" if recipient.text else ""
    yield f"    {recipient.status:<8} <{printable(recipient.address)}>{text}"
    parts = []
    if recipient.last_attempt_at_ns is not None:
        parts.append(f"the last {utc(recipient.last_attempt_at_ns)}")
    if recipient.next_attempt_at_ns is not None:
        parts.append(f"the next {utc(recipient.next_attempt_at_ns)}")
    if recipient.reported:
        parts.append("its sender was told")
    if recipient.route is not None:
        parts.append(f"by route {recipient.route}")
        parts.append(f"stands with {printable(recipient.upstream)}")
    if recipient.notify:
        parts.append(f"notify {printable(recipient.notify.lower())}")
    if recipient.orcpt:
        parts.append(f"originally {printable(recipient.orcpt)}")
    if parts:
        yield f"             {', '.join(parts)}"


def outcome_lines(outcome: "Outcome", width: int | None = None) -> Iterator[str]:
    """Show what became of a recipient in one line, or where a person reads in a few that fit."""
    head = f"{utc(outcome.at_ns)} {printable(outcome.became):<8} {printable(outcome.queue_id)}"
    sender = printable(outcome.reverse_path) or "MAILER-DAEMON"
    who = f"{sender} -> {printable(outcome.recipient)}"
    via = ", ".join(filter(None, (outcome.upstream, outcome.relay if outcome.upstream else "")))
    said = ": ".join(filter(None, (printable(via), printable(outcome.reply))))
    names = printable(outcome.message_id or ""), printable(outcome.subject)
    parts = [part for part in (who, *names, said) if part]
    if width is None:
        yield " ".join([head, *parts])
        return
    yield head
    for part in parts:
        yield from _wrapped(part, width)


class LinesOfContent:
    """Foreign octets, in chunks, as lines that a terminal takes."""

    def __init__(self) -> None:
        self._begun = b""

    def take(self, chunk: bytes) -> str:
        *lines, self._begun = (self._begun + chunk).split(b"\n")
        return "".join(map(self._shown, lines))

    def rest(self) -> str:
        return self._shown(self._begun) if self._begun else ""

    @staticmethod
    def _shown(line: bytes) -> str:
        text = line.removesuffix(b"\r").decode("utf-8", "replace")
        return printable(text.replace(TAB, " ")) + "\n"


def _sender(message: MessageView) -> str:
    if message.state is QueueState.CORRUPT and not message.recipients_left:
        return printable(message.reverse_path) or "unknown"
    return printable(message.reverse_path) or "MAILER-DAEMON"


def _to(message: MessageView) -> str:
    """Return the first recipient left, and how many others there are."""
    if not message.recipients:
        return ""
    others = message.recipients_left - 1
    return f" -> {printable(message.recipients[0])}" + (f" +{others}" if others > 0 else "")


def _why(message: MessageView, at_ns: int, *, has_routes: bool) -> str:
    parts = [f"lane {printable(message.lane)}"] if message.lane else []
    parts += [printable(message.reason)] if message.reason else []
    if message.held_by and not _is_said(message):
        parts.append(f"held by {printable(message.held_by)}")
    if message.upstream_because:
        parts.append(f"through {printable(message.upstream)}, {printable(message.upstream_because)}")
    elif has_routes and message.upstream:
        parts.append(f"through {printable(', '.join((message.upstream, *message.further_upstreams)))}")
    if message.eta_at_ns is not None:
        parts.append(f"ETA {utc(message.eta_at_ns)}, in {span(message.eta_at_ns - at_ns)}")
    return f"({'; '.join(parts)})" if parts else ""


def _is_said(message: MessageView) -> bool:
    kind, _, what = message.held_by.partition(" ")
    return kind == "hold" or (bool(what) and message.reason.endswith(what))


class _Grid:
    """Rows under columns; where those do not fit beside each other, a block of lines for each row."""

    def __init__(self, *columns: str, numbers: Sequence[str] = ()) -> None:
        self._columns = columns
        self._numbers = numbers
        self._rows: list[list[Styled]] = []

    def add(self, *cells: object, style: str = "") -> None:
        styled = (cell if isinstance(cell, Styled) else Styled(str(cell), style) for cell in cells)
        self._rows.append([Styled(printable(cell.text), cell.style) for cell in styled])

    def lines(self, on: Page) -> Iterator[str]:
        """Lay it out, and an empty line behind it."""
        rows = [[Styled(column, "bold") for column in self._columns], *self._rows]
        wide = [max(_cells(cell.text) for cell in column) for column in zip(*rows, strict=True)]
        if on.width is not None and sum(wide) + len(_GAP) * (len(wide) - 1) > on.width:
            for row in self._rows:
                yield from self._block(row, on)
            return
        for row in rows:
            cells = zip(row, wide, self._columns, strict=True)
            yield _GAP.join(self._cell(cell, on, width, column) for cell, width, column in cells).rstrip()
        yield ""

    def _cell(self, cell: Styled, on: Page, width: int, column: str) -> str:
        pad, shown = " " * (width - _cells(cell.text)), on.shown(*cell)
        return pad + shown if column in self._numbers else shown + pad

    def _block(self, row: Sequence[Styled], on: Page) -> Iterator[str]:
        label_width = max(map(len, self._columns))
        room = (on.width or 0) - label_width - len(_GAP)
        for column, cell in zip(self._columns, row, strict=True):
            # A word that is longer than the terminal is broken rather than cut.
            for label, part in zip_longest([column], _folded(cell.text, room), fillvalue=""):
                bold = on.shown(label.ljust(label_width), "bold") if label else " " * label_width
                yield f"{bold}{_GAP}{on.shown(part, cell.style)}"
        yield ""


def _upstreams(snapshot: Snapshot) -> _Grid:
    table = _Grid("upstream", "host", "state", "connections", "in flight", "waiting", "held by", "drained")
    for upstream in snapshot.upstreams:
        table.add(
            upstream.name,
            f"{upstream.host}:{upstream.port}",
            Styled(state_words(upstream, snapshot.at_ns) + _because(upstream), state_style(upstream)),
            f"{upstream.connections_open} open, {upstream.connections_idle} idle",
            upstream.in_flight,
            f"{upstream.waiting_messages} messages, {upstream.waiting_recipients} recipients",
            in_plain_words(upstream.held_by, upstream.limits) or "-",
            drain_words(upstream, snapshot.at_ns),
        )
    return table


def state_words(upstream: UpstreamStatus, at_ns: int) -> str:
    """Return its state, and how long that lasts or what ends it."""
    if upstream.paused_by and upstream.paused_until_ns is None:
        return f"{upstream.state}{until_words(upstream)}"
    if upstream.paused_until_ns is None or upstream.state is UpstreamState.OPEN:
        return upstream.state_words
    return f"{upstream.state} for {span(upstream.paused_until_ns - at_ns)}"


def state_style(upstream: UpstreamStatus) -> str:
    return {True: "green", False: "bold red", None: "yellow"}[upstream.is_well]


def _because(upstream: UpstreamStatus) -> str:
    if upstream.proving_after:
        return f"; before: {upstream.proving_after}"
    return f": {upstream.paused_because}" if upstream.paused_because else ""


def drain_words(upstream: UpstreamStatus, at_ns: int) -> str:
    """Return when nothing will wait for it any more, by estimate."""
    drained_ns = upstream.drained_at_ns
    if drained_ns is None:
        return "unknown"
    return f"in {span(drained_ns - at_ns)}" if upstream.waiting_messages else "-"


def _limits(snapshot: Snapshot) -> _Grid:
    table = _Grid("upstream", "limit", "used", "next slot", numbers=("used",))
    for upstream in snapshot.upstreams:
        for limit in upstream.limits:
            opens_ns = limit.opens_at_ns
            used = Styled(used_words(limit), "" if opens_ns is None else "yellow")
            opens = (
                "now" if opens_ns is None else limit.opening_words(snapshot.at_ns).removeprefix("next slot ")
            )
            table.add(upstream.name, limit.words, used, opens)
    return table


def usage_lines(snapshot: Snapshot, usage: Mapping[str, Any], by: str, on: Page) -> Iterator[str]:
    """Show who used the windows, by what `relay status --json` has."""
    yield from _limits(snapshot).lines(on)
    columns = "upstream", "limit", by, "messages", "recipients", "octets"
    table = _Grid(*columns, numbers=columns[3:])
    for row in usage["usage"]:
        limit, counts = in_plain_words(row["limit"], limits_of(snapshot)), list(row.values())[-3:]
        table.add(row["upstream"], limit, row["key"] or "<>", *counts)
    yield from table.lines(on)
    since = f"since {usage['usage_since']}" if usage["usage_since"] else "nothing so far"
    yield from on.lines(f"what was relayed within the length of each limit, as `recent` keeps it, {since};")
    yield from on.lines(
        "a window counts slots: also of what is in flight, was refused, or whose reply was lost"
    )


def used_words(limit: LimitStatus) -> str:
    """Return used/N, whose that is, and what else there is to say."""
    by = f" by {limit.key or '<>'}" if limit.key is not None else ""
    return f"{limit.used}/{limit.count}{by}{limit.remarks}"


def _routes(snapshot: Snapshot) -> _Grid:
    table = _Grid("route", "by", "prefers", "goes through", "why", "stands with")
    for route in snapshot.routes:
        stands = ", ".join(f"{name} {count}" for name, count in route.stands.items())
        table.add(
            route.numbers_words,
            route.takes_words,
            ", ".join(route.upstreams),
            Styled(route.upstream or "-", "yellow" if route.is_diverted else ""),
            route.why(snapshot.at_ns) or "-",
            stands or "-",
        )
    return table


def _lanes(snapshot: Snapshot) -> _Grid:
    numbers = ("share", "ceiling", "messages", "recipients", "oldest")
    table = _Grid("lane", *numbers, numbers=numbers)
    for lane in snapshot.lanes:
        ceiling = "-" if lane.ceiling_percent is None else f"{lane.ceiling_percent} %"
        oldest = span(lane.oldest_age_ns) if lane.waiting_messages else "-"
        share = f"{lane.share_percent:.4g} %"
        table.add(lane.name, share, ceiling, lane.waiting_messages, lane.waiting_recipients, oldest)
    return table


def _queue(snapshot: Snapshot) -> _Grid:
    numbers = ("messages", "recipients", "bytes", "oldest")
    table = _Grid("queue", *numbers, numbers=numbers)
    for state in QueueState:
        counts = snapshot.counts(state)
        style = "bold red" if state is QueueState.CORRUPT and counts.messages else ""
        age = span(counts.oldest_age_ns) if counts.messages else "-"
        table.add(state, counts.messages, counts.recipients, counts.size_bytes, age, style=style)
    return table
