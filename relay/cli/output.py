"""What verbs print for people: tables, snapshots in words, and messages.  Programs use `--json`.

Every text goes through `printable`; a terminal wraps long lines.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from relay.cli.options import printable
from relay.mail.formats import span, utc
from relay.status.snapshot import (
    Condition,
    LimitStatus,
    MessageView,
    QueueState,
    Snapshot,
    UpstreamStatus,
    message_to_json,
)

MARKS = {QueueState.ACTIVE: "*", QueueState.HELD: "!"}
"""Marks after a queue id, as in mailq."""
EMPTY = "Mail queue is empty"
_ROW = "{:<17}  {:>9}  {:<20}  {:<9}  {:>4}  {}"
"""Widths that suit nearly all rows: a listing is printed as it is found, so it cannot measure them."""
_HEADING = _ROW.format("queue id", "size", "arrived", "state", "left", "sender -> recipient (why; ETA)")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Collection[str] = ()
) -> Iterator[str]:
    """Yield the heading and the rows; columns are as wide as needed, those in `numbers` right-aligned."""
    cells = [list(columns), *(list(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [">" if column in numbers else "<" for column in columns]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return (form.format(*row).rstrip() for row in cells)


def relay_words(snapshot: Snapshot, now_ns: int) -> str:
    since = "" if snapshot.started_at_ns is None else f" for {span(now_ns - snapshot.started_at_ns)}"
    return f"relay {snapshot.version} on {snapshot.hostname}: {snapshot.condition}{since}"


def wrong_words(snapshot: Snapshot) -> Iterator[str]:
    """Yield what is wrong with the relay as a whole, or not finished yet."""
    policy = snapshot.policy
    if snapshot.refusing_because and snapshot.condition is not Condition.DOWN:
        yield f"refusing mail: {snapshot.refusing_because}"
    if snapshot.recovering:
        yield unread_words(snapshot)
    if not policy.last_reload_ok:
        yield f"the last edit of the policy was refused: {policy.last_error}"
    if policy.refused_file:
        yield f"the last good file stays in use: {policy.refused_file}"


def unread_words(snapshot: Snapshot) -> str:
    return f"about {snapshot.recovering} messages are not read yet after the start, and not shown"


def state_words(upstream: UpstreamStatus, now_ns: int) -> str:
    """Return the upstream's state, how long it lasts or what ends it, and the reason."""
    words = upstream.state_words(now_ns)
    if upstream.proving_after:
        return f"{words}; before: {upstream.proving_after}"
    return f"{words}: {upstream.paused_because}" if upstream.paused_because else words


def used_words(limit: LimitStatus) -> str:
    by = f" by {limit.key or '<>'}" if limit.key is not None else ""
    return f"{limit.used}/{limit.count}{by}"


def queue_text(
    pages: Iterable[Sequence[MessageView]],
    at_ns: int,
    *,
    has_routes: bool = False,
    nothing: str = EMPTY,
) -> Iterator[str]:
    """Yield the queue page by page, one line for each message, and at the end the sum, as mailq does.

    `has_routes`: each line names the upstreams in whose queues the message stands.
    """
    count = size_bytes = 0
    for page in pages:
        lines = [_HEADING] if page and not count else []
        for message in page:
            size_bytes += message.size_bytes
            cells = (
                message.queue_id + MARKS.get(message.state, ""),
                message.size_bytes,
                utc(message.arrival_at_ns),
                message.state.value,
                message.recipients_left,
                f"{_who(message)} {_why(message, at_ns, has_routes=has_routes)}",
            )
            lines.append(printable(_ROW.format(*cells)).rstrip())
        count += len(page)
        if lines:
            yield "\n".join(lines)
    yield sum_words(count, size_bytes) if count else nothing


def sum_words(count: int, size_bytes: int) -> str:
    return f"-- {-(-size_bytes // 1024)} Kbytes in {count} Request{'' if count == 1 else 's'}."


def _who(message: MessageView) -> str:
    is_unknown = message.state is QueueState.CORRUPT and not message.recipients_left
    sender = message.reverse_path or ("unknown" if is_unknown else "MAILER-DAEMON")
    if not message.recipients:
        return sender
    others = message.recipients_left - 1
    return f"{sender} -> {message.recipients[0]}" + (f" +{others}" if others > 0 else "")


def _why(message: MessageView, at_ns: int, *, has_routes: bool) -> str:
    parts = [f"on {message.host}"] if message.host else []
    parts += [f"lane {message.lane}"] if message.lane else []
    parts += [message.reason] if message.reason else []
    kind, _, what = message.held_by.partition(" ")
    if message.held_by and kind != "hold" and not message.reason.endswith(what or kind):
        parts.append(f"waits for {message.held_by}")
    if message.upstream_because:
        parts.append(f"through {message.upstream}, {message.upstream_because}")
    elif has_routes and message.upstream:
        parts.append(f"through {', '.join((message.upstream, *message.further_upstreams))}")
    if message.eta_at_ns is not None:
        parts.append(f"ETA {utc(message.eta_at_ns)}, in {span(message.eta_at_ns - at_ns)}")
    return f"({'; '.join(parts)})" if parts else ""


def detail_lines(message: MessageView) -> Iterator[str]:
    """Yield all that is known of a message, under the keys of `--json`."""
    told = message_to_json(message)
    recipients, header = told.pop("recipient_statuses"), told.pop("header")
    for key, value in told.items():
        if value and not isinstance(value, list):
            yield printable(f"{key:<18} {value}")
    for recipient in recipients:
        about = "; ".join(f"{key} {value}" for key, value in recipient.items() if value)
        yield printable(f"recipient          {about.removeprefix('address ')}")
    for line in header.splitlines():
        yield printable(f"header             {line.expandtabs(1)}").rstrip()
