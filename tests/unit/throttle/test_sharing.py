"""Of more shares than are kept: no key counts for less or for shorter, and no busy one holds back others."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.throttle import history, slots
from relay.throttle.admission import Grant
from relay.throttle.compaction import LEAST_OF_A_SLICE, PARTS, merge, thinned
from relay.throttle.gauge import Gauge
from relay.throttle.history_format import UNKNOWN, Charged, Ended, Share
from relay.throttle.slots import Slots
from relay.throttle.throttle import Request, Reservation
from tests.fakes.clock import FakeClock
from tests.unit.throttle.limits import PerPeriod, messages, recipients, settle, throttle
from tests.unit.throttle.memory_disk import MemoryDisk

PATH = Path("/history/isp")
HOUR_NS = 3600 * SECOND_NS
KEYS = "abc"
NOW_NS = 10**6
SHARES = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(1, 3)), max_size=4, unique_by=lambda each: each[0]
)
ENDS = st.lists(st.tuples(st.integers(0, NOW_NS), SHARES, SHARES), max_size=60)
AGES = st.lists(st.integers(0, NOW_NS), min_size=1, max_size=3)


def _of(sender: str, ended_at_ns: int) -> Charged:
    return Charged(ended_at_ns, 1, 2, 0, ended_at_ns - 1, (Share("sender", sender, 1, 2),))


def _charged(ended_at_ns: int, senders: list[tuple[str, int]], domains: list[tuple[str, int]]) -> Charged:
    shares = [Share("sender", sender, 1, count) for sender, count in senders]
    shares += [Share("recipient_domain", domain, 1, count) for domain, count in domains]
    return Charged(ended_at_ns, 4, 12, 0, ended_at_ns - 1, tuple(shares))


def _used(ended: list[Charged], limit: PerPeriod, key: str, now_ns: int) -> int:
    gauge = Gauge(limit, 0)
    for charged in ended:
        gauge.charge(charged, now_ns)
    return gauge.used(key, now_ns)


def test_ends_whose_shares_were_put_together_say_so() -> None:
    told = thinned([_of("a", 1), _of("b", 2)], 1, 1 << 60)

    assert [each.is_merged for each in told] == [False, True]


def test_ends_whose_shares_stand_elsewhere_go_on_to_say_so() -> None:
    elsewhere = (Share("sender", UNKNOWN, 0, 0, 0),)
    told = thinned([Charged(at_ns, 1, 2, shares=elsewhere) for at_ns in (1, 2)], 1, 1 << 60)

    assert [each.shares for each in told] == [elsewhere, elsewhere]


@pytest.mark.parametrize("least", [1, LEAST_OF_A_SLICE])
def test_no_key_counts_for_less_however_often_shares_merge(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.throttle.compaction.LEAST_OF_A_SLICE", least)

    @settings(max_examples=100)
    @given(ENDS, AGES, st.integers(0, 20), st.booleans())
    def hold(
        ends: list[tuple[int, list[tuple[str, int]], list[tuple[str, int]]]],
        ages_ns: list[int],
        most: int,
        is_merged: bool,
    ) -> None:
        exact = sorted((_charged(*each) for each in ends), key=lambda each: each.ended_at_ns)
        told, now_ns = exact, NOW_NS
        for age_ns in ages_ns:
            now_ns += age_ns
            told = thinned(sorted(merge(told, now_ns)) if is_merged else told, most, now_ns)
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

    hold()


def test_few_shares_are_kept_as_they_are_and_of_many_the_newest_half() -> None:
    ends = [_of(f"s{number % 5}", number * SECOND_NS) for number in range(100)]
    now_ns = 200 * SECOND_NS

    assert thinned(ends, 100, now_ns) == ends
    told = thinned(ends, 99, now_ns)
    assert told[-49:] == ends[-49:]
    assert told[-50] != ends[-50]
    assert len(told) == 100


def test_an_older_share_counts_longer_by_less_than_a_part_of_its_age() -> None:
    ends = [_of(str(number % 50), number * SECOND_NS) for number in range(1000)]
    now_ns = 1500 * SECOND_NS
    told = thinned(ends, 900, now_ns)
    assert sum(share.recipients > 0 for each in told for share in each.shares) < 900

    for age_s in range(500, 1500, 50):
        span_ns = age_s * SECOND_NS
        longer_ns = span_ns * PARTS // (PARTS - 1) + 1
        for key in map(str, range(50)):
            most = _used(ends, PerPeriod(9999, longer_ns, for_each="sender"), key, now_ns)
            assert _used(told, PerPeriod(9999, span_ns, for_each="sender"), key, now_ns) <= most


def test_light_keys_count_for_no_more_than_their_heaviest() -> None:
    # Within one slice: one busy key, and a thousand that had one message each.
    ends = [_of("busy" if number % 2 else f"s{number}", number) for number in range(2000)]

    told = thinned(ends, 100, HOUR_NS)

    assert sum(share.key not in (UNKNOWN, "busy") for each in told for share in each.shares) < 150
    limit = messages(10**6, 86_400, "sender")
    assert _used(told, limit, "busy", HOUR_NS) in (1000, 1001, 1002)
    assert _used(told, limit, "nobody", HOUR_NS) in (1, 2)


def test_what_was_merged_by_the_slice_is_told_from_its_first_start() -> None:
    ends = [_of("a", 100), _of("b", 101), Charged(102, 1, 1, 0, None, (Share("client", "c", 1, 1),))]
    first, second, last = thinned(ends, 1, HOUR_NS)

    nothing = (Share("sender", UNKNOWN, 0, 0, 0),)
    assert (first.shares, second.shares, first.is_merged) == (nothing, nothing, False)
    assert (last.is_merged, last.started_at_ns) == (True, None)
    assert set(last.shares) == {
        Share("client", "c", 1, 1),
        Share("sender", "a", 1, 2),
        Share("sender", "b", 1, 2),
        # The last says nothing of its sender.
        Share("sender", UNKNOWN, 1, 1),
    }


def test_an_edit_that_leaves_a_limit_alone_forgets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "MOST_SHARES", 0)
    monkeypatch.setattr(slots, "EXACT_ENDS", 0)
    known = Slots()
    limit = messages(9, 60, "sender")
    known.judge_by([limit, recipients(7, 60, "client"), messages(8, 60)], None)
    known.learn(_of("a" if number % 3 else "b", number * SECOND_NS) for number in range(6))
    now_ns = 30 * SECOND_NS
    known.records(now_ns)
    before = known.limited(0, now_ns)

    known.judge_by([messages(5, 60), limit, recipients(3, 60, "client")], None)
    after = known.limited(0, now_ns)

    assert [(each.count, each.shared, each.of_key) for each in after] == [
        (count, before[index].shared, before[index].of_key) for count, index in ((5, 2), (9, 0), (3, 1))
    ]
    # Another span, or a grid that is another, is another window: only what memory has can fill it.
    known.judge_by([messages(9, 61, "sender"), messages(5000, 60)], None)
    other, coarse = known.limited(0, now_ns)
    assert (other.of_key != after[1].of_key, coarse.shared != after[0].shared) == (True, True)


def test_after_an_edit_a_free_key_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "MOST_SHARES", 200)
    monkeypatch.setattr(slots, "EXACT_ENDS", 50)
    monkeypatch.setattr(slots, "EXACT_SLOTS", 20)
    monkeypatch.setattr(history, "COMPACT_ABOVE_BYTES", 2000)
    disk, clock = MemoryDisk(), FakeClock()
    limits = [messages(60, 86_400, "recipient_domain")]
    account = throttle(PATH, disk, clock, limits)
    for number in range(300):
        domains = [f"d{(number * 5 + each) % 100}.example" for each in range(5)]
        (answer,) = account.reserve([Request(5, recipient_domains=tuple(domains))])
        assert isinstance(answer, Reservation)
        clock.advance(10 * SECOND_NS)
        settle(account, clock, answer)
    account.flush()

    for _ in range(2):
        for domain in ("new.example", "d1.example"):
            (answer,) = account.reserve([Request(1, recipient_domains=(domain,))])
            assert isinstance(answer, Reservation)
        account.replan([*limits, messages(60, 80_000, "recipient_domain")], 0)
        account.flush()
        account.close()
        clock.reboot(down_ns=60 * SECOND_NS)
        account = throttle(PATH, disk, clock, limits)
        account.flush()
    assert max(usage.used for usage in account.usage()) < 60


def test_few_transactions_to_very_many_are_bounded_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "MOST_SHARES", 4000)
    known = Slots()
    known.judge_by([messages(9, 60, "recipient_domain")], 0)
    most = 0
    for number in range(120):
        domains = tuple(f"d{number}-{each}.of-a-list.example" for each in range(400))
        answer = known.reserve(Request(400, recipient_domains=domains), 1, number * SECOND_NS)
        assert isinstance(answer, Grant)
        known.settle(Ended(answer.reserved.id, number * SECOND_NS + 1))
        known.written(1)
        most = max(most, known.shares_bytes)

    # What is kept, and as much again before it is looked at.
    assert most < 3 * 4000 * slots.SHARE_BYTES
