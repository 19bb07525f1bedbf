"""What a snapshot and messages say, in words for people: for `relay status`, `queue`, `find` and `top`."""

from collections.abc import Iterable, Iterator, Sequence

from relay.cli.options import printable
from relay.cli.table import Table
from relay.mail.formats import span, utc
from relay.status.snapshot import (
    Condition,
    LimitStatus,
    MessageView,
    QueueState,
    Snapshot,
    UpstreamState,
    UpstreamStatus,
    detail_to_json,
)

MARKS = {QueueState.ACTIVE: "*", QueueState.HELD: "!"}
"""After a queue id, as mailq has them."""
_COLUMNS = (
    *("queue id".ljust(17), "size".rjust(9), "arrived".ljust(20), "state".ljust(9), "left"),
    "sender -> recipient (why; ETA)",
)
"""As wide as nearly all rows need, since a listing is printed as it is found."""


def relay_words(snapshot: Snapshot, now_ns: int) -> str:
    """Return which relay it is, and for how long it runs."""
    since = "" if snapshot.started_at_ns is None else f" for {span(now_ns - snapshot.started_at_ns)}"
    return f"relay {snapshot.version} on {snapshot.hostname}: {snapshot.condition}{since}"


def wrong_words(snapshot: Snapshot) -> Iterator[str]:
    """Yield what is wrong with the relay as a whole, or not done yet."""
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


def what_holds(snapshot: Snapshot, name: str = "") -> str:
    """Return what keeps back all mail for an upstream, by default the first, and until when; or nothing."""
    upstream = next((each for each in snapshot.upstreams if each.name == name), snapshot.upstreams[0])
    if upstream.state is not UpstreamState.OPEN:
        return f"{upstream.name} is {upstream.state}{until_words(upstream)}: {upstream.paused_because}"
    full = [
        (limit.opens_at_ns, limit.words)
        for limit in upstream.limits
        if limit.opens_at_ns is not None and limit.for_each is None
    ]
    opens_at_ns, words = max(full, default=(0, ""))
    return f"no room in {words} until {utc(opens_at_ns)}" if full else ""


def until_words(upstream: UpstreamStatus) -> str:
    """Return until when it rests, behind a blank; nothing where nobody can tell."""
    if upstream.paused_until_ns is not None:
        return f" until {utc(upstream.paused_until_ns)}"
    is_endless = upstream.paused_by and upstream.state is UpstreamState.PAUSED
    return f" until `relay resume {upstream.name}`" if is_endless else ""


def state_words(upstream: UpstreamStatus, now_ns: int) -> str:
    """Return its state, how long that lasts or what ends it, and why."""
    words = upstream.state_words
    if upstream.paused_by and upstream.paused_until_ns is None:
        words = f"{upstream.state}{until_words(upstream)}"
    elif upstream.paused_until_ns is not None and upstream.state is not UpstreamState.OPEN:
        words = f"{upstream.state} for {span(upstream.paused_until_ns - now_ns)}"
    if upstream.proving_after:
        return f"{words}; before: {upstream.proving_after}"
    return f"{words}: {upstream.paused_because}" if upstream.paused_because else words


def drain_words(upstream: UpstreamStatus, now_ns: int) -> str:
    """Return when nothing will wait for it any more, by estimate."""
    if upstream.drained_at_ns is None:
        return "unknown"
    return f"in {span(upstream.drained_at_ns - now_ns)}" if upstream.waiting_messages else "-"


def used_words(limit: LimitStatus) -> str:
    """Return used/N, whose that is, and what else there is to say."""
    by = f" by {limit.key or '<>'}" if limit.key is not None else ""
    return f"{limit.used}/{limit.count}{by}"


def limits_of(snapshot: Snapshot) -> list[LimitStatus]:
    return [limit for each in snapshot.upstreams for limit in each.limits]


def in_plain_words(text: str, limits: Iterable[LimitStatus]) -> str:
    """Return a text with the labels of these limits as people write them."""
    for limit in limits:
        text = text.replace(limit.label, limit.words)
    return text


class QueueTable:
    """The queue, a row a message as it is found, and at the end the sum that mailq has.

    The limits of the snapshot are written as people write them, and where it has routes, each message says
    with which upstream it stands.
    """

    def __init__(self, at_ns: int, snapshot: Snapshot | None = None) -> None:
        self._at_ns = at_ns
        self._limits = [] if snapshot is None else limits_of(snapshot)
        self._has_routes = snapshot is not None and bool(snapshot.routes)
        self._table = Table(*_COLUMNS, numbers=(_COLUMNS[1], _COLUMNS[4]), is_folded=True)
        self._messages = self._size_bytes = 0

    def lines(self, messages: Sequence[MessageView]) -> Iterator[str]:
        self._messages += len(messages)
        self._size_bytes += sum(message.size_bytes for message in messages)
        return self._table.lines(
            (
                message.queue_id + MARKS.get(message.state, ""),
                message.size_bytes,
                utc(message.arrival_at_ns),
                message.state.value,
                message.recipients_left,
                f"{_who(message)} {self._why(message)}".rstrip(),
            )
            for message in messages
        )

    def end(self) -> str:
        if not self._messages:
            return "Mail queue is empty"
        plural = "" if self._messages == 1 else "s"
        return f"-- {-(-self._size_bytes // 1024)} Kbytes in {self._messages} Request{plural}."

    def _why(self, message: MessageView) -> str:
        parts = [f"on {message.host}"] if message.host else []
        parts += [f"lane {message.lane}"] if message.lane else []
        parts += [message.reason] if message.reason else []
        kind, _, what = message.held_by.partition(" ")
        if message.held_by and kind != "hold" and not (what and message.reason.endswith(what)):
            parts.append(f"held by {message.held_by}")
        if message.upstream_because:
            parts.append(f"through {message.upstream}, {message.upstream_because}")
        elif self._has_routes and message.upstream:
            parts.append(f"through {', '.join((message.upstream, *message.further_upstreams))}")
        if message.eta_at_ns is not None:
            parts.append(f"ETA {utc(message.eta_at_ns)}, in {span(message.eta_at_ns - self._at_ns)}")
        return f"({in_plain_words('; '.join(parts), self._limits)})" if parts else ""


def _who(message: MessageView) -> str:
    """Return the sender, the first recipient left, and how many others there are."""
    is_unknown = message.state is QueueState.CORRUPT and not message.recipients_left
    sender = message.reverse_path or ("unknown" if is_unknown else "MAILER-DAEMON")
    if not message.recipients:
        return sender
    others = message.recipients_left - 1
    return f"{sender} -> {message.recipients[0]}" + (f" +{others}" if others > 0 else "")


def queue_lines(
    messages: Sequence[MessageView], at_ns: int, snapshot: Snapshot | None = None
) -> Iterator[str]:
    """List messages that are all there."""
    table = QueueTable(at_ns, snapshot)
    if messages:
        yield from table.lines(messages)
    yield table.end()


def detail_lines(message: MessageView, limits: Sequence[LimitStatus] = ()) -> Iterator[str]:
    """Yield all that is known of a message, by the keys of `--json`; limits as people write them."""
    told = detail_to_json(message)
    recipients, header = told.pop("recipient_statuses"), told.pop("header")
    for key, value in told.items():
        if value and not isinstance(value, list):
            yield printable(f"{key:<18} {in_plain_words(str(value), limits)}")
    for recipient in recipients:
        about = "; ".join(f"{key} {value}" for key, value in recipient.items() if value)
        yield printable(f"recipient          {about.removeprefix('address ')}")
    for line in header.splitlines():
        yield printable(f"header             {line.expandtabs(1)}").rstrip()
