"""The status page: one document, made here, with nothing loaded from anywhere.  Pure.

Everything in it is escaped, and it has no script: it reloads itself.  `POLICY` is the
Content-Security-Policy that allows exactly its style sheet and nothing else.
"""

import base64
import hashlib
from collections.abc import Iterable
from html import escape

from relay.mail.formats import rfc3339, span
from relay.status.snapshot import (
    LimitStatus,
    QueueState,
    Snapshot,
    UpstreamState,
    UpstreamStatus,
)

RELOAD_SECONDS = 5

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; }
tr { border-bottom: 1px solid #8884; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
meter { width: 12rem; }
.bad { color: #c22; font-weight: 600; }
.good { color: #283; }
footer { opacity: .7; }
"""

_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def render(snapshot: Snapshot) -> str:
    """Give it a `public` snapshot."""
    title = f"relay on {snapshot.hostname}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{RELOAD_SECONDS}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n"
        f"{_condition(snapshot)}\n"
        f"<h2>Upstreams</h2>\n{''.join(_upstream(u, snapshot.at_ns) for u in snapshot.upstreams)}\n"
        f"<h2>Queue</h2>\n{_queue(snapshot)}\n{_lanes(snapshot)}\n"
        f"<h2>Ledger</h2>\n{_ledger(snapshot)}\n"
        f"<h2>Policy</h2>\n{_policy(snapshot)}\n"
        f"<footer>{escape(rfc3339(snapshot.at_ns))} · relay {escape(snapshot.version)} · "
        '<a href="status.json">status.json</a> · <a href="metrics">metrics</a></footer>\n'
        "</body></html>\n"
    )


def _condition(snapshot: Snapshot) -> str:
    began_ns = snapshot.started_at_ns
    up = "" if began_ns is None else f" for {escape(span(snapshot.at_ns - began_ns))}"
    said = f"<p>{escape(snapshot.condition.value)}{up}; "
    if snapshot.refusing_because:
        return said + f'<span class="bad">refusing mail: {escape(snapshot.refusing_because)}</span></p>'
    return said + '<span class="good">accepting mail</span></p>'


def _upstream(upstream: UpstreamStatus, at_ns: int) -> str:
    where = f"{upstream.host}:{upstream.port}"
    mark = "good" if upstream.state is UpstreamState.OPEN else "bad"
    because = f": {upstream.paused_because}" if upstream.paused_because else ""
    until = f" until {rfc3339(upstream.paused_until_ns)}" if upstream.paused_until_ns is not None else ""
    drained_ns = upstream.drained_at_ns
    if drained_ns is None:
        drain = "unknown while stopped"
    elif upstream.waiting_messages:
        drain = f"in {span(drained_ns - at_ns)}, by estimate"
    else:
        drain = "nothing waits"
    rows = [
        ("state", f'<span class="{mark}">{escape(upstream.state.value + until + because)}</span>'),
        ("connections", f"{upstream.connections_open} open, {upstream.connections_idle} idle"),
        ("in flight", f"{upstream.in_flight}"),
        ("waiting", f"{upstream.waiting_messages} messages, {upstream.waiting_recipients} recipients"),
        ("drained", escape(drain)),
        *((escape(limit.label), _limit(limit, at_ns)) for limit in upstream.limits),
        *(("last refusal", f'<span class="bad">{escape(str(each))}</span>') for each in upstream.findings),
    ]
    table = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows)
    return f"<h3>{escape(upstream.name)} <small>{escape(where)}</small></h3>\n<table>{table}</table>\n"


def _limit(limit: LimitStatus, at_ns: int) -> str:
    opens = "room now" if limit.opens_at_ns is None else f"next slot in {span(limit.opens_at_ns - at_ns)}"
    bar = f'<meter min="0" max="{limit.count}" value="{min(limit.used, limit.count)}"></meter>'
    return f"{bar} {limit.used}/{limit.count}{limit.remarks}, {escape(opens)}"


def _queue(snapshot: Snapshot) -> str:
    rows = []
    for state in QueueState:
        counts = snapshot.counts(state)
        values = (counts.messages, counts.recipients, counts.size_bytes, span(counts.oldest_age_ns))
        rows.append((state.value, values))
    return _table(("messages", "recipients", "bytes", "oldest"), rows)


def _lanes(snapshot: Snapshot) -> str:
    rows = []
    for lane in snapshot.lanes:
        ceiling = "-" if lane.ceiling_percent is None else f"{lane.ceiling_percent} %"
        values = (f"{lane.share_percent:.4g} %", ceiling, lane.waiting_messages, span(lane.oldest_age_ns))
        rows.append((lane.name, values))
    table = _table(("share", "ceiling", "messages", "oldest"), rows)
    return f"<p>Waiting, by lane.</p>{table}" if rows else ""


def _table(columns: Iterable[str], rows: Iterable[tuple[str, Iterable[object]]]) -> str:
    head = "".join(f'<th class="n">{name}</th>' for name in columns)
    lines = []
    for name, values in rows:
        cells = "".join(f'<td class="n">{escape(str(value))}</td>' for value in values)
        lines.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(lines)}</table>"


def _ledger(snapshot: Snapshot) -> str:
    ledger = snapshot.ledger
    names = ("accepted", "relayed", "bounced", "expired", "deleted", "queued", "imbalance")
    head = "".join(f'<th class="n">{name}</th>' for name in names)
    numbers = {name: getattr(ledger, name) for name in names}
    alarming = {"imbalance"} if ledger.imbalance else set()
    cells = "".join(
        f'<td class="n{" bad" if name in alarming else ""}">{number}</td>' for name, number in numbers.items()
    )
    return f"<p>Recipients, since ever.</p><table><tr>{head}</tr><tr>{cells}</tr></table>"


def _policy(snapshot: Snapshot) -> str:
    policy = snapshot.policy
    said = (
        f"<p>In force since {escape(rfc3339(policy.loaded_at_ns))}, sha256 {escape(policy.sha256[:12])}.</p>"
    )
    if policy.waiting_because:
        until = "" if policy.waiting_until_ns is None else f" until {rfc3339(policy.waiting_until_ns)}"
        said += f'<p class="bad">The last edit waits{escape(until)}: {escape(policy.waiting_because)}</p>'
    if policy.last_reload_ok:
        return said
    return said + f'<p class="bad">The last edit was refused: {escape(policy.last_error)}</p>'
