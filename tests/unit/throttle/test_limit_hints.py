import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.sender.state_file import LESSONS_FORMAT
from relay.throttle.hint import finding_to_json
from relay.throttle.limit import Unit
from relay.throttle.limit_hints import (
    MOST_KEPT,
    Effective,
    Hint,
    Lessons,
    Lowered,
    Tally,
    Untaken,
    compare,
    in_force,
    suggest,
    tighten,
)
from relay.verdicts.verdict import Excess, Named, Ruling, Scope, Span, Verdict, excess_of, named_of

MINUTE_NS, HOUR_NS = 60 * SECOND_NS, 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
NOT_US = (
    "our own history does not explain it; something else uses the account, or the upstream counts otherwise"
)
UNITS: tuple[Unit, ...] = ("messages", "recipients", "connections")


def a_limit(count: int, per_ns: int = HOUR_NS, unit: Unit = "recipients") -> Effective:
    return Effective(unit, count, per_ns, None, f"{count} {unit} per {per_ns / SECOND_NS:g}s")


def refusal(span: Span | None = None, excess: Excess | None = Excess.MAIL) -> Ruling:
    return Ruling(Verdict.PAUSE, Scope.UPSTREAM, span=span, excess=excess)


def a_finding(sent: int = 97, limit: int | None = 100, at_ns: int = 0, per_ns: int = HOUR_NS) -> Hint:
    return Hint(at_ns, "recipients", per_ns, sent, 57 * MINUTE_NS, limit, suggest(sent, limit))


def test_a_tally_of_nothing_has_none_of_any_unit() -> None:
    assert [Tally().of(unit) for unit in UNITS] == [0, 0, 0]


def test_a_finding_says_what_went_well_and_what_to_try() -> None:
    (finding,) = compare(
        refusal(Span.HOUR), [a_limit(100)], lambda _: Tally(40, 97, 3, since_ns=57 * MINUTE_NS), at_ns=5
    )

    assert str(finding) == "cut off after 97 recipients in 57 min; policy says 100 per 1h; suggested 90"
    assert (finding.label, finding.at_ns) == ("100 recipients per 3600s", 5)


@given(st.integers(1, 10**9), st.none() | st.integers(1, 10**9))
def test_a_suggestion_is_below_what_went_well(sent: int, limit: int | None) -> None:
    suggested = suggest(sent, limit)

    assert 1 <= suggested <= max(1, sent - 1)
    assert limit is None or suggested <= limit
    if limit is None and sent >= 20:
        assert suggested * 20 <= sent * 19, "a twentieth is left for what we cannot see"
        assert suggested * 10 > sent * 8, "and not more than rounding takes"


@given(st.integers(1, 10**6))
def test_more_that_went_well_never_suggests_less(sent: int) -> None:
    assert suggest(sent) <= suggest(sent + 1)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("you have exceeded your sending limit of 50 recipients per 3600s", Named(50, "recipients", HOUR_NS)),
        ("limit of 1,000 messages per day reached", Named(1000, "messages", None)),
        ("at most 30 e-mails in 10 minutes", Named(30, "messages", 10 * MINUTE_NS)),
        ("too many recipients per hour", None),
        ("0 messages per hour", None),
        ("rate limited, 550-5.7.1 2 messages left", None),
        ("ip 192.0.2.50 messages per hour exceeded", None),
    ],
)
def test_a_limit_that_a_refusal_names_is_read(text: str, named: Named | None) -> None:
    assert named_of(text) == named


@pytest.mark.parametrize(("count", "suggested"), [(50, 50), (100, 95), (500, 95)])
def test_a_limit_that_the_upstream_names_counts_most(count: int, suggested: int) -> None:
    ruling = replace(refusal(), named=Named(count, "recipients", HOUR_NS))

    (finding,) = compare(ruling, [a_limit(300, DAY_NS), a_limit(100)], lambda _: Tally(), at_ns=0)

    assert (finding.limit, finding.sent, finding.suggested) == (100, 0, suggested)
    assert str(finding).endswith(f"the upstream says {count}; suggested {suggested}")


