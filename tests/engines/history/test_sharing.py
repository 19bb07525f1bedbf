"""Of more shares than are kept: no key counts for less or for shorter, and what is kept is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.throttle.admission import Grant
from relay.throttle.bounds import HistoryBounds
from relay.throttle.compaction import LEAST_OF_A_SLICE, PARTS, merge, thinned
from relay.throttle.gauge import Gauge
from relay.throttle.history_format import Charged, Ended, Share
from relay.throttle.slots import SHARE_BYTES, Slots
from relay.throttle.throttle import Request
from tests.engines.history.limits import PerPeriod, messages

KEYS = "abc"
NOW_NS = 10**6
SHARES = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(1, 3)), max_size=4, unique_by=lambda each: each[0]
)
ENDS = st.lists(st.tuples(st.integers(0, NOW_NS), SHARES, SHARES), max_size=60)
AGES = st.lists(st.integers(0, NOW_NS), min_size=1, max_size=3)


def _charged(ended_at_ns: int, senders: list[tuple[str, int]], domains: list[tuple[str, int]]) -> Charged:
    shares = [Share("sender", sender, 1, count) for sender, count in senders]
    shares += [Share("recipient_domain", domain, 1, count) for domain, count in domains]
    return Charged(ended_at_ns, 4, 12, 0, ended_at_ns - 1, tuple(shares))


def _used(ended: list[Charged], limit: PerPeriod, key: str, now_ns: int) -> int:
    gauge = Gauge(limit, 0)
    for charged in ended:
        gauge.charge(charged, now_ns)
    return gauge.used(key, now_ns)


@given(ENDS, AGES, st.integers(0, 20), st.booleans(), st.booleans())
def test_no_key_counts_for_less_however_often_shares_merge(
    ends: list[tuple[int, list[tuple[str, int]], list[tuple[str, int]]]],
    ages_ns: list[int],
    most: int,
    is_merged: bool,
    is_fine: bool,
) -> None:
    exact = sorted((_charged(*each) for each in ends), key=lambda each: each.ended_at_ns)
    told, now_ns = exact, NOW_NS
    least = 1 if is_fine else LEAST_OF_A_SLICE
    for age_ns in ages_ns:
        now_ns += age_ns
        told = thinned(sorted(merge(told, now_ns)) if is_merged else told, most, now_ns, least)
        assert told == sorted(told, key=lambda each: each.ended_at_ns)
    # What has no keys is none of its business.
    if not is_merged:
        assert [each[:4] for each in told] == [each[:4] for each in exact]
    # Spans in which an end is still, by a nanosecond.
    for span_ns in {3 * NOW_NS, *(now_ns - each.ended_at_ns + 1 for each in exact[::3])}:
        for limit in (
            PerPeriod(99, span_ns, "messages", "sender"),
            PerPeriod(99, span_ns, "recipients", "recipient_domain"),
        ):
            for key in (*KEYS, "nobody"):
                assert _used(told, limit, key, now_ns) >= _used(exact, limit, key, now_ns)


def test_an_older_share_counts_longer_by_less_than_a_part_of_its_age() -> None:
    ends = [_charged(number * SECOND_NS, [(str(number % 50), 2)], []) for number in range(500)]
    now_ns = 1500 * SECOND_NS
    told = thinned(ends, 450, now_ns)
    assert sum(share.recipients > 0 for each in told for share in each.shares) < 450

    for age_s in range(1000, 1500, 50):
        span_ns = age_s * SECOND_NS
        longer_ns = span_ns * PARTS // (PARTS - 1) + 1
        for key in map(str, range(0, 50, 7)):
            most = _used(ends, PerPeriod(9999, longer_ns, for_each="sender"), key, now_ns)
            assert _used(told, PerPeriod(9999, span_ns, for_each="sender"), key, now_ns) <= most


def test_few_transactions_to_very_many_are_bounded_too() -> None:
    known = Slots(HistoryBounds(most_shares=2000))
    known.judge_by([messages(9, 60, "recipient_domain")], 0)
    most = 0
    for number in range(50):
        domains = tuple(f"d{number}-{each}.of-a-list.example" for each in range(300))
        answer = known.reserve(Request(300, recipient_domains=domains), 1, number * SECOND_NS)
        assert isinstance(answer, Grant)
        known.settle(Ended(answer.reserved.id, number * SECOND_NS + 1))
        known.written(1)
        most = max(most, known.shares_bytes)

    # What is kept, and as much again before it is looked at.
    assert most < 3 * 2000 * SHARE_BYTES
