import unicodedata
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from relay.cli.top.picture import (
    NARROWEST,
    Columns,
    PictureRow,
    RowKind,
    Target,
    TopView,
    head,
    rows,
)
from relay.cli.top.rates import Rate
from relay.clock import SECOND_NS
from relay.status.breakdown import Breakdown, ReasonCount, SenderCount
from relay.status.snapshot import (
    Condition,
    LaneStatus,
    QueueState,
    Snapshot,
    UpstreamState,
    UpstreamStatus,
)
from tests.fakes.snapshots import AT_NS, a_limit, a_snapshot, an_upstream, routes

AT_80 = Columns(80)
NOTHING_QUEUED = Breakdown(AT_NS, (), 0, (), 0)
ODD = st.text(st.characters(), max_size=60)
"""With surrogates, controls, combining and wide characters."""


def seen(snapshot: Snapshot | None = None, **more: Any) -> TopView:
    return replace(TopView("/spool", AT_NS, snapshot or a_snapshot(), breakdown=NOTHING_QUEUED), **more)


def texts(made: list[PictureRow]) -> list[str]:
    return [row.text.plain.rstrip() for row in made]


def of(*upstreams: UpstreamStatus, **more: Any) -> Snapshot:
    return replace(a_snapshot(), upstreams=upstreams, **more)


def waiting(reason: str, messages: int = 3) -> ReasonCount:
    return ReasonCount(QueueState.WAITING, reason, messages, messages)


def test_an_upstream_tells_its_state_its_reason_and_the_time_left() -> None:
    paused = an_upstream(
        state=UpstreamState.PAUSED, because="421 too much", paused_until_ns=AT_NS + 80 * SECOND_NS, limits=()
    )
    stopped = replace(an_upstream(state=UpstreamState.STOPPED, because="535 no", limits=()), name="spare")

    made = rows(seen(of(paused, stopped)), AT_80)

    assert texts(made) == [
        "upstreams",
        "  isp    paused for 1m 20s; 2 in flight; 400 waiting, drained in 50m",
        "    421 too much",
        "  spare  stopped; 2 in flight; 400 waiting, drained unknown",
        "    535 no",
    ]
    assert made[1].target == Target(RowKind.UPSTREAM, "isp")
    assert "smtp.example.net:587" in made[1].whole
    assert "421 too much" in made[1].whole


def test_a_relay_that_is_down_is_said_first_and_how_old_the_rest_is() -> None:
    down = seen(trouble="no relay runs on /spool", age_ns=40 * SECOND_NS)

    told = [text.plain.rstrip() for text in head(down, AT_80)]
    assert told[0] == "no relay runs on /spool; looking again and again"
    assert told[1].endswith("as it was 40s ago")
    never = TopView("/spool", AT_NS, trouble="no relay runs on /spool")
    assert [text.plain.rstrip() for text in head(never, AT_80)] == told[:1]
    assert rows(never, AT_80) == []


@st.composite
def _odd(draw: st.DrawFn) -> TopView:
    """Draw what has foreign text wherever some can be, 20 upstreams and 50 lanes at most."""
    limit = replace(
        a_limit(used=draw(st.integers(0, 10**7)), count=8), key=draw(st.none() | ODD), label=draw(ODD)
    )
    upstreams = [
        replace(
            an_upstream(state=draw(st.sampled_from(UpstreamState)), because=draw(ODD), limits=(limit,)),
            name=draw(ODD),
            host=draw(ODD),
            held_by=draw(ODD),
            paused_by=draw(ODD),
        )
        for _ in range(draw(st.integers(0, 3)))
    ] * draw(st.sampled_from([1, 7]))
    lanes = [LaneStatus(draw(ODD), 50.0, None, 1, 2, 3)] * draw(st.sampled_from([0, 1, 50]))
    reasons = [ReasonCount(draw(st.sampled_from(QueueState)), draw(ODD), 10**6, 10**7) for _ in range(3)]
    breakdown = Breakdown(AT_NS, tuple(reasons), 0, (SenderCount(draw(ODD), 10**6, 10**7),), 0)
    snapshot = replace(
        a_snapshot(refusing_because=draw(ODD)),
        upstreams=tuple(upstreams),
        lanes=tuple(lanes),
        routes=draw(st.sampled_from([(), routes()])),
        hostname=draw(ODD),
        condition=draw(st.sampled_from(Condition)),
    )
    return TopView("/spool", AT_NS, snapshot, 0, draw(ODD), Rate(10**7, 1, SECOND_NS), breakdown, draw(ODD))


@given(_odd(), st.integers(1, 200), st.booleans())
def test_no_row_is_too_wide_and_none_steers_the_terminal(shown: TopView, columns: int, is_utf8: bool) -> None:
    layout = Columns(columns, is_utf8)
    made = rows(shown, layout)
    lines = [text.plain for text in head(shown, layout)] + [row.text.plain for row in made]

    assert {cell_len(line) for line in lines} == {max(NARROWEST, columns)}
    for text in [*lines, *(row.whole for row in made)]:
        assert text.isprintable()
        assert not [each for each in text if unicodedata.category(each) in {"Cc", "Cf", "Cs"}]
        assert is_utf8 or text.isascii()