@pytest.mark.parametrize(
    ("went", "charged", "says"),
    [
        (0, 100, "cut off at 100 recipients at once; policy"),
        (50, 51, "cut off after 50 recipients in 57 min; policy"),
        (40, None, "cut off after 40 recipients in 57 min; policy"),
        (
            0,
            50,
            f"cut off at 50 recipients of ours in 1h, the refused ones included: {NOT_US}; policy",
        ),
    ],
)
def test_a_finding_says_where_our_history_explains_nothing(went: int, charged: int | None, says: str) -> None:
    ruling = replace(refusal(), named=Named(50, "recipients", HOUR_NS))
    by_label = {} if charged is None else {"100 recipients per 3600s": charged}

    (finding,) = compare(
        ruling, [a_limit(100)], lambda _: Tally(went, went, 0, 57 * MINUTE_NS), 0, charged=by_label
    )

    assert str(finding) == f"{says} says 100 per 1h; the upstream says 50; suggested 50"
    assert LESSONS_FORMAT.parse(LESSONS_FORMAT.render(Lessons((finding,)))) == Lessons((finding,))


def test_a_named_window_that_we_lack_is_compared_as_ever() -> None:
    ruling = replace(refusal(), named=Named(5, "recipients", MINUTE_NS))

    (finding,) = compare(ruling, [a_limit(100)], lambda _: Tally(40, 97, 3), at_ns=0)

    assert (finding.sent, finding.suggested, finding.named) == (97, 90, None)


def test_of_several_limits_the_one_nearest_to_its_number_is_meant() -> None:
    tallies = {HOUR_NS: Tally(messages=20, recipients=30), DAY_NS: Tally(messages=150, recipients=290)}
    limits = [a_limit(100), a_limit(300, DAY_NS), a_limit(200, DAY_NS, "messages")]

    (finding,) = compare(refusal(), limits, tallies.__getitem__, at_ns=0)

    assert (finding.unit, finding.per_ns, finding.sent, finding.limit) == ("recipients", DAY_NS, 290, 300)


def test_a_window_that_held_more_before_is_not_to_blame() -> None:
    """Paced at full speed the short window is always full; the day is what was new."""
    limits = [a_limit(8, MINUTE_NS), a_limit(10_000, DAY_NS)]
    tallies = {MINUTE_NS: Tally(7, 7), DAY_NS: Tally(5000, 5000)}
    peaks = {MINUTE_NS: Tally(8, 8), DAY_NS: Tally(4000, 4000)}

    (finding,) = compare(refusal(), limits, tallies.__getitem__, 0, peak=peaks.__getitem__)

    assert (finding.per_ns, finding.sent) == (DAY_NS, 5000)


def test_a_limit_blamed_before_is_not_cleared() -> None:
    limits = [a_limit(100), a_limit(10_000, DAY_NS)]
    tallies = {HOUR_NS: Tally(97, 97), DAY_NS: Tally(500, 500)}
    peaks = {HOUR_NS: Tally(98, 98), DAY_NS: Tally(0, 0)}

    (finding,) = compare(
        refusal(), limits, tallies.__getitem__, 0, peak=peaks.__getitem__, before=[a_finding()]
    )

    assert finding.per_ns == HOUR_NS


def test_where_all_are_cleared_the_nearest_to_n_is_meant() -> None:
    limits = [a_limit(100), a_limit(10_000, DAY_NS)]
    tallies = {HOUR_NS: Tally(50, 50), DAY_NS: Tally(600, 600)}

    (finding,) = compare(refusal(), limits, tallies.__getitem__, 0, peak=lambda _: Tally(9999, 9999))

    assert finding.per_ns == HOUR_NS


