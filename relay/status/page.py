"""The status page: one document, made here, with nothing loaded from anywhere.

`page.html` is the template, which escapes all that it is given; `page.css` and `page.js` are put
into the document.  `POLICY` is the Content-Security-Policy that allows exactly these two, and to ask
for the page again.  Without script the page reloads itself; the script asks for it as often, and puts
what changed in its place, so that nothing flickers.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from relay.mail.formats import rfc3339, span, utc
from relay.queue.routes import Because
from relay.status import chart
from relay.status.samples import GAP, MINUTES, QUEUE, Key, Samples
from relay.status.snapshot import (
    LimitStatus,
    MessageView,
    QueueState,
    RouteStatus,
    Snapshot,
    UpstreamState,
    UpstreamStatus,
    public_view,
)

RELOAD_SECONDS = 5
_HOUR, _DAY = 60, MINUTES
_DAY_STEP = 10
"""Minutes of a step of the chart of a day."""

_HERE = Path(__file__).parent
STYLE = (_HERE / "page.css").read_text("utf-8")
SCRIPT = (_HERE / "page.js").read_text("utf-8")


def _hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; style-src {_hash_of(STYLE)}; script-src {_hash_of(SCRIPT)}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class _Badge(NamedTuple):
    """How a state looks: a class of the style sheet, a sign for those who see no colours, and words."""

    kind: str
    sign: str
    words: str


class _Chart(NamedTuple):
    title: str
    words: str
    """What a reader who does not see it is told."""
    shape: chart.Curve
    top: str
    since: str
    until: str


class _Bar(NamedTuple):
    limit: LimitStatus
    value: int
    words: str
    """How much of the window is used, and when the next slot opens."""
    charts: tuple[_Chart, ...]


def render(snapshot: Snapshot, coming: Iterable[MessageView] = (), samples: Samples | None = None) -> str:
    """Return the document.  Give it what is public of a snapshot."""
    samples = samples or Samples()
    return _PAGE.render(
        it=snapshot,
        condition=_condition(snapshot),
        upstreams=[
            (
                each,
                _state(each, snapshot.at_ns),
                _drains(each, snapshot.at_ns),
                _bars(each, snapshot, samples),
            )
            for each in snapshot.upstreams
        ],
        counts=[(state.value, snapshot.counts(state)) for state in QueueState],
        waiting=snapshot.counts(QueueState.WAITING).messages,
        queue_charts=_charts_of(QUEUE, 0, "waiting", samples),
        first=[public_view(each) for each in coming],
        has_lanes=bool(snapshot.lanes),
        routes=[(each, _diverted(each, snapshot.at_ns)) for each in snapshot.routes],
    )


def _condition(snapshot: Snapshot) -> _Badge:
    if snapshot.refusing_because:
        return _Badge("bad", "!", f"refusing mail: {snapshot.refusing_because}")
    if snapshot.recovering:
        return _Badge("warn", "…", f"accepting mail; about {snapshot.recovering} messages are not read yet")
    return _Badge("good", "✓", "accepting mail")


def _state(upstream: UpstreamStatus, at_ns: int) -> _Badge:
    until_ns = upstream.paused_until_ns
    match upstream.state:
        case UpstreamState.STOPPED:
            return _Badge("bad", "■", "stopped until an operator acts")
        case UpstreamState.PAUSED if until_ns is not None:
            return _Badge("warn", "‖", f"paused, tried again in {span(until_ns - at_ns)}, at {utc(until_ns)}")
        case UpstreamState.PAUSED:
            return _Badge("warn", "‖", "paused until relay resume" if upstream.paused_by else "paused")
    return _Badge("good", "✓", "open") if upstream.is_well else _Badge("plain", "○", upstream.state_words)


def _diverted(route: RouteStatus, at_ns: int) -> _Badge | None:
    """Return where mail of a route goes and why, where it does not go as it prefers; else None."""
    if not (why := route.why(at_ns)):
        return None
    is_down = route.because is Because.ALL_DOWN
    kind, sign = ("bad", "■") if is_down else ("warn", "‖") if route.is_diverted else ("plain", "○")
    return _Badge(kind, sign, f"{route.upstream}; {why}")


def _drains(upstream: UpstreamStatus, at_ns: int) -> str:
    if upstream.drained_at_ns is None:
        return "unknown while stopped"
    if not upstream.waiting_messages:
        return "nothing waits"
    return f"in {span(upstream.drained_at_ns - at_ns)}, by estimate"


def _bars(upstream: UpstreamStatus, snapshot: Snapshot, samples: Samples) -> list[_Bar]:
    return [_bar(limit, snapshot.at_ns, samples) for limit in upstream.limits]


def _bar(limit: LimitStatus, at_ns: int, samples: Samples) -> _Bar:
    words = f"{limit.used}/{limit.count}{limit.remarks}, {limit.opening_words(at_ns)}"
    charts = _charts_of((limit.upstream, limit.label), limit.count, "used", samples)
    return _Bar(limit, min(limit.used, limit.count), words, charts)


def _charts_of(key: Key, full: int, what: str, samples: Samples) -> tuple[_Chart, ...]:
    """Return those of the last hour and day; `full` is their least height."""
    return (
        _past("last hour", samples.last(key, _HOUR), full, what, "1 h ago"),
        _past("last day", chart.highest(samples.last(key, _DAY), _DAY_STEP), full, what, "24 h ago"),
    )


def _past(title: str, values: Sequence[int], full: int, what: str, since: str) -> _Chart:
    most = max(values)
    top = max(full, most, 1)
    words = "nothing known yet" if most == GAP else f"at most {most} {what}"
    return _Chart(title, words, chart.steps(values, top), str(top), since, "now")


def _size(size_bytes: int) -> str:
    """Return a size in a unit that keeps it below 1,000: `1.5 KB`."""
    size = float(size_bytes)
    for unit in ("B", "KB", "MB"):
        if size < 1_000:
            return f"{size:.3g} {unit}"
        size /= 1_000
    return f"{size:,.3g} GB" if size < 1_000 else f"{size:,.0f} GB"


def _in(at_ns: int | None, now_ns: int) -> str:
    if at_ns is None:
        return "unknown"
    return "now" if at_ns <= now_ns else f"in {span(at_ns - now_ns)}"


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(span=span, rfc3339=rfc3339, size=_size, clock=utc, within=_in)
    made.globals.update(
        style=Markup(STYLE),  # noqa: S704 - a file of ours
        script=Markup(SCRIPT),  # noqa: S704 - a file of ours
        reload_seconds=RELOAD_SECONDS,
        width=chart.WIDTH,
        height=chart.HEIGHT,
    )
    return made


_PAGE = _environment().get_template("page.html")
