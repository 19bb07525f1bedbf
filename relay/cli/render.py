"""Snapshots and messages for people to read: columns on a terminal, the same without colours in a pipe.

Not for programs, which have `--json`: what is here may change.  Texts from outside are
shown as `printable` has them; nothing is read as markup.
"""

import sys
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from relay.cli.options import printable
from relay.clock import SECOND_NS
from relay.mail.formats import span
from relay.status.snapshot import (
    Condition,
    LimitStatus,
    MessageView,
    QueueState,
    Snapshot,
    UpstreamState,
    UpstreamStatus,
)

PIPE_COLUMNS = 100_000
"""Wider than any line: nothing is folded or cut where no person reads."""
WIDEST_SENDER = 40

_MARKS = {QueueState.ACTIVE: "*", QueueState.HELD: "!"}
"""After a queue id, as mailq has them."""


def console() -> Console:
    """Take stdout for a terminal only if it is one."""
    is_terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout,
        width=None if is_terminal else PIPE_COLUMNS,
        no_color=None if is_terminal else True,
        force_terminal=None if is_terminal else False,
        highlight=False,
        markup=False,
        emoji=False,
    )


def show_status(snapshot: Snapshot, out: Console) -> None:
    up = "" if snapshot.started_at_ns is None else f" for {span(snapshot.at_ns - snapshot.started_at_ns)}"
    said = f"relay {snapshot.version} on {snapshot.hostname}: {snapshot.condition}{up}"
    if snapshot.refusing_because and snapshot.condition is not Condition.DOWN:
        said += f"; refusing mail: {snapshot.refusing_because}"
    out.print(_plain(said))
    if not snapshot.policy.last_reload_ok:
        out.print(
            _plain(f"the last edit of the policy was refused: {snapshot.policy.last_error}", "bold red")
        )
    if snapshot.policy.waiting_because:
        until_ns = snapshot.policy.waiting_until_ns
        until = "" if until_ns is None else f" until {_local(until_ns)}"
        out.print(
            _plain(f"the last edit of the policy waits{until}: {snapshot.policy.waiting_because}", "yellow")
        )
    out.print()
    out.print(_upstreams(snapshot))
    out.print()
    if any(upstream.limits for upstream in snapshot.upstreams):
        out.print(_limits(snapshot))
        out.print()
    for upstream in snapshot.upstreams:
        for finding in upstream.findings:
            out.print(_plain(f"{upstream.name}: {finding} ({_local(finding.at_ns)})", "yellow"))
        if upstream.findings:
            out.print()
    if snapshot.lanes:
        out.print(_lanes(snapshot))
        out.print()
    out.print(_queue(snapshot))
    out.print()
    ledger = snapshot.ledger
    out.print(
        _plain(
            f"recipients: {ledger.accepted} accepted = {ledger.relayed} relayed + {ledger.bounced} bounced + "
            f"{ledger.expired} expired + {ledger.deleted} deleted + {ledger.queued} queued"
        )
    )
    if ledger.imbalance:
        out.print(_plain(f"{ledger.imbalance} recipients are unaccounted for: please report it", "bold red"))
    inodes = "" if snapshot.disk.free_inodes is None else f", {snapshot.disk.free_inodes} inodes"
    out.print(_plain(f"disk: {snapshot.disk.free_bytes // 2**20} MiB free{inodes}"))