def test_a_named_window_leaves_only_limits_of_its_length() -> None:
    tallies = {HOUR_NS: Tally(20, 30), DAY_NS: Tally(150, 299)}

    (finding,) = compare(
        refusal(Span.HOUR), [a_limit(100), a_limit(300, DAY_NS)], tallies.__getitem__, at_ns=0
    )

    assert (finding.per_ns, finding.sent) == (HOUR_NS, 30)


def test_a_named_window_without_a_limit_is_looked_at_in_both_units() -> None:
    findings = compare(refusal(Span.DAY), [a_limit(100)], lambda _: Tally(150, 299, since_ns=5 * HOUR_NS), 0)

    assert [str(finding) for finding in findings] == [
        "cut off after 150 messages in 5 h; policy has no limit per 24h; suggested 140",
        "cut off after 299 recipients in 5 h; policy has no limit per 24h; suggested 280",
    ]


def test_without_limits_a_minute_an_hour_and_a_day_are_tried() -> None:
    findings = compare(refusal(), [], lambda span_ns: Tally(span_ns // MINUTE_NS, 0), at_ns=0)

    assert [(finding.per_ns, finding.sent) for finding in findings] == [
        (MINUTE_NS, 1),
        (HOUR_NS, 60),
        (DAY_NS, 1440),
    ]


def test_connections_are_compared_with_limits_on_connections_only() -> None:
    limits = [a_limit(100), a_limit(50, HOUR_NS, "connections")]

    (finding,) = compare(refusal(Span.HOUR, Excess.CONNECTIONS), limits, lambda _: Tally(99, 99, 7), at_ns=0)

    assert (finding.unit, finding.sent, finding.suggested) == ("connections", 7, 6)


@pytest.mark.parametrize("ruling", [refusal(excess=None), refusal(Span.DAY, excess=None)])
def test_a_refusal_of_another_kind_teaches_nothing(ruling: Ruling) -> None:
    assert compare(ruling, [a_limit(100)], lambda _: Tally(97, 97, 97), at_ns=0) == ()


def test_a_refusal_where_nothing_had_been_sent_teaches_nothing() -> None:
    refused = Tally(messages=1, recipients=3)

    assert compare(refusal(), [a_limit(100)], lambda _: refused.less(refused), at_ns=0) == ()


def test_a_limit_for_each_key_is_judged_by_no_refusal() -> None:
    limit = Effective("messages", 10, HOUR_NS, "sender", "10 messages per 3600s for each sender")

    (finding, *_) = compare(refusal(Span.HOUR), [limit], lambda _: Tally(97, 97), at_ns=0)

    assert finding.limit is None


def test_a_limit_is_lowered_to_the_suggestion() -> None:
    assert tighten(a_finding(), [a_limit(100)], []) == Lowered("recipients", HOUR_NS, 100, 90, 0)


def test_a_limit_falls_by_half_at_most_and_once_a_window() -> None:
    limits = [a_limit(100)]
    first = tighten(a_finding(sent=3), limits, [])
    assert first is not None
    assert first.count == 50

    assert tighten(a_finding(sent=3, at_ns=HOUR_NS - 1), limits, [first]) is None
    again = tighten(a_finding(sent=3, at_ns=HOUR_NS), limits, [first])
    assert again is not None
    assert again.count == 25


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 3 * HOUR_NS)), max_size=20), st.integers(1, 200)
)
def test_a_limit_in_force_only_falls_and_stays_positive(refusals: list[tuple[int, int]], count: int) -> None:
    limits, lowered, at_ns = [a_limit(count)], list[Lowered](), 0
    effective = [count]
    for sent, later_ns in refusals:
        at_ns += later_ns
        lower = tighten(a_finding(sent, count, at_ns), limits, lowered)
        lowered = lowered if lower is None else [lower]
        effective.append(in_force(limits, lowered)[0].count)

    assert all(1 <= after <= before for before, after in itertools.pairwise(effective))
    assert all(2 * after >= before for before, after in itertools.pairwise(effective))


