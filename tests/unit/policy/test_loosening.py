"""Which edits allow more, and how long each has to rest."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.policy.document import read_document
from relay.policy.loosening import (
    LONG_REST_NS,
    REST_NS,
    UNSURE_REST_NS,
    Degree,
    Loosening,
    loosening,
    rest_of,
    restrained,
)
from relay.policy.model import Policy
from relay.policy.named_file import Writing
from tests.unit.policy.examples import SMALL, with_upstream
from tests.unit.policy.reading import parse

HOST = "host: smtp.example.net"
LIMIT = "limits: [{messages: 8, per: 1m}]"
TWO = "limits: [{messages: 8, per: 1m}, {recipients: 100, per: 1h}]"


def degree(old: str, new: str) -> Degree:
    return found(old, new).degree


def found(old: str, new: str) -> Loosening:
    return loosening(parse(old), parse(new), read_document(new.encode()).unfinished())


def upstream(*lines: str) -> str:
    return with_upstream(HOST, *lines)


def lanes(*lines: str) -> str:
    return SMALL + "lanes:\n" + "".join(f"  {line}\n" for line in lines)


BULK, NEWS = "bulk: {sender: '@b.example', ceiling: 50}", "news: {sender: '@n.example'}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (SMALL, SMALL),
        (SMALL, SMALL + "# a comment\n"),
        (SMALL, upstream("limits: [{messages: 7, per: 1m}]")),
        (SMALL, upstream("limits: [{messages: 8, per: 2m}]")),
        (SMALL, upstream(TWO)),
        (SMALL, upstream(LIMIT, "guard: 1s")),
        (SMALL, upstream(LIMIT, "adapt: tighten", "connections: 3", "max_recipients: 9")),
        (upstream(LIMIT, "connections: 9", "max_age: 5m"), SMALL),
        (upstream("limits: [{messages: 8, per: 1m, for_each: sender}]"), SMALL),
        (upstream(), SMALL),
        (SMALL, SMALL.replace("isp:", "other:") + "    history: /etc/relay/history/smtp.example.net\n"),
        (lanes(BULK), lanes(BULK.replace("50", "40"))),
        (SMALL + "reports: {per_hour: null}\n", SMALL + "reports: {per_hour: 9}\n"),
        (SMALL + "recent: {keep: 1d, most: 1M}\n", SMALL + "recent: null\n"),
        (SMALL + "recent: {keep: 1d, most: 1M}\n", SMALL),
        # Of what a restart takes up nothing is in force.
        (SMALL, SMALL.replace("spool: spool", "spool: other").replace("127.0.0.0/8", "10.0.0.0/8")),
    ],
)
def test_an_edit_that_allows_no_more_is_known(old: str, new: str) -> None:
    assert degree(old, new) is Degree.NOTHING


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (SMALL, upstream("limits: [{messages: 9, per: 1m}]"), "upstreams.isp.limits"),
        (SMALL, upstream("limits: [{messages: 8, per: 59s}]"), "upstreams.isp.limits"),
        (SMALL, upstream("limits: [{recipients: 8, per: 1m}]"), "upstreams.isp.limits"),
        (SMALL, upstream("limits: [{messages: 8, per: 1m, for_each: client}]"), "upstreams.isp.limits"),
        (SMALL, upstream("limits: []"), "upstreams.isp.limits"),
        (SMALL, upstream(LIMIT, "guard: 999ms"), "upstreams.isp.guard"),
        (SMALL, upstream(LIMIT, "connections: 5"), "upstreams.isp.connections"),
        (SMALL, upstream(LIMIT, "max_transaction: 29m"), "upstreams.isp.max_transaction"),
        (SMALL, upstream(LIMIT, "port: 25"), "upstreams.isp.port"),
        (
            SMALL,
            upstream(LIMIT, "verdicts: [{text: no, verdict: bounce recipient}]"),
            "upstreams.isp.verdicts",
        ),
        (SMALL, SMALL + "  two: {host: b.example.net, limits: []}\n", "upstreams.two"),
        (SMALL, SMALL + "retry: {min: 1m}\n", "retry"),
        (SMALL + "reports: {per_hour: 9}\n", SMALL + "reports: {per_hour: 10}\n", "reports.per_hour"),
        (lanes(BULK), lanes(BULK.replace("50", "51")), "lanes"),
        (lanes(BULK, NEWS), lanes(NEWS, BULK), "lanes"),
    ],
)
def test_an_edit_that_allows_more_rests(old: str, new: str, key: str) -> None:
    assert found(old, new) == Loosening(Degree.MORE, (key,))


SMALL_IN_BRACKETS = (
    "spool: spool",
    "listen: [{address: '127.0.0.1:2525'}]",
    "upstreams: {isp: {host: smtp.example.net}}",
)
TWO_UPSTREAMS = SMALL + "  two: {host: b.example.net, limits: [{messages: 1, per: 1h}]}\n"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (upstream(TWO), SMALL, "upstreams.isp.limits"),
        (TWO_UPSTREAMS, SMALL, "upstreams.two"),
        (lanes(BULK, NEWS), lanes(BULK), "lanes.news"),
        (lanes(BULK), SMALL, "lanes"),
        (SMALL, SMALL + "  two:\n    host: b.example.net\n", "upstreams.two.limits"),
        (upstream(), with_upstream("host: b.example.net"), "upstreams.isp.limits"),
        (lanes(BULK), lanes("bulk:", "  sender: '@b.example'"), "lanes.bulk.ceiling"),
        (upstream(LIMIT, "adapt: tighten"), SMALL, "upstreams.isp.adapt"),
        (upstream(LIMIT, "guard: 5s"), SMALL, "upstreams.isp.guard"),
        (SMALL, upstream(LIMIT, "shield:"), "upstreams.isp.shield"),
        (SMALL + "reports: {per_hour: 9}\n", SMALL, "reports"),
    ],
)
def test_an_edit_that_lacks_something_rests_longer(old: str, new: str, key: str) -> None:
    assert found(old, new) == Loosening(Degree.GONE, (key,))


GMAIL = "provider: gmail"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (SMALL, upstream(), "upstreams.isp.limits"),
        (upstream(TWO), upstream("port: 25"), "upstreams.isp.limits"),
        # The same account, or the rest of another one, under a new name.
        (SMALL, SMALL.replace("isp:", "new:").partition("    limits")[0], "upstreams.new.limits"),
        (SMALL, "spool: spool\nlisten: [{address: '127.0.0.1:1'}]\nupstreams:\n  new:\n    host: b.test\n",
         "upstreams.new.limits"),
        (upstream(LIMIT, "history: h"), SMALL, "upstreams.isp.history"),
        (with_upstream(GMAIL, LIMIT), with_upstream(GMAIL), "upstreams.isp.limits"),
        (with_upstream(GMAIL), with_upstream("host: smtp.gmail.com"), "upstreams.isp.limits"),
    ],
)  # fmt: skip
def test_limits_and_a_history_do_not_go_by_time_alone(old: str, new: str, key: str) -> None:
    assert found(old, new) == Loosening(Degree.UNBOUNDED, (key,))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (SMALL + "retry: {}\n", upstream() + "retry: {}\n"),
        (upstream(TWO), upstream("limits: []")),
        (SMALL, SMALL.partition("  isp:")[0] + "  isp: {host: smtp.example.net}\n"),
        (SMALL, upstream() + "  two: {host: b.example.net, limits: []}\n"),
        (lanes(BULK, NEWS) + "retry: {}\n", lanes(BULK) + "retry: {}\n"),
        (SMALL, upstream("shield:", LIMIT)),
        (TWO_UPSTREAMS, "{" + ", ".join(SMALL_IN_BRACKETS) + "}"),
    ],
)
def test_what_is_gone_before_the_end_is_gone_on_purpose(old: str, new: str) -> None:
    assert degree(old, new) is Degree.MORE


@pytest.mark.parametrize(
    ("how", "has_end", "writing", "rest_ns", "asked_ns"),
    [
        (Degree.NOTHING, False, Writing.OPEN, 0, 0),
        (Degree.MORE, True, Writing.CLOSED, REST_NS, 0),
        (Degree.MORE, True, Writing.UNKNOWN, UNSURE_REST_NS, 0),
        (Degree.MORE, False, Writing.CLOSED, LONG_REST_NS, 0),
        (Degree.MORE, True, Writing.OPEN, None, None),
        (Degree.GONE, True, Writing.CLOSED, LONG_REST_NS, 0),
        (Degree.GONE, True, Writing.OPEN, None, None),
        (Degree.UNBOUNDED, True, Writing.CLOSED, None, 0),
        (Degree.UNBOUNDED, True, Writing.OPEN, None, None),
    ],
)
def test_how_long_an_edit_rests(
    how: Degree, *, has_end: bool, writing: Writing, rest_ns: int | None, asked_ns: int | None
) -> None:
    because = Loosening(how, ("a",))
    rests = [rest_of(because, writing, has_end=has_end, is_asked=asked) for asked in (False, True)]

    assert [rest.ns for rest in rests] == [rest_ns, asked_ns]
    assert all(bool(rest.because) == (rest.ns != 0) for rest in rests)


def limit(*terms: str) -> str:
    """Return a policy with one limit, a key on each line, at the end of the file."""
    return upstream("limits:", *(("  - " if not at else "    ") + each for at, each in enumerate(terms)))


HOURS, RAMP = "hours: Mon-Fri 08:00-18:00", "ramp: {from: 10, over: 10d, since: 2026-11-01}"
A_DAY, GIGABYTE = ("messages: 500", "per: day"), ("bytes: 1G", "per: day")
OWN_RAMP = "ramp: {from: 10, over: 10d}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (limit(*GIGABYTE), limit("bytes: 1M", "per: day")),
        (limit(*A_DAY), limit("messages: 400", "per: day")),
        (limit(*A_DAY), limit("messages: 500", "per: 24h")),
        (limit("messages: 500", "per: month"), limit("messages: 500", "per: 31d")),
        (limit(*A_DAY), limit(*A_DAY, HOURS)),
        (limit(*A_DAY, HOURS), limit(*A_DAY, "hours: Mon-Thu 08:00-17:00")),
        (limit(*A_DAY, HOURS), limit(*A_DAY, "hours: 'Mon-Fri 08:00-12:00, Mon-Fri 13:00-18:00'")),
        (limit(*A_DAY, "hours: Fri 22:00-06:00"), limit(*A_DAY, "hours: Sat 00:00-06:00")),
        (limit(*A_DAY, "hours: Sun 22:00-06:00"), limit(*A_DAY, "hours: Mon 00:00-06:00")),
        (limit(*A_DAY), limit(*A_DAY, RAMP)),
        (limit(*A_DAY, RAMP), limit("messages: 10", "per: day")),
        (limit(*A_DAY, RAMP), limit("messages: 400", "per: day", RAMP)),
        (limit(*A_DAY, RAMP), limit(*A_DAY, RAMP.replace("10d", "11d"))),
        (limit(*A_DAY, RAMP), limit(*A_DAY, RAMP.replace("from: 10", "from: 9"))),
        (limit(*A_DAY, RAMP), limit(*A_DAY, RAMP.replace("11-01", "11-02"))),
    ],
)
def test_terms_that_allow_no_more_count_at_once(old: str, new: str) -> None:
    assert degree(old, new) is Degree.NOTHING


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (limit(*GIGABYTE), limit("bytes: 2G", "per: day")),
        (limit("bytes: 1G", "per: 24h"), limit(*GIGABYTE)),
        (limit("messages: 500", "per: 24h"), limit(*A_DAY)),
        (limit("messages: 500", "per: 24h"), limit("messages: 500", "per: month")),
        (limit("messages: 500", "per: month"), limit("messages: 500", "per: 30d")),
        (limit(*A_DAY, "zone: Europe/Berlin"), limit("messages: 500", "per: 24h", "zone: Europe/Berlin")),
        (limit(*A_DAY), limit("messages: 500", "per: hour")),
        (limit(*A_DAY), limit(*A_DAY, "zone: Europe/Berlin")),
        (limit(*A_DAY, HOURS), upstream(f"limits: [{{{A_DAY[0]}, {A_DAY[1]}}}]")),
        (limit(*A_DAY, HOURS), limit(*A_DAY, HOURS.replace("Fri", "Sat"))),
        (limit(*A_DAY, HOURS), limit(*A_DAY, HOURS.replace("18:00", "18:01"))),
        (limit(*A_DAY, HOURS), limit(*A_DAY, "zone: Europe/Berlin", HOURS)),
        (limit(*A_DAY, RAMP), upstream(f"limits: [{{{A_DAY[0]}, {A_DAY[1]}}}]")),
        (limit(*A_DAY, RAMP), limit(*A_DAY, RAMP.replace("10d", "9d"))),
        (limit(*A_DAY, RAMP), limit(*A_DAY, RAMP.replace("from: 10", "from: 11"))),
        (limit(*A_DAY, RAMP), limit(*A_DAY, RAMP.replace("11-01", "10-31"))),
        (limit(*A_DAY, RAMP), limit(*A_DAY, OWN_RAMP)),
        (limit(*A_DAY, OWN_RAMP), limit(*A_DAY, RAMP)),
        (limit(*A_DAY, RAMP), limit("messages: 501", "per: day", RAMP)),
    ],
)
def test_terms_that_may_allow_more_rest(old: str, new: str) -> None:
    assert found(old, new) == Loosening(Degree.MORE, ("upstreams.isp.limits",))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (limit(*A_DAY, HOURS), limit(*A_DAY), "hours"),
        (limit(*A_DAY, HOURS), limit(*A_DAY, "hours:"), "hours"),
        (limit(*A_DAY, "ramp:", "  from: 10", "  over: 10d"), limit(*A_DAY, "ramp:"), "ramp"),
        (limit(*A_DAY, "ramp:", "  from: 9", "  over: 1d", "  since: 2026-11-01"),
         limit(*A_DAY, "ramp:", "  from: 9", "  over: 1d"), "ramp.since"),
        (limit(*A_DAY, "zone: Europe/Berlin"), limit(*A_DAY), "zone"),
    ],
)  # fmt: skip
def test_a_limit_that_lost_its_last_terms_rests_longer(old: str, new: str, key: str) -> None:
    assert found(old, new) == Loosening(Degree.GONE, (f"upstreams.isp.limits[0].{key}",))


def test_half_of_a_limit_behind_a_new_one_rests_longer() -> None:
    before = upstream("limits:", "  - messages: 500", "    per: day", f"    {HOURS}")
    after = upstream("limits:", "  - {bytes: 1G, per: day}", "  - messages: 500", "    per: day")

    assert found(before, after) == Loosening(Degree.GONE, ("upstreams.isp.limits[1].hours",))


def test_what_is_tighter_holds_while_the_edit_rests() -> None:
    old, new = parse(limit(*A_DAY, HOURS)), parse(limit("messages: 5", "per: 24h"))
    dated = [
        parse(limit("messages: 50", "per: 24h", RAMP, *zone)) for zone in ([], ["zone: America/New_York"])
    ]

    both = old.upstreams["isp"].limits + new.upstreams["isp"].limits
    assert restrained(old, new).upstreams["isp"].limits == both
    # Each has a name of its own, by which metrics tell them apart.
    held = restrained(*dated).upstreams["isp"].limits
    assert len({each.label for each in held}) == len(held) == 2


LIMITS = st.lists(
    st.fixed_dictionaries(
        {"count": st.integers(1, 4), "per": st.integers(1, 4), "each": st.sampled_from([None, "sender"])}
    ),
    max_size=3,
    unique_by=lambda limit: (limit["count"], limit["per"], limit["each"]),
)
EVENTS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["a", "b"])), max_size=12)


def with_limits(limits: Sequence[Mapping[str, object]]) -> Policy:
    written = [
        f"{{messages: {limit['count']}, per: {limit['per']}s"
        + (f", for_each: {limit['each']}}}" if limit["each"] else "}")
        for limit in limits
    ]
    return parse(upstream(f"limits: [{', '.join(written)}]"))


def fits(limits: Sequence[Mapping[str, object]], times: Sequence[tuple[int, str]]) -> bool:
    """Whether no window of any limit holds too many, counted one by one."""
    for limit in limits:
        keys = ("a", "b") if limit["each"] else (None,)
        count, per = limit["count"], limit["per"]
        assert isinstance(count, int)
        assert isinstance(per, int)
        for key in keys:
            mine = [at for at, sender in times if key in (None, sender)]
            if any(last - first < per for first, last in zip(mine, mine[count:], strict=False)):
                return False
    return True


@given(LIMITS, LIMITS, EVENTS)
def test_what_allows_no_more_lets_nothing_more_through(
    old: list[dict[str, object]], new: list[dict[str, object]], events: list[tuple[int, str]]
) -> None:
    if loosening(with_limits(old), with_limits(new), ()).degree is not Degree.NOTHING:
        return
    sent: list[tuple[int, str]] = []
    at = 0
    for gap, sender in events:
        at += gap
        if fits(new, [*sent, (at, sender)]):
            sent.append((at, sender))

    assert fits(old, sent)
    assert all(first[0] <= second[0] for first, second in pairwise(sent))
