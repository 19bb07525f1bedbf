import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from relay.cli.top.picture import (
    LATE_NS,
    NARROWEST,
    Columns,
    PictureRow,
    RowKind,
    Target,
    TopView,
    bar,
    head,
    rows,
)
from relay.cli.top.rates import Rate
from relay.clock import SECOND_NS
from relay.spool.interface import Totals
from relay.status.breakdown import Breakdown, ReasonCount, SenderCount
from relay.status.snapshot import (
    Condition,
    LaneStatus,
    PolicyStatus,
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


def counted(*reasons: ReasonCount, senders: tuple[SenderCount, ...] = ()) -> Breakdown:
    return Breakdown(AT_NS, reasons, 0, senders, 0)


def waiting(reason: str, messages: int = 3) -> ReasonCount:
    return ReasonCount(QueueState.WAITING, reason, messages, messages)


def test_a_window_is_a_bar_with_the_countdown_to_the_next_slot() -> None:
    limits = (a_limit(), a_limit(used=3, count=10, opens_in_s=None))

    assert texts(rows(seen(of(an_upstream(limits=limits))), AT_80))[2:4] == [
        "    8 messages per 60s  [##########] 8/8  next slot in 20s",
        "    10 messages per 60s [###-------] 3/10",
    ]


def test_the_countdown_goes_on_between_two_looks() -> None:
    later = seen(now_ns=AT_NS + 5 * SECOND_NS)

    assert any(text.endswith("next slot in 15s") for text in texts(rows(later, AT_80)))


def test_a_long_key_gives_way_to_the_countdown() -> None:
    limit = replace(a_limit(), for_each="sender", key="x" * 100 + "\x1b[2J")

    text = texts(rows(seen(of(an_upstream(limits=(limit,)))), AT_80))[2]

    assert text.endswith("..  next slot in 20s")
    assert cell_len(text) == 80


@given(st.integers(0, 10**7), st.integers(1, 10**7), st.integers(2, 40))
def test_a_bar_is_full_without_room_and_empty_without_use(used: int, count: int, cells: int) -> None:
    made = bar(used, count, cells)

    assert len(made) == cells + 2
    assert made.count("#") + made.count("-") == cells
    assert ("-" not in made) == (used >= count)
    assert ("#" not in made) == (used == 0)


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


def test_a_lane_with_mail_past_its_patience_is_late() -> None:
    lanes = (
        LaneStatus("resets", 50.0, None, 1, 2, 90 * SECOND_NS, 60 * SECOND_NS),
        LaneStatus("lists", 50.0, 80),
    )

    assert texts(rows(seen(of(lanes=lanes)), AT_80)) == [
        "lanes",
        "  resets  share 50 %; 1 waiting, oldest 1m 30s, late",
        "  lists   share 50 %, at most 80 %; empty",
    ]


def test_each_reason_is_counted_and_turns_name_what_holds_the_next() -> None:
    breakdown = counted(
        waiting("", 397),
        waiting("no room in 8 messages per 60s"),
        ReasonCount(QueueState.HELD, "", 2, 2),
    )
    limit = replace(a_limit(), plain="8 messages per 1m")
    made = rows(seen(of(an_upstream(limits=(limit,))), breakdown=breakdown), AT_80)

    assert texts(made)[3:] == [
        "what waits for what",
        "  397 waiting   their turn, behind others; the next is held by limit 8 message..",
        "    3 waiting   no room in 8 messages per 1m",
        "    2 held      the operator, who releases them",
    ]
    assert made[4].whole.endswith("held by limit 8 messages per 1m")


def test_senders_are_rows_and_reports_are_of_nobody() -> None:
    senders = (SenderCount("list@x.example", 120, 1_200), SenderCount("", 3, 3))
    made = rows(seen(of(), breakdown=counted(senders=senders)), AT_80)

    assert texts(made)[1:] == [
        "  120 messages, 1200 recipients  list@x.example",
        "    3 messages,    3 recipients  <>",
    ]
    assert made[2].target == Target(RowKind.SENDER, "")


def test_what_is_not_listed_is_counted() -> None:
    breakdown = Breakdown(AT_NS, (waiting("a"),), 4, (SenderCount("b@x.example", 1, 1),), 5)

    told = texts(rows(seen(of(), breakdown=breakdown), AT_80))
    assert "what waits for what, 4 more not shown" in told
    assert "senders with most messages, 5 more not shown" in told


def test_what_is_looked_for_is_all_that_is_shown() -> None:
    shown = of(an_upstream(), replace(an_upstream(), name="spare", host="mx.other.example"))
    breakdown = counted(waiting("no room"), senders=(SenderCount("OTHER@x.example", 1, 1),))

    told = texts(rows(seen(shown, breakdown=breakdown), AT_80, "other"))

    assert [text.split()[0] for text in told] == ["upstreams", "spare", "8", "senders", "1"]
    assert texts(rows(seen(shown), AT_80, "no such")) == ["nothing here has 'no such' in its name"]


def test_the_head_tells_the_relay_its_queue_and_its_rates() -> None:
    told = head(seen(rate=Rate(120.4, 30, 60 * SECOND_NS)), AT_80)

    assert [text.plain.rstrip() for text in told] == [
        "relay 0.1.0 on relay.example.org: running for 1h 2m",
        "queue: 400 waiting, 3 deferred, 1 corrupt",
        "recipients a minute: 120 in, 30 out (last 1m)",
    ]


def test_a_relay_that_is_down_is_said_first_and_how_old_the_rest_is() -> None:
    down = seen(trouble="no relay runs on /spool", age_ns=40 * SECOND_NS)

    told = [text.plain.rstrip() for text in head(down, AT_80)]
    assert told[0] == "no relay runs on /spool; looking again and again"
    assert told[1].endswith("as it was 40s ago")
    never = TopView("/spool", AT_NS, trouble="no relay runs on /spool")
    assert [text.plain.rstrip() for text in head(never, AT_80)] == told[:1]
    assert rows(never, AT_80) == []


def test_a_relay_that_is_slow_to_answer_is_no_current_picture() -> None:
    told = [text.plain for text in head(seen(age_ns=LATE_NS + 1), AT_80)]

    assert "as it was 6s ago" in told[0]


def test_what_is_wrong_is_said_in_the_head() -> None:
    policy = PolicyStatus("ab", AT_NS, last_reload_ok=False, last_error="3:1: spoool: unknown")
    wrong = a_snapshot(refusing_because="no room on the disk", policy=policy, ledger=Totals(accepted=2))

    told = "\n".join(text.plain.rstrip() for text in head(seen(wrong), AT_80))

    assert "refusing mail: no room on the disk" in told
    assert "the last edit of the policy was refused: 3:1: spoool: unknown" in told
    assert "2 recipients are unaccounted for" in told


def test_what_a_start_has_yet_to_read_is_said_in_the_head() -> None:
    told = "\n".join(text.plain for text in head(seen(replace(a_snapshot(), recovering=7)), AT_80))

    assert "about 7 messages are not read yet" in told


def test_a_relay_without_breakdown_is_shown_all_the_same() -> None:
    told = texts(rows(seen(breakdown=None, uncounted="the relay says: 404"), AT_80))

    assert told[0] == "upstreams"
    assert told[-1] == "reasons and senders: the relay says: 404"


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


@settings(max_examples=60)
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


def test_routes_say_where_their_mail_goes_and_why() -> None:
    snapshot = replace(a_snapshot(), routes=routes())
    texts = [row.text.plain.rstrip() for row in rows(TopView("/spool", AT_NS, snapshot), AT_80)]

    at = texts.index("routes")
    assert texts[at + 1 : at + 5] == [
        "  1, 3  isp, ses: through ses; failover: isp is down, for 13m",
        "  2  ses, isp: through ses; all upstreams of its route are down, for 13m",
        "  4  m365, isp: through m365; m365 is down, fails over in 4m",
        "  5  isp, m365, ses: through isp; spill to m365, for 13m",
    ]


@pytest.mark.parametrize("columns", [80, 132])
def test_twenty_upstreams_and_fifty_lanes_are_all_there(columns: int) -> None:
    upstreams = [replace(an_upstream(), name=f"account-{number}" + "x" * 60) for number in range(20)]
    lanes = tuple(LaneStatus(f"{number}-{'y' * 60}", 2.0, None) for number in range(50))

    made = rows(seen(of(*upstreams, lanes=lanes)), Columns(columns))

    targets = [row.target for row in made if row.target is not None]
    assert targets == [
        *(Target(RowKind.UPSTREAM, each.name) for each in upstreams),
        *(Target(RowKind.LANE, each.name) for each in lanes),
    ]
    assert all(row.whole.find(row.target.name) >= 0 for row in made if row.target is not None)