def test_there_is_nothing_to_lower_where_the_policy_has_no_such_limit() -> None:
    assert tighten(a_finding(limit=None), [], []) is None
    assert tighten(a_finding(), [a_limit(100, DAY_NS), a_limit(100, HOUR_NS, "messages")], []) is None


def test_a_limit_of_one_is_lowered_no_further() -> None:
    assert tighten(a_finding(sent=1, limit=1), [a_limit(1)], []) is None


def test_a_lowered_limit_keeps_its_name_and_the_others_stay() -> None:
    limits = [a_limit(100), a_limit(8, MINUTE_NS)]

    assert in_force(limits, [Lowered("recipients", HOUR_NS, 100, 90, 0)]) == [
        Effective("recipients", 90, HOUR_NS, None, "100 recipients per 3600s"),
        limits[1],
    ]


@pytest.mark.parametrize(
    ("limits", "adapts"),
    [([a_limit(99)], True), ([a_limit(120)], True), ([], True), ([a_limit(100)], False)],
    ids=["lowered by hand", "raised by hand", "removed", "no adapt"],
)
def test_the_owners_edit_ends_what_was_lowered(limits: list[Effective], adapts: bool) -> None:
    lessons = Lessons((), (Lowered("recipients", HOUR_NS, 100, 90, 0),))

    assert lessons.under([a_limit(100)], adapts=True) == lessons
    assert lessons.under(limits, adapts=adapts).lowered == ()


@pytest.mark.parametrize(
    ("limits", "stays"),
    [
        ([a_limit(100)], True),
        ([a_limit(91)], True),
        ([a_limit(90)], False),
        ([a_limit(90, DAY_NS)], False),
        ([a_limit(90, MINUTE_NS)], True),
        ([a_limit(90, HOUR_NS, "messages")], True),
        ([], True),
    ],
)
def test_a_finding_stays_until_some_limit_of_the_policy_is_as_strict(
    limits: list[Effective],
    stays: bool,
) -> None:
    assert bool(Lessons((a_finding(),)).under(limits, adapts=False).findings) is stays


def test_a_finding_that_stays_tells_the_present_policy() -> None:
    (finding,) = Lessons((a_finding(),)).under([a_limit(95)], adapts=False).findings

    assert "policy says 95 per 1h; suggested 90" in str(finding)


findings = st.builds(
    Hint,
    at_ns=st.integers(0, 1 << 62),
    unit=st.sampled_from(UNITS),
    per_ns=st.integers(1, 1 << 60),
    sent=st.integers(0, 10**9),
    over_ns=st.integers(0, 1 << 60),
    limit=st.none() | st.integers(1, 10**9),
    suggested=st.integers(1, 10**9),
    named=st.none() | st.integers(1, 10**9),
)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=150), st.integers(0, 500))
@example([(1, 1)] * (2 * MOST_KEPT), MOST_KEPT)
def test_of_what_was_refused_never_less_is_known_than_there_was(
    refused: list[tuple[int, int]], after_ns: int
) -> None:
    lessons, at_ns, since = Lessons(), 0, 0
    for gap_ns, recipients in refused:
        at_ns += gap_ns
        since += recipients if at_ns > after_ns else 0
        lessons = lessons.and_refused(at_ns, Tally(1, recipients, 2))

    count = len(refused)
    assert lessons.refused_within(-1) == Tally(count, sum(recipients for _, recipients in refused), 2 * count)
    assert lessons.refused_within(after_ns).recipients >= since
    # What a few last refusals came to is known exactly.
    assert count > MOST_KEPT or lessons.refused_within(after_ns).recipients == since
    before, after = lessons.refused_within(-1, after_ns), lessons.refused_within(after_ns)
    assert before.recipients + after.recipients == sum(recipients for _, recipients in refused)
    assert LESSONS_FORMAT.parse(LESSONS_FORMAT.render(lessons)) == lessons