def queue_lines(messages: Sequence[MessageView], at_ns: int) -> Iterator[str]:
    """List a line a message, with the beginning and the end that mailq has."""
    if not messages:
        yield "Mail queue is empty"
        return
    senders = [_sender(message) for message in messages]
    width = max(len("--Sender--"), *(min(WIDEST_SENDER, len(sender)) for sender in senders))
    sender_head = "--Sender".ljust(width, "-")
    yield f"----Queue ID------ --Size-- ---Arrival Time---- {sender_head} --State-- -Left- --Why, ETA--"
    for message, sender in zip(messages, senders, strict=True):
        name = message.queue_id + _MARKS.get(message.state, "")
        yield (
            f"{name:<18} {message.size_bytes:>8} {_local(message.arrival_at_ns)} {sender:<{width}} "
            f"{message.state:<9} {message.recipients_left:>6} {_why(message, at_ns)}"
        ).rstrip()
    kbytes = -(-sum(message.size_bytes for message in messages) // 1024)
    plural = "" if len(messages) == 1 else "s"
    yield f"-- {kbytes} Kbytes in {len(messages)} Request{plural}."


def detail_lines(message: MessageView) -> Iterator[str]:
    user = f", user {message.user}" if message.user else ""
    yield f"{message.queue_id}: {message.state}"
    yield f"  from        <{printable(message.reverse_path)}>"
    yield f"  arrived     {_local(message.arrival_at_ns)}, {message.size_bytes} bytes"
    yield (
        f"  handed over by {printable(message.client)}, helo {printable(message.helo) or '-'}, "
        f"{printable(message.protocol)}{printable(user)}"
    )
    if message.upstream:
        yield f"  upstream    {printable(message.upstream)}"
    if message.lane:
        yield f"  lane        {printable(message.lane)}"
    if message.reason:
        yield f"  why         {printable(message.reason)}"
    if message.next_attempt_at_ns is not None:
        yield f"  next try    {_local(message.next_attempt_at_ns)}"
    if message.held_by:
        yield f"  held by     {printable(message.held_by)}"
    if message.eta_at_ns is not None:
        yield f"  ETA         {_local(message.eta_at_ns)}, by estimate"
    yield f"  recipients  {message.recipients_left} left of {len(message.recipient_statuses)}"
    for recipient in message.recipient_statuses:
        text = f"  ({printable(recipient.text)})" if recipient.text else ""
        yield f"    {recipient.status:<8} <{printable(recipient.address)}>{text}"
    if message.header:
        yield "  header"
        for line in message.header.splitlines():
            yield f"    {printable(line)}".rstrip()


def _sender(message: MessageView) -> str:
    if message.state is QueueState.CORRUPT and not message.recipients_left:
        return printable(message.reverse_path) or "unknown"
    return printable(message.reverse_path) or "MAILER-DAEMON"


def _why(message: MessageView, at_ns: int) -> str:
    parts = [f"lane {printable(message.lane)}"] if message.lane else []
    parts += [printable(message.reason)] if message.reason else []
    if message.held_by and not _is_said(message):
        parts.append(f"held by {printable(message.held_by)}")
    if message.eta_at_ns is not None:
        parts.append(f"ETA {_local(message.eta_at_ns)}, in {span(message.eta_at_ns - at_ns)}")
    return f"({'; '.join(parts)})" if parts else ""


def _is_said(message: MessageView) -> bool:
    kind, _, what = message.held_by.partition(" ")
    return kind == "hold" or (bool(what) and message.reason.endswith(what))


def _local(at_ns: int) -> str:
    """Return an instant as mailq shows it, in local time: `Fri Nov 21 01:33:00`."""
    try:
        return time.strftime("%a %b %d %H:%M:%S", time.localtime(at_ns // SECOND_NS))
    except (OverflowError, ValueError, OSError):  # an estimate beyond the calendar
        return f"{'never':<19}"


def _plain(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


def _add(table: Table, *cells: object, style: str = "") -> None:
    table.add_row(*(cell if isinstance(cell, Text) else _plain(str(cell), style) for cell in cells))


def _upstreams(snapshot: Snapshot) -> Table:
    table = _table("upstream", "host", "state", "connections", "in flight", "waiting", "held by", "drained")
    for upstream in snapshot.upstreams:
        style = "green" if upstream.state is UpstreamState.OPEN else "bold red"
        _add(
            table,
            upstream.name,
            f"{upstream.host}:{upstream.port}",
            _plain(_state(upstream, snapshot.at_ns), style),
            f"{upstream.connections_open} open, {upstream.connections_idle} idle",
            upstream.in_flight,
            f"{upstream.waiting_messages} messages, {upstream.waiting_recipients} recipients",
            upstream.held_by or "-",
            _drain(upstream, snapshot.at_ns),
        )
    return table


def _state(upstream: UpstreamStatus, at_ns: int) -> str:
    because = f": {upstream.paused_because}" if upstream.paused_because else ""
    if upstream.paused_until_ns is None or upstream.state is UpstreamState.OPEN:
        return f"{upstream.state}{because}"
    return f"{upstream.state} for {span(upstream.paused_until_ns - at_ns)}{because}"


def _drain(upstream: UpstreamStatus, at_ns: int) -> str:
    drained_ns = upstream.drained_at_ns
    if drained_ns is None:
        return "unknown"
    return f"in {span(drained_ns - at_ns)}" if upstream.waiting_messages else "-"


def _limits(snapshot: Snapshot) -> Table:
    table = _table("upstream", "limit", "used", "next slot", numbers=("used",))
    for upstream in snapshot.upstreams:
        for limit in upstream.limits:
            opens_ns = limit.opens_at_ns
            used = _plain(_used(limit), "" if opens_ns is None else "yellow")
            opens = "now" if opens_ns is None else f"in {span(opens_ns - snapshot.at_ns)}"
            _add(table, upstream.name, limit.label, used, opens)
    return table


def _used(limit: LimitStatus) -> str:
    by = f" by {limit.key or '<>'}" if limit.key is not None else ""
    return f"{limit.used}/{limit.count}{by}{limit.remarks}"


def _lanes(snapshot: Snapshot) -> Table:
    numbers = ("share", "ceiling", "messages", "recipients", "oldest")
    table = _table("lane", *numbers, numbers=numbers)
    for lane in snapshot.lanes:
        ceiling = "-" if lane.ceiling_percent is None else f"{lane.ceiling_percent} %"
        oldest = span(lane.oldest_age_ns) if lane.waiting_messages else "-"
        share = f"{lane.share_percent:.4g} %"
        _add(table, lane.name, share, ceiling, lane.waiting_messages, lane.waiting_recipients, oldest)
    return table


def _queue(snapshot: Snapshot) -> Table:
    numbers = ("messages", "recipients", "bytes", "oldest")
    table = _table("queue", *numbers, numbers=numbers)
    for state in QueueState:
        counts = snapshot.counts(state)
        style = "bold red" if state is QueueState.CORRUPT and counts.messages else ""
        age = span(counts.oldest_age_ns) if counts.messages else "-"
        _add(table, state, counts.messages, counts.recipients, counts.size_bytes, age, style=style)
    return table
