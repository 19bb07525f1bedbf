"""The status page: one HTML document that loads nothing from elsewhere.

`page.html` is the template; it escapes every value.  `page.css` and `page.js` are part of the document.
`POLICY` is the Content-Security-Policy that allows exactly these two, and to request the page again.
Without script the page reloads itself every RELOAD_SECONDS.  The script requests it as often, and replaces
only what changed, so that nothing flickers.

The charts are path data of SVG, WIDTH by HEIGHT units with the origin at the top left corner.  `Samples`
keeps the last day in memory only: MINUTES numbers for the queue and for each limit of the policy.  A restart
begins anew, and a minute without a sample is a gap.
"""

import base64
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from relay.mail.formats import rfc3339, span, utc
from relay.queue.routes import Because
from relay.status.snapshot import QueueState, RouteStatus, Snapshot, UpstreamState, UpstreamStatus, public

if TYPE_CHECKING:
    from jinja2 import Template

RELOAD_SECONDS = 5
_DAY_STEP = 10
"""Minutes for each step in the chart of a day."""

_HERE = Path(__file__).parent
STYLE = (_HERE / "page.css").read_text("utf-8")
SCRIPT = (_HERE / "page.js").read_text("utf-8")


def _hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; style-src {_hash_of(STYLE)}; script-src {_hash_of(SCRIPT)}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


WIDTH = 240
HEIGHT = 48
MINUTES = 24 * 60
GAP = -1
QUEUE = ("", "")
"""The key of the number of waiting messages."""

Key = tuple[str, str]
"""The upstream's name and the limit's label."""


class Samples:
    def __init__(self) -> None:
        self._minute = 0
        self._of: dict[Key, deque[int]] = {}

    def note(self, snapshot: Snapshot, minute: int) -> None:
        """Keep the highest numbers of each minute; `minute` never decreases.  Forget limits that are gone."""
        now = dict(_numbers(snapshot))
        self._of = {key: self._of.get(key) or deque([GAP] * MINUTES, MINUTES) for key in now}
        for key, series in self._of.items():
            series.extend([GAP] * min(minute - self._minute, MINUTES))
            series[-1] = max(series[-1], now[key])
        self._minute = minute

    def day(self, key: Key) -> list[int]:
        """Return one number for each of the last MINUTES, the newest last; `GAP` if none is known."""
        return list(self._of.get(key, [GAP] * MINUTES))


def _numbers(snapshot: Snapshot) -> Iterator[tuple[Key, int]]:
    yield QUEUE, snapshot.counts(QueueState.WAITING).messages
    for upstream in snapshot.upstreams:
        for limit in upstream.limits:
            yield (upstream.name, limit.label), limit.used


def _steps(values: Sequence[int], top: int) -> str:
    """Draw each value as a step of equal width, `top` as the full height, and nothing for a `GAP`."""
    width, path = WIDTH / len(values), ""
    for is_known, run in groupby(enumerate(values), lambda each: each[1] != GAP):
        if is_known:
            known = list(run)
            corners = (
                f"V{HEIGHT * (1 - value / top):.1f}H{(index + 1) * width:.1f}" for index, value in known
            )
            path += f"M{known[0][0] * width:.1f} {HEIGHT}{''.join(corners)}V{HEIGHT}Z"
    return path


class _Badge(NamedTuple):
    """How a state looks: a class of the style sheet, a sign for those who see no colours, and words."""

    kind: str
    sign: str
    words: str


_LOOKS = {
    UpstreamState.OPEN: ("good", "✓"),
    UpstreamState.PAUSED: ("warn", "‖"),
    UpstreamState.STOPPED: ("bad", "■"),
}


class _Chart(NamedTuple):
    title: str
    words: str
    """The text for a reader who does not see the chart."""
    shape: str
    since: str


def render(snapshot: Snapshot, samples: Samples | None = None) -> str:
    """Return the document, without any mail address."""
    snapshot, samples = public(snapshot), samples or Samples()
    return _template().render(
        it=snapshot,
        condition=_condition(snapshot),
        counts=[(state.value, snapshot.counts(state)) for state in QueueState],
        queue_charts=_charts(samples, QUEUE, "waiting", 1),
        charts_of=lambda limit: _charts(samples, (limit.upstream, limit.label), "used", limit.count),
    )


def _condition(snapshot: Snapshot) -> _Badge:
    if snapshot.refusing_because:
        return _Badge("bad", "!", f"refusing mail: {snapshot.refusing_because}")
    if snapshot.recovering:
        return _Badge("warn", "…", f"accepting mail; about {snapshot.recovering} messages are not read yet")
    return _Badge("good", "✓", "accepting mail")


def _state(upstream: UpstreamStatus, at_ns: int) -> _Badge:
    kind, sign = ("plain", "○") if upstream.is_well is None else _LOOKS[upstream.state]
    return _Badge(kind, sign, upstream.state_words(at_ns))


def _diverted(route: RouteStatus, at_ns: int) -> _Badge | None:
    """Return where mail of a route goes and why, if it is diverted or soon will be; else None."""
    if not (why := route.why(at_ns)):
        return None
    is_down = route.because is Because.ALL_DOWN
    kind, sign = ("bad", "■") if is_down else ("warn", "‖") if route.is_diverted else ("plain", "○")
    return _Badge(kind, sign, f"{route.upstream}; {why}")


def _charts(samples: Samples, key: Key, what: str, least: int) -> list[_Chart]:
    """Return the charts of the last hour and day.  Their full height stands for at least `least`."""
    day = samples.day(key)
    in_steps = [max(day[at : at + _DAY_STEP]) for at in range(0, MINUTES, _DAY_STEP)]
    charts = []
    for title, values, since in ("last hour", day[-60:], "1 h ago"), ("last day", in_steps, "24 h ago"):
        most = max(values)
        words = "no data yet" if most == GAP else f"at most {most} {what}"
        charts.append(_Chart(title, words, _steps(values, max(least, most)), since))
    return charts


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - 5 MB, for a page alone
    from markupsafe import Markup  # noqa: PLC0415 - as above

    made = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(span=span, rfc3339=rfc3339, clock=utc)
    made.globals.update(
        state_of=_state,
        diverted=_diverted,
        style=Markup(STYLE),  # noqa: S704 - a file of ours
        script=Markup(SCRIPT),  # noqa: S704 - a file of ours
        reload_seconds=RELOAD_SECONDS,
        width=WIDTH,
        height=HEIGHT,
    )
    return made.get_template("page.html")