def test_lessons_of_before_refusals_were_kept_are_read() -> None:
    assert LESSONS_FORMAT.parse(b'{"findings": [], "lowered": []}') == Lessons()


@given(st.lists(findings, max_size=6), st.integers(1, 10**6), st.integers(0, 10**6))
def test_what_is_kept_is_read_back(found: list[Hint], count: int, more: int) -> None:
    lessons = Lessons(tuple(found), (Lowered("messages", HOUR_NS, count + more, count, 7),))

    assert LESSONS_FORMAT.parse(LESSONS_FORMAT.render(lessons)) == lessons


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"findings": 1}',
        LESSONS_FORMAT.render(Lessons((), (Lowered("messages", HOUR_NS, 10, 11, 0),))),
        LESSONS_FORMAT.render(Lessons((), (Lowered("messages", HOUR_NS, 10, 0, 0),))),
        LESSONS_FORMAT.render(Lessons((Hint(0, "messages", HOUR_NS, 5, 0, None, 0),))),
        LESSONS_FORMAT.render(Lessons((Hint(0, "messages", HOUR_NS, -1, 0, None, 1),))),
        LESSONS_FORMAT.render(Lessons((Hint(0, "messages", HOUR_NS, 5, 0, None, 1, 0),))),
        LESSONS_FORMAT.render(Lessons((), tuple(Lowered("messages", n, 2, 1, 0) for n in range(1, 500)))),
        LESSONS_FORMAT.render(Lessons(refused=(Untaken(0, 1, -1, 0),))),
        LESSONS_FORMAT.render(Lessons(refused=(Untaken(0, 1, 1, 0),) * (MOST_KEPT + 1))),
    ],
)
def test_what_would_raise_a_limit_or_is_not_ours_is_not_read(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a record of refusals"):
        LESSONS_FORMAT.parse(content)


@pytest.mark.parametrize(
    ("text", "excess"),
    [
        ("domain example.org has exceeded the max emails per hour (125/100 (125%)) allowed.", Excess.MAIL),
        ("daily user sending limit exceeded", Excess.MAIL),
        ("throttling failure: maximum sending rate exceeded", Excess.MAIL),
        ("too many recipients received this hour, only relaying 400 msg/hour!", Excess.MAIL),
        ("stop, you are sending too fast!", Excess.MAIL),
        ("maximum credits exceeded", Excess.MAIL),
        ("too many connections per minute", Excess.CONNECTIONS),
        ("too many messages per connection", None),
        ("too many connections from 192.0.2.1", None),
        ("concurrent connections limit exceeded", None),
        ("exceeded the max defers and failures per hour (5/5 (100%)) allowed", None),
        ("too many login attempts, please try again later", None),
        ("temporarily rate limited due to ip reputation", None),
        ("server busy, try again later", None),
        ("temporary system problem", None),
    ],
)
def test_what_there_was_too_much_of_is_told_by_the_words(text: str, excess: Excess | None) -> None:
    assert excess_of(text) is excess


@pytest.mark.parametrize(("days", "is_it"), [(27, False), (28, True), (31, True), (32, False)])
def test_a_month_is_any_limit_of_28_to_31_days(days: int, is_it: bool) -> None:
    (finding, *_) = compare(refusal(Span.MONTH), [a_limit(100, days * DAY_NS)], lambda _: Tally(0, 97), 0)

    assert (finding.limit == 100) is is_it


def test_a_finding_for_scripts_has_seconds_and_no_instant() -> None:
    assert finding_to_json(a_finding(at_ns=7)) == {
        "text": str(a_finding()),
        "limit": "100 recipients per 3600s",
        "unit": "recipients",
        "period_seconds": 3600,
        "sent": 97,
        "over_seconds": 3420,
        "count": 100,
        "named": None,
        "charged": None,
        "suggested": 90,
    }
